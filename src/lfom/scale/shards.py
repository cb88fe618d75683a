"""A stream of .npz shards on the workers of a cluster: each shard is read, solved and written by one worker.

Files are not sent. The method lies as its file in the folder of the solutions, where every worker reads it; of this
process Dask sends the names of functions, and paths, numbers and texts.
"""

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax

from lfom.core.archive import own_version
from lfom.core.checks import InputError
from lfom.core.files import write_whole
from lfom.core.user_code import classes_of, module_of
from lfom.files import read as read_method
from lfom.scale.cluster import connected, spread
from lfom.scale.ends import FAILED, PieceEnd
from lfom.scale.pieces import FileReader, Piece, Source
from lfom.scale.sinks import METHOD, Belonging, FolderSink
from lfom.scale.stages import read, solved, written


def on_cluster(
    cluster: str, origin: Source, out: Any, content: bytes | None, types: Iterable[Any]
) -> Iterator[PieceEnd]:
    """How each shard ended, as soon as it has."""
    if not origin.files or out.folder is None:
        raise InputError(
            "a cluster solves .npz files, and its solutions go to a folder. For Zarr and other arrays use Dask's own with "
            "method.map_blocks."
        )
    if not all(isinstance(one, str | Path) for one in types):
        raise InputError(
            "types: workers run files with your classes. Pass their paths, such as types=['mine.py']."
        )
    assert content is not None
    write_whole(out.folder / METHOD, content)
    _meet_first(origin, out)
    common = (
        str(out.folder.resolve()),
        out.belongs,
        out.force,
        bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        own_version(),
        tuple(str(Path(one).resolve()) for one in types),
    )
    jobs = [(file.stem, (str(file.resolve()), *common)) for file in origin.files]
    try:
        with connected(cluster) as client:
            for name, end, why in spread(client, solve_shard, jobs, waiting=1):
                yield PieceEnd(name, FAILED, message=str(why)) if end is None else end
    finally:
        out.tidy()


def _meet_first(origin: Source, out: FolderSink) -> None:
    """The first shard that can be read says what all others must be like, whoever reads them first."""
    for piece in origin.pieces:
        if out.belongs.problems is not None:
            return
        try:
            problems = piece.read().problems()
        except InputError:
            continue  # it will be named
        out.check(problems)


def solve_shard(
    file: str,
    folder: str,
    belongs: Belonging,
    force: bool,
    double: bool,
    version: str,
    types: tuple[str, ...],
) -> PieceEnd:
    """What a worker does. What may go better the next time is raised, so that it is tried again."""
    path = Path(file)
    if version != own_version():
        message = f"this worker has lfom {own_version()}, and {version} asks it: install the same."
        return PieceEnd(path.stem, FAILED, message=message)
    with jax.enable_x64(double):
        piece, sink = Piece(path.stem, FileReader(path)), FolderSink(Path(folder), belongs, force)
        passing = read(piece, sink)
        if passing.end is None:
            method = _method(folder, belongs.run, double, types)
            passing = solved(passing, lambda some: method.solve(some, belongs.steps, belongs.tolerance))
        end = written(passing, sink)
    if end.unexpected:
        raise RuntimeError(end.message)
    return end


@functools.lru_cache(maxsize=2)
def _method(folder: str, run: str, double: bool, types: tuple[str, ...]) -> Any:
    """Read once for a run: what was compiled for it is used again."""
    classes = [kind for one in types for kind in classes_of(module_of(one))]
    return read_method(Path(folder) / METHOD, classes)[0]
