"""Training problems of one number.

Prompts have the Gram matrix s and the moment s, so that a model of one layer with the number a answers with
s a, and the loss is (s a - target)^2: what training should find is known.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lfom import Prompt, fit, memformer, prompt_from_arrays, run
from lfom.core.problems import Quadratic
from lfom.prompts.distributions import Distribution


def asking_for(targets: jax.Array, size: float = 1.0) -> Quadratic:
    s = jnp.full((1, *targets.shape), size)
    return Quadratic(s[None], s, jnp.ones((1, 1)), targets[None])


class Moody(Distribution):
    """coin: all prompts drawn at once ask for the same number, 1 or -1, the next ones perhaps for another.
    normal: the same with 1 + .1 z. each: every prompt asks for a 1 + z of its own. far: all ask for 1,000."""

    spectrum: jax.Array
    kind: str = eqx.field(static=True)

    def __init__(self, kind: str):
        self.spectrum, self.kind = jnp.ones(1), kind

    @property
    def dimension(self) -> int:
        return 1

    def targets(self, key: jax.Array, count: int) -> jax.Array:
        found = {
            "coin": lambda: jax.random.rademacher(key, (), float),
            "normal": lambda: 1 + 0.1 * jax.random.normal(key),
            "each": lambda: 1 + jax.random.normal(key, (count,)),
            "far": lambda: 1e3,
        }[self.kind]()
        return jnp.broadcast_to(jnp.asarray(found, float), (count,))

    def prompt(self, key: jax.Array) -> Prompt:
        return jax.tree.map(lambda a: a[0], self.prompts(key, 1))

    def prompts(self, key: jax.Array, count: int) -> Prompt:
        one = jnp.ones((count, 1))
        return Prompt(one[..., None], one, one, self.targets(key, count))

    def quadratics(self, key: jax.Array, count: int) -> Quadratic:
        return asking_for(self.targets(key, count))


def numbers(data: Any, optimiser: Any, start: str = "model", **options: Any) -> np.ndarray:
    """The number that every run has learned: its answer to s = 1. From the model's own it starts at 0."""
    given: dict[str, Any] = {"memory": "none", "preconditioner": "scalar"} | options
    model = memformer(1, 1, scale=0.0, key=jax.random.key(0), **given)
    found = fit(model, data, key=jax.random.key(1), optimiser=optimiser, start=start)
    one = jnp.ones(1)
    prompt = prompt_from_arrays(one[None], one, one, one[0])
    return np.array([float(run(found.model(k), prompt).predictions[-1]) for k in range(found.runs)])
