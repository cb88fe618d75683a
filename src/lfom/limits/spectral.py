"""Spectral coordinates: GD++ with A_l = a_l M, B_l = b_l I and numbers as coefficients (docs/mathematics.md 5).

With M = R R^T every layer is a function of R^T G R: it acts on each of its eigenvalues t by itself, and the
eigenvectors stay. The answer is w = R V g(t) V^T R^T b, where g(t) is what the method itself, with A_l = a_l,
answers to the problem of one unknown whose Hessian is t and whose moment is 1. So a prompt is decomposed once,
and whatever the depth, a few numbers are fitted to its eigenvalues.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core.arrays import as_array
from lfom.core.kept import Keep, anew
from lfom.core.memories import Forget
from lfom.core.methods import Method
from lfom.core.problems import Quadratic
from lfom.core.runs import fingerprint
from lfom.core.threads import in_threads
from lfom.core.unroll import last_answer, trace
from lfom.core.vectors import Parameters, from_vector, parameters, vector_of

DAMPING = 1e-2  # of the first step
LEAST_GAIN = 1e-5  # of the loss, relative: below it a fit ends
PIECE, BLOCK = 3_000, 500  # prompts of one call, and of one step in it
FEW, SOME = (
    3_000,
    10_000,
)  # prompts to find valleys with, and to compare them; FEW is one call, so that all calls are alike

# Where the query has numbers of its own, there are deeper valleys far from the method without memory, in the last
# three layers. Starts in three of them, found by a search from random ones (benchmarks/valleys.py): a and b as factors
# on those without memory, the context's number of layer 1 in layer 2, the query's table row by row.
VALLEYS = (
    ((0.98, 0.61, 0.68), (0.8, 8.3), 0.39, (2.46, -1.70, 0.21, -1.86, 5.32, 1.0)),
    ((0.80, 0.76, 1.33), (1.2, 2.5), 0.24, (1.63, -2.56, 1.22, 2.13, 0.23, 1.0)),
    ((1.67, 0.70, 1.23), (0.5, 3.1), -0.47, (1.81, 0.52, 0.82, -1.34, 0.92, 1.0)),
)
LATE = 3  # layers that these are for
TAIL, EVERY = 0.03, 12  # the share of prompts that are all taken, and of which others one is
MANY, FAR_TAIL, SELDOM = 1_000_000, 0.01, 48  # the same of so many prompts, that rare ones are many, too
GUESSES, LONGER = (0.3, 0.45, 0.6, 0.8, 1.1), (1.0, 1.5)  # of b, and factors on the last step
STEPS = (150, 100, 45)  # on few prompts, on some of them, on all
REFITS = (20, 15)  # on some and on all, where numbers are known from other prompts


@dataclass(frozen=True)
class Spectra:
    """Prompts in spectral coordinates, in float64. What is seen and the target may be multiplied by the root of a
    weight, of one on average."""

    t: Float[np.ndarray, "d prompts"]  # eigenvalues of M G
    seen: Float[np.ndarray, "k d prompts"]  # what the question sees of g at each of them
    target: Float[np.ndarray, "k prompts"]

    @property
    def prompts(self) -> int:
        return self.t.shape[-1]

    def __getitem__(self, part: slice) -> "Spectra":
        return Spectra(self.t[:, part], self.seen[..., part], self.target[:, part])


def spectra(q: Quadratic, M: Any) -> Spectra:
    """The prompts of q, decomposed with the preconditioner M, symmetric and positive definite."""
    return _decomposed(q.gram, q.moment, q.probe, q.target, M)


def _decomposed(gram: Any, moment: Any, probe: Any, target: Any, M: Any) -> Spectra:
    root = np.linalg.cholesky(np.asarray(M, np.float64))
    gram, moment, probe, target = (np.asarray(a, np.float64) for a in (gram, moment, probe, target))
    pieces = [slice(at, at + PIECE) for at in range(0, moment.shape[-1], PIECE)]

    def one(piece: slice) -> tuple[np.ndarray, np.ndarray]:
        t, V = np.linalg.eigh(np.moveaxis(np.einsum("ia,ijn,jb->abn", root, gram[..., piece], root), -1, 0))
        rotated = np.einsum("ij,njk->ikn", root, V)  # R V
        asked = probe if probe.ndim == 2 else probe[..., piece]
        rows = np.einsum("ki,ijn->kjn" if probe.ndim == 2 else "kin,ijn->kjn", asked, rotated)
        return t.T, rows * np.einsum("ijn,in->jn", rotated, moment[:, piece])

    found = list(in_threads(one, pieces))
    t, seen = (np.concatenate([part[i] for part in found], axis=-1) for i in range(2))
    return Spectra(np.maximum(t, 0), seen, target)


def sampled_spectra(chunks: Iterable[Quadratic], M: Any, prompts: int = 0) -> Spectra:
    """Prompts for a mean that rare ones dominate: of each chunk all those with very large or very small
    eigenvalues, and every so many of the others, with weights that make up for it. prompts: how many are drawn in all."""
    tail, every = (FAR_TAIL, SELDOM) if prompts >= MANY else (TAIL, EVERY)
    rest = iter(chunks)
    first = next(rest)
    edges = np.quantile(_extremes(first.gram, M), 1 - tail, axis=1)[:, None]

    def part(q: Quadratic) -> Spectra:
        rare = (_extremes(q.gram, M) > edges).any(axis=0)
        chosen = rare | (np.arange(rare.size) % every == 0)
        root = np.sqrt(np.where(rare, 1.0, every)[chosen])
        gram, moment, target = (np.asarray(a)[..., chosen] for a in (q.gram, q.moment, q.target))
        probe = np.asarray(q.probe)
        found = _decomposed(gram, moment, probe if probe.ndim == 2 else probe[..., chosen], target, M)
        return Spectra(found.t, found.seen * root, found.target * root)

    parts = list(in_threads(part, itertools.chain([first], rest)))
    kept = sum(part.prompts for part in parts)
    scale = np.sqrt(kept / (len(parts) * first.moment.shape[-1]))
    t, seen, target = (
        np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in ("t", "seen", "target")
    )
    return Spectra(t, scale * seen, scale * target)


def _extremes(gram: Any, M: Any) -> Float[np.ndarray, "2 prompts"]:
    """What grows with the largest and with one over the smallest eigenvalue of M G: traces of its square and, but
    for a little, of its inverse, from the Cholesky factor C of R^T G R: |C^-1|^2. All prompts at once, entry by entry."""
    root = np.linalg.cholesky(np.asarray(M, np.float64))
    S = np.tensordot(root.T, np.tensordot(np.asarray(gram, np.float64), root, (1, 0)), 1).swapaxes(1, 2)
    square = np.einsum("ijn,ijn->n", S, S)
    d = len(S)
    S[range(d), range(d)] += 1e-6 * np.trace(S).mean()
    C, inverse = np.zeros_like(S), np.zeros_like(S)
    for j in range(d):
        C[j:, j] = S[j:, j] - np.einsum("ikn,kn->in", C[j:, :j], C[j, :j])
        C[j:, j] /= np.sqrt(C[j, j])
        inverse[j, : j + 1] = -np.einsum("kn,kin->in", C[j, :j], inverse[:j, : j + 1])
        inverse[j, j] += 1
        inverse[j, : j + 1] /= C[j, j]
    return np.stack([square, np.einsum("ijn,ijn->n", inverse, inverse)])


def on_eigenvalues(method: Method, t: Float[Array, "d prompts"]) -> Float[Array, "d prompts"]:
    """g(t): what the method, written for one unknown, answers at each eigenvalue."""
    return last_answer(method, Quadratic(t[None, None], jnp.ones_like(t)[None]))[0]


class NumberFit:
    """The numbers of a method of one unknown, fitted to spectra."""

    def __init__(self, template: Method):
        bare = eqx.filter(template, lambda leaf: not eqx.is_array(leaf))
        shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(template))
        self.parameters, self._normal, self._losses = _compiled(_Kind(template, (str(bare), shapes)))

    def losses(self, vector: np.ndarray, spectra: Spectra) -> np.ndarray:
        """The loss of every prompt."""
        with jax.enable_x64(True):
            found = [np.asarray(self._losses(vector, *part)) for part in _pieces(spectra)]
        return np.concatenate(found)[: spectra.prompts]

    def normal(self, vector: np.ndarray, spectra: Spectra) -> tuple[np.ndarray, np.ndarray, float]:
        """Means over prompts of J^T J, J^T r and |r|^2."""
        found = list(in_threads(lambda part: self._normal(vector, *part), _pieces(spectra)))
        normal, slope, loss = (
            np.sum([part[i] for part in found], axis=0) / spectra.prompts for i in range(3)
        )
        return normal, slope, float(loss)

    def fit(self, vector: np.ndarray, spectra: Spectra, steps: int) -> tuple[np.ndarray, float]:
        """Levenberg-Marquardt from these numbers; returns those that it ends with, and their mean loss."""
        with jax.enable_x64(True):
            index, damping = self.parameters.index, DAMPING
            vector = np.asarray(vector, np.float64)
            normal, slope, loss = self.normal(vector, spectra)
            small = 0
            for _ in range(steps):
                scale = np.sqrt(np.maximum(np.diagonal(normal), 1e-300))
                system = normal / scale[:, None] / scale + damping * np.eye(len(scale))
                trial = vector.copy()
                trial[index] -= np.linalg.solve(system, slope / scale) / scale
                found = self.normal(trial, spectra)
                if not found[2] < loss:  # NaN is no gain
                    damping *= 4
                    if damping > 1e8:
                        break
                    continue
                small = small + 1 if found[2] > (1 - LEAST_GAIN) * loss else 0
                vector, damping = trial, damping / 3
                normal, slope, loss = found
                if small == 3:
                    break
            return vector, loss


def refitted(known: Method, train: Spectra) -> Method:
    """The numbers of other prompts, fitted to these: on some of them first."""
    fitted = NumberFit(known)
    vector = fitted.fit(vector_of(known), train[:SOME], REFITS[0])[0]
    return from_vector(known, fitted.fit(vector, train, REFITS[1])[0], on_device=False)


def _pieces(spectra: Spectra) -> list[tuple[np.ndarray, ...]]:
    """Calls of one size each, so that one program serves all; what is missing are prompts without a loss."""
    size = min(PIECE, -(-spectra.prompts // BLOCK) * BLOCK)
    found = []
    for at in range(0, spectra.prompts, size):
        part = spectra[at : at + size]
        short = size - part.prompts
        found.append(
            tuple(np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, short)]) for a in (part.t, part.seen, part.target))
        )
    return found


@dataclass(frozen=True)
class _Kind:
    """A method by its structure: methods that differ in their numbers share their programs."""

    template: Method = field(compare=False)
    structure: Any


@functools.cache
def _compiled(kind: _Kind) -> tuple[Parameters, Callable, Callable]:
    found = parameters(kind.template)
    return (found, *_programs(found))


def _programs(parameters: Parameters) -> tuple[Callable, Callable]:
    """The sums of J^T J, J^T r and |r|^2, and the loss of every prompt. Every eigenvalue is given numbers of its
    own, so that one reverse pass gives the derivatives at all of them."""

    def answers(vector: Array, numbers: Array, t: Array) -> Array:
        return on_eigenvalues(parameters.assemble(vector, numbers), t)

    def residual(g: Array, seen: Array, target: Array) -> Array:
        return jnp.einsum("kdn,dn->kn", seen, g) - target

    def sums(vector: Array, t: Array, seen: Array, target: Array) -> tuple[Array, Array, Array]:
        numbers = jnp.broadcast_to(vector[parameters.index][:, None, None], (parameters.size, *t.shape))
        g, pull = jax.vjp(lambda numbers: answers(vector, numbers, t), numbers)
        J = jnp.einsum("kdn,pdn->pkn", seen, pull(jnp.ones_like(g))[0]).reshape(parameters.size, -1)
        r = residual(g, seen, target).reshape(-1)
        return J @ J.T, J @ r, r @ r

    @jax.jit
    def normal(vector: Array, *prompts: Array) -> tuple[Array, Array, Array]:
        """Block by block, so that the derivatives of one stay in the cache: 3 times faster."""
        blocks = [jnp.moveaxis(a.reshape(*a.shape[:-1], -1, BLOCK), -2, 0) for a in prompts]
        p = parameters.size
        zero = (jnp.zeros((p, p)), jnp.zeros(p), jnp.zeros(()))
        return jax.lax.scan(
            lambda total, block: (jax.tree.map(jnp.add, total, sums(vector, *block)), None), zero, blocks
        )[0]

    @jax.jit
    def losses(vector: Array, t: Array, seen: Array, target: Array) -> Array:
        g = answers(vector, vector[parameters.index], t)
        return jnp.sum(residual(g, seen, target) ** 2, axis=0)

    return normal, losses


Numbers = Any  # a Method whose reader is Gradient(Scaled, Scaled): what acts on one eigenvalue


def in_float64(method: Any) -> Any:
    """The same with arrays of NumPy in float64, which JAX reads where it computes in that precision."""
    return jax.tree.map(lambda a: np.asarray(a, np.float64), method)


def fitted_depths(
    templates: Sequence[Numbers], train: Spectra, judge: Spectra, keep: Keep = anew, prompts: Any = None
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
            starts = _grown(bare, plain[-1], train[:FEW].t) if plain else [_stepping(bare, train[:FEW].t)]
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


def _best(template: Numbers, starts: list[Numbers], train: Spectra, judge: Spectra) -> Numbers:
    """Where the best of the starts leads to. Few prompts find the valleys; which is the deepest only many tell,
    since rare prompts weigh most."""
    fitted = NumberFit(template)
    ends = list(in_threads(lambda start: fitted.fit(vector_of(start), train[:FEW], STEPS[0]), starts))
    different: list[tuple[np.ndarray, float]] = []
    for end in sorted(ends, key=lambda end: end[1]):
        if len(different) < 4 and all(abs(end[1] / known[1] - 1) > 1e-3 for known in different):
            different.append(end)
    vectors = list(in_threads(lambda end: fitted.fit(end[0], train[:SOME], STEPS[1])[0], different))
    best = min(vectors, key=lambda vector: float(fitted.losses(vector, judge[: 3 * SOME]).mean()))
    return from_vector(template, fitted.fit(best, train, STEPS[2])[0], on_device=False)


def _grown(template: Numbers, shallow: Numbers, t: np.ndarray) -> list[Numbers]:
    """One more layer than a fitted method has: its numbers, and a few guesses for the b that no layer read so
    far. The new step is one over the mean of the eigenvalues that are left."""
    found = []
    for guess in GUESSES:
        known = _with(shallow, b=[*np.asarray(shallow.reader.B.scale)[:-1], guess])
        problem = Quadratic(as_array(t[None, None]), as_array(np.ones_like(t)[None]))
        T = trace(known, problem, None, lambda state, past: None)[1].context.T
        left = np.asarray(T[0, 0]) ** 2 * t
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
