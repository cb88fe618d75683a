"""Weights that make a Memformer run a given method exactly: the paper's theorems as functions.

>>> import jax.numpy as jnp
>>> import jax
>>> import lfom
>>> prompt = lfom.LinearRegression([1.0, 0.5], context=6).prompt(jax.random.key(0))
>>> model = lfom.theorems.gradient_descent_transformer(0.5 * jnp.stack([jnp.eye(2)] * 3))  # Lemma 1
>>> steps = lfom.run(lfom.gradient_descent(0.5, steps=3), prompt).predictions
>>> bool(jnp.allclose(lfom.run(model, prompt, view="tokens").predictions, steps, atol=1e-5))
True
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core import checks
from lfom.core.arrays import as_array, default_dtype, on_host, ones
from lfom.core.checks import InputError
from lfom.core.coefficients import Scalar
from lfom.core.memories import Bank, Conjugate, Forget, Register, scalar_bank
from lfom.core.methods import Method, Mixture, a_method
from lfom.core.preconditioners import Full, Identity, One
from lfom.core.problems import Tokens
from lfom.core.readers import Gradient
from lfom.core.states import VIEWS
from lfom.core.unroll import trace
from lfom.methods.classical import lfom
from lfom.methods.memformer import mixture
from lfom.prompts.prompt import Prompt, checked


def gradient_descent_transformer(A: Float[Array, "depth d d"]) -> Method:
    """Lemma 1: the Linear Transformer whose prediction is x.w_l, w <- w - A_l^T grad R(w)."""
    A = _square(A)
    return Method(Gradient(Full(A)), Forget(ones(A.shape[0])), A.shape[0])


def conjugate_gradient_memformer(prompt: Prompt, depth: int, stop: float = 0.0) -> Method:
    """Theorem 1 (label Proposition 1): the CGD-like Memformer that runs conjugate gradients on
    *this* prompt. Its alpha_l and gamma_l are the prompt's own; other prompts need others.

    They are read off the conjugate register, run on the prompt's tokens: two sums over context labels
    (docs/mathematics.md 2.6), so the construction reads nothing but tokens.
    """
    prompt = checked(prompt).linear()
    if prompt.batched:
        raise InputError("prompt is a batch: Theorem 1 holds per prompt. Pass one, or vmap over them.")
    method, tokens = conjugate_memformer(depth, stop), Tokens.of(prompt)
    _, _, (alpha, gamma) = trace(method, tokens, None, lambda state, past: (past.alpha, past.gamma))
    return Method(Gradient(Identity()), Register(alpha, gamma), method.depth)


def conjugate_memformer(depth: int, stop: float = 0.0) -> Method:
    """The same with the conjugate register, which computes the coefficients for every prompt."""
    checks.non_negative("stop", stop)
    return Method(Gradient(Identity()), Conjugate(stop), checks.count("depth", depth))


def lfom_memformer(A: Float[Array, "depth d d"], gamma: Float[Array, "depth depth"]) -> Method:
    """Theorem 2 (label Proposition 2) where it holds with one head: Gamma constant over the
    context. The Memformer runs w_{k+1} = w_k - sum_j gamma[k, j] A_j^T grad R(w_j), that is
    equation 1.1 with Lambda_j^k = -(sum over l <= k of gamma[l, j]) A_j^T.
    """
    A = _square(A)
    depth = A.shape[0]
    gamma = checks.real_array("gamma", gamma, (depth, depth))
    return Method(Gradient(Full(A)), Bank(Scalar(gamma), tied=False), depth)


def _square(A: Any) -> Array:
    A = checks.real_array("A", A, (None, None, None))
    if A.shape[1] != A.shape[2]:
        raise InputError(f"A has shape {A.shape}: each A_l must be square. Pass (depth, d, d).")
    return A


def diagonal_lfom(coefficients: Float[Array, "depth depth d"]) -> Mixture:
    """Theorem 2 for *all* diagonal coefficients Lambda_i^k: d heads A^h = e_h e_h^T, each with a
    bank of its own and the gate 1 (docs/mathematics.md 2.5). coefficients: as in equation 1.1, [k, i].
    """
    gamma = on_host(checks.real_array("coefficients", coefficients, (None, None, None)))
    depth, _, d = gamma.shape
    heads = []
    for h in range(d):
        unit = np.zeros((depth, d, d), gamma.dtype)
        unit[:, h, h] = 1
        bank = lfom(gamma[..., h]).memory
        heads.append(Method(Gradient(Full(as_array(unit))), bank, depth))
    return Mixture(tuple(heads), as_array(np.ones(d, gamma.dtype)))


def memformer_of(method: Method) -> Method | Mixture:
    """The Transformer that answers a prompt as a learned method does on the same regression: attention with
    its matrix and its memory; for diagonal coefficients one head per coordinate, as `diagonal_lfom` has.

    method: what lfom.learn returned for unknowns in a row, from regressions or matrices; trained further or cut to fewer
    steps, too.
    """
    (reader, memory), shape, facts = a_method("method", method).parts(), method.shape, method.facts
    diagonal = reader.definite and "tokens" not in memory.views  # it needs heads, whether learned or not
    if shape is None or (facts is None and not diagonal):
        raise InputError(
            "this method was not learned, so it is a reader and a memory of prompts already: run it with "
            f'view="{(method.views or VIEWS)[-1]}".'
        )
    if facts is not None and not facts.kind.quadratic:
        raise InputError(
            f"this method was learned from {facts.kind}, and attention reads the gradient of a regression. Learn one "
            "from lfom.LeastSquaresProblems."
        )
    if not reader.from_gradient:
        raise InputError(
            f"this method is {facts.structure.name if facts else reader}: its coordinates are set by the diagonal of each problem, so they "
            "differ from problem to problem, and the weights of a Transformer do not. Learn one without Jacobi."
        )
    if len(shape) != 1:
        raise InputError(
            f"this method is for unknowns of shape {shape}, and a token holds d numbers in a row. Learn one from "
            "regressions."
        )
    (d,), depth, read = shape, method.layers, reader.A  # type: ignore[attr-defined]
    M = _matrix(read, d).astype(method.dtype)
    if "tokens" in memory.views:
        return Method(Gradient(One(M)), memory, depth)
    heads = []
    for h, gamma in enumerate(jnp.moveaxis(jnp.asarray(memory.table(depth)[0]), -1, 0)):
        row = jnp.zeros_like(M).at[:, h].set(M[:, h])  # its transpose reads entry h of M grad R
        heads.append(Method(Gradient(Full(jnp.broadcast_to(row, (depth, d, d)))), scalar_bank(gamma), depth))
    return Mixture(tuple(heads), jnp.ones(d, M.dtype))


@eqx.filter_jit
def _matrix(A: Any, d: int) -> Array:
    """One program, and not one for each operation."""
    return A.matrix(d)


def gate_to(heads: tuple[Method, ...], chosen: int) -> Mixture:
    """The soft-gating theorem (label thm:multihead_moe_refined): gates at a corner, so that the
    mixture is exactly the chosen head."""
    every = mixture(heads).heads
    if checks.count("chosen", chosen, 0) >= len(every):
        raise InputError(
            f"chosen is {chosen}: it must be between 0 and {len(every) - 1}. Pass the place of a head."
        )
    return Mixture(every, as_array(np.eye(len(every))[chosen], default_dtype()))
