"""lfom.solve_stream: problems that need not fit into memory, read, solved and written side by side."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

from lfom.core import checks
from lfom.core.checks import InputError
from lfom.core.methods import Algorithm
from lfom.files import as_bytes
from lfom.scale.ahead import ahead
from lfom.scale.ends import PieceEnd, Summary
from lfom.scale.pieces import Source, source_of
from lfom.scale.shards import on_cluster
from lfom.scale.sinks import Belonging, FunctionSink, Sink, method_checksum, sink_of
from lfom.scale.stages import Passing, Solve, read, solved, written
from lfom.solving.records import Solution

Told = Callable[[Summary, int | None], None]  # (what was done so far, how many pieces there are)


def solve_stream(
    method: Algorithm,
    source: Any,
    sink: Any = None,
    *,
    steps: int | None = None,
    tolerance: float | None = None,
    batch: int | None = None,
    force: bool = False,
    cluster: str | None = None,
    types: Iterable[Any] = (),
    progress: Told | None = None,
) -> Any:
    """Solve a stream of problems piece by piece: a `Summary`, or, without a sink, an iterator of solutions.

    Reading, solving and writing overlap, each in a thread of its own; at most seven pieces are in memory at a time.

    source: a folder of .npz files such as `lfom solve` reads, a pattern ("problems/*.npz") or a list of such files; a Zarr
    group (or its path), or a dictionary of arrays with a leading axis of problems, of which `batch` problems at a time
    are read (by default a chunk); or any iterator of batches: lfom's problems, or dictionaries of arrays. sink: a
    folder, which gets one .npz file per piece; a Zarr group, or a path that ends in .zarr; or a function that is
    called with the name of every piece and its solution, in order. A folder and a group remember what is finished:
    the same call goes on where it was stopped. force: replace solutions of another method, other options or other
    problems, which are refused otherwise. steps, tolerance: as in `Method.solve`.

    A piece that cannot be read or solved, or is unlike the others, is named in `summary.failed`; all others are finished.
    Without a sink nobody would read that, so it is raised.

    cluster: "local:N" for N processes of one core each, or the address of a Dask scheduler whose workers see the same
    files; from .npz files to a folder. types: files with your own classes that the method is made of (see `lfom.load`),
    for the workers. progress(summary, pieces or None): called after every piece.

    >>> import numpy as np
    >>> import lfom
    >>> def batches():
    ...     for seed in range(3):
    ...         X = np.random.default_rng(seed).normal(size=(50, 20, 4)).astype(np.float32)
    ...         yield lfom.LeastSquaresProblems(X, X.sum(axis=2))
    >>> found = []
    >>> summary = lfom.solve_stream(
    ...     lfom.conjugate_gradient(4), batches(), lambda name, solution: found.append(solution.value)
    ... )
    >>> summary.problems, summary.ok, len(found)
    (150, True, 3)
    """
    checks.flag("force", force)
    checks.function("progress", progress, "a function that is told how far the stream is")
    _check(method, steps, tolerance)

    def solve(problems: Any) -> Solution:
        return method.solve(problems, steps, tolerance)

    if sink is None:
        if cluster is not None:
            raise InputError("cluster needs a sink, a folder that all workers see. Pass one.")
        return _solutions(source_of(source, batch), solve)
    origin = source_of(source, batch)
    content = None if callable(sink) else as_bytes(method, "a worker")

    def belonging() -> Belonging:
        assert content is not None
        return Belonging(method_checksum(content), steps, None if tolerance is None else float(tolerance))

    out = sink_of(sink, belonging, force, origin.files)
    ends = (
        on_cluster(cluster, origin, out, content, types) if cluster is not None else _ends(origin, out, solve)
    )
    return _summary(ends, origin.total, progress)


def _check(method: Any, steps: Any, tolerance: Any) -> None:
    if not callable(getattr(method, "solve", None)):
        raise InputError(f"method is a {type(method).__name__}: pass a method, such as lfom.load returns.")
    if steps is not None:
        checks.count("steps", steps)
    if tolerance is not None:
        checks.positive("tolerance", tolerance)


def _solved_pieces(origin: Source, out: Sink, solve: Solve) -> Iterator[Passing]:
    """Two stages in threads of their own; the third is the reader's."""
    problems = ahead(read(piece, out) for piece in origin.pieces)
    return ahead(solved(passing, solve) for passing in problems)


def _ends(origin: Source, out: Sink, solve: Solve) -> Iterator[PieceEnd]:
    with closing(_solved_pieces(origin, out, solve)) as every:  # type: ignore[type-var]
        for passing in every:
            yield written(passing, out)


def _solutions(origin: Source, solve: Solve) -> Iterator[Solution]:
    with closing(_solved_pieces(origin, FunctionSink(print), solve)) as every:  # type: ignore[type-var]
        for passing in every:
            if passing.end is not None:
                raise InputError(f"piece {passing.piece.name}: {passing.end.message}")
            assert passing.solution is not None
            yield passing.solution


def _summary(ends: Iterable[PieceEnd], total: int | None, progress: Told | None) -> Summary:
    found = Summary()
    with closing(ends):  # type: ignore[type-var]
        for end in ends:
            found.add(end)
            if progress is not None:
                progress(found, total)
    return found
