"""What experiments share: data, trained models, baselines and scores, each made once."""

import copy
import functools
import inspect
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax
import numpy as np
from jax import Array

from lfom.core import checks
from lfom.core.arrays import as_array
from lfom.core.compiler import jit_draws
from lfom.core.methods import Algorithm
from lfom.core.runs import PerRun, by_run, each_run, fingerprint
from lfom.core.threads import in_threads
from lfom.core.words import brief
from lfom.experiments.rows import Curves, by_depth
from lfom.limits.optimum import exact_optimum, sampled_optima
from lfom.methods import classical
from lfom.methods.memformer import memformer
from lfom.prompts.distributions import PUBLISHED_SPECTRUM, Distribution, LinearRegression, haar_rotation
from lfom.report.results import Claim, Row
from lfom.training import Adam, Fit, LeastSquares, Score, evaluate, fit
from lfom.training.tuning import tune_each

DEPTHS = (1, 2, 3, 4)
CONTEXT = 20
WIDE = 10  # from this d on prompts are dear
TUNED: dict[str, tuple[Callable[..., Any], int]] = {  # and how many numbers of each are tuned
    "GD": (classical.gradient_descent, 1),
    "Momentum GD": (classical.momentum, 2),
    "NAG": (classical.nesterov, 2),
}


@dataclass(frozen=True)
class Preset:
    """How many prompts and steps; what is computed is the same, but for what says that it is `long`."""

    name: str
    prompts: int  # fresh prompts of a score
    adam_steps: int
    least_squares: float  # factor on the prompts of least squares
    long: bool = False  # whether trainings of minutes are made that no other figure needs


PRESETS = {
    "quick": Preset("quick", 200_000, 1_000, 1.0),
    "full": Preset("full", 1_000_000, 1_000, 4.0, long=True),
}


def least_squares(preset: Preset, d: int) -> LeastSquares:
    """What "converged" stands for."""
    if d >= WIDE:
        return LeastSquares(prompts=preset.least_squares / 2)
    return LeastSquares(prompts=preset.least_squares, passes=(30, 2))


@dataclass(frozen=True)
class CurveModel:
    """The model of a curve: options of memformer(), and what its "converged" training is."""

    options: Mapping[str, Any]
    converged: Callable[[Preset, int], LeastSquares] = least_squares


OWN_IS_ONE = {"memory": "bank", "tied": True, "own_is_one": True}
# The models of the figures, by the name of their curve.
MODELS: dict[str, CurveModel] = {
    "Linear Transformer": CurveModel({"memory": "none"}),
    "Linear Transformer, scalar A": CurveModel({"memory": "none", "preconditioner": "scalar"}),
    "Memformer, register": CurveModel({"memory": "register"}),
    "Memformer, register, scalar A": CurveModel({"memory": "register", "preconditioner": "scalar"}),
    "Memformer": CurveModel({"memory": "bank", "gamma": "pair", "tied": True}),
    "Memformer, untied": CurveModel({"memory": "bank"}),
    "Memformer, tied scalar": CurveModel({"memory": "bank", "tied": True}),
    "Memformer, own 1": CurveModel(OWN_IS_ONE),
    "Linear Transformer, GD++": CurveModel({"memory": "none", "covariates": True}),
    "Memformer, GD++": CurveModel({"memory": "bank", "covariates": True}),
    "Memformer, GD++, pairs": CurveModel({"memory": "bank", "covariates": True, "gamma": "pair"}),
    "Memformer, GD++, own 1": CurveModel(OWN_IS_ONE | {"covariates": True}),
    "Conjugate register": CurveModel({"memory": "conjugate"}),
}

# A training is an optimiser, or says it for a preset, a model and its dimension.
Optimiser = Adam | LeastSquares
Training = Optimiser | Callable[[Preset, CurveModel, int], Optimiser]
Model = str | Algorithm  # of a curve, by name, or built by yourself
TRAININGS: dict[str, Training] = {
    "paper": lambda preset, model, d: Adam(steps=preset.adam_steps),
    "converged": lambda preset, model, d: model.converged(preset, d),
}
# Appendix D trains the A_l first and then, with these as they are, the coefficients of the memory.
A_THEN_GAMMA = "A, then Gamma"
PHASES: dict[str, tuple[tuple[str, ...], ...]] = {A_THEN_GAMMA: (("A", "B"), ("coefficients",))}
# Of the figures of models with a bank of directions; as many Adam steps in each of the two phases.
WITH_PHASES: dict[str, Training] = TRAININGS | {A_THEN_GAMMA: TRAININGS["paper"]}
ASKED_WITH = {A_THEN_GAMMA: "paper"}  # the choice of --training that it belongs to


@dataclass(frozen=True)
class Outcome:
    """What an experiment found.

    >>> import lfom
    >>> rows = [lfom.Row("halves", "none", x, 2.0**-x) for x in range(3)]
    >>> len(lfom.Outcome(rows, lfom.Claims("My notes")).rows)
    3
    """

    __repr__ = brief

    rows: list[Row]
    claims: list[Claim]
    main: list[str] = field(default_factory=list)  # "curve|training" keys that the PNG shows


def keys(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """(curve, training) as `Outcome.main` names them."""
    return [f"{curve}|{training}" for curve, training in pairs]


class Workbench:
    """Makes data, trains models and scores them; everything is kept, so that figures share it.

    >>> import lfom
    >>> bench = lfom.Workbench("quick", seed=0, runs=2)
    >>> bench.data().runs, bench.preset.prompts
    (2, 200000)
    """

    def __init__(
        self,
        preset: str = "quick",
        seed: int = 0,
        runs: int = 5,
        say: Callable[[str], None] | None = None,
        trainings: Mapping[str, Training] = TRAININGS,
    ):
        self.preset = PRESETS[checks.known("preset", preset, PRESETS)]
        self.key = jax.random.key(checks.seed("seed", seed))
        self.runs = checks.count("runs", runs)
        checks.function("say", say, "a function of a text")
        checks.instance("trainings", trainings, Mapping, "trainings by name, such as {'mine': lfom.Adam()}")
        self.say = say or (lambda text: None)
        self.trainings = trainings
        self._kept: dict[Any, Any] = {}
        self._locks: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"Workbench(preset={self.preset.name!r}, runs={self.runs}, trainings={list(self.trainings)})"

    def with_trainings(self, trainings: Mapping[str, Training]) -> "Workbench":
        """The same workbench, with all that it keeps, for an experiment with these trainings."""
        other = copy.copy(self)
        other.trainings = trainings
        return other

    def only_if_long(self, training: str) -> "Workbench":
        """The same without a training that this preset has no time for."""
        rest = {name: how for name, how in self.trainings.items() if name != training or self.preset.long}
        return self.with_trainings(rest)

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

    def data(self, spectrum: Sequence[float] = PUBLISHED_SPECTRUM, **options: Any) -> PerRun:
        """One distribution per run, each with its own rotation."""
        spectrum = tuple(spectrum)

        def make() -> Any:
            given, d = {"context": CONTEXT} | options, len(spectrum)
            turned = np.asarray(rotations(jax.random.fold_in(self.key, d), self.runs, d))
            return PerRun([LinearRegression(spectrum, rotation=U, **given) for U in turned])

        return self.keep(("data", spectrum, fingerprint(options)), make)

    def model(self, curve: str, d: int = 5, depth: int = max(DEPTHS), **options: Any) -> Any:
        """The model of a curve before training; options: more of memformer()."""
        given = {"key": jax.random.fold_in(self.key, 11), **MODELS[curve].options, **options}
        return memformer(d, depth, **given)

    def trained(
        self, model: Model, training: str, data: Any, depths: Sequence[int] = DEPTHS, label: str = "main"
    ) -> Fit:
        """A model, of a curve (by name) or built by yourself, trained on fresh prompts; training: a name of
        `trainings`. data: a distribution, or one per run."""
        d = each_run(data)[0].dimension
        optimiser, phases = self.optimiser(training, model, d), PHASES.get(training)
        name = model if isinstance(model, str) else fingerprint(model)

        def make() -> Fit:
            self.say(f"training {model if name is model else label} ({training}, {label})")
            start = self.model(model, d, max(depths)) if isinstance(model, str) else model
            key = self.stream("train", label)
            return fit(start, data, key=key, depths=depths, train=phases, optimiser=optimiser, keep=self.keep)

        return self.keep(("fit", name, optimiser, phases, fingerprint(data), label, tuple(depths)), make)

    def optimiser(self, training: str, model: Model = "Memformer", d: int = 5) -> Optimiser:
        """What a training stands for; a model that is none of ours is trained as most of ours are."""
        said = self.trainings[checks.known("training", training, self.trainings)]
        name = checks.known("model", model, MODELS) if isinstance(model, str) else "Memformer"
        return said(self.preset, MODELS[name], d) if callable(said) else said

    def pairs(self, *curves: str) -> list[tuple[str, str]]:
        """Every curve with every training, as `curves` and `keys` take them."""
        return [(curve, training) for training in self.trainings for curve in curves]

    def stream(self, *names: str) -> Array:
        """A key that depends on names only, so that scores of separate calls are paired."""
        return jax.random.fold_in(self.key, zlib.crc32("|".join(names).encode()) >> 1)

    def scores(
        self, methods: dict[str, Any], data: PerRun, label: str = "main", prompts: int | None = None
    ) -> dict[str, Score]:
        """Scores on fresh prompts, the same ones for every call with this label."""
        prompts, on = prompts or self.preset.prompts, fingerprint(data)
        with self._lock(("scores", label)):
            keys = {name: ("score", fingerprint(m), on, label, prompts) for name, m in methods.items()}
            missing = {name: m for name, m in methods.items() if keys[name] not in self._kept}
            if missing:
                self.say(f"scoring {len(missing)} methods ({label})")
                found = evaluate(missing, data, prompts=prompts, key=self.stream("score", label))
                self._kept |= {keys[name]: score for name, score in found.items()}
            return {name: replace(self._kept[key], name=name) for name, key in keys.items()}

    def curves(
        self,
        wanted: Sequence[tuple[str, str]],
        data: Any,
        depths: Sequence[int] = DEPTHS,
        label: str = "main",
        models: Mapping[str, Model] | None = None,
        baselines: bool | None = None,
        prompts: int | None = None,
    ) -> Curves:
        """The scores by depth of every (curve, training) wanted, trained side by side and scored together, and
        of what stands in every figure of loss over depth, with training "none": CGD, preconditioned CGD, GD,
        momentum and NAG tuned for each depth and with the paper's step sizes, the exact optimum of the class (where
        its moments are not known, the optimum of sampled ones, called so).

        data: a distribution, which all runs share, or one per run. models: the model of a curve that has another
        name in the figure, or that you built yourself. baselines: by default where the distribution is one for
        which the optimum has one matrix. prompts: of the scores, if not as many as the preset says.
        """
        data = PerRun([data] * self.runs) if (several := by_run(data)) is None else several
        baselines = data[0].has_one_matrix if baselines is None else baselines
        names, rest = models or {}, (data, depths, label)
        fits = {(curve, training): (names.get(curve, curve), training, *rest) for curve, training in wanted}
        jobs: list[Any] = [(self.trained, *one) for one in fits.values()]
        # first what keeps one core busy from its beginning to its end
        self.side_by_side([(self._classical, *rest), *jobs] if baselines else jobs)
        classical = self._classical(*rest) if baselines else {}
        methods: dict[Any, Any] = {(curve, "none"): one for curve, one in classical.items()}
        methods |= {pair: {d: self.trained(*one).per_run(d) for d in depths} for pair, one in fits.items()}
        return by_depth(methods, depths, lambda named: self.scores(named, data, label, prompts))

    def _classical(self, data: PerRun, depths: Sequence[int], label: str) -> dict[str, Any]:
        """The methods of `curves` that are not trained, by curve; by depth too where each has its own."""

        def make() -> dict[str, Any]:
            self.say(f"tuning baselines ({label})")
            deepest, n, d = max(depths), data.stacked.context, data[0].dimension
            inverses = [np.linalg.inv(one.covariance) for one in data.each()]
            methods: dict[str, Any] = {"CGD": classical.conjugate_gradient(deepest)}
            methods["Preconditioned CGD"] = self.preconditioned_cgd(data, deepest)
            eta, beta = classical.APPENDIX_B["Nesterov"]
            methods["NAG"] = classical.nesterov(eta * n, beta, deepest)
            eta, beta = classical.APPENDIX_B["momentum"]
            methods["Momentum GD"] = classical.momentum(eta * n, beta, deepest)
            sample = _sample(data[0], self.stream("tune", label))
            for name, (build, parameters) in TUNED.items():
                methods[f"{name}, tuned"] = tuned_methods(build, parameters, sample, depths)
            if data[0].has_exact_optimum:
                optimum, optima = "exact optimum", {depth: exact_optimum(d, n, depth) for depth in depths}
            else:
                optimum, key, many = "sampled optimum", self.stream("optimum", label), self.preset.prompts
                options: Any = {"preconditioner": as_array(inverses[0]), "prompts": 2 * min(many, 200_000)}
                optima = sampled_optima(data[0], depths, key, **options)
            methods[optimum] = {}
            for depth in depths:
                # All roots of its polynomial are real (of every kernel polynomial), so it is descent with 1 / root.
                sizes = np.pad(1 / optima[depth].roots.real, (0, deepest - depth))
                best = [classical.preconditioned_gradient_descent(A, sizes, deepest) for A in inverses]
                methods[optimum][depth] = PerRun([one.truncated(depth) for one in best])
            return methods

        return self.keep(("classical", fingerprint(data), label, tuple(depths)), make)

    @staticmethod
    def preconditioned_cgd(data: PerRun, steps: int) -> PerRun:
        """CGD that knows the inverse covariance of each run."""
        inverses = [np.linalg.inv(one.covariance) for one in data.each()]
        return PerRun([classical.conjugate_gradient(steps, (A + A.T) / 2) for A in inverses])


P, T = ParamSpec("P"), TypeVar("T")


def kept(make: Callable[Concatenate[Workbench, P], T]) -> Callable[Concatenate[Workbench, P], T]:
    """Make it once on a workbench for the same arguments and the same meaning of trainings, as `Workbench.keep` does."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def once(bench: Workbench, /, *args: P.args, **options: P.kwargs) -> T:
        given = signature.bind(bench, *args, **options)
        given.apply_defaults()
        means = frozenset((WITH_PHASES | dict(bench.trainings)).items())
        name = (make.__module__, make.__qualname__, means, *list(given.arguments.values())[1:])
        return bench.keep(name, lambda: make(bench, *args, **options))

    return once


def tuned_methods(
    build: Callable[..., Any], parameters: int, sample: Any, depths: Sequence[int]
) -> dict[int, Any]:
    """A method with the numbers that are best for each depth on a sample: all of one shape, so that they are scored as one
    group."""
    tuned = tune_each(build, sample, steps=depths, parameters=parameters)
    return {depth: build(*tuned[depth].parameters, max(depths)).truncated(depth) for depth in depths}


@jit_draws
def rotations(key: Array, runs: int, d: int) -> Array:
    """One of each run."""
    return jax.vmap(lambda key: haar_rotation(key, d))(jax.random.split(key, runs))


@jit_draws
def _sample(data: Distribution, key: Array) -> Any:
    """The prompts that classical methods are tuned on."""
    return data.quadratics(key, 20_000)
