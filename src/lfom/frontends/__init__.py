"""Learned methods where people are: scikit-learn, Optax and Lineax. See docs/frontends.md.

Each is imported when it is first asked for, so that nobody waits for a library that they do not use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lfom.core.extras import missing

if TYPE_CHECKING:
    from lfom.frontends.estimator import InContextRegressor
    from lfom.frontends.linear_solver import LearnedSolver
    from lfom.frontends.transformation import learned_transformation

__all__ = ["InContextRegressor", "LearnedSolver", "learned_transformation"]
_HOME = {
    "InContextRegressor": "estimator",
    "LearnedSolver": "linear_solver",
    "learned_transformation": "transformation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"lfom.frontends has no {name!r}; it has {', '.join(__all__)}.")
    try:
        return getattr(importlib.import_module(f"lfom.frontends.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        raise missing(error.name or "", f"lfom.frontends.{name}") from None
