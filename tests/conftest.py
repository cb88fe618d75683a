"""Shapes are checked at run time, in the tests only; float64 where a test asks for it."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from jaxtyping import install_import_hook

# The modules directly under lfom, and lfom.bench; installed before the first import of lfom.
SOURCE = Path(__file__).parents[1] / "src" / "lfom"
CHECKED = [f"lfom.{file.stem}" for file in SOURCE.glob("*.py") if not file.stem.startswith("__")]
if importlib.util.find_spec("beartype"):  # not on every machine that runs the tests
    install_import_hook([*CHECKED, "lfom.bench"], "beartype.beartype")


# The tests of a file, or of files that use the same learned methods, stay in one process, which then
# compiles and learns what they share once; the longest first, so that the processes end together.
TOGETHER = {"test_learning_faults": "test_learning", "test_learning_files": "test_learning"}
LONGEST = ["test_learning", "test_shift_experiments", "test_unroll", "test_train_command", "test_adaptation",
           "test_krylov", "test_training", "test_frontends", "test_bench_solve", "test_distributions"]  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.pluginmanager.hasplugin("xdist"):
        return
    groups = {item.nodeid: TOGETHER.get(item.path.stem, item.path.stem) for item in items}
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(groups[item.nodeid], len(places)))
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups[item.nodeid]))


@pytest.fixture
def x64() -> Iterator[None]:
    """Float64 inside the test."""
    with jax.enable_x64(True):
        yield
