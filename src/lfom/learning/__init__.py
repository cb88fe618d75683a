"""Methods learned from a family of problems, and safe to use on the next ones."""

from lfom.learning.files import load_method
from lfom.learning.learn import learn
from lfom.learning.method import LearnedMethod, Solution
from lfom.learning.problems import ConvexLosses, LeastSquaresProblems, LinearSystems

__all__ = [
    "ConvexLosses",
    "learn",
    "LearnedMethod",
    "LeastSquaresProblems",
    "LinearSystems",
    "load_method",
    "Solution",
]
