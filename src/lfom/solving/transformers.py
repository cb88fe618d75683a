"""A learned method as a Transformer: how far their answers differ."""

import jax
import jax.numpy as jnp
import numpy as np

from lfom.core.methods import Method
from lfom.methods.theorems import memformer_of
from lfom.prompts.prompt import Prompt
from lfom.prompts.run import run
from lfom.solving.learn import learn
from lfom.solving.problems import LeastSquaresProblems


def disagreement(method: Method, prompts: Prompt) -> float:
    """The largest difference between the predictions x.w of method.solve and those of the Transformer that
    runs the method on tokens, relative to the largest prediction. Problems that were rescaled, which a
    Transformer does not do, are left out."""
    solution = method.solve(LeastSquaresProblems(prompts.X, prompts.y))
    wanted = np.sum(np.asarray(solution.value) * np.asarray(prompts.query), axis=1)
    found = np.asarray(run(memformer_of(method), prompts, view="tokens").predictions[-1])
    kept = np.isin(solution.status, (0, 1))
    assert kept.any()
    return float(np.abs(found - wanted)[kept].max() / np.abs(wanted[kept]).max())


def learned_and_transformer(structure: str = "preconditioned:full", seed: int = 0) -> float:
    """Learn a small method from regressions, in float64, and say how far the Transformer that runs it is off
    on others."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(80, 12, 3)) * [1.5, 1.0, 0.5]
        w, queries = rng.normal(size=(2, 80, 3))
        y = np.einsum("pni,pi->pn", X, w)
        method = learn(LeastSquaresProblems(X[:60], y[:60]), 3, structure, seed, iterations=0)
        parts = (X[60:], y[60:], queries[60:], np.sum(queries * w, axis=1)[60:])
        return disagreement(method, Prompt(*(jnp.asarray(part) for part in parts)))
