"""The only loop: read a direction, remember it, step; every answer on the way is kept."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from lfom.core import checks
from lfom.core.arrays import PROMPTS_LAST, matvec
from lfom.core.coefficients import NoSuchView
from lfom.core.memories import Memory
from lfom.core.problems import Examples, IterateProblem, Problem, Quadratic, Tokens
from lfom.core.readers import Reader
from lfom.prompts.prompt import Prompt, checked


class Algorithm(eqx.Module):
    """A first-order method of fixed depth: its step, and what it needs of a state."""

    @property
    @abc.abstractmethod
    def depth(self) -> int: ...

    @property
    @abc.abstractmethod
    def splits(self) -> bool: ...

    @property
    @abc.abstractmethod
    def moves_covariates(self) -> bool: ...

    @abc.abstractmethod
    def start(self) -> Any:
        """What is remembered before the first layer."""

    @abc.abstractmethod
    def step(self, state: Any, past: Any, problem: Problem, layer: int) -> tuple[Any, Any]: ...


class Method(Algorithm):
    """A reader and a memory. Classical methods and trained Memformers are both of this kind."""

    reader: Reader
    memory: Memory
    layers: int = eqx.field(static=True)

    @property
    def depth(self) -> int:
        return self.layers

    @property
    def splits(self) -> bool:
        return self.memory.splits

    @property
    def moves_covariates(self) -> bool:
        return self.reader.moves_covariates

    def start(self) -> Any:
        return self.memory.start()

    def step(self, state: Any, past: Any, problem: Problem, layer: int) -> tuple[Any, Any]:
        direction = self.reader(state, problem, layer)
        return self.memory(direction, past, state, problem, layer)


class Mixture(Algorithm):
    """Heads with memories of their own; each one's step is multiplied by its gate and summed
    (soft gating, Section 4.2).

    gates: (heads,) for one number per head, (heads, depth) for one per head and layer; a
    trailing axis holds one value per prompt. gating: "free" uses the numbers as they are (the
    paper), "softmax" their softmax over heads, "hard" the head with the largest number alone.
    """

    heads: tuple[Method, ...]
    gates: Float[Array, "heads ..."]
    per_layer: bool = eqx.field(static=True, default=False)
    gating: str = eqx.field(static=True, default="free")

    @property
    def depth(self) -> int:
        return self.heads[0].depth

    @property
    def weights(self) -> Float[Array, "heads ..."]:
        """What the heads' steps are multiplied with."""
        if self.gating == "softmax":
            return jax.nn.softmax(self.gates, axis=0)
        if self.gating == "hard":
            best = jnp.argmax(self.gates, axis=0)
            return jax.nn.one_hot(best, len(self.heads), dtype=self.gates.dtype, axis=0)
        return self.gates

    @property
    def per_prompt(self) -> bool:
        """Whether every prompt has gates of its own."""
        return self.gates.ndim > 1 + self.per_layer

    @property
    def splits(self) -> bool:
        return any(head.splits for head in self.heads)

    @property
    def moves_covariates(self) -> bool:
        return any(head.moves_covariates for head in self.heads)

    def start(self) -> Any:
        return tuple(head.start() for head in self.heads)

    def step(self, state: Any, past: Any, problem: Problem, layer: int) -> tuple[Any, Any]:
        total, kept, weights = None, [], self.weights
        for h, (head, memory) in enumerate(zip(self.heads, past, strict=True)):
            step, remembered = head.step(state, memory, problem, layer)
            gate = weights[h, layer] if self.per_layer else weights[h]
            total = gate * step if total is None else total + gate * step
            kept.append(remembered)
        return total, tuple(kept)


def unroll(
    algorithm: Algorithm, problem: Problem, active: Float[Array, " depth"] | None = None
) -> tuple[Array, ...]:
    """The answers of `algorithm` on `problem` after 0, 1, ..., depth steps.

    On tokens an answer is the prediction, on iterates it is w. `active` multiplies the step of
    each layer (1, or 0 for a layer that is switched off): models of several depths then run
    as one batch.
    """
    state = problem.start(splits=algorithm.splits, moves_covariates=algorithm.moves_covariates)
    past = algorithm.start()
    answers = [problem.readout(state)]
    for layer in range(algorithm.depth):
        step, past = algorithm.step(state, past, problem, layer)
        if active is not None:
            step = active[layer] * step
        state = problem.move(state, step)
        answers.append(problem.readout(state))
    return tuple(answers)


class Trajectory(eqx.Module):
    """What `run` returns: predictions after 0, 1, ..., depth steps, and w where it exists.

    Steps lead: predictions (depth+1, *prompts), weights (depth+1, *prompts, d).
    """

    predictions: Float[Array, "steps *prompts"]
    weights: Float[Array, "steps *prompts d"] | None
    view: str = eqx.field(static=True)


VIEWS = ("iterates", "tokens")


def run(algorithm: Algorithm, prompt: Prompt, *, view: str | None = None) -> Trajectory:
    """Run a method on one prompt, or on a batch of them, and keep every step.

    The view is the library's choice: iterates where they exist, tokens otherwise. Pass
    view="tokens" or view="iterates" to insist.

    >>> from lfom import LinearRegression, gradient_descent
    >>> prompts = LinearRegression([1.0, 0.5], context=6).prompts(jax.random.key(0), 3)
    >>> run(gradient_descent(0.5, steps=4), prompts).predictions.shape
    (5, 3)
    """
    checks.count("depth", algorithm.depth)
    _check_layers(algorithm)
    if view is not None:
        checks.known("view", view, VIEWS)
    prompt = checked(prompt)
    if view == "tokens":
        return _on_tokens(algorithm, prompt)
    try:
        return _on_iterates(algorithm, prompt)
    except NoSuchView:
        if view == "iterates":
            raise
        return _on_tokens(algorithm, prompt)


def _check_layers(algorithm: Algorithm) -> None:
    """Every array that has an entry per layer must have enough of them: JAX would read the last one again."""
    if not isinstance(algorithm, Method):
        return
    parts = eqx.filter((algorithm.reader, algorithm.memory), eqx.is_array)
    for path, array in jax.tree_util.tree_leaves_with_path(parts):
        name = jax.tree_util.keystr(path)
        if not name.endswith(".half") and array.ndim and array.shape[0] < algorithm.layers:
            raise checks.InputError(
                f"the method has {algorithm.layers} layers, but {name.rpartition('.')[2]} has entries for "
                f"{array.shape[0]}: give one entry per layer, or fewer layers."
            )


def iterate_problem(prompt: Prompt, algorithm: Algorithm) -> IterateProblem:
    """The cheaper of the Gram matrix (n d^2 once) and the examples (2 n d per step)."""
    d = prompt.X.shape[-1]
    if algorithm.moves_covariates or 2 * algorithm.depth >= d:
        return Quadratic.of(prompt)
    return Examples(prompt.X, prompt.y)


def _each(one: Callable[[Algorithm, Prompt], Array], algorithm: Algorithm, prompt: Prompt) -> Array:
    """one(algorithm, prompt) for a prompt or each of a batch; steps lead. Gates that every prompt has
    of its own go with their prompt."""
    if not prompt.batched:
        return one(algorithm, prompt)
    if isinstance(algorithm, Mixture) and algorithm.per_prompt:

        def gated(gates: Array, single: Prompt) -> Array:
            return one(eqx.tree_at(lambda m: m.gates, algorithm, gates), single)

        return jax.vmap(gated, in_axes=(-1, 0), out_axes=1)(algorithm.gates, prompt)
    return jax.vmap(lambda single: one(algorithm, single), out_axes=1)(prompt)


@eqx.filter_jit
def _on_tokens(algorithm: Algorithm, prompt: Prompt) -> Trajectory:
    def one(algorithm: Algorithm, single: Prompt) -> Array:
        return jnp.stack(unroll(algorithm, Tokens.of(single)))

    return Trajectory(_each(one, algorithm, prompt), None, "tokens")


@eqx.filter_jit
def _on_iterates(algorithm: Algorithm, prompt: Prompt) -> Trajectory:
    if prompt.batched and prompt.X.shape[-1] <= PROMPTS_LAST:  # prompts last: see lfom.core.arrays
        problem = jax.vmap(Quadratic.of, out_axes=-1)(prompt)
        w = jnp.stack([jnp.moveaxis(answer, 0, -1) for answer in unroll(algorithm, problem)])
    else:

        def one(algorithm: Algorithm, single: Prompt) -> Array:
            return jnp.stack(unroll(algorithm, iterate_problem(single, algorithm)))

        w = _each(one, algorithm, prompt)
    return Trajectory(jnp.sum(w * prompt.query, axis=-1), w, "iterates")


def last_residual(
    algorithm: Algorithm, quadratics: Quadratic, active: Float[Array, " depth"] | None = None
) -> Array:
    """probe w - target after the last step, (k, *prompts): what training makes small."""
    return quadratics.residual(unroll(algorithm, quadratics, active)[-1])


def losses(
    algorithm: Algorithm, quadratics: Quadratic, active: Float[Array, " depth"] | None = None
) -> Float[Array, "steps *prompts"]:
    """The loss |probe w - target|^2 of every prompt after 0, 1, ..., depth steps."""
    w = jnp.stack(unroll(algorithm, quadratics, active), axis=1)  # one product for all steps: it
    probe = quadratics.probe  # compiles three times faster than one per step
    probe = probe if probe.ndim == 2 else probe[:, :, None]
    return jnp.sum((matvec(probe, w) - quadratics.target[:, None]) ** 2, axis=0)
