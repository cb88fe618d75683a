"""Gates that every prompt chooses by itself, from its own context, inside one compiled call.

The answer w of a mixture is a polynomial in its gates, and the loss of the context is a square:

    R(w) - min R = |L^T w - L^-1 b|^2 / 2        G = L L^T

Gates start at the best of the model's own and the single experts; a few Levenberg-Marquardt
steps, damped prompt by prompt, make this smaller. Two to eight numbers against n labels hardly
overfit: fitting to the whole context measured better than to held-out tokens, also with noise
(docs/design.md), so that held-out tokens only judge the result (`lfom.adapt`).
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from lfom.core import checks
from lfom.core.arrays import PROMPTS_LAST, pad_axes, transpose
from lfom.core.checks import InputError
from lfom.core.methods import Algorithm, MadeOf, Mixture
from lfom.core.parameters import part
from lfom.core.problems import Problem, Quadratic
from lfom.core.unroll import last_residual
from lfom.methods.newton import solved

STEPS = 4
FIRST_DAMPING = 1e-2  # relative to the diagonal; a tenth after a step that helped, tenfold otherwise


class PerPrompt(MadeOf):
    """A mixture that sets its gates for every prompt, and then runs.

    steps: damped least-squares steps; 0 picks the best single expert, or the model's own gates.

    >>> import jax
    >>> from lfom import LinearRegression, PerPrompt, evaluate, memformer, mixture
    >>> experts = [memformer(2, 1, memory="none", scale=s, key=jax.random.key(0)) for s in (0.3, 0.6)]
    >>> score = evaluate({"adapted": PerPrompt(mixture(experts))}, LinearRegression([1.0, 0.5], 8),
    ...                  prompts=100, key=jax.random.key(1))["adapted"]
    >>> score.mean.shape
    (1, 2)
    """

    takes_room = False  # its gates are fitted through all of its layers
    model: Any = part(per_prompt=False)  # with gates
    steps: int = eqx.field(static=True, default=STEPS)
    gates: Any = None  # of all layers, for the problem that it looked at

    def __check_init__(self) -> None:
        if not self.model.has_gates:
            raise InputError(no_gates(self.model))
        checks.count("steps", self.steps, 0)

    @property
    def members(self) -> tuple[Algorithm, ...]:
        return (self.model,)

    def without_kernel(self) -> "PerPrompt":
        return PerPrompt(self.model.without_kernel(), self.steps)

    def as_algorithm(self) -> "PerPrompt":
        return PerPrompt(self.model.as_algorithm(), self.steps, self.gates)

    def ready(self) -> "PerPrompt":
        return PerPrompt(self.model.ready(), self.steps, self.gates)

    def look(self, problem: Problem) -> tuple[Any, Any]:
        return self.adapted(problem).gates, self.model.look(problem)

    def bind(self, seen: tuple[Any, Any]) -> "PerPrompt":
        """Without the check of new ones: the stopping rule binds what is cut to one layer already."""
        return eqx.tree_at(
            lambda one: (one.model, one.gates),
            self,
            (self.model.bind(seen[1]), seen[0]),
            is_leaf=lambda leaf: leaf is None,
        )

    def start(self, state: Any, problem: Problem, room: int | None) -> Any:
        return self.model.start(state, problem, room)

    def step(self, state: Any, past: Any, problem: Problem, layer: Array | int) -> tuple[Any, Any]:
        model, gates = self.model, self.gates
        if gates is not None:
            model = with_gates(model, gates[:, layer] if model.per_layer else gates)
        return model.step(state, past, problem, layer)

    def truncated(self, depth: int) -> "PerPrompt":
        return PerPrompt(self.model.truncated(depth), self.steps)

    def adapted(self, problem: Problem) -> Mixture:
        """The mixture with gates for each of these prompts, on a trailing axis."""
        own = problem.about_context()
        question = context_question(problem) if own is None else own
        return with_gates(self.model, gates_for(self.model, question, self.steps))


def no_gates(model: Any) -> str:
    return (
        f"{type(model).__name__} has no gates to adapt: build a mixture of experts with lfom.mixture([...]), "
        "or adapt other parameters, such as train=('coefficients',), in another setting."
    )


def with_gates(model: Mixture, gates: Any) -> Mixture:
    return replace(model, gates=gates)  # in half the time of eqx.tree_at


def context_question(problem: Problem) -> Quadratic:
    """The same prompts, asked how well w fits their context: |probe w - target|^2 is twice the
    context's loss above its minimum."""
    quadratics = problem.as_quadratic()
    root, target = _root(quadratics.gram, quadratics.moment)
    return Quadratic(quadratics.gram, quadratics.moment, transpose(root), target)


def _root(gram: Array, moment: Array) -> tuple[Array, Array]:
    """L with L L^T = gram, and L^-1 moment. Directions without variance are left out (n < d)."""
    d = gram.shape[0]
    smallest = 10 * jnp.finfo(gram.dtype).eps * jnp.einsum("ii...->...", gram)
    columns, found, rest = [], [], moment
    for j in range(d):
        pivot = gram[j, j]
        ok = pivot > smallest
        column = jnp.where(ok, gram[:, j] / jnp.sqrt(jnp.where(ok, pivot, 1)), 0)
        entry = jnp.where(ok, rest[j] / jnp.where(ok, column[j], 1), 0)
        rest, gram = rest - column * entry, gram - column[:, None] * column[None]
        gram, rest, column, entry = _apart(gram, rest, column, entry)
        columns.append(column)
        found.append(entry)
    return jnp.stack(columns, axis=1), jnp.stack(found)


def gates_for(model: Mixture, question: Problem, steps: Any) -> Array:
    """Gates (heads, ..., *prompts) that make |residual|^2 of the question small, prompt by prompt.

    steps: a whole number, or an array of one, which is not compiled in."""
    if model.per_prompt:
        raise InputError("the model has gates per prompt already: adapt the one that it came from.")
    prompts = jax.eval_shape(lambda: last_residual(model, question)).shape[1:]
    options = model.gate_starts()

    def error(gates: Array) -> Array:
        squares = jnp.sum(last_residual(with_gates(model, gates), question) ** 2, axis=0)
        return jnp.where(jnp.isfinite(squares), squares, jnp.inf)

    best = jnp.argmin(jax.lax.map(error, options), axis=0)  # the model's own gates if all overflow
    gates = jnp.moveaxis(options[best], range(len(prompts)), range(-len(prompts), 0))
    if model.gating == "hard" or (isinstance(steps, int) and steps == 0):
        return gates
    shape = gates.shape

    def residual(flat: Array) -> Array:
        return last_residual(with_gates(model, flat.reshape(shape)), question)

    flat = gates.reshape(-1, *prompts)
    return _levenberg_marquardt(residual, flat, steps).reshape(shape)


def _levenberg_marquardt(residual: Any, start: Float[Array, "p *prompts"], steps: Any) -> Array:
    """Each prompt by itself. One pass per step: derivatives are taken at the candidate, and kept
    if it is better. Compiled, and with prompts last: `core/damped.py` is NumPy's."""
    p, prompts, dtype = start.shape[0], start.shape[1:], start.dtype
    units = jnp.eye(p, dtype=dtype)
    eye = pad_axes(units, 2 + len(prompts))

    def at(flat: Array) -> tuple[Array, Array, Array]:
        """The squared error, J^T J and J^T r. Forward mode, one gate at a time (vmapped, or with
        stored derivatives, it measured twice as slow)."""

        def along(unit: Array) -> tuple[Array, Array]:
            return jax.jvp(residual, (flat,), (jnp.broadcast_to(pad_axes(unit, flat.ndim), flat.shape),))

        r, J = jax.lax.map(along, units)
        r = r[0]
        # As sums of products: an einsum with prompts last becomes a slow batched product.
        return jnp.sum(r**2, axis=0), jnp.sum(J[:, None] * J[None], axis=2), jnp.sum(J * r[None], axis=1)

    def step(_: Array, carry: Any) -> Any:
        best, error, normal, slope, damping, candidate = carry
        new = at(candidate)
        better = (new[0] < error) & jnp.isfinite(new[1]).all(axis=(0, 1))

        def pick(one: Array, other: Array) -> Array:
            return jnp.where(better, one, other)

        best, error = pick(candidate, best), pick(new[0], error)
        normal, slope = pick(new[1], normal), pick(new[2], slope)
        damping = jnp.clip(pick(damping / 10, damping * 10), 1e-6, 1e6)
        diagonal = jnp.einsum("aa...->a...", normal)
        ridge = damping * diagonal + jnp.finfo(dtype).tiny ** 0.5
        return best, error, normal, slope, damping, best - solve(normal + eye * ridge[:, None], slope)

    begin = (
        start,
        jnp.full(prompts, jnp.inf, dtype),
        jnp.zeros((p, p, *prompts), dtype),
        jnp.zeros_like(start),
        jnp.full(prompts, 10 * FIRST_DAMPING, dtype),
        start,
    )
    best, error, *_, candidate = jax.lax.fori_loop(0, steps, step, begin)
    return jnp.where(jnp.sum(residual(candidate) ** 2, axis=0) < error, candidate, best)


def solve(matrix: Float[Array, "p p *prompts"], vector: Float[Array, "p *prompts"]) -> Array:
    """matrix^-1 vector for symmetric positive definite matrices, prompts last: Gauss-Jordan."""
    p = matrix.shape[0]
    if p > PROMPTS_LAST:
        return solved(matrix, vector)
    system = jnp.concatenate([matrix, vector[:, None]], axis=1)
    for j in range(p):
        row = system[j] / system[j, j]
        (system,) = _apart((system - system[:, j, None] * row[None]).at[j].set(row))
    return system[:, -1]


def _apart(*arrays: Array) -> tuple[Array, ...]:
    """Keep the steps of an elimination apart: fused, each would compute all those before it again,
    several times over, and compile for minutes."""
    return jax.lax.optimization_barrier(arrays)
