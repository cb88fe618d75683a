"""Where problems come from: a stream of pieces, each read, solved and written as a whole.

A source is a folder or a pattern of .npz shards, a list of such files, a Zarr group or other arrays with a leading axis of
problems, or an iterator of batches.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from glob import glob, has_magic
from itertools import chain
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lfom.core.checks import InputError, count
from lfom.scale.zarrs import arrays_of_group, is_group, is_store
from lfom.solving.npz import CONTENTS, problems_in, problems_of

BATCH = 10_000  # problems of a piece, where nobody says it
PER_PROBLEM = ("X", "y", "A", "b", "weights")  # arrays with a leading axis of problems


@dataclass(frozen=True)
class Piece:
    """read: reads it, now. first: the number of its first problem in arrays that hold them all."""

    name: str
    read: "Callable[[], NpzContent | Brought]"
    first: int | None = None


@dataclass(frozen=True)
class Source:
    """total: how many pieces there are; None where nobody knows. files: those that are read, if it is made of files."""

    pieces: Iterable[Piece]
    total: int | None = None
    files: tuple[Path, ...] = ()


def source_of(given: Any, batch: int | None = None) -> Source:
    """What a user names as a source."""
    if batch is not None:
        count("batch", batch)
    if isinstance(given, str | Path):
        return _on_disk(given, batch)
    if isinstance(given, Mapping):
        return _from_arrays("the arrays", dict(given), batch)
    if is_group(given):
        return _from_arrays("the Zarr group", arrays_of_group(given), batch)
    if not isinstance(given, Iterable):
        return _of_batches([given])  # one batch of problems, or what will be said to be none
    items = iter(given)
    first = next(items, None)
    if first is None:
        raise InputError("the source holds nothing: pass problems, files, or an iterator of batches.")
    every = chain([first], items)
    return _of_files([Path(one) for one in every]) if isinstance(first, str | Path) else _of_batches(every)


def _on_disk(given: str | Path, batch: int | None) -> Source:
    text, path = str(given), Path(given)
    if path.is_file():
        return _of_files([path])
    if is_store(path):
        return _from_arrays(text, arrays_of_group(path), batch)
    files = sorted(path.glob("*.npz")) if path.is_dir() else []
    if not files and has_magic(text):
        files = sorted(Path(name) for name in glob(text, recursive=True) if Path(name).is_file())
    if not files:
        raise InputError(
            f"no file is named by {text}: pass a folder of .npz files, a pattern such as 'problems/*.npz' or a Zarr group."
        )
    return _of_files(files)


def _of_files(files: list[Path]) -> Source:
    names: dict[str, Path] = {}
    for file in files:
        other = names.setdefault(file.stem, file)
        if other is not file:
            raise InputError(
                f"{other} and {file} have the same name, and so would their solutions. Rename one, or solve them apart."
            )
    pieces = [Piece(name, FileReader(file)) for name, file in names.items()]
    return Source(pieces, len(pieces), tuple(files))


def _of_batches(batches: Iterable[Any]) -> Source:
    def pieces() -> Iterator[Piece]:
        for number, one in enumerate(batches):
            name = f"{number:08d}"
            yield Piece(name, lambda: Brought(name, one))

    return Source(pieces())


def _from_arrays(name: str, arrays: dict[str, Any], batch: int | None) -> Source:
    """Pieces of so many problems; by default a chunk of the largest array, as it lies on the disk."""
    leading = {key: array.shape[:1] for key, array in arrays.items() if key in PER_PROBLEM}
    if len(set(leading.values())) != 1 or () in leading.values():
        shapes = ", ".join(f"{key} {array.shape}" for key, array in arrays.items()) or "nothing"
        raise InputError(
            f"{name} holds {shapes}: a stream needs {CONTENTS}, all with the same leading axis of problems."
        )
    total = next(iter(leading.values()))[0]
    largest = max((arrays[key] for key in leading), key=lambda array: array.size)
    chunks = getattr(largest, "chunks", None) or (BATCH,)
    size = batch or int(np.ravel(chunks[0])[0])
    starts = range(0, total, size)
    digits = len(str(total))

    def piece(first: int) -> Piece:
        end = min(first + size, total)
        return Piece(f"{first:0{digits}d}", lambda: _cut(name, arrays, first, end, total), first)

    return Source([piece(first) for first in starts], len(starts))


def _cut(name: str, arrays: dict[str, Any], first: int, end: int, total: int) -> "Brought":
    def one(key: str, array: Any) -> np.ndarray:
        # one ridge for all, or one for each
        shared = key not in PER_PROBLEM and tuple(array.shape) != (total,)
        return np.asarray(array[...] if shared else array[first:end])

    return Brought(f"{name}, problems {first} to {end - 1}", {k: one(k, a) for k, a in arrays.items()})


@dataclass(frozen=True)
class FileReader:
    """Reads one .npz file. A class, since it travels to workers."""

    path: Path

    def __call__(self) -> "NpzContent":
        try:
            return NpzContent(self.path, self.path.read_bytes())
        except OSError as error:
            raise InputError(f"{self.path} cannot be read ({error.strerror}).") from None


@dataclass(frozen=True)
class NpzContent:
    """What is in a piece. stamp: a text that differs where the content differs."""

    path: Path
    content: bytes

    def stamp(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def problems(self) -> Any:
        return problems_in(self.path, self.content)


@dataclass(frozen=True)
class Brought:
    """Problems, or a dictionary of arrays with the names that a file would have."""

    name: str
    given: Any

    def stamp(self) -> str:
        leaves, structure = jax.tree.flatten(self.given)
        found = hashlib.sha256(re.sub(r" at 0x\w+", "", str(structure)).encode())  # where functions lie
        for leaf in map(np.asarray, leaves):
            found.update(f"{leaf.shape} {leaf.dtype}".encode())
            found.update(np.ascontiguousarray(leaf).data)
        return found.hexdigest()

    def problems(self) -> Any:
        if not isinstance(self.given, Mapping):
            return self.given
        return problems_of(self.name, {key: np.asarray(array) for key, array in self.given.items()})
