"""Shapes are checked at run time, in the tests only; float64 where a test asks for it."""

import gc
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from jaxtyping import install_import_hook

# Installed before the first import of lfom: every module of a folder that says shapes is checked.
HAVE_SHAPES = (
    "core", "prompts", "methods", "limits", "training", "adaptation", "solving", "experiments", "bench",
)  # fmt: skip
if importlib.util.find_spec("beartype"):  # not on every machine that runs the tests
    importlib.import_module("tests.typechecker")
    install_import_hook([f"lfom.{name}" for name in HAVE_SHAPES], "tests.typechecker.checked")


# With --dist loadfile the tests of a file stay in one process, which compiles and learns what they share
# once; the longest files first, so that the processes end together.
LONGEST = ["test_cluster", "test_hosts", "test_train_command", "test_shift_experiments", "test_learning", "test_unroll", "test_adaptation", "test_docs",
           "test_krylov", "test_learning_faults", "test_training", "test_frontends", "test_bench_solve"]  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


MAPS = Path("/proc/self/maps")  # of Linux: what a process has mapped, some places for every compiled program
MOST_MAPS = 20_000  # a process may have 65,530 by default, and ends with a segmentation fault beyond


@pytest.fixture(autouse=True, scope="module")
def _few_programs() -> Iterator[None]:
    """Compiled programs are let go between files, once there are many."""
    yield
    if MAPS.exists() and len(MAPS.read_bytes().splitlines()) > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def x64() -> Iterator[None]:
    """Float64 inside the test."""
    with jax.enable_x64(True):
        yield
