"""The three stages of a piece: it is read, solved and written. Whatever goes wrong with one piece is its own end."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lfom.core.checks import InputError
from lfom.scale.ends import FAILED, PieceEnd, end_of
from lfom.scale.pieces import Piece
from lfom.scale.sinks import Sink
from lfom.solving.records import Solution

Solve = Callable[[Any], Solution]


@dataclass(frozen=True)
class Passing:
    """A piece on its way. end: how it ended, if it has; then there is nothing to do."""

    piece: Piece
    stamp: str = ""
    problems: Any = None
    solution: Solution | None = None
    end: PieceEnd | None = None

    def failed(self, message: str, unexpected: bool) -> "Passing":
        end = PieceEnd(self.piece.name, FAILED, message=message, unexpected=unexpected)
        return Passing(self.piece, end=end)


def step(stage: Callable[[Passing], Passing], passing: Passing) -> Passing:
    """What a stage makes of a piece that has not ended."""
    if passing.end is not None:
        return passing
    try:
        return stage(passing)
    except InputError as error:  # our own sentences need no name of a class before them
        return passing.failed(str(error), unexpected=False)
    except Exception as error:  # memory, a disk, a user's loss: the other pieces go on
        return passing.failed(f"{type(error).__name__}: {error}", unexpected=True)


def read(piece: Piece, sink: Sink) -> Passing:
    """Problems, unless their solutions are there."""

    def stage(passing: Passing) -> Passing:
        content = piece.read()
        stamp = content.stamp() if sink.keeps else ""
        end = sink.finished(piece, stamp)
        if end is not None:
            return Passing(piece, end=end)
        problems = content.problems()
        sink.check(problems)
        return Passing(piece, stamp, problems)

    return step(stage, Passing(piece))


def solved(passing: Passing, solve: Solve) -> Passing:
    return step(lambda p: replace(p, problems=None, solution=solve(p.problems)), passing)


def written(passing: Passing, sink: Sink) -> PieceEnd:
    def stage(p: Passing) -> Passing:
        assert p.solution is not None
        end = end_of(p.piece.name, p.solution)
        sink.write(p.piece, p.stamp, p.solution, end)
        return Passing(p.piece, end=end)

    end = step(stage, passing).end
    assert end is not None
    return end
