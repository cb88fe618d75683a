"""Methods learned from a family of problems, and safe to use on the next ones."""

from lfom.solving.files import load_method
from lfom.solving.learn import learn
from lfom.solving.method import LearnedMethod, Solution
from lfom.solving.problems import ConvexLosses, LeastSquaresProblems, LinearSystems

__all__ = [
    "ConvexLosses",
    "learn",
    "LearnedMethod",
    "LeastSquaresProblems",
    "LinearSystems",
    "load_method",
    "Solution",
]
