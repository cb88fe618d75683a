"""lfom: learned first-order methods, and the Transformers that run them."""

from lfom.adaptation import Adaptation, PerPrompt, adapt
from lfom.core.archive import own_version
from lfom.core.checks import InputError
from lfom.core.methods import Method, Mixture
from lfom.files import load, save
from lfom.limits.optimum import exact_optimum, sampled_optimum
from lfom.methods import theorems
from lfom.methods.classical import (
    chebyshev,
    conjugate_gradient,
    gd_plus_plus,
    gradient_descent,
    heavy_ball,
    least_squares,
    lfom,
    lfom_coefficients,
    momentum,
    nesterov,
    preconditioned_gradient_descent,
    ridge,
)
from lfom.methods.memformer import linear_transformer, memformer, mixture
from lfom.prompts.distributions import (
    PUBLISHED_SPECTRUM,
    TEXT_SPECTRUM,
    GaussianMixture,
    LinearRegression,
    haar_rotation,
)
from lfom.prompts.prompt import Prompt, prompt_from_arrays
from lfom.prompts.run import Trajectory, run
from lfom.prompts.shifts import AnyOf, HeavyTailed, RandomScale, turn
from lfom.solving import ConvexLosses, LeastSquaresProblems, LinearSystems, Solution, learn
from lfom.training import Adam, Fit, LeastSquares, PerRun, Score, evaluate, fit
from lfom.training.tuning import tune

__version__ = own_version()

__all__ = [
    "Adam",
    "adapt",
    "Adaptation",
    "AnyOf",
    "chebyshev",
    "conjugate_gradient",
    "ConvexLosses",
    "evaluate",
    "exact_optimum",
    "Fit",
    "fit",
    "GaussianMixture",
    "gd_plus_plus",
    "gradient_descent",
    "haar_rotation",
    "heavy_ball",
    "HeavyTailed",
    "InputError",
    "learn",
    "least_squares",
    "LeastSquares",
    "LeastSquaresProblems",
    "lfom",
    "lfom_coefficients",
    "linear_transformer",
    "LinearRegression",
    "LinearSystems",
    "load",
    "memformer",
    "Method",
    "mixture",
    "Mixture",
    "momentum",
    "nesterov",
    "PerPrompt",
    "PerRun",
    "preconditioned_gradient_descent",
    "Prompt",
    "prompt_from_arrays",
    "PUBLISHED_SPECTRUM",
    "RandomScale",
    "ridge",
    "run",
    "sampled_optimum",
    "save",
    "Score",
    "Solution",
    "TEXT_SPECTRUM",
    "theorems",
    "Trajectory",
    "tune",
    "turn",
]
