"""Context tokens held out in turn: labels that a prompt gives away by itself.

A held-out token has a label, so it is a query with a known answer. Taking it out of the context
is a downdate: the Gram matrix of the others is (n G - x x^T) / (n - 1), with several held out at
once their sum. No query's label is ever read.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from lfom.checks import InputError, count
from lfom.problems import Quadratic
from lfom.unroll import Algorithm, last_residual

MOST_FOLDS = 20  # one token at a time up to this many; more tokens are held out several at once


def fold_size(n: int, folds: int | None) -> int:
    """How many of n tokens are held out at once, for (about) this many folds."""
    folds = min(n, MOST_FOLDS) if folds is None else count("folds", folds, 2)
    if n < 2 or folds > n:
        raise InputError(
            f"the prompts have {n} context token{'s' * (n != 1)} and {folds} folds were asked for: to hold "
            f"any out, at least 2 tokens and one per fold are needed. "
            + ("Pass folds=2 or more, up to their number." if n >= 2 else "Adapt with setting='labelled'.")
        )
    return -(-n // folds)


def hold_out(X: Float[Array, "n d *prompts"], y: Float[Array, "n *prompts"], size: int) -> Quadratic:
    """Every fold of every prompt as a quadratic that asks for the fold's labels.

    size: tokens in a fold; the last one may have fewer, and is filled up with empty ones. The
    trailing axes of the result are (folds, *prompts): fold f of prompt p does not see the tokens
    that it asks for.
    """
    n, d = X.shape[:2]
    prompts = X.shape[2:]
    folds = -(-n // size)
    empty = folds * size - n
    X = jnp.pad(X, [(0, empty)] + [(0, 0)] * (X.ndim - 1)).reshape(folds, size, d, *prompts)
    y = jnp.pad(y, [(0, empty)] + [(0, 0)] * (y.ndim - 1)).reshape(folds, size, *prompts)
    seen = jnp.asarray([n - min(size, n - f * size) for f in range(folds)], X.dtype)
    seen = seen.reshape(folds, *(1 for _ in prompts))
    tokens = jnp.moveaxis(X, 2, 0)  # (d, folds, size, *prompts)
    # As sums of products: an einsum with prompts last becomes a slow batched product.
    outer = jnp.sum(tokens[:, None] * tokens[None], axis=3)
    moment = jnp.sum(tokens * y[None], axis=2)
    return Quadratic(
        (jnp.sum(outer, axis=2, keepdims=True) - outer) / seen,
        (jnp.sum(moment, axis=1, keepdims=True) - moment) / seen,
        jnp.moveaxis(X, 0, 2),
        jnp.moveaxis(y, 0, 1),
    )


def context_error(
    model: Algorithm, X: Float[Array, "n d *prompts"], y: Float[Array, "n *prompts"], size: int
) -> Float[Array, "*prompts"]:
    """The mean squared error of the held-out context labels, prompt by prompt."""
    residual = last_residual(model, hold_out(X, y, size))
    return jnp.sum(residual**2, axis=(0, 1)) / X.shape[0]
