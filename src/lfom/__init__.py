"""lfom: learned first-order methods, and the Transformers that run them."""

from lfom.started import end_quietly_while_importing

end_quietly_while_importing()  # before JAX, which takes seconds

import importlib
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:  # the names of _LATER; not those of modules that use this one
    from lfom.adaptation import Adaptation, PerPrompt, adapt
    from lfom.files import load, save
    from lfom.limits.optimum import exact_optimum, sampled_optimum
    from lfom.limits.posterior import PosteriorMean
    from lfom.limits.worst_case import WorstCase, worst_case
    from lfom.scale import solve_stream
    from lfom.solving import ConvexLosses, LeastSquaresProblems, LinearSystems, Solution, learn
    from lfom.training import Adam, Fit, LeastSquares, PerRun, PrefixScore, Score, evaluate, fit
    from lfom.training.tuning import tune

__version__ = own_version()

# Methods and prompts are there at once. What trains, learns, solves, reads files or draws is imported when it is first
# asked for, so that `import lfom` need not wait for it.
_LATER = {
    "adaptation": ("Adaptation", "PerPrompt", "adapt"),
    "experiments.experiment": ("Experiment",),
    "experiments.statistics": ("Claims",),
    "experiments.workbench": ("Outcome", "Workbench"),
    "files": ("load", "save"),
    "limits.optimum": ("exact_optimum", "sampled_optimum"),
    "limits.posterior": ("PosteriorMean",),
    "limits.worst_case": ("WorstCase", "worst_case"),
    "report.results": ("Claim", "Row"),
    "reproduction": ("reproduce",),
    "scale": ("solve_stream",),
    "solving": ("ConvexLosses", "LeastSquaresProblems", "LinearSystems", "Solution", "learn"),
    "training": ("Adam", "Fit", "LeastSquares", "PerRun", "PrefixScore", "Score", "evaluate", "fit"),
    "training.tuning": ("tune",),
}
_MODULES = {name: module for module, names in _LATER.items() for name in names}
_FOLDERS = ("adaptation", "files", "limits", "scale", "solving", "training")


def __getattr__(name: str) -> Any:
    if name in _FOLDERS:
        return importlib.import_module(f"lfom.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'lfom' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"lfom.{_MODULES[name]}"), name)
    globals()[name] = found  # the next time nobody asks here
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_FOLDERS})


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
