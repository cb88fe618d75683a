"""Normal equations in a model's own numbers, by automatic differentiation: the view of every model."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core.arrays import as_array
from lfom.core.compiler import jit_draws
from lfom.core.damped import damped_step
from lfom.core.problems import Problem, unshared
from lfom.core.threads import in_threads
from lfom.core.unroll import last_answer, last_residual
from lfom.core.vectors import Parameters
from lfom.training.state import PROGRAMS, Setting


def jacobian(
    parameters: Parameters,
    vector: Float[Array, " all"],
    prompts: Problem,
    active: Float[Array, " depth"],
) -> tuple[Float[Array, "k prompts"], Float[Array, "k p prompts"]]:
    """Residuals and their derivative in every trained number, prompt by prompt.

    The parameters are given a trailing prompt axis, so that one reverse pass per residual
    returns the derivatives of all prompts at once, in the layout that the loop is fast in. Where
    prompts do not ride last, or parameters do not take them, each prompt has its own pass.
    """
    trained = vector[parameters.index]
    if not (prompts.prompts_last and parameters.take_prompts):

        def one(single: Problem) -> Array:
            def residual_at(numbers: Array) -> Array:
                return single.residual(last_answer(parameters.assemble(vector, numbers), single, active))

            return jnp.concatenate([residual_at(trained)[:, None], jax.jacrev(residual_at)(trained)], axis=1)

        both = jax.vmap(one, -1, -1)(unshared(prompts)) if prompts.prompts_last else prompts.each(one)
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


@jit_draws
def _chunk(source: Any, keys: Array, chunk: Array) -> Problem:
    """Prompts of every run, on a leading axis. A program of its own: all models share it."""
    return jax.lax.map(lambda own: source.draw(*own, chunk), (source.arrays, keys))


@functools.lru_cache(PROGRAMS)
def make_passes(parameters: Parameters) -> tuple[Callable, Callable]:
    """The two compiled programs of a fit, over one chunk of prompts (runs, ...).

    accumulate(vectors (runs, depths, all), actives (depths, L), prompts): the normal equations.
    score(candidates (runs, depths, c, all), ...): for each candidate the sums of its loss, of its
    difference to the first candidate, and of that squared.
    """

    def of_all(one_model: Callable, vectors: Array, actives: Array, prompts: Problem) -> Any:
        """one_model(vector, active, prompts) for every run and depth."""

        def one_run(args: Any) -> Any:
            own, drawn = args
            return jax.lax.map(lambda va: one_model(*va, drawn), (own, actives))

        return jax.lax.map(one_run, (vectors, prompts))

    @jax.jit
    def accumulate(vectors: Array, actives: Array, prompts: Problem) -> Any:
        def one_model(vector: Array, active: Array, drawn: Problem) -> Any:
            return normal_equations(parameters, vector, drawn, active)

        return of_all(one_model, vectors, actives, prompts)

    @jax.jit
    def score(candidates: Array, actives: Array, prompts: Problem) -> Any:
        def one_model(vectors: Array, active: Array, drawn: Problem) -> Any:
            def losses(vector: Array) -> Array:
                return jnp.sum(last_residual(parameters.build(vector), drawn, active) ** 2, axis=0)

            values = jax.lax.map(losses, vectors)
            gain = values[:1] - values
            return jnp.sum(values, axis=-1), jnp.sum(gain, axis=-1), jnp.sum(gain**2, axis=-1)

        return of_all(one_model, candidates, actives, prompts)

    return accumulate, score


class Direct:
    """Passes in the trained numbers themselves."""

    finds_coefficients = False

    def __init__(self, parameters: Parameters, setting: Setting):
        self._parameters, self._setting = parameters, setting
        self._accumulate, self._score = make_passes(parameters)
        self.shares = np.ones(len(setting.depths))

    def prepare(self, vectors: np.ndarray, keys: Array, tried: int) -> None:
        """Compile both programs side by side, by running them over one chunk."""
        several = np.repeat(vectors[..., None, :], 1 + tried, axis=-2)
        prompts = self._drawn(keys, 0)
        jobs = [(self._accumulate, vectors), (self._score, several)]
        list(in_threads(lambda job: self._over(job[0], job[1], prompts), jobs))

    def coordinates(self, vectors: np.ndarray) -> np.ndarray:
        return vectors[..., self._parameters.index]

    def equations(self, vectors: np.ndarray, keys: Array, *span: Any) -> tuple[np.ndarray, ...]:
        return self._total(self._accumulate, vectors, keys, *span[:2])[:2]

    def candidates(
        self, vectors: np.ndarray, normal: np.ndarray, slope: np.ndarray, damping: tuple[float, ...]
    ) -> np.ndarray:
        found = np.repeat(vectors[..., None, :], 1 + len(damping), axis=-2)
        found[..., self._parameters.index] += damped_steps(normal, slope, damping)
        return found

    def score(self, candidates: np.ndarray, keys: Array, *span: Any) -> tuple[np.ndarray, ...]:
        return self._total(self._score, candidates, keys, *span[:2])

    def _drawn(self, keys: Array, chunk: int) -> Problem:
        return _chunk(self._setting.source, keys, as_array(np.int32(chunk)))

    def _over(self, program: Callable, vectors: np.ndarray, prompts: Problem) -> list[np.ndarray]:
        found = program(as_array(vectors, float), self._setting.actives, prompts)
        return [np.asarray(a, np.float64) for a in found]

    def _total(
        self, program: Callable, vectors: np.ndarray, keys: Array, first: Any, last: Any
    ) -> tuple[np.ndarray, ...]:
        """The sums over the chunks first .. last-1."""
        parts = [
            self._over(program, vectors, self._drawn(keys, chunk)) for chunk in range(int(first), int(last))
        ]
        return tuple(sum(own[1:], own[0]) for own in zip(*parts, strict=True))


def damped_steps(normal: np.ndarray, slope: np.ndarray, damping: tuple[float, ...]) -> np.ndarray:
    """Candidate steps (runs, depths, 1 + c, p): none at all first, then one per damping."""
    steps = [damped_step(normal, slope, value) for value in damping]
    return np.stack([np.zeros_like(slope), *steps], axis=-2)
