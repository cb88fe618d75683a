"""Training steps, side by side: iterates, and the joint Gram matrix of any P and Q, against tokens.

One Adam step of the Linear Transformer (L = 4, d = 5, n = 20, batch 1,000), 5 runs at once. In the
iterate view a layer costs 4 d^2 operations per prompt forward, on d^2 + 2 d numbers that are
read once per layer; with any P and Q four products of (d+1) x (d+1) matrices and one with the query; token
attention as written costs 4 n^2 d and forms an n x n matrix.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from lfom.bench.timing import Ratio, side_by_side
from lfom.core.problems import Quadratic, Tokens
from lfom.core.unroll import last_residual, unroll
from lfom.core.vectors import parameters
from lfom.methods.memformer import linear_transformer
from lfom.prompts.distributions import PUBLISHED_SPECTRUM, LinearRegression, haar_rotation
from lfom.training.adam import Adam, clip_groups, make_block
from lfom.training.direct import normal_equations

RUNS, DEPTH, D, CONTEXT, BATCH = 5, 4, 5, 20, 1_000


def adam_programs(
    ours_steps: int = 100, token_steps: int = 5, *, reader: str = "sparse"
) -> tuple[dict[str, Any], dict[str, float]]:
    """Compiled programs for `steps` Adam steps in the cheapest view and on tokens, and how many run-steps each makes."""
    keys = jax.random.split(jax.random.key(0), RUNS)
    published = partial(LinearRegression, PUBLISHED_SPECTRUM, CONTEXT)
    data = jax.vmap(lambda key: published(rotation=haar_rotation(key, D)))(keys)
    prompts = jax.vmap(lambda one, key: one.prompts(key, BATCH))(data, keys)
    scale = 0.05 if reader == "sparse" else 0.15
    model = linear_transformer(D, DEPTH, reader=reader, scale=scale, key=jax.random.key(1))
    view = model.views[0]
    kinds = parameters(model)
    vector, active = kinds.vector(model), jnp.ones(DEPTH)
    vectors = jnp.broadcast_to(vector, (RUNS, 1, vector.size))
    problems = jax.vmap(lambda batch: batch.problem(view))(prompts)
    adam = Adam(resample=ours_steps)
    moments = jax.vmap(jax.vmap(adam.optimiser().init))(vectors[..., kinds.index])
    block = make_block(kinds, adam, (DEPTH,))

    one_prompts = jax.tree.map(lambda a: a[0], prompts)
    optimiser = adam.optimiser()

    def token_loss(trained: Array) -> Array:
        built = kinds.assemble(vector, trained)
        predictions = jax.vmap(lambda prompt: unroll(built, Tokens.of(prompt))[-1])(one_prompts)
        return jnp.mean((predictions - one_prompts.target) ** 2)

    def our_loss(trained: Array) -> Array:
        one = jax.tree.map(lambda a: a[0], problems)
        return jnp.mean(last_residual(kinds.assemble(vector, trained), one, active) ** 2)

    start = vector[kinds.index]
    same = jnp.allclose(jax.grad(token_loss)(start), jax.grad(our_loss)(start), rtol=1e-2, atol=1e-5)
    if not bool(same):
        raise AssertionError("the two views have different gradients; their times would mean nothing")

    @jax.jit
    def token_steps_program(trained: Array, state: Any) -> Any:
        def step(carry: Any, _: None) -> Any:
            trained, state = carry
            gradient = jax.grad(token_loss)(trained)
            updates, state = optimiser.update(clip_groups(gradient, kinds.groups, adam.clip), state, trained)
            return (optax.apply_updates(trained, updates), state), None

        return jax.lax.scan(step, (trained, state), None, length=token_steps)[0]

    one_batch = jax.tree.map(lambda a: a[None], problems)
    programs = {
        view: partial(block, vectors, vectors[..., kinds.index], moments, one_batch),
        "tokens": partial(token_steps_program, start, optimiser.init(start)),
    }
    return programs, {view: float(ours_steps * RUNS), "tokens": float(token_steps)}


def bench_train() -> list[Ratio]:
    return [_adam_row("adam step", "sparse"), _adam_row("adam step, any P and Q", "linear"), _jacobian_row()]


def _adam_row(name: str, reader: str) -> Ratio:
    programs, steps = adam_programs(reader=reader)
    seconds = side_by_side(programs)
    ours, tokens = (seconds[view] / steps[view] * 1e3 for view in programs)
    return Ratio(name, ours, tokens, "ms per run")


def _jacobian_row() -> Ratio:
    """Normal equations of 2,000 prompts, per-prompt Jacobians with prompts last, against a
    reverse-mode Jacobian of one prompt under vmap."""
    model = linear_transformer(D, DEPTH, key=jax.random.key(1)).begin(jnp.linspace(0.5, 1.5, DEPTH))
    kinds = parameters(model)
    vector, active = kinds.vector(model), jnp.ones(DEPTH)
    quadratics = LinearRegression(PUBLISHED_SPECTRUM, CONTEXT).quadratics(jax.random.key(2), 2_000)
    probe = jnp.broadcast_to(quadratics.probe[..., None], (D, D, 2_000))
    quadratics = replace(quadratics, probe=probe)

    @jax.jit
    def plain(quadratics: Quadratic) -> Array:
        def one(q: Quadratic) -> Array:
            J = jax.jacrev(lambda t: last_residual(kinds.assemble(vector, t), q, active))(vector[kinds.index])
            return J.T @ J

        return jnp.sum(jax.vmap(one, in_axes=-1)(quadratics), axis=0)

    ours = jax.jit(lambda q: normal_equations(kinds, vector, q, active)[0])
    if not jnp.allclose(ours(quadratics), plain(quadratics), rtol=1e-2, atol=1e-2):
        raise AssertionError("the two Jacobians differ; their times would mean nothing")
    seconds = side_by_side({"ours": partial(ours, quadratics), "plain": partial(plain, quadratics)})
    own, plain_time = (seconds[name] / 2_000 * 1e6 for name in ("ours", "plain"))
    return Ratio("normal equations, one matrix", own, plain_time, "us per prompt")
