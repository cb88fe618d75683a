"""Every public object in one short line."""

import dataclasses
from typing import Any

import jax
import numpy as np

LONGEST, LONGEST_TEXT = 110, 30  # characters of a line, and of a text in it


def brief(thing: Any) -> str:
    """The class of something with fields, and those of its fields that are not as they are by default.

    >>> @dataclasses.dataclass(repr=False)
    ... class Pair:
    ...     left: Any
    ...     right: int = 3
    ...     __repr__ = brief
    >>> Pair(np.zeros((2, 3))), Pair(1, right=4)
    (Pair(left=float64(2, 3)), Pair(left=1, right=4))
    """
    text = f"{type(thing).__name__}("
    for number, field in enumerate(_told(thing)):
        more = ", " * (number > 0) + f"{field.name}={in_words(getattr(thing, field.name))}"
        if len(text) + len(more) > LONGEST - 6:
            return text + ", " * (number > 0) + "...)"
        text += more
    return text + ")"


def _told(thing: Any) -> list[Any]:
    """Fields that hold something and differ from their default."""
    found = []
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name, dataclasses.MISSING)
        plain = value is None or isinstance(value, bool | int | float | str | tuple)
        if value is not None and value is not dataclasses.MISSING and not (plain and value == field.default):
            found.append(field)
    return found


def in_words(value: Any) -> str:
    """A value inside the line of another."""
    if isinstance(value, jax.core.Tracer):
        return f"{value.dtype}{value.shape}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return repr(value[: LONGEST_TEXT - 3] + "...")
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return (
            f"{value:.4g}" if value.shape == () and value.dtype.kind == "f" else f"{value.dtype}{value.shape}"
        )
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__
    if isinstance(value, list | tuple | dict | set):
        text = repr(value) if all(isinstance(one, int | float | str) for one in value) else ""
        return text if 0 < len(text) <= 40 else f"{type(value).__name__} of {len(value)}"
    text = getattr(value, "__name__", None) or repr(value)
    return text if len(text) <= 40 and "\n" not in text else type(value).__name__
