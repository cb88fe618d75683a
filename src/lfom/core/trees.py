"""Runs on the leading axis of all arrays of a model, a distribution or prompts. Done on the host, so that
nothing is compiled for it; what is no array stays as it is."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def _on_arrays(work: Callable[..., np.ndarray], items: Sequence[Any]) -> Any:
    def one(*leaves: Any) -> Any:
        if not isinstance(leaves[0], np.ndarray | jax.Array):
            return leaves[0]
        return jnp.asarray(work(*(np.asarray(leaf) for leaf in leaves)))

    return jax.tree.map(one, *items)


def stack(items: Sequence[Any], axis: int = 0) -> Any:
    """One tree with a new axis."""
    return _on_arrays(lambda *arrays: np.stack(arrays, axis), items)


def concatenate(items: Sequence[Any]) -> Any:
    """One tree with all runs of these."""
    return _on_arrays(lambda *arrays: np.concatenate(arrays), items)


def take(tree: Any, index: Any) -> Any:
    """One run, or some; with ... all of them, and arrays of NumPy become JAX's."""
    return _on_arrays(lambda array: array[index], [tree])
