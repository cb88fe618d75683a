"""The forward pass of 1,000 prompts (n = 200, d = 50, depth 4): iterates against tokens.

Operations per prompt and layer: token attention as the equation is written forms Z^T Q Z, an
(n+1) x (n+1) matrix, 4 n^2 d in all; with Z M Z^T formed first it is 6 n d^2; the iterate view
needs 2 d^2, after n d^2 once for the Gram matrix, or 4 n d without it.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from lfom.bench.timing import Ratio, side_by_side
from lfom.core.memories import Register
from lfom.core.methods import Method
from lfom.core.preconditioners import Full
from lfom.core.problems import Examples, Quadratic, Tokens
from lfom.core.readers import Gradient
from lfom.core.unroll import unroll
from lfom.prompts.distributions import LinearRegression
from lfom.prompts.prompt import Prompt


def bench_forward(prompts: int = 1_000, n: int = 200, d: int = 50, depth: int = 4) -> list[Ratio]:
    key = jax.random.key(0)
    batch = LinearRegression(jnp.ones(d), n).prompts(key, prompts)
    A = 0.3 * (jnp.eye(d) + 0.1 * jax.random.normal(key, (depth, d, d)) / jnp.sqrt(d))
    method = Method(Gradient(Full(A)), Register(jnp.ones(depth), jnp.full(depth, 0.2)), depth)

    def gram(prompt: Prompt) -> Array:
        return prompt.query @ unroll(method, Quadratic.of(prompt))[-1]

    def matrix_free(prompt: Prompt) -> Array:
        return prompt.query @ unroll(method, Examples(prompt.X, prompt.y))[-1]

    def tokens(prompt: Prompt) -> Array:
        return unroll(method, Tokens.of(prompt))[-1]

    def tokens_moments_first(prompt: Prompt) -> Array:
        """The same attention with the (d+1) x (d+1) matrix Z M Z^T formed first."""
        Z, register = Tokens.of(prompt).Z_0, jnp.zeros((d + 1, n + 1))
        mask = jnp.ones(n + 1).at[-1].set(0)
        P = jnp.zeros((d + 1, d + 1)).at[d, d].set(1)
        for layer in range(depth):
            Q = jnp.zeros((d + 1, d + 1)).at[:d, :d].set(-A[layer])
            register = P @ ((Z * mask) @ Z.T) @ Q @ Z / n + 0.2 * (layer > 0) * register
            Z = Z + register
        return -Z[-1, -1]

    programs = {"gram": gram, "matrix-free": matrix_free, "tokens": tokens, "moments": tokens_moments_first}
    compiled = {name: jax.jit(jax.vmap(program)) for name, program in programs.items()}
    answers = {name: program(batch) for name, program in compiled.items()}
    for name, answer in answers.items():
        if not jnp.allclose(answer, answers["tokens"], rtol=1e-2, atol=1e-3):
            raise AssertionError(f"the {name} program computes something else; its time would mean nothing")
    seconds = side_by_side({name: partial(program, batch) for name, program in compiled.items()})
    return [
        Ratio("tokens", seconds["gram"], seconds["tokens"], "s"),
        Ratio("tokens, Z M Z^T first", seconds["gram"], seconds["moments"], "s"),
        Ratio("tokens, against matrix-free iterates", seconds["matrix-free"], seconds["tokens"], "s"),
        Ratio("Gram matrices, against matrix-free iterates", seconds["matrix-free"], seconds["gram"], "s"),
    ]
