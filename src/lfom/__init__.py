"""lfom: learned first-order methods, and the Transformers that run them."""

from lfom.started import end_quietly_while_importing

end_quietly_while_importing()  # before JAX, which takes seconds

import importlib
from typing import Any

from lfom.adaptation import Adaptation, PerPrompt, adapt
from lfom.core import coefficients, links, memories, preconditioners, problems, readers
from lfom.core.archive import own_version
from lfom.core.checks import InputError
from lfom.core.coefficients import Coefficient
from lfom.core.devices import devices
from lfom.core.kernels import (
    ArcCosineKernel,
    ExponentialKernel,
    GaussianKernel,
    Kernel,
    LinearKernel,
)
from lfom.core.memories import Memory
from lfom.core.methods import Algorithm, Method, Mixture
from lfom.core.parameters import parameter, part
from lfom.core.preconditioners import Preconditioner
from lfom.core.problems import Problem
from lfom.core.readers import Reader
from lfom.files import load, save
from lfom.limits.optimum import exact_optimum, sampled_optimum
from lfom.limits.posterior import PosteriorMean
from lfom.limits.worst_case import WorstCase, worst_case
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
from lfom.methods.newton import newton
from lfom.methods.optimal import best_constant_step, fast_gradient, item, ogm, ogm_g, silver
from lfom.prompts.directions import GammaLengths, OnSphere
from lfom.prompts.distributions import (
    PUBLISHED_SPECTRUM,
    TEXT_SPECTRUM,
    Distribution,
    GaussianMixture,
    LinearRegression,
    haar_rotation,
)
from lfom.prompts.functions import GaussianProcess
from lfom.prompts.generalised import LinkRegression, LogisticRegression, PoissonRegression
from lfom.prompts.lengths import AnyLength
from lfom.prompts.prompt import LinkPrompt, Prompt, prompt_from_arrays
from lfom.prompts.queries import OneOrthant, OrthogonalQuery, RepeatedQuery
from lfom.prompts.run import Trajectory, run
from lfom.prompts.shifts import AnyOf, HeavyTailed, RandomScale, turn
from lfom.scale import solve_stream
from lfom.solving import ConvexLosses, LeastSquaresProblems, LinearSystems, Solution, learn
from lfom.training import Adam, Fit, LeastSquares, PerRun, PrefixScore, Score, evaluate, fit
from lfom.training.tuning import tune

__version__ = own_version()

# What experiments of one's own need, imported when it is asked for: it draws, and `import lfom` need not wait.
_LATER = {
    "Claim": "report.results",
    "Claims": "experiments.statistics",
    "Experiment": "experiments.experiment",
    "Outcome": "experiments.workbench",
    "reproduce": "reproduction",
    "Row": "report.results",
    "Workbench": "experiments.workbench",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'lfom' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lfom.{_LATER[name]}"), name)


__all__ = [
    "Adam",
    "adapt",
    "Adaptation",
    "Algorithm",
    "AnyLength",
    "AnyOf",
    "ArcCosineKernel",
    "best_constant_step",
    "chebyshev",
    "Claim",
    "Claims",
    "Coefficient",
    "coefficients",
    "conjugate_gradient",
    "ConvexLosses",
    "Distribution",
    "devices",
    "evaluate",
    "exact_optimum",
    "Experiment",
    "ExponentialKernel",
    "fast_gradient",
    "Fit",
    "fit",
    "GammaLengths",
    "GaussianKernel",
    "GaussianMixture",
    "GaussianProcess",
    "gd_plus_plus",
    "gradient_descent",
    "haar_rotation",
    "heavy_ball",
    "HeavyTailed",
    "InputError",
    "Kernel",
    "item",
    "learn",
    "least_squares",
    "LeastSquares",
    "LeastSquaresProblems",
    "lfom",
    "lfom_coefficients",
    "linear_transformer",
    "LinearKernel",
    "LinearRegression",
    "LinearSystems",
    "LinkPrompt",
    "LinkRegression",
    "links",
    "load",
    "LogisticRegression",
    "memformer",
    "memories",
    "Memory",
    "Method",
    "Mixture",
    "mixture",
    "momentum",
    "nesterov",
    "ogm",
    "ogm_g",
    "OneOrthant",
    "newton",
    "OnSphere",
    "OrthogonalQuery",
    "Outcome",
    "parameter",
    "part",
    "PerPrompt",
    "PerRun",
    "PosteriorMean",
    "PoissonRegression",
    "preconditioned_gradient_descent",
    "Preconditioner",
    "preconditioners",
    "PrefixScore",
    "Problem",
    "problems",
    "Prompt",
    "prompt_from_arrays",
    "PUBLISHED_SPECTRUM",
    "RandomScale",
    "Reader",
    "readers",
    "RepeatedQuery",
    "reproduce",
    "ridge",
    "Row",
    "run",
    "sampled_optimum",
    "save",
    "Score",
    "silver",
    "Solution",
    "solve_stream",
    "TEXT_SPECTRUM",
    "theorems",
    "Trajectory",
    "tune",
    "turn",
    "Workbench",
    "worst_case",
    "WorstCase",
]
