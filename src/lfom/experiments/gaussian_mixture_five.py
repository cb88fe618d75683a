"""The Gaussian mixture in five dimensions, where one step does not solve a prompt; label noise 0 and 0.1."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lfom.adaptation import PerPrompt, adapt
from lfom.distributions import GaussianMixture
from lfom.experiments.adaptation_shifts import PENALTIES, Ridge
from lfom.experiments.gaussian_mixture import MEANS, VARIANCES, WEIGHTS
from lfom.experiments.workbench import CONTEXT, MODELS, Claim, Row, Workbench, verdict
from lfom.memformer import memformer, mixture
from lfom.methods import conjugate_gradient
from lfom.training import LeastSquares, PerRun, Score, evaluate, fit

D, DEPTH, NOISES, ADAPTATION = 5, 4, (0.0, 0.1), 1_000
MEASURE = "five_dimensions"
X_LABEL, Y_LABEL = "noise of the labels", "log loss relative to the labels' second moment"
RIGHT, PER_PROMPT, HARD = "right expert alone", "gates per prompt", "best expert per prompt"


@dataclass(frozen=True)
class InFive:
    """Log losses relative to the labels' second moment, (noises, runs), by curve."""

    table: dict[str, np.ndarray]
    prompts: int


def data_in_five(bench: Workbench, noise: float) -> GaussianMixture:
    """The components' means along one random direction, another one in every run."""
    normal = jax.random.normal(bench.stream("directions"), (bench.runs, D))
    directions = np.asarray(normal / jnp.linalg.norm(normal, axis=1, keepdims=True))
    means = np.asarray(MEANS)[:, None]
    each = [
        GaussianMixture(means * u, VARIANCES, WEIGHTS, CONTEXT, noise=noise, weight_variance="same")
        for u in directions
    ]
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *each)


def in_five(bench: Workbench, curve: str = "Memformer, own 1") -> InFive:
    def make() -> InFive:
        runs, parts = bench.runs, [data_in_five(bench, noise) for noise in NOISES]
        data = jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)
        groups = len(NOISES) * runs
        each = [jax.vmap(lambda one, m=m: one.component(m))(data) for m in range(3)]
        components = jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *each)
        bench.say(f"training experts: {curve} (mixture, d = 5)")
        model = memformer(D, DEPTH, key=jax.random.fold_in(bench.key, 11), **MODELS[curve])
        squares = LeastSquares(last=6_000, passes=(25, 2), every_matrix=False)
        trained = fit(model, components, key=bench.stream("experts five"), optimiser=squares)
        mixtures = [
            mixture([trained.model(m * groups + at, DEPTH) for m in range(3)]) for at in range(groups)
        ]
        many = PerRun(jax.tree.map(lambda *arrays: jnp.stack(arrays), *mixtures))
        draw = jax.jit(lambda data, keys: jax.vmap(lambda one, key: one.prompts(key, ADAPTATION))(data, keys))
        prompts = draw(data, jax.random.split(bench.stream("adapt five"), groups))
        bench.say(f"adapting gates: {curve} (mixture, d = 5)")
        methods: dict[str, Any] = {"unadapted": many}
        for setting in ("labelled", "label-free"):
            methods[f"gates, {setting}"] = adapt(many, prompts, setting=setting).model
        methods[PER_PROMPT] = PerRun(PerPrompt(many.method))
        methods[HARD] = PerRun(PerPrompt(many.method, 0))
        methods["CGD"] = conjugate_gradient(DEPTH)
        methods |= {f"ridge {penalty:g}": Ridge(penalty) for penalty in PENALTIES}
        bench.say(f"scoring: {curve} (mixture, d = 5)")
        count = bench.preset.prompts // 5
        scores = evaluate(methods, data, prompts=count, key=bench.stream("score five"))
        own = evaluate(
            {RIGHT: trained.per_run(DEPTH)}, components, prompts=count, key=bench.stream("own five")
        )
        table = {name: (s.log_mean[:, -1] - s.log_mean[:, 0]).reshape(-1, runs) for name, s in scores.items()}
        table[RIGHT] = _averaged(own[RIGHT], groups).reshape(-1, runs)
        ridges = np.stack([table.pop(f"ridge {penalty:g}") for penalty in PENALTIES])
        best = ridges.mean(axis=2).argmin(axis=0)
        table["ridge, best penalty"] = np.stack([ridges[b, i] for i, b in enumerate(best)])
        return InFive(table, count)

    return bench.keep(("mixture in five", curve), make)


def _averaged(score: Score, groups: int) -> np.ndarray:
    """Each expert on its own component, losses averaged with the weights of the mixture."""
    mean = score.mean.reshape(3, groups, -1)
    whole = np.einsum("m,mgs->gs", np.asarray(WEIGHTS), mean)
    return np.log(whole[:, -1] / whole[:, 0])


def five_rows(found: InFive) -> list[Row]:
    classical = ("CGD", "ridge, best penalty")
    return [
        Row(f"d = 5, {name}", "none" if name in classical else "converged", noise, float(v), r, MEASURE,
            prompts=found.prompts)
        for name, values in found.table.items()
        for noise, each in zip(NOISES, values, strict=True)
        for r, v in enumerate(each)
    ]  # fmt: skip


def five_claims(found: InFive) -> list[Claim]:
    def minus(name: str, rival: str) -> tuple[np.ndarray, str]:
        difference = found.table[name] - found.table[rival]
        error = difference.std(axis=1, ddof=1) / np.sqrt(difference.shape[1])
        parts = zip(NOISES, difference.mean(axis=1), error, strict=True)
        return difference.mean(axis=1), "; ".join(f"noise {x:g}: {m:+.2f} ± {e:.2f}" for x, m, e in parts)

    right, by_right = minus(PER_PROMPT, RIGHT)
    ridge, by_ridge = minus(PER_PROMPT, "ridge, best penalty")
    return [
        Claim(
            "mixture-per-prompt-reaches-the-right-expert",
            "Ours: gates that each prompt sets from its own context reach the expert of its component (d = 5).",
            "4.2", "relative log loss of the mixture at most 0.1 above that of the right expert alone on its own "
            "component, averaged over the mixture, at noise 0 and 0.1", verdict(*(right <= 0.1)), by_right,
        ),
        Claim(
            "mixture-per-prompt-beats-ridge",
            "Ours: experts with gates per prompt do better than ridge at its best penalty (d = 5).", "4.2",
            "relative log loss lower on the same fresh prompts, at noise 0 and 0.1", verdict(*(ridge < 0)), by_ridge,
        ),
    ]  # fmt: skip
