"""lfom: learned first-order methods, and the Transformers that run them."""

from lfom.checks import InputError
from lfom.distributions import (
    PUBLISHED_SPECTRUM,
    TEXT_SPECTRUM,
    GaussianMixture,
    LinearRegression,
    haar_rotation,
)
from lfom.methods import (
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
from lfom.prompts import Prompt, prompt_from_arrays
from lfom.tuning import tune
from lfom.unroll import Method, Mixture, Trajectory, run

__all__ = [
    "chebyshev",
    "conjugate_gradient",
    "GaussianMixture",
    "gd_plus_plus",
    "gradient_descent",
    "haar_rotation",
    "heavy_ball",
    "InputError",
    "least_squares",
    "lfom",
    "lfom_coefficients",
    "LinearRegression",
    "Method",
    "Mixture",
    "momentum",
    "nesterov",
    "preconditioned_gradient_descent",
    "Prompt",
    "prompt_from_arrays",
    "PUBLISHED_SPECTRUM",
    "ridge",
    "run",
    "TEXT_SPECTRUM",
    "Trajectory",
    "tune",
]
