"""A tree of unknowns, and the vector of all its numbers that a method sees."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core.checks import InputError


@dataclass(frozen=True)
class Unknowns:
    """structure: of the tree, as JAX writes it. shapes: of its leaves. Axes in front of those of a leaf stay in front
    of the vector."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]

    @staticmethod
    def like(tree: Any) -> "Unknowns":
        """Of a tree of arrays, or of jax.ShapeDtypeStruct: their shapes count."""
        leaves, structure = jax.tree.flatten(tree)
        shapes = [getattr(leaf, "shape", None) for leaf in leaves]
        if not shapes or None in shapes or 0 in (math.prod(shape) for shape in shapes if shape is not None):
            raise InputError(
                f"size is {tree!r}: pass the number of unknowns, the shape of w as a tuple, or a tree like w of arrays or "
                "jax.ShapeDtypeStruct, none of them empty."
            )
        return Unknowns(structure, tuple(shapes))  # type: ignore[arg-type]

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def tree(self, vector: Array) -> Any:
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1].tolist()
        parts = zip(jnp.split(vector, ends, axis=-1), self.shapes, strict=True)
        return jax.tree.unflatten(
            self.structure, [part.reshape(*vector.shape[:-1], *shape) for part, shape in parts]
        )

    def vector(
        self, tree: Any, front: tuple[int, ...], read: Callable[[Any, tuple[int, ...]], Array]
    ) -> Array:
        """read(leaf, shape): a leaf as an array, with the axes `front` before its own."""
        leaves, structure = jax.tree.flatten(tree)
        if structure != self.structure:
            raise InputError(
                f"start is a tree {structure}, and the unknowns are {self.structure}. Make them match."
            )
        found = [read(leaf, (*front, *shape)) for leaf, shape in zip(leaves, self.shapes, strict=True)]
        return jnp.concatenate([leaf.reshape(*front, -1) for leaf in found], axis=-1)


@dataclass(frozen=True)
class OfVector:
    """A loss of a tree as one of a vector; equal for equal losses, so that what was compiled for it is used again."""

    loss: Callable[[Any, Any], Array]
    unknowns: Unknowns

    def __call__(self, w: Array, data: Any) -> Array:
        return self.loss(self.unknowns.tree(w), data)
