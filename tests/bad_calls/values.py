"""Bad values for a parameter of each kind. What is marked with Refused cannot mean anything, and must not be accepted."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lfom


@dataclass(frozen=True)
class Bad:
    """A value, in words, and whether it must be refused."""

    text: str
    value: Any
    refused: bool = False


class Thing:
    """Something that is no argument of anything."""


def refused(*values: Any) -> list[Bad]:
    return [Bad(_words(value), value, True) for value in values]


def odd(*values: Any) -> list[Bad]:
    return [Bad(_words(value), value) for value in values]


def _words(value: Any) -> str:
    text = (
        f"{value.dtype}{value.shape}" if hasattr(value, "dtype") and hasattr(value, "shape") else repr(value)
    )
    return text if len(text) < 60 else f"{text[:56]} ..."


def _never(*given: Any) -> None:
    """A function of anything that returns nothing."""


NAN, INF = math.nan, math.inf
WHOLE = refused("three", Thing(), NAN, 2.5, [], {}, 1j, True, -1, 10**30) + odd(
    None, 0, 10**12, np.int64(-3), b"1"
)
NUMBER = refused("three", Thing(), NAN, [], {}, 1j, INF) + odd(
    None, -1.0, -INF, 0.0, 1e300, 10**30, np.ones(3)
)
TEXT = refused(3, Thing(), ["a"], "no-such-name", b"text") + odd(None, "", "\0")
FLAG = refused("yes", Thing(), 2) + odd(None, [])
KEY = [
    *refused(None, 0, "key", Thing(), np.zeros(2), jnp.zeros(3)),
    Bad("two keys", jax.random.split(jax.random.key(0)), True),
]
ARRAY = refused(Thing(), "text", {}, [[1.0], [1.0, 2.0]], np.array(["a"]), 1j) + odd(
    None,
    [],
    NAN,
    np.full((2, 2), NAN),
    np.full(3, INF),
    np.zeros((0, 3)),
    np.ones((2, 3, 4, 5)),
    np.ones(7, np.float16),
    jnp.ones((3, 3), jnp.bfloat16),
    -np.ones(2),
    np.ones((3, 2), int),
)
OBJECT = refused(None, 3, "text", Thing(), [], [None], {}, {"a": None}, Thing, np.ones(3))
FUNCTION = refused(3, "text", Thing(), [])
LISTED = refused(3.5, Thing(), [None], [Thing()], ["no-such-name"], [-1]) + odd(None, [], "", {}, 2)


def paths(folder: Path) -> list[Bad]:
    """Files that are missing, damaged, of another kind, or no files."""
    damaged, empty, array = folder / "damaged.safetensors", folder / "empty.npz", folder / "one.npy"
    damaged.write_bytes(b"\x10" + b"\0" * 7 + b'{"__metadata__":{}}')
    empty.write_bytes(b"")
    np.save(array, np.ones(3))
    text = folder / "text.txt"
    text.write_text("text")
    code = folder / "wrong.py"
    code.write_text("raise RuntimeError('wrong')\n")
    folders = folder / "a folder"
    folders.mkdir()
    whole: list[Any] = [
        folder / "missing",
        folder / "no" / "where",
        folders,
        damaged,
        empty,
        array,
        text,
        code,
    ]
    return odd(*whole) + refused(None, 3, "", Thing(), "\0")


def kind_of(name: str, parameter: inspect.Parameter) -> str:
    """What a parameter takes, by its name and its annotation."""
    said = str(parameter.annotation)
    if name in NAMED:
        return NAMED[name]
    if "Callable" in said or "Watch" in said or "Tick" in said:
        return "function"
    if "Sequence" in said or "Iterable" in said or "list" in said:
        return "listed"
    for kind, words in BY_TYPE.items():
        if any(word in said for word in words):
            return kind
    return "array"


NAMED = {
    "key": "key", "path": "path", "out": "path", "structure": "listed", "types": "listed", "depths": "listed", "train": "listed",
    "contexts": "listed", "experiments": "listed", "seed": "whole", "lengths": "listed", "parts": "object", "heads_": "object",
    "progress": "function", "optimiser": "object", "dtype": "text", "kernel": "object", "reader": "text", "size": "listed",
    "methods": "object", "model": "object", "data": "object", "problems": "object", "thing": "object", "resume": "object",
}  # fmt: skip
BY_TYPE = {
    "flag": ("bool",),
    "whole": ("int",),
    "number": ("float",),
    "text": ("str",),
    "object": (
        "Distribution", "LinearRegression", "Algorithm", "Method", "Prompt", "Problem", "Link", "Kernel", "Mapping",
    ),
}  # fmt: skip


def bad_values(kind: str, files: list[Bad]) -> list[Bad]:
    """For a parameter of this kind."""
    known: dict[str, list[Bad]] = {
        "whole": WHOLE, "number": NUMBER, "text": TEXT, "flag": FLAG, "key": KEY, "array": ARRAY, "object": OBJECT,
        "function": FUNCTION, "listed": LISTED, "path": files,
    }  # fmt: skip
    return known[kind]


def others() -> list[Bad]:
    """Objects of ours in the wrong place."""
    data = lfom.LinearRegression([1.0, 0.5], context=3)
    return odd(data, lfom.gradient_descent(0.1, steps=1), lfom.InputError, data.prompts)


Make = Callable[[], Any]
