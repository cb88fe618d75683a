"""Training to the optimum: objective, least squares, Adam as in the paper, evaluation."""

from lfom.training.adam import Adam
from lfom.training.evaluation import PerRun, Score, evaluate
from lfom.training.fitting import Fit, LeastSquares, State, fit

__all__ = ["Adam", "Fit", "LeastSquares", "PerRun", "Score", "State", "evaluate", "fit"]
