"""Adam as in the paper's text: a batch resampled every so many steps, gradients clipped per
matrix. All runs and depths step together in one compiled program."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float

from lfom.core import checks, room
from lfom.core.arrays import as_array, unstacked
from lfom.core.compiler import QUICKLY, jit_draws
from lfom.core.devices import used
from lfom.core.methods import Algorithm
from lfom.core.problems import Problem
from lfom.core.unroll import last_residual
from lfom.core.vectors import Parameters
from lfom.core.words import brief
from lfom.training.state import PROGRAMS, Phase, Setting, State, actives, kept_by

LEFT_OUT = 0.1  # of the steps between two looks at the host may be left out, because a prompt overflows
PER_STEP, PER_PROMPT = 1e6, 1e3  # operations of a step, and of a prompt in it, at the least
WRITTEN_APART = 32  # layers of all depths together
BLOCK = 100  # steps between two looks at the host, where batches change more often than that


@dataclass(frozen=True)
class Adam(checks.SelfChecked):
    """The protocol; the defaults are those of the paper's text and docs/mathematics.md 2.14.

    schedule: "constant", or "cosine" (down to zero over all steps). warmup: so many of the steps at first, in
    which the learning rate grows from zero. log: the gradient is that of the log of the batch's loss, so that
    it does not fade with the loss. averaged: the query is averaged out where the distribution does so, instead
    of one per prompt. resample: steps on one batch before another is drawn. beta1, beta2: what stays of the running means
    of the gradient and of its square after a step.

    >>> import lfom
    >>> longer = lfom.Adam(steps=5_000, schedule="cosine")  # lfom.fit(model, data, key=key, optimiser=longer)
    >>> longer.batch, longer.learning_rate
    (1000, 0.01)
    """

    __repr__ = brief

    steps: int = 1_000
    batch: int = 1_000
    resample: int = 100
    learning_rate: float = 0.01
    clip: float = 0.01
    schedule: str = "constant"
    warmup: int = 0
    log: bool = False
    averaged: bool = False
    beta1: float = 0.9
    beta2: float = 0.999

    # What a fit asks of a way to train (LeastSquares has the same).
    chunk: ClassVar[int] = 2_000
    hold_out: ClassVar[float] = 0.0
    every_matrix: ClassVar[bool | None] = None

    def __check_init__(self) -> None:
        for name in ("steps", "batch", "resample"):
            checks.count(name, getattr(self, name))
        checks.above_zero("learning_rate", self.learning_rate)
        checks.above_zero("clip", self.clip)
        checks.known("schedule", self.schedule, ("constant", "cosine"))
        checks.count("warmup", self.warmup, 0)
        for name in ("log", "averaged"):
            checks.flag(name, getattr(self, name))
        said = f"steps is {self.steps}, resample {self.resample} and batch {self.batch}"
        most = float(max(self.steps, self.resample))  # a batch that was begun is finished
        room.in_time(said, most * (PER_STEP + self.batch * PER_PROMPT), "Pass fewer.")
        room.fits(f"batch is {self.batch}", 4.0 * self.batch * PER_PROMPT / 100, "Pass fewer.")
        for name in ("beta1", "beta2"):
            if not 0 <= checks.number(name, getattr(self, name)) < 1:
                raise checks.InputError(
                    f"{name} is {getattr(self, name)}: it is the part of a running mean that stays, 0 or more and "
                    "below 1."
                )
        if not 0 <= self.warmup < self.steps:
            raise checks.InputError(f"warmup is {self.warmup}: it is a part of the {self.steps} steps.")

    def check_view(self, view: str) -> None:
        """Adam trains in every view; tokens hold one query."""
        if self.averaged and view == "tokens":
            raise checks.InputError(
                "averaged is True, and this model is trained on tokens, which hold one query: leave it out."
            )

    def begins_anew(self, start: str) -> bool:
        """Adam always begins from the model's own numbers."""
        return False

    def run(self, phase: Phase, setting: Setting, state: State) -> State:
        return run_adam(phase, self, setting, state)

    def optimiser(self) -> optax.GradientTransformation:
        rate: Any = self.learning_rate
        if self.schedule == "cosine":
            rate = optax.cosine_decay_schedule(rate, self.steps - self.warmup)
        if self.warmup:
            rising = optax.linear_schedule(0.0, self.learning_rate, self.warmup)
            flat = rate if callable(rate) else optax.constant_schedule(rate)
            rate = optax.join_schedules([rising, flat], [self.warmup])
        return optax.adam(rate, b1=self.beta1, b2=self.beta2)


def clip_groups(gradient: Float[Array, " p"], groups: np.ndarray, limit: float) -> Float[Array, " p"]:
    """The gradient with every group of entries (one matrix) scaled down to norm `limit`."""
    squares = jax.ops.segment_sum(gradient**2, groups, num_segments=int(groups.max()) + 1)
    factor = jnp.minimum(1.0, limit / jnp.maximum(jnp.sqrt(squares), 1e-30))
    return gradient * factor[groups]


def mean_loss(model: Algorithm, prompts: Problem, active: Float[Array, " depth"] | None) -> Array:
    residual = last_residual(model, prompts, active)
    return jnp.sum(residual**2) / residual.shape[-1]


@functools.lru_cache(PROGRAMS)
def make_block(parameters: Parameters, adam: Adam, depths: tuple[int, ...]) -> Callable:
    """block(vectors (runs, depths, all), trained (runs, depths, p), state, prompts (batches, runs, ...)): `resample` steps
    of the trained numbers on each of these batches; one whose gradient is not finite, because of a prompt that overflows, is
    left out. Returns the new trained numbers and state, and the losses (runs, depths, steps).

    On a CPU gradients of each depth are taken by themselves, with as many layers as it uses: a step of four depths takes
    a third of the time that all take with the layers of the deepest, or less (docs/design.md). Accelerators, and depths
    that would compile for long, run all at once with layers switched off. All models step together.
    """
    update, groups = adam.optimiser().update, parameters.groups
    apart = jax.default_backend() == "cpu" and sum(depths) <= WRITTEN_APART

    def gradients(own: int, *models: Any) -> Any:
        """The losses (models,) and gradients (models, p) of models of `own` layers: vectors, trained, active, prompts. A
        vmapped axis of size 1 costs XLA's CPU compiler the layout with prompts last (measured 20 times slower), so such
        axes are taken away."""

        def of_one(vector: Array, trained: Array, active: Array | None, prompts: Problem) -> Any:
            def loss_of(trained: Array) -> Array:
                return mean_loss(parameters.assemble(vector, trained).truncated(own), prompts, active)

            return jax.value_and_grad(loss_of)(trained)

        if len(models[0]) > 1:
            return jax.vmap(of_one)(*models)
        return jax.tree.map(lambda a: a[None], of_one(*jax.tree.map(lambda a: a[0], models)))

    def apart_by_depth(vectors: Array, trained: Array, prompts: Problem) -> Any:
        pairs = zip(unstacked(vectors, 1), unstacked(trained, 1), strict=True)
        each = [gradients(own, *pair, None, prompts) for own, pair in zip(depths, pairs, strict=True)]
        return jax.tree.map(lambda *rows: jnp.stack(rows, axis=1), *each)

    def all_at_once(vectors: Array, trained: Array, prompts: Problem) -> Any:
        runs, many = vectors.shape[:2]
        flat = [a.reshape(runs * many, a.shape[-1]) for a in (vectors, trained)]
        active = jnp.tile(actives(depths), (runs, 1))
        each = prompts if many == 1 else jax.tree.map(lambda a: jnp.repeat(a, many, axis=0), prompts)
        found = gradients(max(depths), *flat, active, each)
        return jax.tree.map(lambda a: a.reshape(runs, many, *a.shape[1:]), found)

    @jax.vmap
    @jax.vmap
    def stepped(model: Any, loss: Array, gradient: Array) -> Any:
        trained, state = model
        if adam.log:
            gradient = gradient / loss
        tame = jnp.isfinite(gradient).all()
        clipped = clip_groups(jnp.where(tame, gradient, 0), groups, adam.clip)
        updates, after = update(clipped, state, trained)
        found = (optax.apply_updates(trained, updates), after)
        return jax.tree.map(lambda a, b: jnp.where(tame, a, b), found, model)

    def block(vectors: Array, trained: Array, state: Any, batches: Problem) -> Any:
        def one_batch(models: Any, prompts: Problem) -> Any:
            def step(models: Any, _: None) -> Any:
                losses, gradient = (apart_by_depth if apart else all_at_once)(vectors, models[0], prompts)
                return stepped(models, losses, gradient), losses

            return jax.lax.scan(step, models, None, length=adam.resample)

        if jax.tree.leaves(batches)[0].shape[0] == 1:
            models, losses = one_batch((trained, state), jax.tree.map(lambda a: a[0], batches))
        else:
            models, losses = jax.lax.scan(one_batch, (trained, state), batches)
            losses = losses.reshape(-1, *losses.shape[2:])
        return *models, jnp.moveaxis(losses, 0, -1)

    return jax.jit(block, compiler_options=QUICKLY if jax.default_backend() == "cpu" else None)


@jit_draws
def _batches(source: Any, keys: Array, size: int, count: int, averaged: bool) -> Problem:
    """`count` batches per run, (count, runs, ...)."""

    def one(number: Array) -> Problem:
        own = keys if count == 1 else jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)
        return jax.vmap(lambda arrays, key: source.batch(arrays, key, size, averaged))(source.arrays, own)

    return jax.lax.map(one, jnp.arange(count))


def _last(losses: np.ndarray) -> np.ndarray:
    """The last loss that is finite, (runs, depths); at least one is."""
    finite = np.isfinite(losses)
    at = losses.shape[-1] - 1 - np.argmax(finite[..., ::-1], axis=-1)
    return np.take_along_axis(losses, at[..., None], axis=-1)[..., 0]


def batches_at_once(adam: Adam) -> int:
    """As many batches between two looks at the host as fit into BLOCK steps, and into all steps without a rest."""
    rounds = -(-adam.steps // adam.resample)
    return max(n for n in range(1, max(BLOCK // adam.resample, 1) + 1) if rounds % n == 0)


def among_devices(runs: int, depths: int) -> NamedSharding | None:
    """Runs split over as many of the used devices as divide them, two models on each or more: a batch of one model is
    compiled otherwise, and rounds otherwise. None for one device."""
    there = used()
    many = max(n for n in range(1, len(there) + 1) if runs % n == 0 and (n == 1 or runs // n * depths > 1))
    return (
        None if many == 1 else NamedSharding(Mesh(np.array(there[:many]), ("runs",)), PartitionSpec("runs"))
    )


def run_adam(phase: Phase, adam: Adam, setting: Setting, state: State) -> State:
    """Blocks of steps until there are enough."""
    block = make_block(phase.parameters, adam, setting.depths)
    index = phase.parameters.index
    vectors, trained = as_array(state.vectors), as_array(state.vectors[..., index])
    fresh = jax.eval_shape(jax.vmap(jax.vmap(adam.optimiser().init)), trained)
    leaves, structure = jax.tree.flatten(fresh)
    if state.extra:
        kept = kept_by(state, {f"adam_{i}": leaf.shape for i, leaf in enumerate(leaves)})
        leaves = [as_array(np.asarray(kept[f"adam_{i}"], leaf.dtype)) for i, leaf in enumerate(leaves)]
    else:  # Adam's moments and counts begin at zero
        leaves = [as_array(np.zeros(leaf.shape, leaf.dtype)) for leaf in leaves]
    moments = jax.tree.unflatten(structure, leaves)
    lies = among_devices(*vectors.shape[:2])
    count = batches_at_once(adam)
    steps = count * adam.resample
    while state.step * steps < adam.steps:
        keys = setting.keys(state.phase, state.step)
        batches = _batches(setting.source, keys, adam.batch, count, adam.averaged)
        # sums over tokens round as many models at once are compiled
        if lies is not None and batches.prompts_last:
            batches = jax.device_put(batches, NamedSharding(lies.mesh, PartitionSpec(None, *lies.spec)))
            vectors, trained, moments = jax.device_put((vectors, trained, moments), lies)
        trained, moments, losses = block(vectors, trained, moments, batches)
        losses = np.asarray(losses, np.float64)
        left_out = (~np.isfinite(losses)).mean(axis=-1)  # steps, by run and depth
        if (left_out > LEFT_OUT).any() or not np.isfinite(np.asarray(trained)).all():
            told = np.where(left_out > LEFT_OUT, np.nan, 0.0)
            raise setting.diverged(told, state, f"Adam step {state.step * steps}")
        extra = {f"adam_{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(moments))}
        found = state.vectors.copy()
        found[..., index] = trained
        log_loss = np.log(np.maximum(_last(losses), 1e-300)).tolist()
        facts = {"step": (state.step + 1) * steps, "prompts": adam.batch, "log_loss": log_loss}
        facts |= {"left_out": left_out.tolist()} if left_out.any() else {}
        state = setting.passed(phase, state, found, 0, extra, **facts)
    return state
