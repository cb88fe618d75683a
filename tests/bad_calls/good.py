"""One good call of everything that is exported: bad ones differ from it in one argument."""

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np

import lfom

NOT_CALLED = {
    "InputError": "an exception",
    "parameter": "declares a field of a user's class",
    "part": "declares a field of a user's class",
    **dict.fromkeys(("Coefficient", "Distribution", "Experiment", "Kernel", "Memory", "Preconditioner", "Problem", "Reader",
                     "Algorithm"), "is subclassed"),
    **dict.fromkeys(("Adaptation", "Fit", "Outcome", "PrefixScore", "Score", "Solution", "Trajectory", "WorstCase", "Claim",
                     "Claims", "Row", "Prompt", "LinkPrompt", "Method", "Mixture", "PerPrompt"), "holds what a function returns"),
}  # fmt: skip


TINY = """import lfom


class Tiny(lfom.Experiment):
    name = "tiny"

    def run(self, bench):
        return lfom.Outcome([lfom.Row("a", "none", float(x), -x) for x in (1, 2)], [])
"""


@functools.cache
def things() -> dict[str, Any]:
    """Small objects of every kind."""
    key = jax.random.key(0)
    data = lfom.LinearRegression([1.0, 0.5], context=4)
    prompts = data.prompts(key, 12)
    model = lfom.memformer(2, 2, memory="register", key=key)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 6, 2)).astype(np.float32)
    problems = lfom.LeastSquaresProblems(X, X.sum(axis=2), ridge=0.1)
    return {
        "key": key,
        "data": data,
        "prompts": prompts,
        "model": model,
        "gd": lfom.gradient_descent(0.1, steps=2),
        "expert": lfom.mixture([model, model]),
        "problems": problems,
        "X": X,
        "quadratics": data.quadratics(key, 50),
        "fit": lfom.fit(model, data, key=key, optimiser=lfom.Adam(steps=1, batch=8, resample=1)),
    }


def loss(w: Any, data: Any) -> Any:
    """A convex one."""
    return ((data @ w - 1) ** 2).mean()


def one_device(count: Any) -> None:
    """`lfom.devices`, without a trace left."""
    with lfom.devices(count):
        pass


def streamed(
    method: Any,
    source: Any,
    steps: Any = None,
    tolerance: Any = None,
    batch: Any = None,
    force: Any = False,
    cluster: Any = None,
    progress: Any = None,
) -> None:
    """`lfom.solve_stream` without a sink: solutions come as somebody asks for them."""
    options = {
        "steps": steps,
        "tolerance": tolerance,
        "batch": batch,
        "force": force,
        "cluster": cluster,
        "progress": progress,
    }
    found: Any = lfom.solve_stream(method, source, **options)
    list(found)


def good_calls(folder: Path) -> dict[str, tuple[Any, dict[str, Any]]]:
    """(function, arguments) by name. folder: where files may be written."""
    t = things()
    key, data, model = t["key"], t["data"], t["model"]
    short = lfom.Adam(steps=1, batch=8, resample=1)
    eye = np.eye(2, dtype=np.float32)
    file = folder / "method.safetensors"
    if not file.exists():
        lfom.save(file, t["gd"])
    (folder / "tiny.py").write_text(TINY)
    steps = {"steps": 2}
    smooth = {"steps": 2, "smoothness": 1.0}
    spectrum = {"spectrum": [1.0, 0.5], "context": 4}
    found: dict[str, tuple[Any, dict[str, Any]]] = {
        "Adam": (lfom.Adam, {"steps": 10, "batch": 8, "resample": 1}),
        "adapt": (lfom.adapt, {"model": t["expert"], "prompts": t["prompts"], "steps": 1}),
        "AnyLength": (lfom.AnyLength, {"base": data, "lengths": (1, 3)}),
        "AnyOf": (lfom.AnyOf, {"parts": [data, data]}),
        "best_constant_step": (lfom.best_constant_step, smooth),
        "chebyshev": (lfom.chebyshev, {"lowest": 0.1, "highest": 1.0, **steps}),
        "conjugate_gradient": (lfom.conjugate_gradient, steps),
        "ConvexLosses": (lfom.ConvexLosses, {"loss": loss, "data": t["X"], "size": 2}),
        "evaluate": (lfom.evaluate, {"methods": {"GD": t["gd"]}, "data": data, "prompts": 20, "key": key}),
        "exact_optimum": (lfom.exact_optimum, {"d": 2, "n": 5, "depth": 2}),
        "fast_gradient": (lfom.fast_gradient, smooth),
        "fit": (lfom.fit, {"model": model, "data": data, "key": key, "optimiser": short}),
        "GammaLengths": (lfom.GammaLengths, spectrum),
        "GaussianKernel": (lfom.GaussianKernel, {}),
        "GaussianMixture": (
            lfom.GaussianMixture,
            {"means": [[0.0, 0.0]], "variances": [1.0], "weights": [1.0], "context": 4},
        ),
        "GaussianProcess": (lfom.GaussianProcess, {"d": 2, "context": 4, "kernel": "exponential"}),
        "gd_plus_plus": (lfom.gd_plus_plus, {"A": eye, "B": eye, **steps}),
        "gradient_descent": (lfom.gradient_descent, {"eta": 0.1, **steps}),
        "haar_rotation": (lfom.haar_rotation, {"key": key, "d": 2}),
        "heavy_ball": (lfom.heavy_ball, {"eta": 0.1, "beta": 0.5, **steps}),
        "HeavyTailed": (lfom.HeavyTailed, {"base": data, "degrees": 5}),
        "item": (lfom.item, {**smooth, "strong_convexity": 0.1}),
        "learn": (
            lfom.learn,
            {"problems": t["problems"], "steps": 1, "structure": "scalar", "progress": False},
        ),
        "least_squares": (lfom.least_squares, {"prompt": t["prompts"]}),
        "LeastSquares": (lfom.LeastSquares, {}),
        "LeastSquaresProblems": (lfom.LeastSquaresProblems, {"X": t["X"], "y": t["X"].sum(axis=2)}),
        "lfom": (lfom.lfom, {"coefficients": -np.tril(np.ones((2, 2)))}),
        "lfom_coefficients": (lfom.lfom_coefficients, {"method": t["gd"]}),
        "linear_transformer": (lfom.linear_transformer, {"d": 2, "depth": 2, "key": key}),
        "LinearRegression": (lfom.LinearRegression, spectrum),
        "LinearSystems": (lfom.LinearSystems, {"A": np.stack([eye] * 3), "b": np.ones((3, 2), np.float32)}),
        "LinkRegression": (lfom.LinkRegression, {"base": data, "link": lfom.links.LogisticLink()}),
        "load": (lfom.load, {"path": file}),
        "LogisticRegression": (lfom.LogisticRegression, spectrum),
        "memformer": (lfom.memformer, {"d": 2, "depth": 2, "key": key}),
        "mixture": (lfom.mixture, {"heads": [model, model]}),
        "momentum": (lfom.momentum, {"eta": 0.1, "beta": 0.5, **steps}),
        "nesterov": (lfom.nesterov, {"eta": 0.1, "beta": 0.5, **steps}),
        "newton": (lfom.newton, {"ridge": 0.1, **steps}),
        "ogm": (lfom.ogm, smooth),
        "ogm_g": (lfom.ogm_g, smooth),
        "OneOrthant": (lfom.OneOrthant, {"base": data}),
        "OnSphere": (lfom.OnSphere, spectrum),
        "OrthogonalQuery": (
            lfom.OrthogonalQuery,
            {"base": lfom.LinearRegression([1.0, 1.0, 0.5], context=2)},
        ),
        "PerRun": (lfom.PerRun, {"items": [t["gd"], t["gd"]]}),
        "PoissonRegression": (lfom.PoissonRegression, spectrum),
        "PosteriorMean": (lfom.PosteriorMean, {"kernel": "exponential"}),
        "preconditioned_gradient_descent": (
            lfom.preconditioned_gradient_descent,
            {"A": eye, "eta": 0.1, **steps},
        ),
        "prompt_from_arrays": (
            lfom.prompt_from_arrays,
            {"X": np.ones((3, 2)), "y": np.ones(3), "query": np.ones(2), "target": 1.0},
        ),
        "RandomScale": (lfom.RandomScale, {"base": data, "lowest": 0.5, "highest": 2.0}),
        "RepeatedQuery": (lfom.RepeatedQuery, {"base": data}),
        "reproduce": (lfom.reproduce, {"experiments": [folder / "tiny.py"], "out": folder / "results"}),
        "ridge": (lfom.ridge, {"prompt": t["prompts"], "penalty": 0.1}),
        "run": (lfom.run, {"algorithm": t["gd"], "prompt": t["prompts"]}),
        "sampled_optimum": (
            lfom.sampled_optimum,
            {"distribution": data, "depth": 2, "key": key, "prompts": 2_000, "chunk": 20},
        ),
        "save": (lfom.save, {"path": folder / "new.safetensors", "thing": t["gd"]}),
        "silver": (lfom.silver, {"steps": 3, "smoothness": 1.0}),
        "tune": (
            lfom.tune,
            {"build": lfom.gradient_descent, "prompts": t["quadratics"], "steps": 2, "parameters": 1},
        ),
        "turn": (lfom.turn, {"key": key, "d": 2, "angle": 0.3}),
        "Workbench": (lfom.Workbench, {}),
        "devices": (one_device, {"count": 1}),
        "solve_stream": (streamed, {"method": t["gd"], "source": [t["problems"]]}),
        "worst_case": (lfom.worst_case, {"method": t["gd"]}),
        # What is done with them.
        "Fit.model": (t["fit"].model, {"run": 0}),
        "Fit.per_run": (t["fit"].per_run, {"depth": 2}),
        "Method.solve": (t["gd"].solve, {"problems": t["problems"]}),
        "Method.astype": (t["gd"].astype, {"dtype": "float32"}),
        "Method.save": (t["gd"].save, {"path": folder / "new.safetensors"}),
        "Distribution.prompts": (data.prompts, {"key": key, "count": 3}),
        "Distribution.quadratics": (data.quadratics, {"key": key, "count": 3}),
        "Distribution.joints": (data.joints, {"key": key, "count": 3}),
    }
    return found
