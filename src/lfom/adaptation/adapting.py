"""lfom.adapt: a trained model fitted to new prompts, in three settings.

labelled: an adaptation set with the labels of its queries. label-free: the contexts of the prompts
alone; context tokens are held out in turn and predicted from the rest. per prompt: every prompt
sets its own gates from its own context. In all three the held-out context error before and after
is measured; if it got worse, the unadapted model comes back, and the result says so. Where prompts
are few, a fifth of them is not fitted to, and judges every step and the result. Where they are many,
or fewer than 20, all are fitted to, and held-out tokens of the same prompts judge.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.adaptation.held_out import (
    asked_tokens,
    context_error,
    context_error_of_each,
    fold_size,
    folds_in_turn,
    hold_out,
    hold_out_each,
)
from lfom.adaptation.per_prompt import STEPS, PerPrompt, no_gates, with_gates
from lfom.adaptation.shared import Budget, chunked, fit_shared, total_losses
from lfom.core import checks
from lfom.core.arrays import as_array
from lfom.core.checks import InputError
from lfom.core.kernels import Kernel, check_semidefinite
from lfom.core.methods import Algorithm, Mixture, a_method
from lfom.core.parameters import check_dimension, check_numbers, shapes, sizes
from lfom.core.problems import Problem, Quadratic, gram_of
from lfom.core.runs import PerRun, by_run, common_runs, each_run
from lfom.core.states import common
from lfom.core.threads import in_threads
from lfom.core.vectors import check_constants, from_vector, known_kinds, parameters, vector_of
from lfom.core.words import brief
from lfom.prompts.prompt import Prompt, checked

# Models, the errors before and after and what is kept of every run, steps and history (see Adaptation).
Found = tuple[list[Any], np.ndarray, np.ndarray, np.ndarray, int, tuple[dict[str, Any], ...]]

SETTINGS = ("labelled", "label-free", "per prompt")
SHARED_STEPS = 20
JUDGED = 0.2  # the share of the prompts that is not fitted to and judges, where there are ENOUGH but not MANY
ENOUGH = 20
MANY = 200  # prompts per trained number from which on all of them are fitted to, and judge: a fifth of them
# would add more noise (losses have heavy tails) than it saves overfitting
THREADED = 1_000  # prompts at least in each of two or four parts of a batch, which run side by side
PER_PROMPT_FOLDS = 5  # for the judgement of gates per prompt; one token at a time costs four times as much


@dataclass(frozen=True)
class Adaptation:
    """An adapted model, and what it took.

    model: as it was handed over (PerRun stays PerRun); gates per prompt are on a trailing axis.
    before, after: the held-out context error of the model as it was and as it is now, for each run; on
    prompts that were fitted to unless they were few (see above), so no substitute for a score on fresh ones.
    kept: the share of prompts (per prompt), or 1 or 0 (otherwise), whose adaptation was kept.
    steps, seconds: what was spent, compilation included. history: time and loss after every step.

    >>> import numpy as np
    >>> import lfom
    >>> losses = {"before": np.array([0.8]), "after": np.array([0.5]), "kept": np.array([1.0])}
    >>> lfom.Adaptation(None, "label-free", ("gates",), prompts=50, steps=3, seconds=0.1, **losses).note
    'The adapted model is returned.'
    """

    __repr__ = brief

    model: Any
    setting: str
    train: tuple[str, ...]
    prompts: int
    before: np.ndarray  # (runs,)
    after: np.ndarray  # (runs,)
    kept: np.ndarray  # (runs,)
    steps: int
    seconds: float
    history: tuple[dict[str, Any], ...] = ()

    @property
    def note(self) -> str:
        """One sentence: what was kept, and why."""
        if (self.kept >= 1).all():
            return "The adapted model is returned."
        if self.setting == "per prompt":
            return (
                f"{100 * (1 - self.kept.mean()):.1f} % of the prompts keep the unadapted gates: adapted ones "
                "made their held-out context error worse."
            )
        which = "" if len(self.kept) == 1 else f" in {int((self.kept < 1).sum())} of {len(self.kept)} runs"
        return f"Adaptation made the held-out context error worse{which}: the unadapted model is returned."


def adapt(
    model: Any,
    prompts: Any,
    *,
    setting: str = "label-free",
    train: Sequence[str] = ("gates",),
    folds: int | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    watch: Callable[[int, float], None] | None = None,
) -> Adaptation:
    """Fit a trained model to new prompts.

    model: a mixture of experts, or any trained model if gates are not adapted. prompts: one, or a batch.
    Both may be one per run (PerRun or a list); a single one is for all runs. setting: "labelled" reads the
    targets of the queries, "label-free" and "per prompt" read contexts alone. train: the kinds of
    parameters that are fitted (gates, coefficients, A, B); per prompt only gates. folds: how many
    parts of the context are held out in turn. steps, seconds: the budget. watch: called after every
    step with its number and the time.

    >>> import jax
    >>> from lfom import LinearRegression, adapt, memformer, mixture
    >>> experts = [memformer(2, 1, memory="none", scale=s, key=jax.random.key(0)) for s in (0.3, 0.6)]
    >>> prompts = LinearRegression([1.0, 0.5], 8).prompts(jax.random.key(1), 50)
    >>> found = adapt(mixture(experts), prompts)
    >>> bool((found.after <= found.before).all()), found.model.gates.shape
    (True, (2,))
    """
    checks.known("setting", setting, SETTINGS)
    kinds = (train,) if isinstance(train, str) else tuple(_names(train))
    checks.function("watch", watch, "a function of a step's number and the time")
    for one in each_run(model):
        a_method("model", one)
    runs = common_runs(model=model, prompts=prompts)
    models = [one.as_algorithm() for one in each_run(model, runs)]  # what was learned is of others
    check_constants(models)
    for one in models:
        check_numbers("model", one)
    each = [replace(checked(one), weights=None) for one in each_run(prompts, runs)]
    given = _stacked(each)
    _has_kinds(models[0], kinds, setting)
    check_dimension(models[0], given.X.shape[-1])
    if seconds is not None:
        checks.positive("seconds", seconds)
    begun = time.perf_counter()
    if setting == "per prompt":
        if seconds is not None:
            raise InputError(
                "seconds is no budget per prompt, which is one compiled call: limit it with steps."
            )
        most = STEPS if steps is None else checks.count("steps", steps, 0)
        found = _per_prompt(models, given, folds, most, each[0].batched)
    else:
        budget = Budget(SHARED_STEPS if steps is None else checks.count("steps", steps), seconds)
        found = _shared(models, given, setting == "labelled", kinds, folds, budget, watch)
    adapted, before, after, kept, taken, history = found
    single = by_run(prompts) is None and by_run(model) is None
    result: Any = adapted[0] if single else PerRun(adapted)
    spent = time.perf_counter() - begun
    return Adaptation(result, setting, kinds, given.X.shape[1], before, after, kept, taken, spent, history)


@eqx.filter_jit
def _adapt_prompts(model: Mixture, X: Any, y: Any, size: int, steps: int) -> tuple[Array, ...]:
    """Gates (heads, ..., prompts), and the held-out context errors before and after, of each prompt."""
    X, y = jnp.moveaxis(X, 0, -1), jnp.moveaxis(y, 0, -1)
    adapted = PerPrompt(model, steps).adapted(Quadratic(*gram_of(X, y)))
    before, after = context_error(model, X, y, size), context_error(adapted, X, y, size)
    return _kept(model, adapted.gates, before, after)


@eqx.filter_jit
def _adapt_each(model: Mixture, prompts: Prompt, view: str, size: int, steps: int) -> tuple[Array, ...]:
    """The same in another view, or of labels through a link, prompt by prompt."""

    def one(prompt: Prompt) -> tuple[Array, Array, Array]:
        prompt = replace(prompt, query=prompt.X[0], target=prompt.y[0])  # the query is not asked
        adapted = PerPrompt(model, steps).adapted(prompt.problem(view, model.kernel))
        before, after = (context_error_of_each(m, prompt, view, size) for m in (model, adapted))
        return adapted.gates, before, after

    return _kept(model, *jax.vmap(one, out_axes=-1)(prompts))


def _kept(model: Mixture, gates: Array, before: Array, after: Array) -> tuple[Array, ...]:
    """Gates that made the held-out error no worse, and the model's own elsewhere."""
    own = jnp.broadcast_to(model.gates[..., None], gates.shape)
    before = jnp.where(jnp.isnan(before), jnp.inf, before)  # it overflows
    better = ~(after > before) & jnp.isfinite(after)
    return jnp.where(better, gates, own), before, jnp.where(better, after, before), better


def _per_prompt(models: list[Mixture], given: Prompt, folds: int | None, steps: int, batched: bool) -> Found:
    """Runs, and parts of many prompts, side by side on all devices: one such call keeps one core busy. Gates of a prompt
    that is no batch have no axis of prompts."""
    (runs, prompts, n), view = given.X.shape[:3], _view(models[0], given)
    size = fold_size(n, min(n, PER_PROMPT_FOLDS) if folds is None and n > 1 else folds)
    cuts = max(n for n in (1, 2, 4) if n == 1 or (prompts >= n * THREADED and prompts % n == 0))
    slices = [slice(c * prompts // cuts, (c + 1) * prompts // cuts) for c in range(cuts)]
    parts = list(itertools.product(range(runs), slices))

    def one(part: tuple[int, slice]) -> Any:
        model, own = models[part[0]], jax.tree.map(lambda a: a[part], given)
        if _by_downdates(view, given):
            found = _adapt_prompts(model, own.X, own.y, size, steps)
        else:
            found = _adapt_each(model, own, view, size, steps)
        return [np.asarray(values) for values in found]

    found = [one(parts[0])] if len(parts) == 1 else list(in_threads(one, parts))
    of_runs = [
        [np.concatenate(pieces, axis=-1) for pieces in zip(*found[first : first + cuts], strict=True)]
        for first in range(0, len(found), cuts)
    ]
    gates = [as_array(own[0] if batched else own[0][..., 0]) for own in of_runs]
    adapted = [with_gates(*own) for own in zip(models, gates, strict=True)]
    before, after, kept = np.asarray([[row.mean(dtype=np.float64) for row in own[1:]] for own in of_runs]).T
    return adapted, before, after, kept, steps, ()


def _view(model: Algorithm, given: Prompt) -> str:
    """The cheapest that both have; a kernel that is not known to be positive semidefinite is looked at."""
    view = next(iter(common(model.views, given.views)), "iterates")  # says why not
    if view == "kernel" and model.kernel is not None and not model.kernel.semidefinite:
        X = jnp.moveaxis(given.X.reshape(-1, *given.X.shape[2:]), 0, -1)
        check_semidefinite(model.kernel, model.kernel.between(X, X))
    return view


def _by_downdates(view: str, given: Prompt) -> bool:
    """Whether a fold of a context is its Gram matrix without a few examples."""
    return view == "iterates" and given.is_quadratic


@eqx.filter_jit
def _fold(X: Any, y: Any, size: int, chosen: Any) -> Quadratic:
    def one(X: Array, y: Array) -> Quadratic:
        parts = hold_out(jnp.moveaxis(X, 0, -1), jnp.moveaxis(y, 0, -1), size, chosen)
        return jax.tree.map(lambda a: a.reshape(*a.shape[:-2], -1), parts)

    return jax.vmap(one)(X, y)


@eqx.filter_jit
def _fold_each(given: Prompt, positions: Any, view: str, kernel: Kernel | None) -> Problem:
    def one(own: Prompt) -> Problem:
        parts = jax.vmap(hold_out_each)(own, positions)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), parts).problem(view, kernel)

    return jax.vmap(one)(given)


def _folded(view: str, kernel: Kernel | None, given: Prompt, size: int) -> tuple[Problem, int]:
    """Folds of the prompts of every run, prompts and folds on one axis; and how many labels they ask for."""
    prompts, n = given.X.shape[1:3]
    chosen = folds_in_turn(prompts, n, size)
    if _by_downdates(view, given):
        return _fold(given.X, given.y, size, chosen), asked_tokens(prompts, n, size, chosen)
    each = np.arange(-(-n // size))[:, None] if chosen is None else chosen
    positions = np.broadcast_to(each * size, (len(each), prompts)).T
    return _fold_each(given, positions, view, kernel), positions.size


@eqx.filter_jit
def _asked(view: str, kernel: Kernel | None, given: Prompt) -> Problem:
    return jax.vmap(lambda prompt: prompt.problem(view, kernel))(given)


def _shared(
    models: list[Any],
    given: Prompt,
    labelled: bool,
    kinds: tuple[str, ...],
    folds: int | None,
    budget: Budget,
    watch: Callable[[int, float], None] | None,
) -> Found:
    (prompts, n), template = given.X.shape[1:3], models[0]
    view = _view(template, given), template.kernel
    trained = sum(leaf.array.size for leaf in shapes(template) if leaf.kind in kinds)  # fitted, or chosen
    few = ENOUGH <= prompts < MANY * trained
    fitted = prompts - round(JUDGED * prompts) if few else prompts
    fit_on, judge_on = slice(0, fitted), slice(fitted if few else 0, prompts)
    fitting, judges = (jax.tree.map(lambda a, part=part: a[:, part], given) for part in (fit_on, judge_on))
    judging, contexts, tokens = None, None, 1
    if not labelled:
        size = fold_size(n, folds)
        contexts, tokens = _folded(*view, judges, size)
        judging = contexts if few else None
        sets = _folded(*view, fitting, size)[0] if few else contexts
    else:
        sets = _asked(*view, fitting)
        judging = _asked(*view, judges) if few else None
        if n > 1 and "tokens" not in sizes(template):
            contexts, tokens = _folded(*view, judges, fold_size(n, folds))
    start = np.stack([vector_of(one) for one in models])
    judge = None if judging is None else chunked(judging)
    found, history = fit_shared(template, kinds, start, chunked(sets), judge, budget, watch)
    if contexts is None:  # nothing can be held out: the labels alone have judged
        before = after = np.full(len(models), np.nan)
        kept = np.ones(len(models), bool)
    else:
        pair = np.stack([start, found], axis=1)
        errors = total_losses(template, pair, chunked(contexts)) / tokens
        kept = ~(errors[:, 1] > errors[:, 0])
        before, after = errors[:, 0], np.where(kept, errors[:, 1], errors[:, 0])
        if not np.isfinite(after).all():
            raise FloatingPointError(
                f"the held-out error of run {int(np.argmin(np.isfinite(after)))} is not finite, adapted or not: the model diverges on "
                "these prompts. Lower its step sizes, or train it on prompts like these."
            )
    chosen = np.where(kept[:, None], found, start)
    adapted = [from_vector(template, vector) for vector in chosen]
    return adapted, before, after, kept.astype(float), len(history) - 1, history


def _names(train: Any) -> Any:
    wanted = "a kind of parameters or a list of kinds, such as ('gates',)"
    for kind in checks.instance("train", train, list | tuple | set | frozenset, wanted):
        checks.instance("train", kind, str, wanted)
    if not train:
        raise InputError("train is empty: name what is fitted, such as 'gates'.")
    return train


def _stacked(prompts: list[Prompt]) -> Prompt:
    """The prompts of every run with axes of runs and prompts, on the host: X (runs, prompts, n, d), and so on."""
    lead = () if prompts[0].batched else (None,)
    return jax.tree.map(lambda *own: np.stack([np.asarray(a)[lead] for a in own]), *prompts)


def _has_kinds(model: Any, kinds: tuple[str, ...], setting: str) -> None:
    known_kinds(model, kinds)
    said = shapes(model)
    per_prompt = setting == "per prompt"
    has_gates = model.has_gates if per_prompt else any(leaf.kind == "gates" for leaf in said)
    if "gates" in kinds and not has_gates:
        raise InputError(no_gates(model))
    if per_prompt and set(kinds) != {"gates"}:
        raise InputError(
            f"train is {list(kinds)}: per prompt only gates are adapted, since a context has few labels. "
            "Pass train=('gates',), or another setting."
        )
    if setting != "labelled" and any("tokens" in leaf.axes for leaf in said):
        raise InputError(
            f"this model has a number for every token of its context, so no token can be held out, as {setting!r} "
            "does. Adapt it with setting='labelled'."
        )
    if any(leaf.per_prompt and leaf.kind == "gates" for leaf in said):
        raise InputError("the model has gates per prompt already: adapt the one that it came from.")
    if set(kinds) != {"gates"}:
        parameters(model, kinds)  # refuses what this model does not have
