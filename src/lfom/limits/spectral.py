"""GD++ with A_l = a_l M, B_l = b_l I and numbers as coefficients, fitted to spectra (docs/mathematics.md 5).

The answer at an eigenvalue is g(t): what the method itself, with A_l = a_l, answers to the problem of one unknown whose
Hessian is t and whose moment is 1. That is a polynomial in t, of degree 0, 3, 12, 39 after 1, 2, 3, 4 layers. So its values
at one more point than its degree tell it everywhere, the residuals of all prompts are linear in these few values, and a
triangle of that size says what any such method loses on all of them: prompts are read once, and a fit costs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float
from numpy.polynomial import chebyshev

from lfom.core.arrays import as_array
from lfom.core.damped import damped_step, next_damping
from lfom.core.kept import Keep, anew
from lfom.core.memories import Forget
from lfom.core.methods import Method
from lfom.core.problems import Quadratic
from lfom.core.runs import fingerprint
from lfom.core.unroll import last_answer
from lfom.core.vectors import from_vector, parameters, vector_of
from lfom.limits.spectra import PIECE, Spectra

DAMPING = 1e-2  # of the first step
LEAST_GAIN = 1e-5  # of the loss, relative: below it a fit ends
TINY = 1e-30  # a step into the complex plane
MOST_POINTS = 121  # all that five layers need; deeper ones are smooth enough between so many
FEW, SOME = 3_000, 10_000  # prompts to find valleys with, and to compare them

# Where the query has numbers of its own, there are deeper valleys far from the method without memory, in the last
# three layers. Starts in three of them, found by a search from random ones (benchmarks/valleys.py): a and b as factors
# on those without memory, the context's number of layer 1 in layer 2, the query's table row by row.
VALLEYS = (
    ((0.98, 0.61, 0.68), (0.8, 8.3), 0.39, (2.46, -1.70, 0.21, -1.86, 5.32, 1.0)),
    ((0.80, 0.76, 1.33), (1.2, 2.5), 0.24, (1.63, -2.56, 1.22, 2.13, 0.23, 1.0)),
    ((1.67, 0.70, 1.23), (0.5, 3.1), -0.47, (1.81, 0.52, 0.82, -1.34, 0.92, 1.0)),
)
LATE = 3  # layers that these are for
GUESSES, LONGER = (0.3, 0.45, 0.6, 0.8, 1.1), (1.0, 1.5)  # of b, and factors on the last step
STEPS = (150, 100, 45)  # on few prompts, on some of them, on all
REFITS = (20, 15)  # on some and on all, where numbers are known from other prompts


Numbers = Any  # a Method whose reader is Gradient(Scaled, Scaled): what acts on one eigenvalue


def on_eigenvalues(method: Method, t: Float[Array, "d prompts"]) -> Float[Array, "d prompts"]:
    """g(t): what the method, written for one unknown, answers at each eigenvalue."""
    return last_answer(method, Quadratic(t[None, None], jnp.ones_like(t)[None]))[0]


def answers(method: Numbers, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same by NumPy, and what is left of the context's covariates, without a program to compile or to start: all a
    method of numbers does is told by its a_l, b_l and tables, whose further axes broadcast against t."""
    depth = method.depth
    a, b = method.reader.A.sizes(depth), method.reader.B.sizes(depth)
    tables = method.memory.table(depth)
    splits = tables[0] is not tables[1]
    first = np.zeros(np.broadcast_shapes(t.shape, a.shape[1:]), np.result_type(t, a))
    # w and T of the context and, where it has a track of its own, of the query
    tracks = [(first, first + 1)] * (1 + splits)
    past: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in tracks]
    for layer in range(depth):
        w, T = tracks[0]
        r, shrink = a[layer] * T * (1 - t * w), -a[layer] * b[layer] * t * T**2
        for track, (own, table) in enumerate(zip(past, tables, strict=False)):
            S = tracks[track][1]
            own.append((S * r, shrink * S))
            steps = [sum(table[layer, j] * own[j][i] for j in range(layer + 1)) for i in range(2)]
            tracks[track] = (tracks[track][0] + steps[0], S + steps[1])
    return tracks[-1][0], tracks[0][1]


class AtPoints:
    """What prompts ask of g, a polynomial in t: with its values at `points`, residuals of the same squares as theirs."""

    def __init__(self, spectra: Spectra, depth: int):
        self.count = min((3**depth - 1) // 2, MOST_POINTS)
        x = np.cos(np.pi * (np.arange(self.count) + 0.5) / self.count)
        top = spectra.t.max() or 1.0
        self.points = top / 2 * (1 + x)
        series = np.linalg.inv(chebyshev.chebvander(x, self.count - 1))  # from values to coefficients
        triangle = np.zeros((0, self.count + 1))
        for at in range(0, spectra.prompts, PIECE):
            part = spectra[at : at + PIECE]
            basis = chebyshev.chebvander(2 / top * part.t.T - 1, self.count - 1)  # (prompts, d, count)
            rows = np.moveaxis(part.seen, -1, 0) @ basis
            whole = np.concatenate([rows, part.target.T[..., None]], axis=-1).reshape(-1, self.count + 1)
            triangle = np.asarray(np.linalg.qr(np.concatenate([triangle, whole]), mode="r"))
        triangle /= np.sqrt(spectra.prompts)
        self.seen, self.target = triangle[:, :-1] @ series, triangle[:, -1]


class NumberFit:
    """The numbers of a method of one unknown, fitted to spectra."""

    def __init__(self, template: Method):
        self._template, self._index = template, parameters(template).index

    def losses(self, vector: np.ndarray, spectra: Spectra) -> np.ndarray:
        """The loss of every prompt."""
        return spectra.losses(answers(from_vector(self._template, vector, on_device=False), spectra.t)[0])

    def _residuals(self, vectors: np.ndarray, asked: AtPoints) -> tuple[np.ndarray, np.ndarray]:
        """Residuals (starts, rows), and their derivatives (starts, rows, p) by a step into the complex plane, which are
        exact for polynomials to rounding."""
        p = len(self._index)
        numbers = np.repeat(vectors.T[..., None], 1 + p, axis=-1).astype(np.complex128)
        numbers[self._index, :, 1 + np.arange(p)] += 1j * TINY
        method = from_vector(self._template, numbers, on_device=False)
        g = np.moveaxis(answers(method, asked.points[:, None, None])[0], 0, -2)  # (starts, points, 1 + p)
        return g[..., 0].real @ asked.seen.T - asked.target, asked.seen @ g[..., 1:].imag / TINY

    def fit(self, vectors: np.ndarray, asked: AtPoints, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Levenberg-Marquardt from each of these (starts, all) by itself; returns where they end, and the mean losses there."""
        vectors = np.array(vectors, np.float64)
        residual, J = self._residuals(vectors, asked)
        loss = np.sum(residual**2, axis=-1)
        damping, small = np.full(len(vectors), DAMPING), np.zeros(len(vectors), int)
        for _ in range(steps):
            normal, slope = np.swapaxes(J, -1, -2) @ J, (residual[:, None] @ J)[:, 0]
            trial = vectors.copy()
            trial[:, self._index] += damped_step(normal, slope, damping)
            with np.errstate(over="ignore", invalid="ignore"):
                new_residual, new_J = self._residuals(trial, asked)
                new = np.sum(new_residual**2, axis=-1)
            better = (new < loss) & (small < 3) & (damping <= 1e8)  # NaN is no gain
            small = np.where(better, np.where(new > (1 - LEAST_GAIN) * loss, small + 1, 0), small)
            damping = next_damping(damping, better)
            vectors, loss = np.where(better[:, None], trial, vectors), np.where(better, new, loss)
            residual = np.where(better[:, None], new_residual, residual)
            J = np.where(better[:, None, None], new_J, J)
            if np.all((small >= 3) | (damping > 1e8)):
                break
        return vectors, loss


def in_float64(method: Any) -> Any:
    """The same with arrays of NumPy in float64, which JAX reads where it computes in that precision."""
    return jax.tree.map(lambda a: np.asarray(a, np.float64), method)


@dataclass(frozen=True)
class FittedTo:
    """Prompts to fit to: the eigenvalues of few of them, and what few, some and all of them ask."""

    t: Float[np.ndarray, "d prompts"]
    few: AtPoints
    some: AtPoints
    every: AtPoints

    @staticmethod
    def of(spectra: Spectra, depth: int) -> "FittedTo":
        """depth: of the deepest method that is fitted to them."""
        few, some = spectra[:FEW], spectra[:SOME]
        return FittedTo(few.t, *(AtPoints(part, depth) for part in (few, some, spectra)))


def refitted(known: Numbers, train: FittedTo) -> Numbers:
    """The numbers of other prompts, fitted to these: on some of them first."""
    fitted = NumberFit(known)
    vector = fitted.fit(vector_of(known)[None], train.some, REFITS[0])[0]
    return from_vector(known, fitted.fit(vector, train.every, REFITS[1])[0][0], on_device=False)


def fitted_depths(
    templates: Sequence[Numbers], train: FittedTo, judge: Spectra, keep: Keep = anew, prompts: Any = None
) -> list[Numbers]:
    """Methods of 1, 2, ... layers fitted to `train`: without memory each from the one before it, with memory from
    that of its own depth. `judge` says which start was the best. keep: where the methods without memory are kept, which
    all memories begin from, under a name that has `prompts` in it: those that were fitted to.

    Where the query has numbers of its own, a fit of three layers or more also begins in the valleys that are
    known.
    """
    forgetful = [
        in_float64(Method(one.reader, Forget(as_array(np.ones(one.depth))), one.depth)) for one in templates
    ]

    def without_memory() -> list[Numbers]:
        plain: list[Numbers] = []
        for bare in forgetful:
            starts = _grown(bare, plain[-1], train.t) if plain else [_stepping(bare, train.t)]
            plain.append(_best(bare, starts, train, judge))
        return plain

    plain = keep(("GD++ without memory", fingerprint(forgetful), prompts), without_memory)
    if not templates[0].splits and len(parameters(templates[-1]).index) == len(parameters(plain[-1]).index):
        return plain
    found: list[Numbers] = []
    for template, bare in zip(templates, plain, strict=True):
        own = _filled(template, Method(bare.reader, template.memory, template.depth))
        starts = [own]
        tables = own.memory.table(template.depth)
        if template.depth >= LATE and own.memory.with_numbers(*tables) is not None:
            starts += [_in_valley(own, *numbers) for numbers in VALLEYS]
        found.append(_best(template, starts, train, judge))
    return found


def _best(template: Numbers, starts: list[Numbers], train: FittedTo, judge: Spectra) -> Numbers:
    """Where the best of the starts leads to. Few prompts find the valleys; which is the deepest only many tell,
    since rare prompts weigh most."""
    fitted = NumberFit(template)
    ends, losses = fitted.fit(np.stack([vector_of(start) for start in starts]), train.few, STEPS[0])
    different: list[int] = []
    for end in np.argsort(losses):
        if len(different) < 4 and all(abs(losses[end] / losses[known] - 1) > 1e-3 for known in different):
            different.append(int(end))
    vectors, _ = fitted.fit(ends[different], train.some, STEPS[1])
    best = min(vectors, key=lambda vector: float(fitted.losses(vector, judge[: 3 * SOME]).mean()))
    return from_vector(template, fitted.fit(best[None], train.every, STEPS[2])[0][0], on_device=False)


def _grown(template: Numbers, shallow: Numbers, t: np.ndarray) -> list[Numbers]:
    """One more layer than a fitted method has: its numbers, and a few guesses for the b that no layer read so
    far. The new step is one over the mean of the eigenvalues that are left."""
    found = []
    for guess in GUESSES:
        known = _with(shallow, b=[*np.asarray(shallow.reader.B.scale)[:-1], guess])
        left = answers(known, t)[1] ** 2 * t
        found += [_stepping(_filled(template, known), left, longer) for longer in LONGER]
    return found


def _with(model: Numbers, a: Any = None, b: Any = None) -> Numbers:
    """The same with other a or b."""
    A, B = model.reader.A.scale if a is None else a, model.reader.B.scale if b is None else b
    numbers = (np.asarray(A, np.float64), np.asarray(B, np.float64))
    return eqx.tree_at(lambda m: (m.reader.A.scale, m.reader.B.scale), model, numbers)


def _stepping(model: Numbers, left: np.ndarray, longer: float = 1.0) -> Numbers:
    """The last step is the best one for these eigenvalues, or longer than that."""
    return _with(model, a=[*np.asarray(model.reader.A.scale)[:-1], longer * left.mean() / (left**2).mean()])


def _filled(template: Numbers, shallow: Numbers) -> Numbers:
    """The template with a shallower method's numbers in its first layers."""

    def one(new: Any, old: Any) -> Any:
        found = np.asarray(new, np.float64).copy()
        found[tuple(slice(n) for n in np.shape(old))] = old
        return found

    return jax.tree.map(one, template, shallow.truncated(template.depth))


def _in_valley(model: Numbers, a: Any, b: Any, context: float, query: Any) -> Numbers:
    """The same with numbers of one of VALLEYS in its last layers."""
    late = slice(model.depth - LATE, model.depth)
    A, B = np.array(model.reader.A.scale), np.array(model.reader.B.scale)
    A[late] *= a
    B[late][:-1] *= b
    tables = [np.array(table) for table in model.memory.table(model.depth)]
    tables[0][late, late][1, 0] = context
    tables[1][late, late][np.tril_indices(LATE)] = query
    return _with(eqx.tree_at(lambda m: m.memory, model, model.memory.with_numbers(*tables)), A, B)
