"""Training to the optimum: objective, least squares, Adam as in the paper, evaluation."""

from lfom.training.adam import Adam
from lfom.training.evaluation import PerRun, Score, evaluate
from lfom.training.fitting import Fit, fit
from lfom.training.least_squares import LeastSquares
from lfom.training.state import State

__all__ = ["Adam", "Fit", "LeastSquares", "PerRun", "Score", "State", "evaluate", "fit"]
