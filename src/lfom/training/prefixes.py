"""Scores after every number of examples: `lfom.evaluate(..., contexts=...)`.

All that linear attention sees of the first k examples are sums over them, so one program leads a prompt through all its
prefixes. Beside the methods stand ridge regression and, where the distribution says its prior, the Bayes predictor.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core import checks
from lfom.core.arrays import as_array
from lfom.core.checks import InputError
from lfom.core.compiler import jit_draws
from lfom.core.kernels import check_semidefinite
from lfom.core.parameters import rebuilt
from lfom.core.problems import JointGram, Problem, Quadratic, add_examples, no_sums
from lfom.core.threads import in_threads
from lfom.core.unroll import last_residual
from lfom.core.words import brief
from lfom.limits.bayes import posterior_means
from lfom.prompts.distributions import Distribution, Prior
from lfom.prompts.prompt import Prompt

RIDGE, BAYES = "ridge", "Bayes"
# of ridge, in mean squares of a covariate
STRENGTHS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
TUNED_ON = 500  # prompts that the strength is chosen on; they are not scored
RESAMPLES = 1_000  # of the bootstrap
GROUPS = 2_000  # more prompts than this are resampled in so many groups
QUANTILES = (0.05, 0.95)
Work = Callable[[Problem], Array]


@dataclasses.dataclass(frozen=True)
class PrefixScore:
    """What one method scored after each number of examples, after its last step. Axes: run, number of examples.

    low, high: the 5 and 95 % points of the mean over bootstrap resamples of the prompts, the same ones for all methods.
    zero: the mean loss of predicting 0. "ridge" has for each number of examples the strength that is best on 500 other
    prompts of the same run.

    >>> import jax
    >>> import lfom
    >>> data, methods = lfom.LinearRegression([1.0, 0.5], context=6), {"CGD": lfom.conjugate_gradient(2)}
    >>> found = lfom.evaluate(methods, data, contexts=[1, 6], prompts=100, key=jax.random.key(0))
    >>> found["CGD"].contexts, bool(found["CGD"].mean[0, 1] < found["CGD"].mean[0, 0])
    ((1, 6), True)
    """

    __repr__ = brief

    name: str
    contexts: tuple[int, ...]
    mean: np.ndarray  # (runs, contexts)
    stderr: np.ndarray  # (runs, contexts)
    low: np.ndarray  # (runs, contexts)
    high: np.ndarray  # (runs, contexts)
    losses: np.ndarray  # (runs, prompts, contexts), of every prompt
    zero: np.ndarray  # (runs,)
    prompts: int


class Asked(NamedTuple):
    """A batch of prompts and what is asked of w, as a Quadratic says it."""

    prompts: Prompt
    probe: Any
    target: Any


class Posterior(NamedTuple):
    """A mean given w* ~ N(0, covariance), with this noise for each number of examples."""

    covariance: np.ndarray
    noise: np.ndarray


def prefix_scores(
    entries: Sequence[Any],
    sources: Sequence[Distribution],
    contexts: Any,
    prompts: int,
    chunk: int,
    key: Array,
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, PrefixScore]:
    """entries: methods as `evaluate` writes them. sources: the distribution of each run.

    Methods of other views than iterates and joint Gram matrices, and prompts that are no least squares, take a program
    for each number of examples: the same scores, and a compilation for each.
    """
    outline = sources[0].outline()
    wanted = _checked(contexts, outline, [entry.name for entry in entries])
    along = {entry.name: outline.is_quadratic and entry.view[0] in ALONG for entry in entries}
    averaged = all(along.values())
    chunks, finished = max(prompts // chunk, 1), itertools.count(1)
    lengths = as_array(np.asarray(wanted, np.int32))

    def draw(run: int, index: int) -> Asked:
        return _draw(sources[run], key, as_array(np.int32(index)), as_array(np.int32(run)), chunk, averaged)

    def on_device(entry: Any, run: int, drawn: Asked) -> Any:
        """(contexts, prompts)"""
        given = (entry.structure, entry.of_run(run), entry.steps, drawn)
        if along[entry.name]:
            return _along(*given, lengths, entry.view[0])
        return [_after(*given, k, entry.view) for k in wanted]

    first = draw(0, 0)
    for kernel in {entry.view[1] for entry in entries} - {None}:
        check_semidefinite(kernel, first.prompts.problem("kernel", kernel).gram)  # type: ignore[attr-defined]
    chosen: dict[int, dict[str, Posterior]] = {}

    def choose(run: int) -> None:
        chosen[run] = _rivals(sources[run], draw(run, chunks), wanted) if outline.is_quadratic else {}

    compiled = [functools.partial(on_device, e, 0, first) for e in {e.structure: e for e in entries}.values()]
    tuned = [functools.partial(choose, run) for run in range(len(sources))]
    list(in_threads(lambda task: task(), [*compiled, *tuned]))

    def one(item: tuple[int, int]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The losses (prompts, contexts) of each method, and those of predicting 0 (prompts,)."""
        run, index = item
        drawn = draw(run, index)
        begun = [on_device(entry, run, drawn) for entry in entries]
        host = jax.device_get(drawn)
        beside = {name: _losses(_means(rival, host, wanted), host) for name, rival in chosen[run].items()}
        found = {
            e.name: np.stack(own).T for e, own in zip(entries, jax.device_get(begun), strict=True)
        } | beside
        if progress:
            done = next(finished) / (len(sources) * chunks)
            progress(done, f"{int(done * chunks * chunk):,} of {chunks * chunk:,} prompts")
        return found, np.sum(host.target.astype(np.float64) ** 2, axis=0)

    parts = list(in_threads(one, [(run, index) for run in range(len(sources)) for index in range(chunks)]))

    def joined(pieces: Sequence[np.ndarray]) -> np.ndarray:
        """Of chunk after chunk of run after run: with an axis of runs in front."""
        return np.concatenate(pieces).reshape(len(sources), chunks * chunk, *pieces[0].shape[1:])

    losses = {name: joined([found[name] for found, _ in parts]) for name in parts[0][0]}
    return _scores(losses, joined([zero for _, zero in parts]).mean(axis=1), wanted, key)


def _checked(contexts: Any, outline: Prompt, names: Sequence[str]) -> tuple[int, ...]:
    """In ascending order, each once."""
    n = outline.X.shape[0]
    if not outline.has_prefixes:
        raise InputError(
            "prompts of several lengths have no prefixes: score on the distribution that they are made of, which has them all."
        )
    if not isinstance(contexts, Iterable):
        raise InputError(f"contexts is {contexts!r}: pass numbers of examples, such as range(1, {n + 1}).")
    found = set()
    for k in contexts:
        if checks.count("contexts", k) > n:
            raise InputError(
                f"contexts holds {k}, and prompts have {n} examples: ask for at most {n}, or give the data a longer context."
            )
        found.add(int(k))
    if not found:
        raise InputError(f"contexts is empty: name at least one number of examples, or range(1, {n + 1}).")
    for name in {RIDGE, BAYES} & set(names):
        raise InputError(
            f"methods holds {name!r}, which stands beside them by itself: give yours another name."
        )
    return tuple(sorted(found))


@jit_draws
def _draw(source: Any, key: Array, index: Array, run: Array, count: int, averaged: bool) -> Asked:
    prompts = source.at_once(jax.random.fold_in(jax.random.fold_in(key, index), run), count)
    asked = source.question(prompts) if averaged else Distribution.question(source, prompts)
    return Asked(prompts, *asked)


# Methods


def _grams(drawn: Asked, contexts: Array, work: Work) -> Array:
    """Gram matrices and moments as running sums: between two numbers of examples only those between are added."""
    X, y = jnp.moveaxis(drawn.prompts.X, 0, -1), drawn.prompts.y.T

    def one(carry: Any, k: Array) -> tuple[Any, Array]:
        before, sums = carry
        sums = add_examples(sums, X, y, before, k)
        gram, moment = (total / k.astype(X.dtype) for total in sums)
        return (k, sums), work(Quadratic(gram, moment, drawn.probe, drawn.target))

    return jax.lax.scan(one, (jnp.zeros_like(contexts[0]), no_sums(X)), contexts)[1]


def _joints(drawn: Asked, contexts: Array, work: Work) -> Array:
    """The columns of the joint Gram matrix: those of later examples are zero."""
    Z = jnp.concatenate([drawn.prompts.X, drawn.prompts.y[..., None]], axis=2).T  # (rows, n, prompts)

    def one(k: Array) -> Array:
        seen = jnp.where(jnp.arange(Z.shape[1]) < k, 1 / jnp.sqrt(k.astype(Z.dtype)), 0)
        return work(JointGram(seen[:, None] * Z, drawn.probe, drawn.target))

    return jax.lax.map(one, contexts)


ALONG = {"iterates": _grams, "joint": _joints}


@functools.partial(jax.jit, static_argnames=("structure", "view"))
def _along(
    structure: Any, arrays: list[Array], steps: Array, drawn: Asked, contexts: Array, view: str
) -> Array:
    """The losses (contexts, prompts) after the last step, in one program."""
    method = rebuilt(structure, arrays)
    return ALONG[view](drawn, contexts, lambda problem: _squared(method, problem, steps))


@functools.partial(jax.jit, static_argnames=("structure", "k", "view"))
def _after(structure: Any, arrays: list[Array], steps: Array, drawn: Asked, k: int, view: Any) -> Array:
    """The same of the first k examples, whatever reads them."""
    whole = drawn.prompts
    prompts = dataclasses.replace(whole, X=whole.X[:, :k], y=whole.y[:, :k])
    return _squared(rebuilt(structure, arrays), prompts.problem(*view), steps)


def _squared(method: Any, problem: Problem, steps: Array) -> Array:
    return jnp.sum(last_residual(method, problem, turns=steps) ** 2, axis=0)


# Ridge regression and the Bayes predictor


def _rivals(source: Distribution, others: Asked, contexts: Sequence[int]) -> dict[str, Posterior]:
    """others: prompts that are not scored, on which the strength of ridge is chosen."""
    seen = jax.device_get(others)
    few = Asked(
        jax.tree.map(lambda a: a[:TUNED_ON], seen.prompts),
        seen.probe[..., :TUNED_ON] if seen.probe.ndim == 3 else seen.probe,
        seen.target[:, :TUNED_ON],
    )
    one, d, many = np.ones(len(contexts)), source.dimension, np.sqrt(STRENGTHS)
    noises = math.sqrt(float(np.mean(few.prompts.X.astype(np.float64) ** 2))) * many
    table = [
        _losses(_means(Posterior(np.eye(d), noise * one), few, contexts), few).mean(axis=0)
        for noise in noises
    ]
    found = {RIDGE: Posterior(np.eye(d), noises[np.argmin(table, axis=0)])}
    prior = source.prior
    if prior is not None:
        found[BAYES] = Posterior(np.asarray(prior.covariance, np.float64), float(prior.noise) * one)
    return found


def _means(rival: Posterior, drawn: Asked, contexts: Sequence[int]) -> np.ndarray:
    """w (prompts, contexts, d)"""
    X, y = drawn.prompts.X, drawn.prompts.y
    found = np.empty((len(X), len(contexts), X.shape[2]))
    for noise in np.unique(rival.noise):
        at = [i for i, own in enumerate(rival.noise) if own == noise]
        found[:, at] = posterior_means(X, y, Prior(rival.covariance, noise), [contexts[i] for i in at])
    return found


def _losses(w: np.ndarray, drawn: Asked) -> np.ndarray:
    """|probe w - target|^2, (prompts, contexts)"""
    probe, target = (np.asarray(a, np.float64) for a in (drawn.probe, drawn.target))
    asked = w @ probe.T if probe.ndim == 2 else w @ np.moveaxis(probe, 2, 0).swapaxes(1, 2)
    return np.sum((asked - target.T[:, None]) ** 2, axis=2)


# Means and their spread


def _scores(
    losses: dict[str, np.ndarray], zero: np.ndarray, contexts: tuple[int, ...], key: Array
) -> dict[str, PrefixScore]:
    """losses: (runs, prompts, contexts) of each method."""
    runs, prompts, size = next(iter(losses.values())).shape
    for name, own in losses.items():
        mean = own.mean(axis=1, dtype=np.float64)
        if not np.isfinite(mean).all():
            run, at = np.argwhere(~np.isfinite(mean))[0]
            raise FloatingPointError(
                f"the loss of {name} is not finite in run {run} after {contexts[at]} examples: the method diverges there. Leave "
                "these contexts out, lower its step sizes, or train it over lengths (lfom.AnyLength)."
            )
    spread = np.stack([_bootstrap([own[run] for own in losses.values()], key, run) for run in range(runs)])
    found = {}
    for at, (name, own) in enumerate(losses.items()):
        low, high = (spread[:, q, at * size : (at + 1) * size] for q in range(2))
        mean, stderr = (
            own.mean(axis=1, dtype=np.float64),
            own.std(axis=1, dtype=np.float64) / math.sqrt(prompts),
        )
        found[name] = PrefixScore(name, contexts, mean, stderr, low, high, own, zero, prompts)
    return found


def _bootstrap(losses: Sequence[np.ndarray], key: Array, run: int) -> np.ndarray:
    """The 5 and 95 % points (2, columns) of the mean of every column, over resamples of the rows."""
    rng = np.random.default_rng([*np.ravel(jax.random.key_data(key)).tolist(), run])
    rows = len(losses[0])
    groups = min(rows, GROUPS)
    edges = np.arange(groups) * rows // groups
    sums = np.concatenate([np.add.reduceat(own, edges, axis=0, dtype=np.float64) for own in losses], axis=1)
    sizes = np.diff(edges, append=rows)
    drawn = rng.integers(groups, size=(RESAMPLES, groups))
    times = np.stack([np.bincount(row, minlength=groups) for row in drawn]).astype(np.float64)
    return np.quantile(times @ sums / (times @ sizes)[:, None], QUANTILES, axis=0)
