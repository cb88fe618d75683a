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


@pytest.fixture
def x64() -> Iterator[None]:
    """Float64 inside the test."""
    with jax.enable_x64(True):
        yield
