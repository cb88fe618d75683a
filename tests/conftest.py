"""Shapes are checked at run time, in the tests only; float64 where a test asks for it."""

import gc
import importlib.util
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

# Before JAX is imported: for every program that it reads back XLA writes two kilobytes to stderr about the machine, which
# fill the pipe of a process that nobody listens to until it ends.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import pytest
from jaxtyping import install_import_hook

from tests import slow

# Two thirds of the time of the tests is compiling: what one process has compiled, others and the next run read.
COMPILED = Path(__file__).parent.parent / "build" / "compiled"
for name, value in {
    "jax_compilation_cache_dir": str(COMPILED),
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}.items():
    if name.upper() not in os.environ:
        os.environ[name.upper()] = str(value)  # for processes that tests start
        jax.config.update(name, value)

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


# Half the time to compile, of jaxlib 0.10; what is compiled is slower, and rounds as it does with optimisations or a little otherwise.
# A flag that jaxlib does not know ends the process without a word: 0.12 has no choice of emitters any more.
COMPILE_QUICKLY = "--xla_backend_optimization_level=0"
if jax.__version_info__ < (0, 11):
    one = "--xla_cpu_parallel_codegen_split_count=1"
    COMPILE_QUICKLY = f"--xla_cpu_use_fusion_emitters=false {one} {COMPILE_QUICKLY}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="compiled quickly, and without the tests of tests/slow.txt"
    )
    parser.addoption("--compiled-quickly", action="store_true", help="as with --quick, but all tests")
    parser.addoption("--times", type=Path, help="add the processor time of every test to this file")


def pytest_configure(config: pytest.Config) -> None:
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # begun in the background of a shell: processes of tests inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    quickly = config.getoption("--quick") or config.getoption("--compiled-quickly")
    if quickly and COMPILE_QUICKLY not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {COMPILE_QUICKLY}".strip()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        left_out = slow.listed()
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    file, before = item.config.getoption("--times"), sum(os.times()[:4])
    found = yield
    if file:
        row = {"test": item.nodeid, "seconds": round(sum(os.times()[:4]) - before, 2)}
        with open(file, "a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")
    return found


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
