"""What commands read and write: problems and solutions as .npz files, methods and checkpoints; nothing in them
can run code."""

import io
import math
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic

from lfom.core.checks import InputError
from lfom.core.files import write_whole
from lfom.core.methods import Algorithm
from lfom.files import load, read
from lfom.solving import LeastSquaresProblems, LinearSystems, Solution
from lfom.training.checkpoints import Checkpoint
from lfom.training.fitting import Fit

CONTENTS = (
    "X (problems, n, d) and y (problems, n) or (problems, n, outputs), with ridge, weights (problems, n) and intercept (0 or 1) "
    "if there are any; or A (problems, d, d) and b (problems, d) or (problems, d, right-hand sides). Groups of different "
    "lengths follow one another in X (all rows, d), y and weights, and rows (problems,) says how many each has"
)
ROWS = ("X", "y", "weights")  # what has one entry per example

UNPACKED, RATIO = 100 << 20, 100  # compressed arrays: so many bytes, or so many times those of the file


def read_problems(path: Path) -> LeastSquaresProblems | LinearSystems:
    """The problems of an .npz file, in the precision of its arrays."""
    again = f"with numpy.savez: {CONTENTS}."
    arrays = _as_floats(path, load_arrays(path, f"Write it {again}", f". Write it again {again}"))
    names = set(arrays)
    if {"X", "y"} <= names <= {*ROWS, "ridge", "intercept", "rows"}:
        return _regressions(path, arrays)
    if names == {"A", "b"}:
        return LinearSystems(arrays["A"], arrays["b"])
    raise InputError(f"{path} holds {', '.join(sorted(names)) or 'nothing'}: it must hold {CONTENTS}.")


def _regressions(path: Path, arrays: dict[str, np.ndarray]) -> LeastSquaresProblems:
    given: dict[str, Any] = dict(arrays)
    lengths, intercept = given.pop("rows", None), given.pop("intercept", np.zeros(()))
    if intercept.shape != () or intercept not in (0, 1):
        raise InputError(f"intercept in {path} is {intercept}: pass 1 for one, 0 or nothing for none.")
    if lengths is not None:
        total = given["X"].shape[:1]
        whole = lengths.ndim == 1 and (lengths % 1 == 0).all() and (lengths > 0).all()
        if not whole or any((lengths.sum(),) != given[name].shape[:1] for name in ROWS if name in given):
            raise InputError(
                f"rows in {path} must be whole numbers above 0, one per problem, that add up to the rows of X, y and weights "
                f"(X has {total[0] if total else 0})."
            )
        ends = np.cumsum(lengths).astype(int)[:-1]
        given |= {name: np.split(given[name], ends) for name in ROWS if name in given}
    return LeastSquaresProblems(**given, intercept=bool(intercept))


def load_arrays(path: Path, missing: str, damaged: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file. missing, damaged: what an error adds."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _members(archive, path.stat().st_size)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist. {missing}") from None
    except Exception as error:  # zip, zlib and NumPy's parser raise a dozen kinds where a file is damaged
        why = f"{type(error).__name__}: {error}"
        raise InputError(f"{path} cannot be read as .npz ({why}){damaged}") from error


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, np.ndarray]:
    """Every member is an array, named once, and all together are no larger than the file can hold."""
    found: dict[str, np.ndarray] = {}
    most = max(UNPACKED, size * RATIO)
    if sum(info.file_size for info in archive.infolist()) > most:
        raise ValueError(f"unpacked it is larger than {most:,} bytes, the most for a file of {size:,}")
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name == info.filename or name in found:
            raise ValueError(f"the member {info.filename[:80]!r} is not an array, or is there twice")
        if info.comment:  # NumPy writes none: where its length is damaged, it swallows members that follow
            raise ValueError(f"the member {name[:80]!r} has a comment")
        try:
            found[name] = _array(archive, info)
        except Exception as error:
            raise ValueError(f"the member {name[:80]!r}: {type(error).__name__}: {error}") from error
    return found


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """One member. Its header says its size, which must be that of the member, before anything is unpacked."""
    with archive.open(info) as file:
        header = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0}[read_magic(file)]
        shape, by_columns, dtype = header(file)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or any(n < 0 for n in shape) or size != info.file_size - file.tell():
            raise ValueError(f"{dtype} of shape {shape} does not fit its {info.file_size:,} bytes")
        content = file.read()  # to its end, where the checksum of the member is compared
    array = np.frombuffer(content, dtype) if content else np.zeros(0, dtype)
    return array.reshape(shape, order="F" if by_columns else "C").copy(order="K")


def _as_floats(path: Path, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for name, array in arrays.items():
        if array.dtype.kind in "iub":
            arrays[name] = array.astype(np.float64)
        elif array.dtype not in (np.float32, np.float64):
            raise InputError(
                f"{name} in {path} has dtype {array.dtype}: pass float32 or float64, the precision to work in."
            )
    return arrays


def write_solutions(path: Path, solution: Solution) -> None:
    """w, status, steps and relative residuals, the intercept where there is one, and what each status means: the text meaning[i] belongs to the
    status meaning_of[i]."""
    meaning = solution.meaning
    behind: dict[str, Any] = (
        {} if solution.intercept is None else {"intercept": np.asarray(solution.intercept)}
    )
    content = io.BytesIO()
    np.savez(
        content,
        w=np.asarray(solution.value),
        status=np.asarray(solution.status, np.int64),
        steps=np.asarray(solution.steps, np.int64),
        residuals=np.asarray(solution.residuals),
        **behind,
        meaning_of=np.array(list(meaning), np.int64),
        meaning=np.array(list(meaning.values())),
    )
    write_whole(path, content.getvalue())


def check_out(
    path: Path,
    force: bool,
    example: str,
    instead: str = "",
    *,
    inputs: Iterable[Path] = (),
    option: str = "--out",
) -> None:
    """Refuse before any work what would fail after it. inputs: files that are never written over. instead: what
    else to do where the file exists."""
    if path.is_dir():
        raise InputError(f"{option} {path} is a folder: name a file in it, such as {path / example}.")
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: the folder {path.parent} does not exist. Create it first.")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{option} {path}: its folder cannot be written to. Choose another one.")
    if path.exists() and any(one.exists() and path.samefile(one) for one in inputs):
        raise InputError(f"{option} {path} is an input of this command. Choose another name.")
    if path.exists() and not force:
        raise InputError(f"{option} {path} exists. Pass --force to replace it, {instead}or another name.")


def check_folder(folder: Path, force: bool, names: Iterable[str]) -> None:
    """The same for a folder that files of these names go to; it may not be there yet."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file: name a folder.")
    for name in names if folder.is_dir() else ():
        check_out(folder / name, force, name)


def load_model(path: Path, types: Iterable[type] = (), depth: int | None = None) -> Algorithm:
    """The method in a file; of a checkpoint or a fit that of the first run, by default the deepest."""
    return model_of(path, load(path, types=types), depth)


def model_of(path: Path, thing: Any, depth: int | None = None) -> Algorithm:
    """The same of what was loaded."""
    try:
        if isinstance(thing, Checkpoint | Fit):
            return (thing.fit if isinstance(thing, Checkpoint) else thing).model(0, depth)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if not isinstance(thing, Algorithm):
        raise InputError(f"{path} is a {type(thing).__name__}: pass a method, a fit or a checkpoint.")
    if depth is not None and not 1 <= depth <= thing.depth:
        raise InputError(f"{path}: depth is {depth}: the method has {thing.depth} layers.")
    return thing if depth is None else thing.truncated(depth)


def load_checkpoint(path: Path, types: Iterable[type] = ()) -> tuple[Checkpoint, dict[str, Any]]:
    """A checkpoint, and what its file says of itself."""
    found, facts = read(path, types)
    if not isinstance(found, Checkpoint):
        raise InputError(f"{path} is a {facts['what']}, not a checkpoint: pass a file of `lfom train`.")
    return found, facts


def accuracy_rows(accuracy: Any) -> list[dict[str, Any]]:
    """Expected accuracy, one row per step."""
    columns = zip(accuracy.median, accuracy.lower, accuracy.upper, strict=True)
    return [
        {"step": step, "median": m, "lower_quartile": lo, "upper_quartile": up}
        for step, (m, lo, up) in enumerate(columns)
    ]
