"""What is trained, on which prompts, and how: everything a fit depends on, as plain values.

A configuration goes through JSON unchanged. With the same configuration, the same versions and
the same machine, a fit gives the same numbers: every random key is a function of the seed.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array

from lfom.core import checks
from lfom.core.methods import Method
from lfom.core.runs import PerRun
from lfom.methods.memformer import memformer
from lfom.prompts.distributions import LinearRegression, haar_rotation
from lfom.training.adam import Adam
from lfom.training.fitting import plan
from lfom.training.least_squares import LeastSquares
from lfom.training.state import Phase

OPTIMISERS = {"least-squares": LeastSquares, "adam": Adam}
USES = ("model", "rotations", "training", "evaluation", "optimum")  # what the seed is split into


@dataclass(frozen=True)
class Configuration:
    """A model, a distribution of prompts, and a way to train.

    model: the options of lfom.memformer except depth, which is the largest of depths. data: the
    spectrum, context, noise and variance of LinearRegression, and the number of runs, each with
    a rotation of its own. train: lists of kinds of parameters, trained one after the other.

    >>> configuration = Configuration(
    ...     {"d": 2, "memory": "none"},
    ...     {"spectrum": (1.0, 0.5), "context": 8, "runs": 2},
    ...     depths=(1,), train=(("A",),), optimiser=LeastSquares(), seed=0,
    ... )
    >>> Configuration.from_json(configuration.to_json()) == configuration
    True
    """

    model: dict[str, Any]
    data: dict[str, Any]
    depths: tuple[int, ...]
    train: tuple[tuple[str, ...], ...]
    optimiser: LeastSquares | Adam
    seed: int
    prompts: int = 50_000  # of the scores at the end

    def key(self, use: str) -> Array:
        """The random key of one use of the seed."""
        return jax.random.fold_in(jax.random.key(self.seed), USES.index(use))

    def template(self) -> Method:
        """The model before training."""
        return memformer(depth=max(self.depths), key=self.key("model"), **self.model)

    def rotations(self) -> np.ndarray:
        """(runs, d, d): one rotation per run."""
        keys = jax.random.split(self.key("rotations"), self.data["runs"])
        return np.stack([np.asarray(haar_rotation(key, self.model["d"])) for key in keys])

    def distributions(self, rotations: np.ndarray) -> PerRun:
        """The distribution of every run, on a leading axis."""
        options = {name: value for name, value in self.data.items() if name != "runs"}
        options["spectrum"] = list(options["spectrum"])
        return PerRun([LinearRegression(**options, rotation=rotation) for rotation in rotations])

    def phases(self, data: PerRun) -> list[Phase]:
        """What `fit` goes through with this configuration."""
        return plan(self.template(), self.train, self.optimiser, data=data)

    def to_json(self) -> dict[str, Any]:
        name = next(name for name, kind in OPTIMISERS.items() if isinstance(self.optimiser, kind))
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        # A dataclass or an Equinox module (which is one): flat either way.
        options = {
            field.name: getattr(self.optimiser, field.name) for field in dataclasses.fields(self.optimiser)
        }
        return _lists({**fields, "optimiser": {"name": name, **options}})

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Configuration":
        value = _tuples(value)
        options = dict(value["optimiser"])
        return cls(**{**value, "optimiser": OPTIMISERS[options.pop("name")](**options)})


def seed_number(seed: int) -> int:
    """A seed is a whole number of at least 0 that fits in 32 bits."""
    if checks.count("seed", seed, 0) >= 2**32:
        raise checks.InputError(f"seed is {seed}: it must be below 2^32 = {2**32}. Pass a smaller number.")
    return seed


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _lists(item) for name, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, tuple | list) else value


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, tuple | list) else value
