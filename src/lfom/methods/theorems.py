"""Weights that make a Memformer run a given method exactly: the paper's theorems as functions."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core import checks
from lfom.core.arrays import as_array
from lfom.core.checks import InputError
from lfom.core.coefficients import Scalar
from lfom.core.memories import Bank, Conjugate, Forget, Register
from lfom.core.methods import Method, Mixture
from lfom.core.preconditioners import Full, Identity
from lfom.core.readers import Gradient
from lfom.methods.classical import lfom
from lfom.prompts.prompt import Prompt, checked


def gradient_descent_transformer(A: Float[Array, "depth d d"]) -> Method:
    """Lemma 1: the Linear Transformer whose prediction is x.w_l, w <- w - A_l^T grad R(w)."""
    A = checks.real_array("A", A, (None, None, None))
    return Method(Gradient(Full(A)), Forget(jnp.ones(A.shape[0])), A.shape[0])


def conjugate_gradient_memformer(prompt: Prompt, depth: int, stop: float = 0.0) -> Method:
    """Theorem 1 (label Proposition 1): the CGD-like Memformer that runs conjugate gradients on
    *this* prompt. Its alpha_l and gamma_l are the prompt's own; other prompts need others.

    They come from the two sums over context labels of NOTES 2.6, so the construction reads
    nothing but tokens.
    """
    if prompt.batched:
        raise InputError("prompt is a batch: Theorem 1 holds per prompt. Pass one, or vmap over them.")
    prompt, depth = checked(prompt), checks.count("depth", depth)
    alpha, gamma = np.zeros(depth), np.zeros(depth)
    X, n = np.asarray(prompt.X), prompt.X.shape[0]
    labels = np.asarray(prompt.y).copy()  # y - x.w of each context token
    register, last, first = np.zeros(n), 0.0, None
    for layer in range(depth):
        read = -X @ (X.T @ labels) / n  # what attention with A = I writes into the label row
        slope = -labels @ read / n
        first = slope if first is None else first
        if not slope > stop**2 * first:
            break
        gamma[layer] = slope / last if layer else 0.0
        register = read + gamma[layer] * register
        curvature = register @ register / n
        if not curvature > 0:
            break
        alpha[layer] = slope / curvature
        labels, last = labels + alpha[layer] * register, slope
    return Method(Gradient(Identity()), Register(as_array(alpha), as_array(gamma)), depth)


def conjugate_memformer(depth: int, stop: float = 0.0) -> Method:
    """The same with the conjugate register, which computes the coefficients for every prompt."""
    return Method(Gradient(Identity()), Conjugate(stop), checks.count("depth", depth))


def lfom_memformer(A: Float[Array, "depth d d"], gamma: Float[Array, "depth depth"]) -> Method:
    """Theorem 2 (label Proposition 2) where it holds with one head: Gamma constant over the
    context. The Memformer runs w_{k+1} = w_k - sum_j gamma[k, j] A_j^T grad R(w_j), that is
    equation 1.1 with Lambda_j^k = -(sum over l <= k of gamma[l, j]) A_j^T.
    """
    A = checks.real_array("A", A, (None, None, None))
    depth = A.shape[0]
    gamma = checks.real_array("gamma", gamma, (depth, depth))
    return Method(Gradient(Full(A)), Bank(Scalar(gamma), tied=False), depth)


def diagonal_lfom(coefficients: Float[Array, "depth depth d"]) -> Mixture:
    """Theorem 2 for *all* diagonal coefficients Lambda_i^k: d heads A^h = e_h e_h^T, each with a
    bank of its own and the gate 1 (NOTES 2.5). coefficients: as in equation 1.1, [k, i].
    """
    gamma = checks.real_array("coefficients", coefficients, (None, None, None))
    depth, _, d = gamma.shape
    heads = []
    for h in range(d):
        unit = jnp.zeros((d, d), gamma.dtype).at[h, h].set(1)
        bank = lfom(gamma[..., h]).memory
        heads.append(Method(Gradient(Full(jnp.broadcast_to(unit, (depth, d, d)))), bank, depth))
    return Mixture(tuple(heads), jnp.ones(d, gamma.dtype))


def gate_to(heads: tuple[Method, ...], chosen: int) -> Mixture:
    """The soft-gating theorem (label thm:multihead_moe_refined): gates at a corner, so that the
    mixture is exactly the chosen head."""
    if not 0 <= chosen < len(heads):
        raise InputError(f"chosen is {chosen}: it must be between 0 and {len(heads) - 1}.")
    return Mixture(tuple(heads), jnp.zeros(len(heads)).at[chosen].set(1))
