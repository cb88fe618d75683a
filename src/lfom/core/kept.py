"""What is made once: what several fits can use, where whoever calls them says; and what is made of a method that exists."""

import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from lfom.core.checks import is_concrete

# (a name that tells all it depends on, how it is made) -> itself
Keep = Callable[[Any, Callable[[], Any]], Any]


def anew(name: Any, make: Callable[[], Any]) -> Any:
    """Nothing is kept."""
    return make()


def lasts(tree: Any) -> bool:
    """Whether it has values that nobody can change."""
    return not any(isinstance(leaf, np.ndarray) or not is_concrete(leaf) for leaf in jax.tree.leaves(tree))


class AsLongAs:
    """make(thing), kept as long as that thing exists; made anew where its numbers may change. What is made must not hold the thing."""

    def __init__(self, make: Callable[[Any], Any]):
        self.make = make
        self.known: dict[int, tuple[Any, Any]] = {}  # by identity

    def __call__(self, thing: Any) -> Any:
        number = id(thing)
        if number in self.known:
            return self.known[number][1]
        made = self.make(thing)
        if lasts(thing):
            self.known[number] = weakref.ref(thing, lambda _: self.known.pop(number, None)), made
        return made
