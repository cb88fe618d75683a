"""Fits of several structures to several parts of the problems, on all devices: every one of them runs on one device, as it
would alone, so that the method is the same to the last bit for any number of devices."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from lfom.core.arrays import as_array
from lfom.core.devices import used
from lfom.core.threads import in_threads
from lfom.solving.learners import Fitted, Fold
from lfom.solving.progress import Course
from lfom.solving.structures import Structure


class Trial(NamedTuple):
    """One fit."""

    structure: Structure
    fold: Fold
    iterations: int

    def text(self, folds: int) -> str:
        part = f", part {self.fold.number + 1} of {folds}" if folds > 1 else ""
        return self.structure.name + part


def fitted(learner: Any, jobs: list[Trial], kind: str, folds: int, course: Course) -> Iterator[Fitted]:
    """In the order of jobs, each as it is asked for, or as many at a time as there are devices. kind: of stage."""
    several = min(len(used()), len(jobs))
    if several <= 1:
        for job in jobs:
            course.begin(kind, job.text(folds))
            yield learner.fit(*job, course.tick)
        return
    found = in_threads(lambda job: learner.fit(*job), jobs, several)
    for job in jobs:  # a stage is told when it is waited for; others are under way
        course.begin(kind, f"{job.text(folds)}, {several} at a time")
        fit = next(found)
        yield replace(fit, reader=_here(fit.reader), memory=_here(fit.memory))


def _here(tree: Any) -> Any:
    """On the device that is used without a word."""
    return jax.tree.map(lambda leaf: as_array(np.asarray(leaf)) if eqx.is_array(leaf) else leaf, tree)
