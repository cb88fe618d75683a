"""Does a full Gamma go beyond LFOMs, and does memory help other kinds of attention? Trained on tokens."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lfom.core.runs import PerRun
from lfom.experiments.experiment import Experiment
from lfom.experiments.rows import by_depth, curve_rows, take_runs
from lfom.experiments.statistics import Claims, Depths, difference, listed
from lfom.experiments.workbench import CONTEXT, Outcome, Workbench, kept
from lfom.limits.optimum import exact_optimum
from lfom.methods.classical import preconditioned_gradient_descent
from lfom.methods.memformer import memformer
from lfom.training import Adam, Fit, LeastSquares, Score, fit

NUMBERS = ("scalar", "pair", "rows")  # trained by least squares
PER_TOKEN = ("tokens", "hadamard")  # by Adam on tokens
NAMES = {"tokens": "token-wise", "hadamard": "Hadamard"}
ATTENTION = ("softmax", "relu", "exp")
RICHER = 0.02  # below the optimum of shared numbers by more than this: a prompt's own noise is smaller
HELPS = 0.05  # what counts as a gain of memory
# By preset: depths, runs, prompts of a batch; steps by depth of attention, and of Gamma.
DEPTHS = {"quick": (1, 2), "full": (1, 2, 3)}
RUNS = {"quick": 2, "full": 8}
BATCH = {"quick": 128, "full": 512}
STEPS = {"quick": {1: 800, 2: 1_500}, "full": {1: 6_000, 2: 10_000, 3: 15_000}}
SLOWER = {("exp", "quick"): {1: 800, 2: 2_500}}  # whose steps differ: exp learns slowly at first
GAMMA_STEPS = {"quick": 400, "full": 10_000}
PROMPTS = {"quick": 50_000, "full": 1_000_000}  # of the scores; on tokens they are dear


class RicherMemory(Experiment):
    name = "richer_memory"
    title = "A full Gamma, and other kinds of attention"
    section = "3.2, equation LFOM_memory"
    shows = (
        "Gamma as a number, a pair, rows, one number per token and a full Hadamard factor, beside the exact optimum of "
        "shared numbers; and softmax, ReLU and exponential attention with and without a bank."
    )
    trained = (
        "Numbers by least squares; Gamma per token by Adam on tokens, the first run from the best numbers, the others "
        "from random A; attention by Adam on tokens from random matrices. Scored on fresh prompts with one query each. "
        "The best run counts and is drawn, some starts end in worse valleys; every run stands in curves.csv."
    )

    def run(self, bench: Workbench) -> Outcome:
        preset = bench.preset.name
        depths, data = DEPTHS[preset], PerRun([bench.data()[0]] * RUNS[preset])
        curves = {f"Gamma {NAMES.get(g, g)}": ("gamma", g) for g in (*NUMBERS, *PER_TOKEN)}
        for kind in ATTENTION:
            curves |= {kind: (kind, "none"), f"{kind}, bank": (kind, "bank")}
        bench.side_by_side([(trained, bench, *what, d) for what in curves.values() for d in depths])
        methods: dict[Any, Any] = {
            (curve, "converged"): {d: trained(bench, *what, d).per_run() for d in depths}
            for curve, what in curves.items()
        }
        methods["exact optimum", "none"] = {d: PerRun([_exact(bench, d)] * RUNS[preset]) for d in depths}
        found = by_depth(methods, depths, lambda named: bench.scores(named, data, self.name, PROMPTS[preset]))
        optimum, claims = found["exact optimum", "none"], Claims("3.2")
        gammas = {g: found[f"Gamma {NAMES.get(g, g)}", "converged"] for g in (*NUMBERS, *PER_TOKEN)}
        full = {NAMES[g]: gammas[g] for g in PER_TOKEN}
        claims.test(
            "richer-gamma-beyond-lfoms",
            "A full Gamma performs richer algorithms than linear first-order methods.",
            f"the best run of a token-wise or a Hadamard Gamma is below the exact optimum of shared numbers by more than "
            f"{RICHER} on the same prompts, at any depth",
            [_best(own, optimum, d) < -RICHER for own in full.values() for d in depths],
            listed(full, lambda own: _told(own, optimum), "{} {}"),
        )
        claims.measure(
            "richer-gamma-distance-to-optimum",
            "Ours: how far training ends from the optimum of shared numbers, with every Gamma.",
            "difference of log loss of the best run of each structure, per depth",
            listed(gammas, lambda own: _told(own, optimum), "{} {}"),
        )
        kinds = {curve: found[curve, "converged"] for curve in curves if not curve.startswith("Gamma")}
        least = {curve: {d: _least(own[d]) for d in depths} for curve, own in kinds.items()}
        claims.test(
            "attention-improves-with-depth",
            "Ours: softmax, ReLU and exponential attention get better with every layer.",
            "the best run of each depth is below the best of the depth before, with and without memory",
            [own[b] < own[a] for own in least.values() for a, b in itertools.pairwise(depths)],
            listed(least, lambda own: ", ".join(f"{loss:.3f}" for loss in own.values()), "{} {}"),
        )
        gains = {k: {d: least[f"{k}, bank"][d] - least[k][d] for d in depths[1:]} for k in ATTENTION}
        claims.test(
            "attention-memory-helps",
            "Ours: a bank improves softmax, ReLU and exponential attention.",
            f"the best run with a bank is below the best without by more than {HELPS}, at every depth from 2 on",
            [gain < -HELPS for own in gains.values() for gain in own.values()],
            listed(gains, _by_layers, "{} {}"),
        )
        best_kind = {d: min(own[d] for own in least.values()) for d in depths}
        claims.test(
            "attention-beyond-lfoms",
            "Ours: attention that is not linear goes beyond the best LFOM of the same depth.",
            "the best run of softmax, ReLU or exponential attention is below the exact optimum of shared numbers, per depth",
            [best_kind[d] < _least(optimum[d]) for d in depths],
            "; ".join(f"L={d}: {best_kind[d]:.3f} against {_least(optimum[d]):.3f}" for d in depths),
        )
        main = ["exact optimum|none", *(f"{curve}|converged" for curve in ("Gamma Hadamard", *kinds))]
        best = {name: {d: _best_run(score) for d, score in own.items()} for name, own in found.items()}
        every = {(f"{curve}, every run", how): own for (curve, how), own in found.items() if how != "none"}
        return Outcome(curve_rows({**best, **every}), claims, main)


def _exact(bench: Workbench, depth: int) -> Any:
    """The exact optimum with the inverse covariance, as descent with the steps 1 / root."""
    data = bench.data()[0]
    inverse = np.linalg.inv(data.covariance)
    sizes = 1 / exact_optimum(data.dimension, CONTEXT, depth).roots.real
    return preconditioned_gradient_descent((inverse + inverse.T) / 2, sizes, depth)


@kept
def trained(bench: Workbench, kind: str, memory: str, depth: int) -> Fit:
    """One structure at one depth; several runs on the same data."""
    preset = bench.preset.name
    data, runs, d = bench.data()[0], RUNS[preset], bench.data()[0].dimension
    key = bench.stream("richer memory", kind, memory, str(depth))
    if kind == "gamma" and memory in NUMBERS:
        bench.say(f"training Gamma {memory}, {depth} layers")
        model = memformer(d, depth, preconditioner="shared", gamma=memory, key=key)
        return fit(model, [data] * runs, key=key, optimiser=LeastSquares(prompts=bench.preset.least_squares))
    if kind == "gamma":
        start = trained(bench, "gamma", "scalar", depth)
        bench.say(f"training Gamma {memory}, {depth} layers")
        models = [_per_token(start.model(0), memory, d, depth, key)]
        for one in jax.random.split(key, runs - 1):
            options: dict[str, Any] = {"preconditioner": "shared", "context": CONTEXT, "scale": 0.1}
            models.append(memformer(d, depth, gamma=memory, key=one, **options))
        return fit(models, data, key=key, optimiser=_adam(GAMMA_STEPS[preset], BATCH[preset]))
    if memory == "bank" and depth == 1:
        return trained(bench, kind, "none", 1)  # a bank of one layer is a number
    bench.say(f"training {kind} attention, {memory}, {depth} layers")
    models = [memformer(d, depth, reader=kind, memory=memory, key=one) for one in jax.random.split(key, runs)]
    steps, batch = SLOWER.get((kind, preset), STEPS[preset])[depth], BATCH[preset] * (2 if depth == 3 else 1)
    return fit(models, data, key=key, optimiser=_adam(steps, batch))


def _adam(steps: int, batch: int) -> Adam:
    return Adam(steps, batch, 1, 0.01, 1_000.0, "cosine", warmup=steps // 10, log=True)


def _per_token(found: Any, gamma: str, d: int, depth: int, key: Any) -> Any:
    """The best numbers, as a Gamma with an entry for every token."""
    model: Any = memformer(d, depth, preconditioner="shared", gamma=gamma, context=CONTEXT, key=key)
    value = model.memory.gamma.value
    numbers = found.memory.gamma.value.reshape(depth, depth, *(1,) * (value.ndim - 2))
    model = eqx.tree_at(lambda m: m.reader, model, found.reader)
    return eqx.tree_at(lambda m: m.memory.gamma.value, model, jnp.broadcast_to(numbers, value.shape))


def _least(score: Score) -> float:
    """The log loss of the best run."""
    return float(score.log_mean[:, -1].min())


def _best_run(score: Score) -> Score:
    best = int(score.log_mean[:, -1].argmin())
    return take_runs(score, slice(best, best + 1))


def _best(ours: Depths, theirs: Depths, depth: int) -> float:
    """The paired difference of the best run."""
    return float(difference(ours[depth], theirs[depth]).min())


def _told(ours: Depths, theirs: Depths) -> str:
    return _by_layers({d: _best(ours, theirs, d) for d in ours})


def _by_layers(values: dict[int, float]) -> str:
    return listed(values, "{:+.3f}".format, "L={}: {}", ", ")
