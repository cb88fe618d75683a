"""Methods learned from a family of problems, and methods of every origin made safe to use on the next ones."""

from lfom.solving.learn import learn
from lfom.solving.problems import ConvexLosses, LeastSquaresProblems, LinearSystems
from lfom.solving.records import Solution

__all__ = ["ConvexLosses", "learn", "LeastSquaresProblems", "LinearSystems", "Solution"]
