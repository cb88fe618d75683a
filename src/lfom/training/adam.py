"""Adam as in the paper's text: a batch resampled every so many steps, gradients clipped per
matrix. All runs and depths step together in one compiled program."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float

from lfom.problems import Quadratic
from lfom.training.parameters import Parameters
from lfom.unroll import Algorithm, last_residual


class Adam(eqx.Module):
    """The protocol; the defaults are those of the paper's text and NOTES 2.14.

    schedule: "constant", or "cosine" (down to zero over all steps).
    """

    steps: int = 1_000
    batch: int = 1_000
    resample: int = 100
    learning_rate: float = 0.01
    clip: float = 0.01
    schedule: str = "constant"

    def optimiser(self) -> optax.GradientTransformation:
        rate = self.learning_rate
        if self.schedule == "cosine":
            return optax.adam(optax.cosine_decay_schedule(rate, self.steps))
        return optax.adam(rate)


def clip_groups(gradient: Float[Array, " p"], groups: np.ndarray, limit: float) -> Float[Array, " p"]:
    """The gradient with every group of entries (one matrix) scaled down to norm `limit`."""
    squares = jax.ops.segment_sum(gradient**2, groups, num_segments=int(groups.max()) + 1)
    factor = jnp.minimum(1.0, limit / jnp.maximum(jnp.sqrt(squares), 1e-30))
    return gradient * factor[groups]


def mean_loss(model: Algorithm, quadratics: Quadratic, active: Float[Array, " depth"]) -> Array:
    residual = last_residual(model, quadratics, active)
    return jnp.sum(residual**2) / residual.shape[-1]


def make_block(parameters: Parameters, adam: Adam) -> Callable:
    """block(vectors (runs, depths, all), state, actives (depths, L), quadratics of each run):
    `resample` steps on one batch. Returns the new vectors and state, and the losses (runs,
    depths, 2) of the block's first and last step."""
    optimiser, index, groups = adam.optimiser(), parameters.index, parameters.groups

    def one_model(vector: Array, state: Any, active: Array, quadratics: Quadratic) -> Any:
        def loss_of(trained: Array) -> Array:
            return mean_loss(parameters.assemble(vector, trained), quadratics, active)

        def step(carry: Any, _: None) -> Any:
            trained, state = carry
            loss, gradient = jax.value_and_grad(loss_of)(trained)
            updates, state = optimiser.update(clip_groups(gradient, groups, adam.clip), state, trained)
            return (optax.apply_updates(trained, updates), state), loss

        (trained, state), losses = jax.lax.scan(step, (vector[index], state), None, length=adam.resample)
        return vector.at[index].set(trained), state, losses[jnp.array([0, -1])]

    over_depths = jax.vmap(one_model, in_axes=(0, 0, 0, None))
    return jax.jit(jax.vmap(over_depths, in_axes=(0, 0, None, 0)))
