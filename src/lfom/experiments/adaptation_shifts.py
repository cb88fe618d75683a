"""Loss against shift: experts with adapted gates, and what they have to beat."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lfom.adaptation import PerPrompt, adapt
from lfom.adaptation.per_prompt import solve
from lfom.arrays import identity
from lfom.coefficients import NoSuchView
from lfom.experiments.mixture_of_experts_ood import scaled
from lfom.experiments.workbench import MODELS, Claim, Outcome, Row, Workbench, verdict
from lfom.memformer import memformer, mixture
from lfom.methods import conjugate_gradient
from lfom.problems import Problem, Quadratic
from lfom.shifts import RandomScale, turn
from lfom.states import Direction, Track
from lfom.training import Fit, LeastSquares, PerRun, Score, evaluate, fit
from lfom.unroll import Algorithm

TITLE = "Out of distribution: adaptation, and what makes it unnecessary"
SECTION = "4.2, our own"
SHOWS = (
    "Three experts of four layers (variances 1, 2 and 3), their gates unadapted (1/3 each), fitted with labels, "
    "without labels and per prompt, on shifted prompts; beside them one expert as it is, a model trained on the "
    "union of variances, a normalised model, the conjugate register, CGD, least squares and ridge at its best "
    "penalty. Loss relative to the labels' variance."
)
TRAINED = (
    "Memformers (bank, own coefficient 1, full A), least squares at variance 1; data of variance v is that data "
    "scaled, so the expert of v is the same model with A / v. Union: variances log-uniform from 0.25 to 16. "
    "Adaptation: 200 prompts per run and shift, scored on other ones; per prompt: 4 steps."
)
LABELS = {
    "variance": "variance of the covariates",
    "angle": "largest angle of the rotation (radians)",
    "power": "power of the spectrum",
    "noise": "noise of the labels",
}
X_LABEL: dict[str, str] = LABELS
Y_LABEL = dict.fromkeys(LABELS, "log loss relative to the labels' variance")
X_SCALE = {"variance": "log", "angle": "linear", "power": "linear", "noise": "linear"}
SHIFTS: dict[str, tuple[float, ...]] = {
    "variance": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0),
    "angle": (0.5, 1.0, 1.5),
    "power": (0.0, 0.5, 1.5),
    "noise": (0.1, 0.5),
}
EXPERTS, ADAPTATION, DEPTH = (1.0, 2.0, 3.0), 200, 4
PENALTIES = (1e-3, 1e-2, 1e-1)
SETTINGS = {"gates, labelled": "labelled", "gates, label-free": "label-free"}


class Ridge(Algorithm):
    """w = (G + penalty I)^-1 b in one step; a penalty near 0 is least squares."""

    penalty: float = eqx.field(static=True)

    @property
    def depth(self) -> int:
        return 1

    @property
    def splits(self) -> bool:
        return False

    @property
    def moves_covariates(self) -> bool:
        return False

    def start(self) -> None:
        return None

    def step(self, state: Any, past: None, problem: Problem, layer: int) -> tuple[Any, None]:
        if not isinstance(problem, Quadratic):
            raise NoSuchView("ridge is solved from the Gram matrix: run it on a Quadratic.")
        eye = identity(problem.moment.shape[0], problem.moment)
        return Direction(Track(solve(problem.gram + self.penalty * eye, problem.moment))), None


def shifted(bench: Workbench) -> list[tuple[str, float, Any]]:
    """Every shift: its family, its size, and its data, one distribution per run."""
    base, found = bench.data(), []
    for v in SHIFTS["variance"]:
        found.append(("variance", v, bench.data(variance=v)))
    keys = jax.random.split(bench.stream("turn"), bench.runs)
    for angle in SHIFTS["angle"]:
        turned = jax.vmap(lambda key, U, angle=angle: U @ turn(key, U.shape[0], angle))(keys, base.rotation)
        found.append(("angle", angle, eqx.tree_at(lambda d: d.rotation, base, turned)))
    for power in SHIFTS["power"]:
        found.append(("power", power, eqx.tree_at(lambda d: d.spectrum, base, base.spectrum**power)))
    for noise in SHIFTS["noise"]:
        found.append(("noise", noise, bench.data(noise=noise)))
    return found


def quick_fit(bench: Workbench, data: Any, label: str, **options: Any) -> Fit:
    """A Memformer of four layers with one matrix, least squares."""

    def make() -> Fit:
        bench.say(f"training {label}")
        key = jax.random.fold_in(bench.key, 11)
        model = memformer(5, DEPTH, key=key, **MODELS["Memformer, own 1"], **options)
        squares = LeastSquares(last=10_000, passes=(25, 2), every_matrix=False)
        return fit(model, data, key=bench.stream("train", label), optimiser=squares)

    return bench.keep(("quick fit", label), make)


def experts_of(bench: Workbench, variances: tuple[float, ...]) -> PerRun:
    """Each run's mixture of experts, gates 1 / heads."""
    base = bench.trained("Memformer, own 1", "converged", bench.data())
    each = [scaled(base, v) for v in variances]
    models = [mixture([one.model(run, DEPTH) for one in each]) for run in range(bench.runs)]
    return PerRun(jax.tree.map(lambda *arrays: jnp.stack(arrays), *models))


def repeated(method: PerRun, times: int) -> PerRun:
    return PerRun(jax.tree.map(lambda a: jnp.concatenate([a] * times), method.method))


def relative(score: Score, at: int, runs: int) -> np.ndarray:
    """Log loss minus that of predicting 0 on the same prompts, for the runs of one shift."""
    part = score.log_mean[at * runs : (at + 1) * runs]
    return part[:, -1] - part[:, 0]


def run(bench: Workbench) -> Outcome:
    if "converged" not in bench.trainings:
        return Outcome([], [])
    shifts, runs = shifted(bench), bench.runs
    data = jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *(part for *_, part in shifts))
    model = experts_of(bench, EXPERTS)
    many = repeated(model, len(shifts))
    draw = jax.jit(lambda data, keys: jax.vmap(lambda one, key: one.prompts(key, ADAPTATION))(data, keys))
    prompts = draw(data, jax.random.split(bench.stream("adapt", "shifts"), len(shifts) * runs))
    methods: dict[str, Any] = {"gates, unadapted": many}
    for curve, setting in SETTINGS.items():
        bench.say(f"adapting gates ({setting})")
        methods[curve] = adapt(many, prompts, setting=setting).model
    methods["gates, per prompt"] = PerRun(PerPrompt(many.method))
    union = quick_fit(
        bench, jax.vmap(lambda one: RandomScale(one, 0.25, 16.0))(bench.data()), "union of variances"
    )
    singles = {
        "one expert": bench.trained("Memformer, own 1", "converged", bench.data()),
        "union": union,
        "normalised": quick_fit(bench, bench.data(), "normalised", normalised=True),
        "conjugate register": bench.trained("Conjugate register", "converged", bench.data()),
    }
    methods |= {name: repeated(one.per_run(DEPTH), len(shifts)) for name, one in singles.items()}
    methods["CGD"] = conjugate_gradient(DEPTH)
    methods["least squares"] = Ridge(0.0)
    methods |= {f"ridge {penalty:g}": Ridge(penalty) for penalty in PENALTIES}
    bench.say("scoring on shifted prompts")
    count = bench.preset.prompts // 20
    scores = evaluate(methods, data, prompts=count, key=bench.stream("score", "shifts"))
    table = {name: [relative(score, at, runs) for at in range(len(shifts))] for name, score in scores.items()}
    ridges = [table.pop(f"ridge {penalty:g}") for penalty in PENALTIES]
    table["ridge, best penalty"] = [
        min(values, key=lambda v: float(v.mean())) for values in zip(*ridges, strict=True)
    ]
    rows = [
        Row(name, "none" if name in CLASSICAL else "converged", x, max(float(v), -60.0), r, family, prompts=count)
        for name, values in table.items()
        for (family, x, _), each in zip(shifts, values, strict=True)
        for r, v in enumerate(each)
    ]  # fmt: skip
    change = normalised_change(bench, singles["normalised"].per_run(DEPTH))
    return Outcome(rows, claims(shifts, table, change), [f"{name}|converged" for name in MAIN])


def normalised_change(bench: Workbench, model: PerRun) -> float:
    """The largest change of the relative log loss (mean over runs) between variances 0.25, 1 and 16, on
    prompts drawn with the same random numbers."""
    found = []
    for v in (0.25, 1.0, 16.0):
        data, key = bench.data(variance=v), bench.stream("score", "normalised")
        score = evaluate({"normalised": model}, data, prompts=bench.preset.prompts // 20, key=key)[
            "normalised"
        ]
        found.append(relative(score, 0, bench.runs).mean())
    return float(np.ptp(found))


CLASSICAL = {"CGD", "least squares", "ridge, best penalty"}
MAIN = (
    "gates, unadapted",
    "gates, label-free",
    "gates, per prompt",
    "union",
    "normalised",
    "conjugate register",
)


def text(values: np.ndarray) -> str:
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{values.mean():+.2f} ± {error:.2f}"


def claims(
    shifts: list[tuple[str, float, Any]], table: dict[str, list[np.ndarray]], change: float
) -> list[Claim]:
    places = [(at, f"{family} {x:g}") for at, (family, x, _) in enumerate(shifts)]
    gaps = {at: (table["gates, unadapted"][at] - table["gates, labelled"][at]).mean() for at, _ in places}
    wide = [(at, name) for at, name in places if gaps[at] > 0.2]
    closed = {
        at: (table["gates, unadapted"][at] - table["gates, label-free"][at]).mean() / gaps[at]
        for at, _ in wide
    }

    def against(name: str, rival: str) -> tuple[list[bool], str]:
        parts, won = [], []
        for at, place in places:
            difference = table[name][at] - table[rival][at]
            error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else 0.0
            won.append(bool(difference.mean() + 2 * error < 0))
            parts.append(f"{place}: {text(difference)}")
        return won, "; ".join(parts)

    normalised, by_normalised = against("normalised", "gates, per prompt")
    register, by_register = against("conjugate register", "gates, per prompt")
    fair = "relative log loss on the same fresh prompts lower by two standard errors over runs, per shift"
    return [
        Claim(
            "label-free-closes-the-gap", "Ours: gates fitted without any label do as well as with labels.",
            "4.2", "share of the gap between unadapted and labelled gates that label-free ones close, at least 90 % "
            "wherever the gap exceeds 0.2",
            verdict(*(closed[at] >= 0.9 for at, _ in wide)),
            "; ".join(f"{name}: {100 * closed[at]:.0f} % of {gaps[at]:.2f}" for at, name in wide),
        ),
        Claim(
            "normalisation-makes-variance-no-shift",
            "Ours: dividing each prompt by a scale of its own makes a shift of variance no shift.", "4.2",
            "relative log loss (mean over runs, prompts from the same random numbers) changes by at most 0.05 "
            "from variance 0.25 to 16",
            verdict(change <= 0.05), f"largest change {change:.1e}",
        ),
        Claim(
            "normalisation-makes-experts-unnecessary",
            "Ours: one normalised model does better than three experts with gates per prompt.", "4.2", fair,
            verdict(*normalised), by_normalised,
        ),
        Claim(
            "conjugate-register-makes-experts-unnecessary",
            "Ours: the conjugate register, which adapts two numbers per layer by itself, does better than three "
            "experts with gates per prompt.", "4.2", fair, verdict(*register), by_register,
        ),
    ]  # fmt: skip
