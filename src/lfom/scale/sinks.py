"""Where solutions go: a folder of .npz shards, a Zarr group, or a function.

What keeps solutions also keeps what they belong to: the method and the options once, for all of them, and the checksum of
the problems beside every piece. So a stream that was stopped goes on where it was, and nothing takes the place of
something else without being told to.
"""

import abc
import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lfom.core import archive
from lfom.core.checks import InputError
from lfom.core.files import PARTIAL, own_folder, write_whole
from lfom.scale.ends import PieceEnd, as_json, from_json
from lfom.scale.pieces import Piece
from lfom.scale.zarrs import is_group, is_store, opened, write_rows
from lfom.solving.npz import as_npz, member, solution_arrays
from lfom.solving.records import Solution

MARK = ".lfom-solutions.json"  # a folder with this file is ours to write into
METHOD = ".lfom-method.safetensors"
# Seconds after which nobody is writing any more: another process may be at work in the same folder.
OLD = 60.0
RECORD = "record"  # the member of a shard that says what it belongs to


@dataclass(frozen=True)
class Belonging:
    """What all solutions of one place have in common. method: a checksum of its numbers and its classes. problems: their
    kind, shape and precision, in words; None as long as none was read."""

    method: str
    steps: int | None
    tolerance: float | None
    problems: str | None = None

    @property
    def run(self) -> str:
        """A short text that differs where method or options differ."""
        return hashlib.sha256(repr((self.method, self.steps, self.tolerance)).encode()).hexdigest()[:16]

    def differs(self, found: "Belonging") -> str | None:
        """In words, how what was found differs from what is asked for."""
        if self.run == found.run:
            return None
        other = [name for name in ("steps", "tolerance") if getattr(self, name) != getattr(found, name)]
        if not other:
            return "holds solutions of another method"
        there, here = (", ".join(f"{name} {getattr(one, name)}" for name in other) for one in (found, self))
        return f"holds solutions with {there}, and {here} was asked for"


def method_checksum(content: bytes) -> str:
    """Of the method in a file, whatever versions wrote it."""
    facts, tensors = archive.unpacked(content)
    found = hashlib.sha256(json.dumps(facts["content"], sort_keys=True).encode())
    for name in sorted(tensors):
        found.update(f"{name} {tensors[name].dtype} {tensors[name].shape}".encode() + tensors[name].tobytes())
    return found.hexdigest()


def in_words(problems: Any) -> str:
    sides = "" if problems.sides is None else f", {problems.sides} right-hand sides"
    return f"{problems.kind} of {problems.shape} unknowns{sides} in {problems.dtype}"


class Sink(abc.ABC):
    """keeps: whether it remembers what is finished, so that pieces need a checksum. folder: that its files go to."""

    keeps: bool = False
    folder: Path | None = None

    def finished(self, piece: Piece, stamp: str) -> PieceEnd | None:
        """How it ended before; None if it is to be solved."""
        return None

    def check(self, problems: Any) -> None:  # noqa: B027 - where nothing is kept, there is nothing to be like
        """Refuse problems that are not like the others here."""

    @abc.abstractmethod
    def write(self, piece: Piece, stamp: str, solution: Solution, end: PieceEnd) -> None:
        """Whole or not at all."""


class FunctionSink(Sink):
    """Calls function(name, solution), one after the other, in the order of the pieces."""

    def __init__(self, function: Callable[[str, Solution], Any]):
        self.function = function

    def write(self, piece: Piece, stamp: str, solution: Solution, end: PieceEnd) -> None:
        self.function(piece.name, solution)


class KeepingSink(Sink):
    """What a folder and a Zarr group share. belongs: to what; force: replace what belongs to something else."""

    keeps = True

    def __init__(self, where: str, belongs: Belonging, force: bool):
        self.where, self.belongs, self.force = where, belongs, force

    @abc.abstractmethod
    def remember(self) -> None:
        """Write down what the solutions here belong to."""

    @abc.abstractmethod
    def record(self, piece: Piece) -> dict[str, Any] | None:
        """What is written beside the solutions of a piece; None where there are none."""

    def meet(self, found: Belonging | None) -> bool:
        """Take over what is known of the solutions that are there, or refuse them; whether they are to be removed."""
        if found is None:
            return False
        wrong = self.belongs.differs(found)
        if wrong is None:
            self.belongs = found
            return False
        if not self.force:
            raise InputError(
                f"{self.where} {wrong}. Choose another place, or replace what is there with --force (force=True)."
            )
        return True

    def finished(self, piece: Piece, stamp: str) -> PieceEnd | None:
        kept = self.record(piece)
        if kept is None:
            return None
        if (kept["run"], kept["input"]) == (self.belongs.run, stamp):
            return from_json(piece.name, kept)
        if self.force:
            return None
        raise InputError(
            f"{self.where} holds solutions of other problems under the name {piece.name}, and nothing was changed. Remove "
            "them, choose another place, or replace them with --force (force=True)."
        )

    def check(self, problems: Any) -> None:
        words = in_words(problems)
        if self.belongs.problems is None:
            self.belongs = replace(self.belongs, problems=words)
            self.remember()
        elif self.belongs.problems != words:
            raise InputError(
                f"these are {words}, and the others {self.belongs.problems}. Solve them apart, with a place of their own."
            )

    def recorded(self, stamp: str, end: PieceEnd) -> dict[str, Any]:
        return {"run": self.belongs.run, "input": stamp, **as_json(end)}


class FolderSink(KeepingSink):
    """One .npz file per piece, with the arrays that `lfom solve` writes and a text `record`, in the same file: a shard and
    what it belongs to are there together, or not at all."""

    def __init__(self, folder: Path, belongs: Belonging, force: bool = False):
        super().__init__(str(folder), belongs, force)
        self.folder: Path = folder

    def prepare(self, inputs: tuple[Path, ...] = ()) -> None:
        """Make the folder, or say at once why it cannot be used."""
        folder = self.folder
        if any(file.resolve().parent == folder.resolve() for file in inputs):
            raise InputError(f"--out {folder} is the folder of the problems: name another one.")
        own_folder(folder, MARK, "solutions")
        self.tidy(OLD)
        if self.meet(self._there()):
            for shard in folder.glob("*.npz"):
                shard.unlink()
        self.remember()

    def tidy(self, older: float = 0.0) -> None:
        """Remove what was left by programs that were killed while they wrote, so many seconds ago or more."""
        for left in self.folder.glob(f".*{PARTIAL}"):
            with suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime >= older:
                    left.unlink()

    def _there(self) -> Belonging | None:
        path = self.folder / MARK
        try:
            return Belonging(**json.loads(path.read_text("utf8"))) if path.exists() else None
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"{path} is damaged ({error}), so that nobody knows what the solutions beside it are of. Choose another "
                "folder, or remove this one."
            ) from None

    def remember(self) -> None:
        write_whole(self.folder / MARK, json.dumps(asdict(self.belongs), indent=1).encode())

    def record(self, piece: Piece) -> dict[str, Any] | None:
        path = self.folder / f"{piece.name}.npz"
        if not path.exists():
            return None
        try:
            return json.loads(str(member(path, RECORD)))
        except Exception as error:  # zip, NumPy and JSON have a dozen kinds for a damaged file
            if self.force:
                return None
            raise InputError(
                f"{path} is there and is no shard of solutions that can be read ({type(error).__name__}: {error}). Remove it, "
                "or replace it with --force (force=True)."
            ) from None

    def write(self, piece: Piece, stamp: str, solution: Solution, end: PieceEnd) -> None:
        record = np.array(json.dumps(self.recorded(stamp, end)))
        arrays = {**solution_arrays(solution), RECORD: record}
        write_whole(self.folder / f"{piece.name}.npz", as_npz(arrays))


class ZarrSink(KeepingSink):
    """One array each of w, status, steps and residuals, with all problems on the leading axis. The attribute `lfom` says
    what they belong to, and of every finished piece where it lies: it is written last. Pieces of a source that knows
    their places stand there; others follow one another."""

    def __init__(self, given: Any, belongs: Belonging, force: bool = False):
        self.group = opened(given)
        super().__init__(str(given), belongs, force)
        self.pieces: dict[str, Any] = {}
        found = self.group.attrs.get("lfom")
        if found is None and len(list(self.group.keys())):
            raise InputError(
                f"{self.where} holds something else than solutions of lfom: name an empty or a new group."
            )
        try:
            there, pieces = (None, {}) if found is None else (Belonging(**found["belongs"]), found["pieces"])
        except (TypeError, KeyError):
            raise InputError(
                f"the attribute `lfom` of {self.where} is damaged, so that nobody knows what its solutions are of. Choose "
                "another group, or remove this one."
            ) from None
        if self.meet(there):
            for name in list(self.group.keys()):
                del self.group[name]
        else:
            self.pieces = pieces
        self.remember()

    def remember(self) -> None:
        self.group.attrs["lfom"] = {"belongs": asdict(self.belongs), "pieces": self.pieces}

    def record(self, piece: Piece) -> dict[str, Any] | None:
        return self.pieces.get(piece.name)

    def write(self, piece: Piece, stamp: str, solution: Solution, end: PieceEnd) -> None:
        first = piece.first
        if first is None:
            first = max((p["first"] + p["problems"] for p in self.pieces.values()), default=0)
            before = self.pieces.get(piece.name)
            if before is not None and before["problems"] == end.problems:
                first = before["first"]
        arrays = solution_arrays(solution)
        if self.pieces.pop(piece.name, None) is not None:
            self.remember()  # while its rows are replaced it is not finished
        for name in ("w", "status", "steps", "residuals", "intercept"):
            if name in arrays:
                # one problem comes without an axis
                rows = arrays[name] if np.ndim(solution.status) else arrays[name][None]
                write_rows(self.group, name, first, rows, end.problems)
        self.pieces[piece.name] = {"first": first, **self.recorded(stamp, end)}
        self.remember()


def sink_of(given: Any, belonging: Callable[[], Belonging], force: bool, inputs: tuple[Path, ...]) -> Sink:
    """What a user names as a sink, ready to be written to."""
    if callable(given):
        return FunctionSink(given)
    if is_group(given) or (isinstance(given, str | Path) and is_store(Path(given))):
        return ZarrSink(given, belonging(), force)
    if not isinstance(given, str | Path):
        raise InputError(
            f"sink is a {type(given).__name__}: pass the path of a folder, a Zarr group, or a function (name, solution)."
        )
    folder = FolderSink(Path(given), belonging(), force)
    folder.prepare(inputs)
    return folder
