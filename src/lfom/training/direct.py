"""Normal equations in a model's own numbers, by automatic differentiation: the view of every model."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core.arrays import as_array
from lfom.core.problems import Problem
from lfom.core.threads import in_threads
from lfom.core.unroll import last_answer, last_residual
from lfom.core.vectors import Parameters
from lfom.training.state import Setting

Draw = Callable[[Any, Array, Array], Problem]  # (source, key, number of the chunk) -> prompts


def jacobian(
    parameters: Parameters,
    vector: Float[Array, " all"],
    prompts: Problem,
    active: Float[Array, " depth"],
) -> tuple[Float[Array, "k prompts"], Float[Array, "k p prompts"]]:
    """Residuals and their derivative in every trained number, prompt by prompt.

    The parameters are given a trailing prompt axis, so that one reverse pass per residual
    returns the derivatives of all prompts at once, in the layout that the loop is fast in.
    """
    trained = vector[parameters.index]
    if not prompts.prompts_last:

        def one(single: Problem) -> Array:
            def residual_at(numbers: Array) -> Array:
                return single.residual(last_answer(parameters.assemble(vector, numbers), single, active))

            return jnp.concatenate([residual_at(trained)[:, None], jax.jacrev(residual_at)(trained)], axis=1)

        both = prompts.each(one)
        return both[:, 0], both[:, 1:]
    count = jax.tree.leaves(prompts)[0].shape[-1]

    def residual_of(spread: Array) -> Array:
        return last_residual(parameters.assemble(vector, spread), prompts, active)

    residual, pull = jax.vjp(residual_of, jnp.broadcast_to(trained[:, None], (trained.size, count)))
    units = jnp.eye(residual.shape[0], dtype=residual.dtype)
    # One reverse pass per residual, in a loop: under vmap the prompts would not stay last, and
    # written out it compiles for longer than it saves.
    rows = jax.lax.map(lambda unit: pull(jnp.broadcast_to(unit[:, None], residual.shape))[0], units)
    return residual, rows


def normal_equations(
    parameters: Parameters,
    vector: Float[Array, " all"],
    prompts: Problem,
    active: Float[Array, " depth"],
) -> tuple[Array, Array, Array]:
    """Sums over prompts of J^T J (p, p), J^T r (p,) and |r|^2."""
    residual, J = jacobian(parameters, vector, prompts, active)
    return (
        jnp.einsum("kpn,kqn->pq", J, J),
        jnp.einsum("kpn,kn->p", J, residual),
        jnp.sum(residual**2),
    )


def make_passes(parameters: Parameters, draw: Draw) -> tuple[Callable, Callable]:
    """The two compiled programs of a fit, over the chunks first .. last-1 of every run.

    accumulate(vectors (runs, depths, all), actives (depths, L), sources, keys, first, last):
    the normal equations. score(candidates (runs, depths, c, all), ...): for each candidate the
    sums of its loss, of its difference to the first candidate, and of that squared.
    """

    def over_chunks(one_model: Callable, shapes: Any, actives: Array, first: Array, last: Array) -> Callable:
        """Sum one_model(vector, active, prompts) over chunks, for all depths of one run."""

        def one_run(args: Any) -> Any:
            vectors, source, key = args

            def chunk_sum(chunk: Array) -> Any:
                prompts = draw(source, key, chunk)
                return jax.lax.map(lambda va: one_model(va[0], va[1], prompts), (vectors, actives))

            zero = tuple(jnp.zeros((len(actives), *shape), vectors.dtype) for shape in shapes)
            return jax.lax.fori_loop(
                first, last, lambda chunk, total: jax.tree.map(jnp.add, total, chunk_sum(chunk)), zero
            )

        return one_run

    @jax.jit
    def accumulate(
        vectors: Array, actives: Array, sources: Any, keys: Array, first: Array, last: Array
    ) -> Any:
        p = parameters.size

        def one_model(vector: Array, active: Array, prompts: Problem) -> Any:
            return normal_equations(parameters, vector, prompts, active)

        return jax.lax.map(
            over_chunks(one_model, ((p, p), (p,), ()), actives, first, last), (vectors, sources, keys)
        )

    @jax.jit
    def score(candidates: Array, actives: Array, sources: Any, keys: Array, first: Array, last: Array) -> Any:
        c = candidates.shape[2]

        def one_model(vectors: Array, active: Array, prompts: Problem) -> Any:
            def losses(vector: Array) -> Array:
                return jnp.sum(last_residual(parameters.build(vector), prompts, active) ** 2, axis=0)

            values = jax.lax.map(losses, vectors)
            gain = values[:1] - values
            return jnp.sum(values, axis=-1), jnp.sum(gain, axis=-1), jnp.sum(gain**2, axis=-1)

        return jax.lax.map(
            over_chunks(one_model, ((c,),) * 3, actives, first, last), (candidates, sources, keys)
        )

    return accumulate, score


class Direct:
    """Passes in the trained numbers themselves."""

    finds_coefficients = False

    def __init__(self, parameters: Parameters, setting: Setting):
        self._parameters, self._setting = parameters, setting
        self._accumulate, self._score = make_passes(parameters, setting.source.draw)
        self.shares = np.ones(len(setting.depths))

    def prepare(self, vectors: np.ndarray, keys: Array, tried: int) -> None:
        """Compile both programs side by side, by running them over no prompts."""
        nothing: Any = (keys, np.int32(0), np.int32(0))
        several = np.repeat(vectors[..., None, :], 1 + tried, axis=-2)
        jobs = [(self._accumulate, vectors), (self._score, several)]
        list(in_threads(lambda job: self._run(*job, *nothing), jobs))

    def coordinates(self, vectors: np.ndarray) -> np.ndarray:
        return vectors[..., self._parameters.index]

    def equations(self, vectors: np.ndarray, keys: Array, *span: Any) -> tuple[Array, ...]:
        return self._run(self._accumulate, vectors, keys, *span[:2])[:2]

    def candidates(
        self, vectors: np.ndarray, normal: np.ndarray, slope: np.ndarray, damping: tuple[float, ...]
    ) -> np.ndarray:
        found = np.repeat(vectors[..., None, :], 1 + len(damping), axis=-2)
        found[..., self._parameters.index] += damped_steps(normal, slope, damping)
        return found

    def score(self, candidates: np.ndarray, keys: Array, *span: Any) -> tuple[Array, ...]:
        return self._run(self._score, candidates, keys, *span[:2])

    def _run(self, program: Callable, vectors: np.ndarray, *rest: Any) -> tuple[Array, ...]:
        source = self._setting.source
        return program(as_array(vectors, float), self._setting.actives, source.arrays, *rest)


def damped_steps(normal: np.ndarray, slope: np.ndarray, damping: tuple[float, ...]) -> np.ndarray:
    """Candidate steps (runs, depths, 1 + c, p): none at all first, then one per damping."""
    *batch, p = slope.shape
    diagonal = np.einsum("...ii->...i", normal)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    unit = normal / scale[..., :, None] / scale[..., None, :]
    steps = [np.zeros((*batch, p))]
    for value in damping:
        system = unit + value * np.eye(p)
        steps.append(-np.linalg.solve(system, (slope / scale)[..., None])[..., 0] / scale)
    return np.stack(steps, axis=-2)
