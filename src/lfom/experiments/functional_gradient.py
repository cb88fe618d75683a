"""Attention with a kernel, on labels that are values of a random function: gradient descent on functions, with memory."""

import itertools
from typing import Any

import jax
import numpy as np

from lfom.core.arrays import as_array
from lfom.core.kernels import ArcCosineKernel, ExponentialKernel, GaussianKernel, Kernel, LinearKernel
from lfom.core.memories import Forget
from lfom.core.methods import Method
from lfom.core.preconditioners import Scaled
from lfom.core.readers import LabelAttention
from lfom.core.runs import PerRun
from lfom.experiments.experiment import Experiment
from lfom.experiments.rows import Row, by_depth, score_rows
from lfom.experiments.statistics import Claims, Depths, listed
from lfom.experiments.workbench import Outcome, Workbench, kept
from lfom.limits.optimum import Optimum, sampled_optima
from lfom.limits.posterior import PosteriorMean
from lfom.methods.memformer import memformer
from lfom.prompts.functions import GaussianProcess
from lfom.prompts.prompt import Prompt
from lfom.prompts.run import run
from lfom.training import Adam, Fit, LeastSquares, Score, fit

D, CONTEXT = 5, 14  # of the published setting
DEPTHS = (1, 3, 5, 7)
# On the unit sphere a Gaussian of width 1 is exp(x.x') times a number: this one is narrower.
KERNELS: dict[str, Kernel] = {
    "exponential": ExponentialKernel(),
    "arc-cosine": ArcCosineKernel(),
    "Gaussian": GaussianKernel(0.5),
    "linear": LinearKernel(),
}
FORMS = ("ReLU", "softmax")  # weights that are no kernel
MEMORIES = ("none", "register", "bank")
# Whose functions labels are, by preset.
LABELS = {"quick": ("exponential", "arc-cosine"), "full": tuple(KERNELS)}
PROMPTS = {"quick": 20_000, "full": 1_000_000}
STEPS = {"quick": 300, "full": 4_000}  # of Adam on tokens
# Prompts of one set, fitted as a whole: it has thousands for every number.
TRAINED_ON = {"quick": 20_000, "full": 400_000}
HELPS = 0.02
EXACT = 2_000  # prompts in float64, n layers


class FunctionalGradient(Experiment):
    name = "functional_gradient"
    title = "Gradient descent on functions"
    section = "ours"
    shows = (
        "Attention with a kernel on labels from Gaussian processes (unit sphere, d = 5, n = 14): the kernel that labels come "
        "from and others, ReLU and softmax weights; without memory, with register and bank, and with the conjugate "
        "register; beside the optimum of the class and the Bayes predictor."
    )
    trained = (
        "Kernels by least squares (converged) and by Adam as in the paper (paper); ReLU and softmax weights by Adam on "
        "tokens. Scored on the same fresh prompts with one query each."
    )
    y_label = {name: f"log mean squared error, labels: {name}" for name in KERNELS}

    def run(self, bench: Workbench) -> Outcome:
        labels = LABELS[bench.preset.name]
        kernels: list[Any] = [(trained, bench, at, reader, "bank") for at in labels for reader in KERNELS]
        kernels += [(trained, bench, at, at, memory) for at in labels for memory in MEMORIES[:2]]
        others: list[tuple[Any, ...]] = [(weighted, bench, form) for form in FORMS]
        others += [(adam, bench, at, memory) for at in _by_adam(bench) for memory in MEMORIES]
        others += [(made, bench, at) for at in labels for made in (optima, exact)]
        # Kernels share their programs: one is trained while others compile, the rest when these are there.
        bench.side_by_side([kernels[0], *others, *kernels[1:]])
        found = {at: self._scores(bench, at) for at in labels}
        rows = list[Row]()
        for at, own in found.items():
            for (curve, training), scores in own.items():
                rows += score_rows(curve, training, scores, measure=at)
        main = ["Bayes|none", "conjugate register|none", "sampled optimum|none", "matching kernel|converged"]
        main += [f"{curve}|converged" for curve in (*(f"{name} kernel" for name in KERNELS), *FORMS)]
        main += ["matching kernel|paper", "matching kernel, bank|paper"]
        return Outcome(rows, _claims(bench, found), main)

    @staticmethod
    def _scores(bench: Workbench, at: str) -> dict[Any, Depths]:
        """By (curve, training) and depth."""
        fits: dict[Any, tuple[Fit, int]] = {}  # and the run in each
        for memory in MEMORIES:
            fits[_named(at, at, memory), "converged"] = trained(bench, at, at, memory), 0
            if at in _by_adam(bench):
                fits[_named(at, at, memory), "paper"] = adam(bench, at, memory), 0
        for reader in (name for name in KERNELS if name != at):
            # any polynomial, so that it is at its optimum
            fits[_named(at, reader), "converged"] = trained(bench, at, reader, "bank"), 0
        for form in FORMS:
            fits[form, "converged"] = weighted(bench, form), LABELS[bench.preset.name].index(at)
        methods: dict[Any, Any] = {
            pair: {d: own.model(run_of, d) for d in DEPTHS} for pair, (own, run_of) in fits.items()
        }
        key = bench.stream("functional", "conjugate")
        register = memformer(D, max(DEPTHS), reader=KERNELS[at], memory="conjugate", key=key)
        methods["conjugate register", "none"] = {d: register.truncated(d) for d in DEPTHS}
        methods["sampled optimum", "none"] = optima(bench, at)
        methods["Bayes", "none"] = dict.fromkeys(DEPTHS, PosteriorMean(KERNELS[at]))
        count = PROMPTS[bench.preset.name]
        data = PerRun([GaussianProcess(D, CONTEXT, KERNELS[at])])
        return by_depth(methods, DEPTHS, lambda named: bench.scores(named, data, f"functional {at}", count))


def _by_adam(bench: Workbench) -> tuple[str, ...]:
    """Which labels models are trained on as in the paper, too."""
    labels = LABELS[bench.preset.name]
    return () if "paper" not in bench.trainings else labels if bench.preset.long else labels[:1]


@kept
def trained(bench: Workbench, at: str, reader: str, memory: str) -> Fit:
    """All depths, by least squares."""
    bench.say(f"training attention with the {reader} kernel, {memory}, on {at} labels")
    key = bench.stream("functional", at, reader, memory)
    model = memformer(D, max(DEPTHS), reader=KERNELS[reader], memory=memory, key=key)
    squares = LeastSquares(passes=(30, 2), gain=1e-4, hold_out=0.0)
    return fit(model, drawn(bench, at), key=key, optimiser=squares, depths=DEPTHS)


@kept
def drawn(bench: Workbench, at: str) -> Prompt:
    """What all are trained on: kernels then share the programs that train them."""
    count = TRAINED_ON[bench.preset.name]
    return GaussianProcess(D, CONTEXT, KERNELS[at]).prompts(bench.stream("functional", at), count)


@kept
def adam(bench: Workbench, at: str, memory: str) -> Fit:
    """The matching kernel, as the paper trains."""
    bench.say(f"training attention with the {at} kernel by Adam, {memory}")
    key = bench.stream("functional", at, memory)
    model = memformer(D, max(DEPTHS), reader=KERNELS[at], memory=memory, key=key)
    return fit(model, drawn(bench, at), key=key, optimiser=Adam(bench.preset.adam_steps), depths=DEPTHS)


@kept
def weighted(bench: Workbench, form: str) -> Fit:
    """Weights that are no kernel, on tokens: a run for each kernel that labels come from, in one program."""
    bench.say(f"training attention with {form} weights")
    depth, steps, key = max(DEPTHS), STEPS[bench.preset.name], bench.stream("functional", form)
    ones = as_array(np.ones(depth, np.float32))
    model = Method(LabelAttention(Scaled(ones), ones, form.lower()), Forget(ones), depth)  # type: ignore[call-arg,arg-type]
    options = Adam(steps, 128, 5, 0.03, 1_000.0, "cosine", warmup=steps // 10, log=True)
    data = PerRun([drawn(bench, at) for at in LABELS[bench.preset.name]])
    return fit(model, data, key=key, optimiser=options, depths=DEPTHS)


@kept
def optima(bench: Workbench, at: str) -> dict[int, Optimum]:
    """The best shared numbers of the matching kernel, which every memory of numbers reaches, and none does, too: the
    polynomial is orthogonal with respect to a positive measure, so that all its roots are real."""
    key, kernel = bench.stream("functional optimum", at), KERNELS[at]
    prompts = 2 * PROMPTS[bench.preset.name]
    return sampled_optima(GaussianProcess(D, CONTEXT, kernel), DEPTHS, key, kernel=kernel, prompts=prompts)


def _named(at: str, reader: str, memory: str = "none") -> str:
    """The curve of a kernel; the one that labels come from is called so in every panel."""
    kernel = "matching kernel" if reader == at else f"{reader} kernel"
    return kernel if memory == "none" else f"{kernel}, {memory}"


Scores = dict[Any, Depths]


def _lower(ours: Score, theirs: Score, by: float = 0.0) -> bool:
    """Below by more than this, beyond two standard errors of the paired difference over prompts."""
    mean, error = ours.minus(theirs)
    return mean + 2 * error < -by


def _told(pair: tuple[Depths, Depths]) -> str:
    ours, theirs = pair
    pairs = {d: ours[d].minus(theirs[d]) for d in ours}
    return listed(pairs, lambda each: f"{each[0]:+.4f} ± {each[1]:.4f}", "L={} {}", ", ")


def _claims(bench: Workbench, found: dict[str, Scores]) -> Claims:
    claims = Claims("ours")
    matching = {at: own["matching kernel", "converged"] for at, own in found.items()}
    rivals = {at: _rivals(at, own) for at, own in found.items()}

    def against_best(at: str) -> str:
        words = {}
        for d, ours in matching[at].items():
            name, best = min(((n, own[d]) for n, own in rivals[at].items()), key=lambda one: one[1].log_loss)
            words[d] = f"{ours.minus(best)[0]:+.3f} ({name})"
        return listed(words, form="L={} {}", between=", ")

    claims.test(
        "functional-matching-is-best",
        "Attention with the kernel that labels come from is best.",
        "converged, its loss without memory is below that of every other kernel with a bank and of ReLU and softmax weights by "
        "two standard errors of the paired difference, at every depth",
        [
            _lower(ours[d], own[d])
            for at, ours in matching.items()
            for own in rivals[at].values()
            for d in DEPTHS
        ],
        listed({at: against_best(at) for at in found}, form="{}, against the best other: {}"),
    )
    claims.test(
        "functional-deeper-is-better",
        "Every layer is a step of gradient descent on functions: deeper is better.",
        "the loss of the matching kernel falls with every depth by two standard errors of the paired difference",
        [_lower(own[b], own[a]) for own in matching.values() for a, b in itertools.pairwise(DEPTHS)],
        listed(matching, lambda own: listed(own, lambda one: f"{one.log_loss:.3f}", "L={} {}", ", ")),
    )
    ends = {
        f"{at}, {memory}": (own[_named(at, at, memory), "converged"], own["sampled optimum", "none"])
        for at, own in found.items()
        for memory in MEMORIES
    }
    claims.measure(
        "functional-distance-to-optimum",
        "Ours: how far training ends from the optimum of its class.",
        "difference of log loss to the sampled optimum on the same prompts, per depth, with the matching kernel, without memory "
        "and with register and bank",
        listed(ends, _told),
    )
    for id, training, text in (
        ("equal-training", "paper", "at equal training (Adam, 1,000 steps)"),
        ("optimum", "converged", "at the optimum"),
    ):
        gains = {
            f"{at}, {memory}": (own[_named(at, at, memory), training], own["matching kernel", training])
            for at, own in found.items()
            for memory in MEMORIES[1:]
            if ("matching kernel", training) in own
        }
        if not gains:
            continue
        claims.test(
            f"functional-memory-helps-{id}",
            f"Memory helps gradient descent on functions {text}.",
            f"register and bank are below no memory by more than {HELPS}, beyond two standard errors of the paired "
            "difference, at every depth from 3 on",
            [_lower(a[d], b[d], HELPS) for a, b in gains.values() for d in DEPTHS[1:]],
            listed(gains, _told),
        )
    conjugate = {
        at: (own["conjugate register", "none"], own["sampled optimum", "none"]) for at, own in found.items()
    }
    claims.test(
        "functional-memory-helps-conjugate",
        "Memory helps gradient descent on functions through the conjugate register.",
        "the conjugate register is below the optimum of shared numbers by two standard errors of the paired difference, at "
        "every depth",
        [_lower(a[d], b[d]) for a, b in conjugate.values() for d in DEPTHS],
        listed(conjugate, _told),
    )
    errors = {at: exact(bench, at) for at in found}
    claims.test(
        "functional-reaches-bayes",
        "Conjugate directions reach the Bayes predictor after as many layers as examples.",
        f"after {CONTEXT} layers in float64 the conjugate bank is within 1e-6 of it on each of {EXACT:,} prompts",
        [own["conjugate-bank"].max() <= 1e-6 for own in errors.values()],
        "; ".join(
            f"{at}: largest difference {own['conjugate-bank'].max():.1e} with the bank; with the register "
            f"{100 * np.mean(own['conjugate'] > 1e-6):.0f} % of the prompts differ by more, through rounding"
            for at, own in errors.items()
        ),
    )
    return claims


def _rivals(at: str, curves: Scores) -> dict[str, Depths]:
    """What is not the matching kernel."""
    names = [*(f"{name} kernel" for name in KERNELS if name != at), *FORMS]
    return {name: curves[name, "converged"] for name in names}


@kept
def exact(bench: Workbench, at: str) -> dict[str, np.ndarray]:
    """How far the two conjugate memories are from the Bayes predictor after n layers, prompt by prompt, in float64."""
    key, kernel = bench.stream("functional exact", at), KERNELS[at]
    few = jax.tree.map(lambda a: np.asarray(a)[:EXACT], drawn(bench, at))  # nothing is fitted to them here
    with jax.enable_x64(True):
        prompts = jax.tree.map(lambda a: as_array(a.astype(np.float64)), few)
        bayes = run(PosteriorMean(kernel), prompts).predictions[-1]
        found = {}
        for memory in ("conjugate", "conjugate-bank"):
            model = memformer(D, CONTEXT, reader=kernel, memory=memory, key=key)
            found[memory] = np.abs(np.asarray(run(model, prompts).predictions[-1] - bayes))
        return found
