"""Normal equations in Krylov coordinates: the fast view of models with one matrix.

With A_l = a_l M and coefficients that are numbers, the loss depends on M and on c only (lfom.limits.krylov):
one compiled program serves every such model, and the loss is exactly quadratic in c.

The derivative in M is a sum of outer products. With the rows V_k = d residual / d v_k, which a
backward recurrence gives for all residuals at once, d residual_a / d M_bc = sum_k V_k[a,b] u_k[c]
where v_k = M u_k.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core.arrays import default_dtype, matmat, transpose
from lfom.core.compiler import jit_by_operation
from lfom.core.damped import damped_step, next_damping
from lfom.core.parameters import kinds
from lfom.core.problems import Quadratic
from lfom.core.threads import in_threads
from lfom.core.vectors import Parameters, from_vector, vector_of
from lfom.limits.krylov import basis, factors, moments, seen, shift_table
from lfom.training.chunks import summed
from lfom.training.state import Setting

WIDER = 1.5  # h over the mean largest eigenvalue
FLOOR = 1e-8  # of the metric in c, relative: sums in float32 are not better than this
TINY = 1e-30  # a step into the complex plane
LEAST_DAMPING = 1e-9  # several numbers may do the same to c
IDLE = 7  # steps without a gain that end a fit: so far from a minimum its damping has to grow first
EXACT = 1e-9  # so near to the coefficients asked for, relative to them, nothing more is looked for
KNOWN = 4  # models whose coefficients are remembered: those before and after a step, and what was tried
IN_CACHE = 250  # prompts whose Jacobian is multiplied at a time on a CPU (docs/design.md)
Span = tuple[Array, ...]  # a key for each run, the first chunk and the last, and where each depth ends
INNER = 40  # steps that fit a model's own numbers to the coefficients it should have


def has_krylov_view(model: Any) -> bool:
    """Whether this view can train the model: its answers are polynomials, and its a_l are its own, and told."""
    return model.is_polynomial and "A" in kinds(model) and model.reader.sizes(model.depth) is not None


def tables_of(model: Any, depth: int) -> np.ndarray:
    """(2, depth, depth, ...): what a model of this view makes of its gradients, for the context and for the
    query, a_l included; further axes of its arrays stay last."""
    return np.stack([table * model.reader.sizes(depth) for table in model.memory.table(depth)])


def coefficients_of_tables(tables: np.ndarray, h: Any, active: np.ndarray) -> list[np.ndarray]:
    """c (depth, ...) after 0, 1, ..., depth steps of methods that are given by their tables (2, depth, depth, ...): what
    `lfom.limits.krylov.coefficients` finds by running a method, without a program to compile or to start. h (...) and active (depth, ...) broadcast."""
    depth = tables.shape[1]
    shift = shift_table(depth)
    directions = np.zeros((depth, depth, *tables.shape[3:]), tables.dtype)  # of each layer, in the basis
    context, answers = np.zeros_like(directions[0]), [np.zeros_like(directions[0])]
    for layer in range(depth):
        directions[layer] = -h * np.tensordot(shift, context, axes=1)
        directions[layer, 0] += 1
        known = directions[: layer + 1]
        context = context + active[layer] * np.sum(tables[0, layer, : layer + 1, None] * known, axis=0)
        step = active[layer] * np.sum(tables[1, layer, : layer + 1, None] * known, axis=0)
        answers.append(answers[-1] + step)
    return answers


def jacobian(
    q: Quadratic, M: Float[Array, "d d"], c: Float[Array, " depth"], h: Array
) -> tuple[Float[Array, "k prompts"], Float[Array, "p k prompts"]]:
    """Residuals, and their derivatives in the upper triangle of M, which is symmetric, and in c.

    Products with M are ordinary matrix products, all residuals and prompts side by side; those with
    G are elementwise over prompts. Scans keep the compiler from computing anything twice.
    """
    u = basis(q, M, c.shape[0], h)
    depth, d, prompts = u.shape
    k = q.probe.shape[0]
    answers = seen(q, M, u)
    residual = jnp.tensordot(c, answers, axes=1) - q.target
    rows = transpose(q.probe if q.probe.ndim == 3 else q.probe[..., None])
    rows = jnp.broadcast_to(rows, (d, k, prompts))

    def step(carry: tuple[Array, Array], now: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        (after, later), (c_k, s_k) = carry, now  # d residual / d u_{k+1} and d u_{k+2}
        V = c_k * rows + s_k * (2 / h) * matmat(q.gram, after)
        U = (M @ V.reshape(d, -1)).reshape(V.shape) - s_k * after - later
        return (U, after), V

    zero = jnp.zeros_like(rows)
    V = jax.lax.scan(step, (zero, zero), (c, factors(depth, M.dtype)[:, 0]), reverse=True)[1]
    row, column = np.triu_indices(d)
    both = jnp.asarray(row != column, M.dtype)[:, None, None]  # entries off the diagonal stand for two
    # Written out: as one einsum it measured six times slower.
    in_matrix = sum(
        V[i][row] * u[i][column][:, None] + both * (V[i][column] * u[i][row][:, None]) for i in range(depth)
    )
    return residual, jnp.concatenate([jnp.asarray(in_matrix), answers])


def _over_prompts(
    work: Callable[..., Any],
    nothing: Any,
    models: tuple[Array, ...],
    h: Array,
    source: Any,
    span: Span,
    size: int,
) -> Any:
    """The sum of work(q, h, *model) for every model (runs, depths, ...) over the prompts q of the chunks first .. last-1, of
    which each depth uses those below its own limit. nothing: what it is over no prompts. size: numbers that one takes."""
    keys, first, last, limits = span

    def one_run(args: Any) -> Any:
        models, h, arrays, key = args

        def chunk_sum(chunk: Array) -> Any:
            q = source.draw(arrays, key, chunk)

            def one_depth(args: Any) -> Any:
                model, limit = args
                return jax.lax.cond(chunk < limit, partial(work, q, h), lambda *_: nothing, *model)

            return jax.lax.map(one_depth, (models, limits))

        zero = jax.tree.map(lambda a: jnp.zeros((len(limits), *a.shape), a.dtype), nothing)
        return summed(chunk_sum, first, last, zero, size * source.chunk)

    return jax.lax.map(one_run, (models, h, source.arrays, keys))


@jit_by_operation
def _accumulate(M: Array, c: Array, h: Array, source: Any, *span: Array) -> tuple[Array, Array]:
    """J^T J (runs, depths, p, p) and J^T r (runs, depths, p) over a span of chunks."""
    d, depth = M.shape[-1], c.shape[-1]
    size = d * (d + 1) // 2 + depth + 1
    nothing = jnp.zeros((size, size), M.dtype)

    def products(q: Quadratic, h: Array, M: Array, c: Array) -> Array:
        """In pieces whose rows stay in a core's cache."""

        def of_some(q: Quadratic) -> Array:
            residual, J = jacobian(q, M, c, h)
            rows = jnp.concatenate([J, residual[None]]).reshape(size, -1)
            return jnp.matmul(rows, rows.T, precision=jax.lax.Precision.HIGHEST)

        pieces = q.moment.shape[-1] // IN_CACHE
        if jax.default_backend() != "cpu" or pieces < 2 or q.moment.shape[-1] % IN_CACHE:
            return of_some(q)

        def add(piece: Array, total: Array) -> Array:
            def part(a: Array) -> Array:
                return jax.lax.dynamic_slice_in_dim(a, piece * IN_CACHE, IN_CACHE, axis=a.ndim - 1)

            shared, own = eqx.partition(q, lambda a: a is q.probe and a.ndim == 2)
            return total + of_some(eqx.combine(shared, jax.tree.map(part, own)))

        return jax.lax.fori_loop(0, pieces, add, nothing)

    total = _over_prompts(products, nothing, (M, c), h, source, span, size * d)
    return total[..., :-1, :-1], total[..., :-1, -1]


@eqx.filter_jit
def _coefficient_equations(M: Array, depth: int, h: Array, source: Any, *span: Array) -> tuple[Array, Array]:
    """J^T J (runs, depths, L, L) and its right side (runs, depths, L) in c alone, for M as it is: the loss is
    quadratic in c, and without the derivatives in M a pass costs a tenth."""

    def equations(q: Quadratic, h: Array, M: Array) -> tuple[Array, Array]:
        return moments(q, M, depth, h)[:2]

    nothing = (jnp.zeros((depth, depth), M.dtype), jnp.zeros(depth, M.dtype))
    return _over_prompts(equations, nothing, (M,), h, source, span, depth * M.shape[-1])


@eqx.filter_jit
def _score(M: Array, c: Array, h: Array, source: Any, *span: Array) -> tuple[Array, ...]:
    """For each candidate (runs, depths, candidates) the sums of its loss, of its gain over the
    first candidate, and of that squared."""

    def sums(q: Quadratic, h: Array, M: Array, c: Array) -> tuple[Array, Array, Array]:
        def loss(model: tuple[Array, Array]) -> Array:
            M, c = model
            w = M @ jnp.tensordot(c, basis(q, M, c.shape[0], h), axes=1)
            return jnp.sum(q.residual(w) ** 2, axis=0)

        values = jax.lax.map(loss, (M, c))
        gain = values[:1] - values
        return jnp.sum(values, axis=-1), jnp.sum(gain, axis=-1), jnp.sum(gain**2, axis=-1)

    nothing = (jnp.zeros(c.shape[2], c.dtype),) * 3
    return _over_prompts(sums, nothing, (M, c), h, source, span, c.shape[-1] * M.shape[-1])


class Krylov:
    """Passes in the coordinates (upper triangle of M, c).

    The scale that M and c share is fixed by <M, mean Gram matrix>, which no step changes. A step
    first finds the best c for every M near the present one (a linear solve), then the model's own
    numbers that come closest to that c, in the metric of the loss: no prompts are needed for it.
    """

    finds_coefficients = True

    def __init__(self, parameters: Parameters, setting: Setting):
        self._source = setting.source
        pilot = setting.pilot
        self._h = WIDER * pilot.largest
        self._d = d = pilot.mean_gram.shape[-1]
        triangle = np.triu_indices(d)
        twice = np.where(triangle[0] == triangle[1], 1.0, 2.0)
        self._gauge = twice * pilot.mean_gram[:, *triangle]  # d <M, mean Gram> / d triangle
        self._actives = np.asarray(setting.actives, np.float64)
        self.shares = (np.asarray(setting.depths) / max(setting.depths)) ** 3  # tails are lighter there
        size = vector_of(parameters.template).size
        places = from_vector(parameters.template, np.arange(size)).reader.common  # of numbers, in the vector
        self._matrix = None if places is None else np.asarray(places)
        trained = np.isin(np.arange(size), parameters.index)
        self._moves = self._matrix is not None and bool(trained[self._matrix].all())
        self._triangle = triangle if self._moves else (triangle[0][:0],) * 2  # the coordinates of M
        if self._matrix is not None:
            trained[self._matrix] = False
        self._free = np.flatnonzero(trained)  # the trained numbers that c depends on
        self._template = parameters.template
        self._known: dict[Any, np.ndarray] = {}

    def prepare(self, vectors: np.ndarray, keys: Array, tried: int) -> None:
        """Compile all programs side by side, by running them over no prompts."""
        nothing: Any = (keys, np.int32(0), np.int32(0), np.zeros(vectors.shape[1], int))
        several = np.repeat(vectors[..., None, :], 1 + tried, axis=-2)
        jobs = [partial(self.equations, vectors, *nothing), partial(self.score, several, *nothing)]
        list(in_threads(lambda job: job(), jobs))

    def coordinates(self, vectors: np.ndarray) -> np.ndarray:
        M, c = self._view(vectors)
        return np.concatenate([M[..., *self._triangle], c], axis=-1)

    def equations(self, vectors: np.ndarray, keys: Array, *span: Any) -> tuple[Any, ...]:
        if not self._moves:  # the loss is quadratic in all that is left
            means = self.coefficient_equations(vectors, keys, *span)
            normal, right = (self._source.chunk * np.asarray(a, np.float64) for a in means)
            return normal, np.einsum("...pq,...q->...p", normal, self._view(vectors)[1]) - right
        M, c = self._view(vectors)
        found = _accumulate(*self._sent(M, c), self._source, keys, *span)
        return tuple(np.asarray(a, np.float64) for a in found)

    def coefficient_equations(self, vectors: np.ndarray, keys: Array, *span: Any) -> tuple[Any, ...]:
        """The same in c alone, as its best value for this M needs them."""
        M, c, h = self._sent(*self._view(vectors))
        return _coefficient_equations(M, c.shape[-1], h, self._source, keys, *span)

    def with_best_coefficients(
        self, vectors: np.ndarray, normal: np.ndarray, right: np.ndarray
    ) -> np.ndarray:
        """The models with the same M whose c comes closest to the best one."""
        on = self._actives
        metric = normal * on[:, :, None] * on[:, None, :] + (1 - on)[..., None] * np.eye(on.shape[-1])
        metric = (metric + np.swapaxes(metric, -1, -2)) / 2 + FLOOR * _diagonal(metric)
        target = np.linalg.solve(metric, (right * on)[..., None])[..., 0]
        found = vectors.copy()
        several = self._nearest(vectors[..., None, :], metric[:, :, None], target[:, :, None])
        found[..., self._free] = several[..., 0, :]
        return found

    def score(self, candidates: np.ndarray, keys: Array, *span: Any) -> tuple[Array, ...]:
        return _score(*self._sent(*self._view(candidates)), self._source, keys, *span)

    def candidates(
        self, vectors: np.ndarray, normal: np.ndarray, slope: np.ndarray, damping: tuple[float, ...]
    ) -> np.ndarray:
        M, c = self._view(vectors)
        solve = np.linalg.solve
        m, depth = len(self._triangle[0]), c.shape[-1]
        on = self._actives  # (depths, L): c of layers that are switched off stays zero
        MM, gM = normal[..., :m, :m], slope[..., :m]
        Mc, gc = normal[..., :m, m:] * on[:, None, :], slope[..., m:] * on
        cc = normal[..., m:, m:] * on[:, :, None] * on[:, None, :] + (1 - on)[..., None] * np.eye(depth)
        if self._moves:
            strength = np.trace(MM, axis1=-2, axis2=-1) / np.sum(self._gauge**2, axis=-1)[:, None]
            MM = MM + strength[..., None, None] * (self._gauge[:, :, None] * self._gauge[:, None, :])[:, None]
        metrics, targets, ratios = [], [], []
        for value in damping:
            if self._moves:
                damped = MM + value * _diagonal(MM)  # no `damped_step`: c, which is eliminated, is not damped
                ratio = solve(damped, np.concatenate([Mc, gM[..., None]], axis=-1))  # of M to c, and alone
                metric = cc - np.swapaxes(Mc, -1, -2) @ ratio[..., :-1]
                pull = gc - (np.swapaxes(Mc, -1, -2) @ ratio[..., -1:])[..., 0]
            else:
                metric, pull, ratio = cc + value * _diagonal(cc), gc, np.zeros((*Mc.shape[:2], 0, depth + 1))
            metric = (metric + np.swapaxes(metric, -1, -2)) / 2 + FLOOR * _diagonal(cc)
            metrics.append(metric)
            targets.append(c - solve(metric, pull[..., None])[..., 0])
            ratios.append(ratio)
        metric, target, ratio = (np.stack(parts, axis=2) for parts in (metrics, targets, ratios))
        found = np.repeat(vectors[..., None, :], 1 + len(damping), axis=-2)
        found[..., 1:, self._free] = self._nearest(found[..., 1:, :], metric, target)
        if self._moves:
            reached = self._view(found)[1][..., 1:, :]
            change = np.concatenate([reached - c[..., None, :], np.ones((*reached.shape[:-1], 1))], axis=-1)
            step = np.zeros((*reached.shape[:-1], self._d, self._d))
            step[..., *self._triangle] = -(ratio @ change[..., None])[..., 0]
            step = step + np.swapaxes(step, -1, -2) - _diagonal(step)
            found[..., 1:, self._matrix] = M[..., None, :, :] + step
        return found

    def _nearest(self, vectors: np.ndarray, metric: np.ndarray, target: np.ndarray) -> np.ndarray:
        """The trained numbers whose c is nearest to the target: Levenberg-Marquardt, all at once."""
        root = np.swapaxes(np.linalg.cholesky(metric), -1, -2)
        free = vectors[..., self._free].astype(np.float64)
        if not self._free.size:
            return free
        slopes, c = self._coefficients(vectors, free)
        error = (root @ (c - target)[..., None])[..., 0]
        reached = EXACT**2 * np.sum((root @ target[..., None])[..., 0] ** 2, axis=-1)
        damping, idle = np.full(free.shape[:-1], 1e-3), np.zeros(free.shape[:-1], int)
        for _ in range(INNER):
            J = root @ slopes
            normal, slope = np.swapaxes(J, -1, -2) @ J, (np.swapaxes(J, -1, -2) @ error[..., None])[..., 0]
            trial = free + damped_step(normal, slope, np.maximum(damping, LEAST_DAMPING))
            new_slopes, new_c = self._coefficients(vectors, trial)
            new_error = (root @ (new_c - target)[..., None])[..., 0]
            before, after = np.sum(error**2, axis=-1), np.sum(new_error**2, axis=-1)
            better = after < before  # False where it is not a number
            damping = next_damping(damping, better)
            free = np.where(better[..., None], trial, free)
            error = np.where(better[..., None], new_error, error)
            slopes = np.where(better[..., None, None], new_slopes, slopes)
            idle = np.where(better & (before - after > 1e-9 * before), 0, idle + 1)
            if np.all((idle >= IDLE) | (np.minimum(before, after) <= reached)):
                break
        return free

    def _coefficients(self, vectors: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """d c / d free and c, for (runs, depths, candidates or none) models. By NumPy, with derivatives from a
        step into the complex plane, which are exact for polynomials to rounding: so small a work is done
        before a compiled program has started."""
        p = free.shape[-1]
        numbers = np.repeat(np.moveaxis(vectors, -1, 0)[..., None], 1 + p, axis=-1).astype(np.complex128)
        numbers[self._free] = np.moveaxis(free, -1, 0)[..., None]
        numbers[self._free, ..., 1 + np.arange(p)] += 1j * TINY
        c = np.moveaxis(self._of_numbers(numbers), 0, -2)
        return c[..., 1:].imag / TINY, c[..., 0].real

    def _of_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """c (depth, runs, depths, ...) of models with these numbers, (all, runs, depths, ...)."""
        inner = (1,) * (numbers.ndim - 3)
        depth = self._actives.shape[-1]
        tables = tables_of(from_vector(self._template, numbers, on_device=False), depth)
        active = self._actives.T.reshape(depth, 1, -1, *inner)
        return coefficients_of_tables(tables, self._h.reshape(-1, 1, *inner), active)[-1]

    def _c(self, vectors: np.ndarray) -> np.ndarray:
        """c of the same models; a pass asks for those of its models again and again."""
        asked = (vectors.shape, vectors.tobytes())
        found = self._known.get(asked)
        if found is None:
            found = np.moveaxis(self._of_numbers(np.moveaxis(vectors, -1, 0).astype(np.float64)), 0, -1)
            self._known = {**dict(list(self._known.items())[1 - KNOWN :]), asked: found}
        return found

    def _view(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """M and c of models (runs, depths, candidates or none)."""
        c = self._c(vectors)
        if self._matrix is None:
            return np.broadcast_to(np.eye(self._d), (*vectors.shape[:-1], self._d, self._d)), c
        half = vectors[..., self._matrix].astype(np.float64)
        return (half + np.swapaxes(half, -1, -2)) / 2, c

    def _sent(self, M: np.ndarray, c: np.ndarray) -> tuple[Any, Any, Any]:
        """For a program, which sends them with its call: in a quarter of the time of three arrays sent before it."""
        M, c, h = (a.astype(default_dtype()) for a in (M, c, self._h))
        return M, c, h


def _diagonal(matrix: np.ndarray) -> np.ndarray:
    """The diagonal of each matrix, as a matrix."""
    return matrix * np.eye(matrix.shape[-1])
