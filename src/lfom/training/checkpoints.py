"""Checkpoints: everything that a fit needs to go on, bit for bit. They are saved as all files are (lfom.save).

With the same checkpoint, the same versions and the same machine, a fit gives the same numbers: every random key
is a function of the seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array

from lfom.core import checks, room
from lfom.core.checks import InputError
from lfom.core.methods import Algorithm
from lfom.core.runs import PerRun
from lfom.core.words import brief
from lfom.prompts.distributions import LinearRegression, haar_rotation
from lfom.training.adam import Adam
from lfom.training.fitting import Fit, plan
from lfom.training.least_squares import LeastSquares
from lfom.training.state import Phase, State

OPTIMISERS = {"least-squares": LeastSquares, "adam": Adam}
PER_RUN = 3e11  # operations of a run: five took 15 s on two cores
# what is shown of a row of scores
SCORED = {"depth", "prompts", "log_loss", "stderr", "spread", "runs", "reference"}
USES = ("model", "rotations", "training", "evaluation", "optimum")  # what the seed is split into


@dataclass(frozen=True)
class Checkpoint:
    """A fit, finished or not.

    model: before training, as deep as the deepest. data: the distribution of every run. train: lists of kinds of
    parameters, trained one after the other. prompts: of the scores at the end. state: None before the first pass.
    metrics: one row per depth, once it is finished.
    """

    __repr__ = brief

    model: Algorithm
    data: PerRun
    depths: tuple[int, ...]
    train: tuple[tuple[str, ...], ...]
    optimiser: LeastSquares | Adam
    seed: int
    prompts: int = 50_000
    state: State | None = None
    finished: bool = False
    metrics: tuple[dict[str, Any], ...] = ()

    def __check_init__(self) -> None:
        """Asked of one that comes from a file: do its parts fit together?"""
        seed_number(self.seed)
        if not self.data.runs or (self.finished and (self.state is None or not self.metrics)):
            raise InputError("it has no runs, or is finished without scores.")
        for row in self.metrics:
            if not isinstance(row, dict) or SCORED - set(row):
                raise InputError(f"a row of its scores is without {', '.join(sorted(SCORED - set(row)))}.")
        if self.state is None:
            return
        if not 0 <= self.state.phase < len(self.phases):
            raise InputError(f"its phase {self.state.phase} does not exist.")
        if len(self.fit.vectors) != self.data.runs:
            raise InputError(
                f"it has {len(self.fit.vectors)} runs of models and {self.data.runs} of prompts."
            )

    def key(self, use: str) -> Array:
        """The random key of one use of the seed."""
        return key_for(self.seed, use)

    @property
    def phases(self) -> list[Phase]:
        """What `fit` goes through."""
        return plan(self.model, self.train, self.optimiser, data=self.data)

    @property
    def fit(self) -> Fit:
        """The models as they stand, also in the middle of training."""
        if self.state is None:
            raise InputError("no pass is done yet: there are no trained models.")
        template = self.phases[self.state.phase].parameters.template
        fit = Fit(template, self.depths, self.state.vectors, self.state.history, 0.0)
        fit.__check_init__()
        return fit


def key_for(seed: int, use: str) -> Array:
    """The random key of one use of a seed."""
    return jax.random.fold_in(jax.random.key(seed), USES.index(use))


def regressions(spectrum: Sequence[float], context: int, runs: int, seed: int, **options: Any) -> PerRun:
    """The distribution of every run, each with a rotation of its own."""
    size = 4.0 * checks.count("runs", runs) * len(spectrum) ** 2
    room.fits(f"runs is {runs}", size, "Pass fewer runs.")
    room.in_time(f"runs is {runs}", runs * PER_RUN, "Pass fewer runs.")
    keys = jax.random.split(key_for(seed, "rotations"), runs)
    rotations = [np.asarray(haar_rotation(key, len(spectrum))) for key in keys]
    return PerRun([LinearRegression(list(spectrum), context, rotation=U, **options) for U in rotations])


def seed_number(seed: int) -> int:
    """A seed is a whole number of at least 0 that fits in 32 bits."""
    return checks.seed("seed", seed)
