"""Learning numbers under a bound on their worst case over all smooth convex functions."""

from dataclasses import replace
from typing import Any

import numpy as np

from lfom.core import checks
from lfom.core.arrays import as_array
from lfom.core.checks import InputError
from lfom.core.memories import scalar_bank
from lfom.core.methods import Method
from lfom.core.preconditioners import Identity
from lfom.core.readers import Gradient
from lfom.limits.under_bound import best_under, table_of
from lfom.limits.worst_case import WorstCase, worst_case
from lfom.methods.optimal import ogm_bound, ogm_points
from lfom.solving.descent import Tick, silent
from lfom.solving.learners import MARGIN, Fitted, Fold, Learner
from lfom.solving.records import Bound, Record
from lfom.solving.structures import Structure

SHRINKS = 20  # towards OGM


class Bounded:
    """Another learner's problems, for methods with numbers alone, f(w) - f* <= bound L |w_0 - w*|^2 for every convex f
    of smoothness L. smoothness: L; by default the largest curvature that the problems have, and 5 % more."""

    def __init__(self, learner: Learner, bound: Any, smoothness: Any):
        self.learner, self.rounding = learner, learner.rounding
        self.problems, self.steps = learner.problems, learner.steps
        checks.positive("worst_case", bound)
        self.bound, best = float(bound), ogm_bound(learner.steps)
        if self.bound < best:
            raise InputError(
                f"worst_case is {self.bound:.6g}: no method of {learner.steps} steps has a worst case below that of OGM, "
                f"{best:.6g} L |w_0 - w*|^2. Pass more, such as {1.05 * best:.3g}, or more steps; lfom.ogm is OGM itself."
            )
        if smoothness is not None:
            checks.positive("smoothness", smoothness)
        self.smoothness = MARGIN * learner.curvature() if smoothness is None else float(smoothness)

    def available(self) -> list[Structure]:
        return [Structure("scalar")]

    def refinable(self, structure: Structure) -> bool:
        return False

    def iterations(self, structure: Structure) -> int:
        return 0

    def fit(self, structure: Structure, fold: Fold, iterations: int, tick: Tick = silent) -> Fitted:
        L, judge = self.smoothness, self.learner.judge(fold.learning)

        def loss(table: np.ndarray) -> tuple[float, np.ndarray]:
            value, slopes = judge(table / L)
            return (value, slopes / L) if np.isfinite(slopes).all() else (np.inf, slopes)

        table = best_under(loss, self.learner.steps, self.bound)
        method = self.confirmed(table)[0]
        return self.learner.measured(Fitted(method.reader, method.memory, np.zeros(0), iterations), fold)

    def guarded(self, structure: Structure, fold: Fold, fit: Fitted) -> Fitted:
        return fit

    def confirmed(self, table: np.ndarray) -> tuple[Method, WorstCase]:
        """The method in the precision of the problems, and its worst case, which the program finds below the bound: as it
        is, or a little nearer to OGM."""
        best, share = table_of(ogm_points(len(table))), 0.0
        for _ in range(SHRINKS):
            numbers = ((1 - share) * table + share * best) / self.smoothness
            bank = scalar_bank(as_array(numbers, self.learner.problems.dtype))
            method = Method(Gradient(Identity()), bank, len(table))
            found = worst_case(method, self.smoothness)
            if found <= self.bound * self.smoothness:
                return method, found
            share = min(max(2 * share, 1e-5), 1.0)
        raise InputError(
            f"worst_case is {self.bound:.9g}, and no method below it was confirmed: OGM itself, rounded to "
            f"{self.learner.problems.dtype}, has {found / self.smoothness:.9g}. Pass a little more, or learn in float64."
        )

    def method(self, structure: Structure, fold: Fold, fit: Fitted, record: Record) -> Method:
        made = self.learner.method(structure, fold, fit, record)
        assert made.learned is not None
        found = worst_case(made, self.smoothness)
        bound = Bound(
            self.bound, float(found) / self.smoothness, found.accuracy / self.smoothness, self.smoothness
        )
        return replace(made, learned=replace(made.learned, bound=bound))
