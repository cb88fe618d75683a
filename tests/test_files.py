"""Whatever is written over an older file: at any moment the old one is there or the new one, whole."""

import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest

import lfom
from lfom import InputError
from lfom.core.files import remove_partial
from lfom.report import write_report
from lfom.report.methods import plot_method
from lfom.report.plots import plot_experiment
from lfom.report.verdicts import write_verdicts
from lfom.solving.npz import write_solutions
from tests.learned_problems import fresh_regressions, learned
from tests.test_checkpoints import checkpoint
from tests.test_report import CLAIMS, small_meta, small_rows, write_folder

OLD = b"what was here before"


def save(path: Path) -> None:
    with jax.enable_x64(True):
        learned("scalar").save(path, force=True)


def solve(path: Path) -> None:
    with jax.enable_x64(True):
        write_solutions(path, learned("scalar").solve(fresh_regressions()))


def keep(path: Path) -> None:
    lfom.save(path, checkpoint(), force=True)


WRITERS: dict[str, Callable[[Path], object]] = {
    "method.safetensors": save,
    "method.png": lambda path: plot_method(learned("scalar"), path),
    "solutions.npz": solve,
    "checkpoint.safetensors": keep,
    "report.html": lambda path: write_report(path.parent),
    "verdicts.json": lambda path: write_verdicts(path.parent),
    "small/figure.png": lambda path: plot_experiment(path.parent),
}


@pytest.fixture(params=WRITERS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Callable[[], object]]:
    """A file that exists, and a function that writes it anew. It has written before: what is drawn or
    compiled for the first time may write other files too."""
    path = tmp_path / request.param
    write_folder(tmp_path / "small", small_rows(), small_meta(), CLAIMS)
    path.write_bytes(OLD)
    WRITERS[request.param](path)
    assert path.read_bytes() != OLD
    path.write_bytes(OLD)
    return path, lambda: WRITERS[request.param](path)


def test_who_reads_the_old_file_reads_all_of_it(written: tuple[Path, Callable[[], object]]) -> None:
    path, write = written
    with path.open("rb", buffering=0) as reader:
        begun = reader.read(4)
        write()
        assert begun + reader.read() == OLD
    assert path.read_bytes() != OLD


@contextlib.contextmanager
def full_disk(room: int) -> Iterator[None]:
    """No file of this process gets larger than this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    written: tuple[Path, Callable[[], object]],
) -> None:
    path, write = written
    beside = sorted(path.parent.iterdir())
    with full_disk(1), pytest.raises(InputError, match="cannot be written"):
        write()
    assert path.read_bytes() == OLD
    assert sorted(path.parent.iterdir()) == beside


def test_what_was_left_by_programs_that_were_killed_is_removed(tmp_path: Path) -> None:
    names = ["model[1].safetensors", ".model[1].safetensors.x.partial", ".model1.safetensors.x.partial", ".model[1].safetensors.old"]  # fmt: skip
    for name in names:
        (tmp_path / name).write_bytes(OLD)
    remove_partial(tmp_path / names[0])
    assert {path.name for path in tmp_path.iterdir()} == {names[0], *names[2:]}
