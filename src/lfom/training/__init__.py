"""Training to the optimum: objective, least squares, Adam as in the paper, evaluation."""

from lfom.core.runs import PerRun
from lfom.training.adam import Adam
from lfom.training.evaluation import evaluate
from lfom.training.fitting import Fit, fit
from lfom.training.least_squares import LeastSquares
from lfom.training.prefixes import PrefixScore
from lfom.training.scores import Score
from lfom.training.state import State

__all__ = ["Adam", "Fit", "LeastSquares", "PerRun", "PrefixScore", "Score", "State", "evaluate", "fit"]
