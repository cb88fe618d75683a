"""Shapes are checked at run time, in the tests only; float64 where a test asks for it."""

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from jaxtyping import install_import_hook

# The modules directly under lfom, and lfom.bench; installed before the first import of lfom.
SOURCE = Path(__file__).parents[1] / "src" / "lfom"
CHECKED = [f"lfom.{file.stem}" for file in SOURCE.glob("*.py") if not file.stem.startswith("__")]
install_import_hook([*CHECKED, "lfom.bench"], "beartype.beartype")


@pytest.fixture
def x64() -> Iterator[None]:
    """Float64 inside the test."""
    with jax.enable_x64(True):
        yield
