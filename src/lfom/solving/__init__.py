"""Methods learned from a family of problems, and methods of every origin made safe to use on the next ones."""

from lfom.solving.convex_losses import ConvexLosses
from lfom.solving.learn import learn
from lfom.solving.linear_systems import LinearSystems
from lfom.solving.records import Solution
from lfom.solving.regressions import LeastSquaresProblems

__all__ = ["ConvexLosses", "learn", "LeastSquaresProblems", "LinearSystems", "Solution"]
