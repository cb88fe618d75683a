"""What experiments share: data, trained models, baselines and scores, each made once."""

import csv
import functools
import importlib.resources
import math
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core.runs import take
from lfom.core.threads import in_threads
from lfom.limits.optimum import exact_optimum, sampled_optima
from lfom.methods.classical import (
    APPENDIX_B,
    conjugate_gradient,
    gradient_descent,
    momentum,
    nesterov,
    preconditioned_gradient_descent,
)
from lfom.methods.memformer import memformer
from lfom.prompts.distributions import PUBLISHED_SPECTRUM, Distribution, LinearRegression, haar_rotation
from lfom.report.results import Claim, Row
from lfom.training import Adam, Fit, LeastSquares, PerRun, Score, evaluate, fit
from lfom.training.parameters import truncate
from lfom.training.tuning import tune_each

DEPTHS = (1, 2, 3, 4)
CONTEXT = 20
WIDE = 10  # from this d on prompts are dear

# The models of the figures, by the name of their curve: options of memformer().
MODELS: dict[str, dict[str, Any]] = {
    "Linear Transformer": {"memory": "none"},
    "Linear Transformer, scalar A": {"memory": "none", "preconditioner": "scalar"},
    "Memformer, register": {"memory": "register"},
    "Memformer, register, scalar A": {"memory": "register", "preconditioner": "scalar"},
    "Memformer": {"memory": "bank", "gamma": "pair", "tied": True},
    "Memformer, untied": {"memory": "bank"},
    "Memformer, tied scalar": {"memory": "bank", "tied": True},
    "Memformer, own 1": {"memory": "bank", "tied": True, "own_is_one": True},
    "Linear Transformer, GD++": {"memory": "none", "covariates": True},
    "Memformer, GD++": {"memory": "bank", "covariates": True},
    "Conjugate register": {"memory": "conjugate"},
}


@dataclass(frozen=True)
class Preset:
    """How many prompts and steps; never what is computed."""

    name: str
    prompts: int  # fresh prompts of a score
    adam_steps: int
    least_squares: float  # factor on the prompts of least squares


PRESETS = {
    "quick": Preset("quick", 200_000, 1_000, 1.0),
    "full": Preset("full", 1_000_000, 1_000, 4.0),
}


def verdict(*conditions: bool) -> str:
    """A verdict is computed, never typed in: holds if all are true, fails if none is, else partly."""
    return "holds" if all(conditions) else "partly" if any(conditions) else "fails"


@dataclass(frozen=True)
class Outcome:
    """What an experiment found."""

    rows: list[Row]
    claims: list[Claim]
    main: list[str] = field(default_factory=list)  # "curve|training" keys that the PNG shows


class Workbench:
    """Makes data, trains models and scores them; everything is kept, so that figures share it."""

    def __init__(
        self,
        preset: str = "quick",
        seed: int = 0,
        runs: int = 5,
        say: Callable[[str], None] | None = None,
        trainings: Sequence[str] = ("paper", "converged"),
    ):
        self.preset = PRESETS[preset]
        self.key = jax.random.key(seed)
        self.runs = runs
        self.say = say or (lambda text: None)
        self.trainings = tuple(trainings)
        self._kept: dict[Any, Any] = {}
        self._locks: dict[Any, Any] = {}

    def keep(self, name: Any, make: Callable[[], Any]) -> Any:
        """make() the first time it is asked for, the same afterwards; who asks meanwhile waits for it."""
        with self._lock(name):
            if name not in self._kept:
                self._kept[name] = make()
            return self._kept[name]

    def _lock(self, name: Any) -> Any:
        return self._locks.setdefault(name, threading.RLock())

    def side_by_side(self, jobs: Sequence[tuple[Any, ...]]) -> None:
        """Make what is kept with a thread for each core: (function, *arguments) each. Compiling and small
        programs keep one core busy."""
        list(in_threads(lambda job: job[0](*job[1:]), jobs))

    def data(self, spectrum: Sequence[float] = PUBLISHED_SPECTRUM, **options: Any) -> LinearRegression:
        """One distribution per run, each with its own rotation."""
        spectrum = tuple(spectrum)

        def make() -> Any:
            keys = jax.random.split(jax.random.fold_in(self.key, len(spectrum)), self.runs)
            context = options.get("context", CONTEXT)
            rest = {k: v for k, v in options.items() if k != "context"}
            return jax.vmap(
                lambda key: LinearRegression(
                    spectrum, context, rotation=haar_rotation(key, len(spectrum)), **rest
                )
            )(keys)

        return self.keep(("data", spectrum, *sorted(options.items())), make)

    def trained(
        self,
        curve: str,
        training: str,
        data: Distribution,
        depths: Sequence[int] = DEPTHS,
        label: str = "main",
    ) -> Fit:
        """The model of a curve, trained on fresh prompts: "paper" or "converged"."""

        def make() -> Fit:
            self.say(f"training {curve} ({training}, {label})")
            d = data.spectrum.shape[-1]  # type: ignore[attr-defined]
            model = memformer(d, max(depths), key=jax.random.fold_in(self.key, 11), **MODELS[curve])
            return fit(
                model,
                data,
                key=self.stream("train", label),
                depths=depths,
                optimiser=self.optimiser(training, curve, d),
            )

        return self.keep(("fit", curve, training, label, tuple(depths)), make)

    def optimiser(self, training: str, curve: str = "", d: int = 5) -> Adam | LeastSquares:
        preset, gdpp, wide = self.preset, "GD++" in curve, d >= WIDE
        if training == "paper":
            return Adam(steps=preset.adam_steps)
        if gdpp:  # its few parameters need few prompts
            return LeastSquares(
                first=1_000, last=int(2_000 * preset.least_squares), passes=(12, 1), chunk=500
            )
        if wide:
            return LeastSquares(prompts=preset.least_squares / 2)
        return LeastSquares(prompts=preset.least_squares, passes=(30, 2))

    def stream(self, *names: str) -> Array:
        """A key that depends on names only, so that scores of separate calls are paired."""
        return jax.random.fold_in(self.key, zlib.crc32("|".join(names).encode()) >> 1)

    def scores(
        self, methods: dict[str, Any], data: Distribution, label: str = "main", prompts: int | None = None
    ) -> dict[str, Score]:
        """Scores on fresh prompts, the same ones for every call with this label."""
        with self._lock(("scores", label)):
            return self._scores(methods, data, label, prompts)

    def _scores(
        self, methods: dict[str, Any], data: Distribution, label: str, prompts: int | None
    ) -> dict[str, Score]:
        missing = {name: m for name, m in methods.items() if ("score", name, label) not in self._kept}
        if missing:
            self.say(f"scoring {len(missing)} methods ({label})")
            found = evaluate(
                missing, data, prompts=prompts or self.preset.prompts, key=self.stream("score", label)
            )
            for name, score in found.items():
                self._kept[("score", name, label)] = score
        return {name: self._kept[("score", name, label)] for name in methods}

    def fit_scores(
        self,
        curve: str,
        training: str,
        data: Distribution,
        depths: Sequence[int] = DEPTHS,
        label: str = "main",
    ) -> dict[int, Score]:
        """The scores of a trained model, by depth."""
        trained = self.trained(curve, training, data, depths, label)
        names = {f"{curve}|{training}|{depth}": trained.per_run(depth) for depth in depths}
        found = self.scores(names, data, label)
        return {depth: found[f"{curve}|{training}|{depth}"] for depth in depths}

    def all_scores(
        self,
        wanted: Sequence[tuple[str, str]],
        data: Distribution,
        depths: Sequence[int] = DEPTHS,
        label: str = "main",
    ) -> dict[tuple[str, str], dict[int, Score]]:
        """fit_scores of several (curve, training) at once: trained side by side, scored together."""
        jobs: list[tuple[Any, ...]] = [(self.trained, *pair, data, depths, label) for pair in wanted]
        if isinstance(data, LinearRegression):
            jobs.append((self._classical, data, depths, label))
        self.side_by_side(jobs)
        methods = {
            f"{curve}|{training}|{depth}": self.trained(curve, training, data, depths, label).per_run(depth)
            for curve, training in wanted
            for depth in depths
        }
        if isinstance(data, LinearRegression):  # they are wanted too, and one program is faster than two
            methods |= self._classical(data, depths, label)
        self.scores(methods, data, label)
        return {pair: self.fit_scores(*pair, data, depths, label) for pair in wanted}

    def baselines(
        self, data: LinearRegression, depths: Sequence[int] = DEPTHS, label: str = "main"
    ) -> dict[str, dict[int, Score]]:
        """What stands in every figure of loss over depth: CGD, preconditioned CGD, GD, momentum and
        NAG tuned for each depth and with the paper's step sizes, the exact optimum of the class."""
        table: dict[str, dict[int, Score]] = {}
        for name, score in self.scores(self._classical(data, depths, label), data, label).items():
            curve, _, last = name.partition("|")
            if last:
                table.setdefault(curve, {})[int(last)] = score
            else:
                table[curve] = {d: at_step(score, d) for d in depths}
        return table

    def _classical(self, data: LinearRegression, depths: Sequence[int], label: str) -> dict[str, Any]:
        """The methods behind `baselines`, by curve, or by curve|depth where each depth has its own."""

        def make() -> dict[str, Any]:
            self.say(f"tuning baselines ({label})")
            deepest, n = max(depths), data.context
            inverse = jax.vmap(lambda one: jnp.linalg.inv(one.covariance))(data)
            methods: dict[str, Any] = {
                "CGD": conjugate_gradient(deepest),
                "Preconditioned CGD": PerRun(jax.vmap(lambda A: conjugate_gradient(deepest, A))(inverse)),
            }
            eta, beta = APPENDIX_B["Nesterov"]
            methods["NAG"] = nesterov(eta * n, beta, deepest)
            eta, beta = APPENDIX_B["momentum"]
            methods["Momentum GD"] = momentum(eta * n, beta, deepest)
            sample = _sample(take(data, 0), self.stream("tune", label))
            for name, build, count in TUNED:
                for depth, tuned in tune_each(build, sample, steps=depths, parameters=count).items():
                    longest = build(*tuned.parameters, deepest)  # all of one shape: scored as one group
                    methods[f"{name}, tuned|{depth}"] = truncate(longest, depth)
            for depth in depths:
                # All roots of its polynomial are real, so it is descent with the steps 1 / root.
                roots = exact_optimum(len(data.spectrum[0]), n, depth).roots.real
                sizes = jnp.asarray(np.pad(1 / roots, (0, deepest - depth)))
                longest = jax.vmap(lambda A, s=sizes: preconditioned_gradient_descent(A, s, deepest))(inverse)
                methods[f"exact optimum|{depth}"] = PerRun(truncate(longest, depth))
            return methods

        return self.keep(("classical", label, tuple(depths)), make)

    def plain_optimum(self, data: LinearRegression, depths: Sequence[int] = DEPTHS) -> dict[int, Any]:
        """The exact optimum without preconditioner: the same for all rotations."""

        def make() -> dict[int, Any]:
            return sampled_optima(take(data, 0), depths, self.stream("optimum"), prompts=400_000)

        return self.keep(("plain optimum", tuple(depths)), make)


@eqx.filter_jit
def _sample(data: Distribution, key: Array) -> Any:
    """The prompts that classical methods are tuned on."""
    return data.quadratics(key, 20_000)


TUNED: list[tuple[str, Callable, int]] = [
    ("GD", gradient_descent, 1),
    ("Momentum GD", momentum, 2),
    ("NAG", nesterov, 2),
]


def at_step(score: Score, step: int) -> Score:
    """The score after `step` steps (the losses of single prompts stay those of the last)."""
    return Score(
        score.name, score.mean[:, : step + 1], score.stderr[:, : step + 1], score.last, score.prompts
    )


def score_rows(curve: str, training: str, scores: dict[int, Score], scored_on: str = "fresh") -> list[Row]:
    """One row per depth and run."""
    return [
        Row(
            curve,
            training,
            x,
            float(score.log_mean[run, -1]),
            run,
            stderr=finite(score.log_stderr[run, -1]),
            prompts=score.prompts,
            scored_on=scored_on,
        )
        for x, score in scores.items()
        for run in range(score.mean.shape[0])
    ]


def finite(value: float) -> float | None:
    """The number, or nothing where it overflowed (a diverged model's squared losses do)."""
    return float(value) if math.isfinite(value) else None


def baseline_rows(table: dict[str, dict[int, Score]]) -> list[Row]:
    return [row for curve, scores in table.items() for row in score_rows(curve, "none", scores)]


@functools.cache
def _published() -> list[dict[str, str]]:
    text = importlib.resources.files("lfom.data").joinpath("published_curves.csv").read_text("utf8")
    return list(csv.DictReader(text.splitlines()))


def published_rows(experiment: str) -> list[Row]:
    """The authors' published values of a figure."""
    return [
        Row(
            r["curve"],
            "published",
            float(r["x"]),
            float(r["value"]),
            None,
            r["measure"],
            scored_on=r["scored_on"],
        )
        for r in _published()
        if r["experiment"] == experiment
    ]


def means(scores: dict[int, Score]) -> dict[int, float]:
    return {depth: score.log_loss for depth, score in scores.items()}


def gap(ours: Score, theirs: Score) -> tuple[float, float]:
    """Mean difference of log losses over runs, on the same prompts, and its standard error."""
    difference = ours.log_mean[:, -1] - theirs.log_mean[:, -1]
    runs = len(difference)
    return float(difference.mean()), float(difference.std(ddof=1) / math.sqrt(runs)) if runs > 1 else 0.0


def below(ours: Score, theirs: Score, by: float = 0.0) -> bool:
    """Whether ours is lower by more than `by`, beyond two standard errors of the difference."""
    mean, error = gap(ours, theirs)
    return mean + 2 * error < -by


def near(ours: Score, theirs: Score, within: float) -> bool:
    """Whether ours is above by at most `within` on average: no benefit of the doubt."""
    return gap(ours, theirs)[0] <= within


def compare(ours: dict[int, Score], theirs: dict[int, Score]) -> str:
    """Evidence: difference of log losses by depth."""
    parts = []
    for depth in ours:
        mean, error = gap(ours[depth], theirs[depth])
        parts.append(f"L={depth}: {mean:+.3f} ± {error:.3f}")
    return "; ".join(parts)


def values(scores: dict[int, Score] | dict[int, float]) -> str:
    """Evidence: log losses by depth with their spread over runs."""
    parts = []
    for depth, score in scores.items():
        if isinstance(score, Score):
            parts.append(f"L={depth}: {score.log_loss:.3f} (spread {score.spread:.3f})")
        else:
            parts.append(f"L={depth}: {score:.3f}")
    return "; ".join(parts)


def distance_to_identity(matrix: np.ndarray) -> float:
    """Dist(M, I) of Appendix D: how far M / |M| is from a multiple of the identity."""
    alpha = np.trace(matrix) / len(matrix)
    return float(np.linalg.norm(matrix - alpha * np.eye(len(matrix)))) / max(
        float(np.linalg.norm(matrix)), 1e-300
    )


def flatten(parts: Iterable[list[Row]]) -> list[Row]:
    return [row for part in parts for row in part]
