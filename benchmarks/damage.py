"""Damaged files of every kind: each must be refused with an InputError, or give the same content.

    python benchmarks/damage.py            # 2,000 damaged files and 1,000 single-bit flips of each kind: minutes

Kinds of damage: bytes changed, cut out or put in; for our own format also values of the header changed and the
checksum made right again ("signed": what anybody could write); for .npz files members that are not arrays, headers
that ask for too much, compressed and then damaged. A signed file may load as something else, as long as that is
well-formed. Ends with 1 if anything else happens, if a flip of one of our files is not refused, or if the process
takes more than a gigabyte.
"""

import argparse
import copy
import io
import json
import random
import resource
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import lfom
from lfom.core import archive
from lfom.core.content import described
from lfom.solving.npz import read_problems
from lfom.training.checkpoints import Checkpoint, regressions

MOST_MEMORY = 1e9  # bytes
NASTY: tuple[Any, ...] = (
    0, -1, 10**6, 10**12, 10**400, 1e308, 0.5, True, None, "", "x" * 100_000, [], {}, [[]], {"tuple": []},
    {"class": "Method", "fields": {}}, {"class": "os", "fields": {}}, {"array": "none"}, {"float": "inf"}, {"dict": {}},
)  # fmt: skip


def things() -> dict[str, Any]:
    """One of each kind that lfom.save writes."""
    key = jax.random.key(0)
    data = regressions((1.0, 0.5), 6, 2, 0)
    model = lfom.memformer(2, 2, memory="register", preconditioner="shared", key=key)
    checkpoints: list[Checkpoint] = []
    start = Checkpoint(model, data, (1, 2), (("A", "coefficients"),), lfom.LeastSquares(400, 400, (1, 1)), 0)

    def watch(state: Any, record: Any) -> None:
        checkpoints.append(Checkpoint(**{**vars(start), "state": state}))

    fit = lfom.fit(model, data, key=key, depths=(1, 2), optimiser=start.optimiser, watch=watch)
    X = np.random.default_rng(0).normal(size=(60, 12, 4)).astype(np.float32)
    learned = lfom.learn(lfom.LeastSquaresProblems(X, X.sum(-1), np.float32(0.01)), 3, "scalar")
    heads = [lfom.memformer(2, 2, memory=name, key=key) for name in ("bank", "conjugate")]
    return {"model": lfom.mixture(heads), "method": learned, "fit": fit, "checkpoint": checkpoints[-1]}


def problems(compressed: bool) -> bytes:
    rng = np.random.default_rng(0)
    content = io.BytesIO()
    arrays = {"X": rng.normal(size=(3, 5, 2)).round(1), "y": rng.normal(size=(3, 5)), "ridge": np.array(0.1)}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    (np.savez_compressed if compressed else np.savez)(content, **arrays)
    return content.getvalue()


def fingerprint(thing: Any) -> Any:
    """What is the same for the same content only."""
    if isinstance(thing, lfom.LeastSquaresProblems):
        return [np.asarray(a).tobytes() for a in (thing.X, thing.y, thing.ridge)]
    tensors: dict[str, np.ndarray] = {}
    return json.dumps(described(thing, "it", tensors, {})), {n: a.tobytes() for n, a in tensors.items()}


def flips(content: bytes, dice: random.Random, count: int) -> Iterator[bytes]:
    for _ in range(count):
        changed = bytearray(content)
        changed[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        yield bytes(changed)


def raw(content: bytes, dice: random.Random) -> bytes:
    """Bytes changed, cut out or put in."""
    at, size = dice.randrange(len(content)), dice.choice([1, 2, 8, 100])
    rest = at + dice.choice([0, size])
    new = dice.choice([b"", dice.randbytes(size), content[:size], b"\0" * size, b"[" * 10_000])
    ends = [content[:at], content + new, new + content, content[:at] + new + content[rest:]]
    return dice.choice([end for end in ends if end != content])


def signed(content: bytes, dice: random.Random) -> bytes:
    """A value of the header changed, or the header nested or huge, and the checksum made right again."""
    facts, tensors = archive.unpacked(content)
    if dice.random() < 0.1:
        size = 8 + int.from_bytes(content[:8], "little")
        text = content[8:size]
        begin = text[: text.index(b'"lfom"')]
        header = dice.choice(
            [
                begin + b'"lfom":' + b"[" * 10_000 + b"]" * 10_000 + b"}}",
                begin + b'"lfom":"' + b"[" * 10_000 + b'"}}',
                begin + b'"lfom":"{}"},"t":[' + b"[]," * 3_000_000 + b"[]]}",
                begin + b'"lfom":"{}"},"t":{"dtype":"F64","shape":[1000000,1000000],"data_offsets":[0,8]}}',
                text.replace(b'"shape":[', b'"shape":[1000000000000,', 1),
                text.replace(b'"dtype":"F', b'"dtype":"X', 1),
                text.replace(b"data_offsets", b"data_offset", 1),
                text[:-9],
                text + b"{}",
            ]
        )
        made = len(header).to_bytes(8, "little") + header + content[size:]
        return made[: archive.PLACE] + archive.checksum(made) + made[archive.PLACE + archive.DIGITS :]
    facts = copy.deepcopy(facts)
    places = list(_places(facts))
    where, key = dice.choice(places)
    how = dice.random()
    if how < 0.6:
        where[key] = copy.deepcopy(dice.choice(NASTY))
    elif how < 0.7:
        deep: Any = 1
        for _ in range(dice.choice([70, 300])):
            deep = [deep]
        where[key] = deep
    elif how < 0.8:
        other, name = dice.choice(places)
        where[key] = copy.deepcopy(other[name])
    elif isinstance(where, dict):
        value = where.pop(key)
        where.update({f"{key}_": value} if how < 0.9 else {})
    else:
        where.append(1)
    if dice.random() < 0.2:
        tensors[dice.choice(list(tensors))] = np.full(3, np.nan)
    return archive.packed(facts, tensors)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every value in a tree of JSON, by what holds it and where."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])


def members(content: bytes, dice: random.Random) -> bytes:
    """An .npz file of which one member is something else, or damaged and compressed again."""
    with zipfile.ZipFile(io.BytesIO(content)) as whole:
        parts = {name: whole.read(name) for name in whole.namelist()}
    name = dice.choice(list(parts))
    part = parts[name]
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}], dtype=object), allow_pickle=True)

    def asking(shape: str, descr: str = "'<f8'") -> bytes:
        text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + part[128:]

    at = dice.randrange(len(part))
    parts[name] = dice.choice(
        [
            b"", b"not an array", pickled.getvalue(), part[:at], part + b"\0", part[:at] + b"(" + part[at + 1 :],
            asking("(1000000000000,)"), asking("(-1,)"), asking("(" * 400), asking("(3,)", "'|O'"), asking("'x'"),
            asking("(3,)", "'<f9'"), asking("(1.5,)"), asking("()", "[('a', '<f8')]"), b"\x93NUMPY\x07\x00" + part[8:],
            b"\x93NUMPY\x02\x00" + b"\xff" * 4 + part[12:],
        ]
    )  # fmt: skip
    if dice.random() < 0.1:
        parts["notes.txt"] = b"text"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", dice.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as again:
        for each, value in parts.items():
            again.writestr(zipfile.ZipInfo(each), value, compress_type=again.compression)
    return out.getvalue() if dice.random() < 0.7 else next(flips(out.getvalue(), dice, 1))


def outcome(path: Path, content: bytes, read: Callable[[Path], Any], wanted: Any) -> str:
    path.write_bytes(content)
    try:
        found = read(path)
    except lfom.InputError:
        return "refused"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:100]
    return "same" if fingerprint(found) == wanted else "other"


def kinds(folder: Path) -> Iterator[tuple[str, bytes, Callable[[Path], Any], Callable[..., bytes]]]:
    """Name, content, what reads it, and its own way of being damaged."""
    for name, thing in things().items():
        lfom.save(folder / name, thing)
        yield name, (folder / name).read_bytes(), lfom.load, signed
    yield "npz", problems(False), read_problems, members
    yield "npz, compressed", problems(True), read_problems, members


def tried(mutants: int, single: int, seed: int, folder: Path) -> Iterator[tuple[str, str, Counter[str]]]:
    """Kind of file, kind of damage, and how often what happened."""
    dice, path = random.Random(seed), folder / "damaged.npz"
    for name, content, read, own in kinds(folder):
        path.write_bytes(content)
        wanted = fingerprint(read(path))
        label = "signed" if own is signed else "members"
        ways = {
            "flips": flips(content, dice, single),
            "bytes": (raw(content, dice) for _ in range(mutants // 2)),
            label: (own(content, dice) for _ in range(mutants - mutants // 2)),
        }
        for way, damaged in ways.items():
            yield name, way, Counter(outcome(path, one, read, wanted) for one in damaged)


def accepted(name: str, way: str, found: Counter[str]) -> bool:
    """Flips of our own files are all refused. What others may write into a header with a right checksum, or
    into the arrays of an .npz file, may load as something else."""
    if way == "flips" and not name.startswith("npz"):
        return set(found) == {"refused"}
    return set(found) <= {"refused", "same"} | ({"other"} if way in ("signed", "members") else set())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutants", type=int, default=2_000)
    parser.add_argument("--flips", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    good = True
    print(
        f"{'file':16s} {'damage':8s} {'tried':>6s} {'refused':>8s} {'same':>5s} {'other':>6s}  anything else"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, way, found in tried(options.mutants, options.flips, options.seed, Path(folder)):
            good &= accepted(name, way, found)
            rest = {what: n for what, n in found.items() if what not in ("refused", "same", "other")}
            counts = f"{found.total():6d} {found['refused']:8d} {found['same']:5d} {found['other']:6d}"
            print(f"{name:16s} {way:8s} {counts}  {rest or ''}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"peak memory {peak / 1e6:.0f} MB (below {MOST_MEMORY / 1e6:.0f} MB is asked for)")
    return 0 if good and peak < MOST_MEMORY else 1


if __name__ == "__main__":
    sys.exit(main())
