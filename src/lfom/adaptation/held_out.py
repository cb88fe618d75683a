"""Context tokens held out in turn: labels that a prompt gives away by itself.

A held-out token has a label, so it is a query with a known answer. Taking it out of the context
is a downdate: the Gram matrix of the others is (n G - x x^T) / (n - 1), with several held out at
once their sum. No query's label is ever read.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from lfom.core.checks import InputError, count
from lfom.core.methods import Algorithm
from lfom.core.problems import Quadratic, gram_of
from lfom.core.unroll import last_residual
from lfom.prompts.prompt import Prompt

MOST_ASKED = 8_000  # folds of all prompts together; more prompts ask for fewer folds each
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


def folds_in_turn(prompts: int, n: int, size: int) -> np.ndarray | None:
    """The folds that each prompt asks for, (each, prompts), or None for all of them. Where prompts are
    many, each asks for a few only, another prompt for others: one answer of a new prompt tells more
    than one more of the same."""
    folds = -(-n // size)
    each = min(folds, max(1, MOST_ASKED // prompts))
    if each == folds:
        return None
    return (np.arange(prompts) + (folds // each) * np.arange(each)[:, None]) % folds


def asked_tokens(prompts: int, n: int, size: int, chosen: np.ndarray | None) -> int:
    """How many labels these folds ask for."""
    if chosen is None:
        return prompts * n
    return int(np.minimum(size, n - chosen * size).sum())


def hold_out(
    X: Float[Array, "n d *prompts"],
    y: Float[Array, "n *prompts"],
    size: int,
    chosen: Int[Array, "each *prompts"] | None = None,
) -> Quadratic:
    """Folds of every prompt as quadratics that ask for the fold's labels.

    size: tokens in a fold; the last one may have fewer, and is filled up with empty ones. chosen: the
    folds of each prompt, all of them by default. The trailing axes of the result are (folds, *prompts):
    fold f of prompt p does not see the tokens that it asks for.
    """
    n, d = X.shape[:2]
    prompts = X.shape[2:]
    folds = -(-n // size)
    if chosen is None:
        chosen = jnp.arange(folds).reshape(folds, *(1 for _ in prompts))
    gram, moment = gram_of(X, y)
    empty = folds * size - n
    X = jnp.pad(X, [(0, empty)] + [(0, 0)] * (X.ndim - 1)).reshape(folds, size, d, *prompts)
    y = jnp.pad(y, [(0, empty)] + [(0, 0)] * (y.ndim - 1)).reshape(folds, size, *prompts)
    X = jnp.take_along_axis(X, chosen[:, None, None], axis=0)
    y = jnp.take_along_axis(y, chosen[:, None], axis=0)
    seen = n - jnp.minimum(size, n - chosen * size).astype(X.dtype)
    X, y = jnp.moveaxis(X, 0, 2), jnp.moveaxis(y, 0, 1)  # (size, d, each, *prompts)
    own_gram, own_moment = gram_of(X, y)
    return Quadratic(
        (n * gram[:, :, None] - size * own_gram) / seen,
        (n * moment[:, None] - size * own_moment) / seen,
        X,
        y,
    )


def hold_out_each(prompt: Prompt, positions: Int[Array, " each"] | np.ndarray) -> Prompt:
    """For what is no downdate: the prompt once for each of these tokens, which is its query then. One token is
    held out at a time, since a prompt has one query."""
    n = prompt.X.shape[0]

    def one(position: Array) -> Prompt:
        others = jnp.arange(n - 1)
        others = jnp.where(others < position, others, others + 1)
        X, y = prompt.X, prompt.y
        return replace(prompt, X=X[others], y=y[others], query=X[position], target=y[position])

    return jax.vmap(one)(jnp.asarray(positions))


def context_error(
    model: Algorithm, X: Float[Array, "n d *prompts"], y: Float[Array, "n *prompts"], size: int
) -> Float[Array, "*prompts"]:
    """The mean squared error of the held-out context labels, prompt by prompt."""
    residual = last_residual(model, hold_out(X, y, size))
    return jnp.sum(residual**2, axis=(0, 1)) / X.shape[0]


def context_error_of_each(model: Algorithm, prompt: Prompt, view: str, size: int) -> Float[Array, ""]:
    """The same in another view, or of labels through a link, of one prompt: one token of every fold is held out."""
    folds = hold_out_each(prompt, np.arange(0, prompt.X.shape[0], size))
    return jnp.mean(last_residual(model, folds.problem(view, model.kernel)) ** 2)
