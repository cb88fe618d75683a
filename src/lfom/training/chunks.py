"""Sums over chunks of prompts inside a compiled program: one after the other on a CPU, many at once on an accelerator."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

AT_ONCE, NUMBERS = 32, 2**27  # chunks on an accelerator; numbers that they may take there


def summed(of_chunk: Callable[[Array], Any], first: Array, last: Array, zero: Any, numbers: int) -> Any:
    """The sum of of_chunk(i) for i = first .. last-1, added to zero. numbers: about how many one chunk takes."""
    if jax.default_backend() == "cpu":
        return jax.lax.fori_loop(
            first, last, lambda chunk, total: jax.tree.map(jnp.add, total, of_chunk(chunk)), zero
        )
    many = max(1, min(AT_ONCE, NUMBERS // numbers))

    def turn(at: Array, total: Any) -> Any:
        chunks = first + at * many + jnp.arange(many)
        parts = jax.vmap(of_chunk)(jnp.minimum(chunks, last - 1))

        def add(total: Array, own: Array) -> Array:
            counts = jnp.reshape(chunks < last, (many,) + (1,) * (own.ndim - 1))
            return total + jnp.sum(jnp.where(counts, own, 0), axis=0)

        return jax.tree.map(add, total, parts)

    return jax.lax.fori_loop(0, -(-(last - first) // many), turn, zero)
