"""The best that shared scalar coefficients can do on a distribution (docs/mathematics.md 3).

After L steps of any memory with shared scalar coefficients and one preconditioner A, the error
is p(A G) e_0 for a polynomial p of degree L with p(0) = 1: the answer is w = q(A G) A b with
1 - t q(t) = p(t). The loss is quadratic in the coefficients of q, so the best ones solve one
small linear system in the moments of A G.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Literal, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray
from numpy.polynomial import Polynomial

from lfom.core import checks, room
from lfom.core.arrays import as_array, default_dtype, matvec
from lfom.core.checks import InputError
from lfom.core.compiler import jit_draws
from lfom.core.kernels import Kernel, as_kernel
from lfom.core.methods import OneStep
from lfom.core.problems import Quadratic
from lfom.core.words import brief
from lfom.limits.gdpp import FittedOptimum, gdpp_optima
from lfom.limits.krylov import moments
from lfom.prompts.distributions import Distribution, a_distribution

PER_PROMPT = 1e5  # operations to draw one and to add its moments, at the least
MOST_EXACT = 50  # layers
IN_SINGLE = 10  # layers up to which its powers can be run in float32: at 15 rounding is most of the loss
PILOT = 1_000  # prompts that tell how large eigenvalues are


class Optimum(eqx.Module):
    """The best shared scalar coefficients of one depth.

    polynomial: p, ascending powers, p(0) = 1. preconditioner: A, or None for the identity. kernel: of the attention,
    where it is that of functions.
    loss: the mean loss; stderr: its standard error, 0 where the moments are exact; prompts:
    the number behind it, 0 where they are exact.
    """

    __repr__ = brief

    polynomial: tuple[float, ...] = eqx.field(static=True)
    loss: float = eqx.field(static=True)
    stderr: float = eqx.field(static=True)
    prompts: int = eqx.field(static=True)
    preconditioner: Float[Array, "d d"] | None = None
    kernel: Kernel | None = eqx.field(static=True, default=None)

    @property
    def depth(self) -> int:
        return len(self.polynomial) - 1

    def as_algorithm(self) -> "Horner":
        """What is run to score it. Its coefficients are filled up with zeros to a few lengths, so that optima
        of several depths share a program."""
        room = -(-self.depth // 4) * 4
        numbers = -np.pad(np.asarray(self.polynomial[1:]), (0, room - self.depth))
        return Horner(as_array(numbers.astype(default_dtype())), self.preconditioner, self.kernel)

    @property
    def log_loss(self) -> float:
        return math.log(self.loss)

    @property
    def log_stderr(self) -> float:
        return self.stderr / self.loss

    @property
    def roots(self) -> np.ndarray:
        """The roots of p: if all are real, gradient descent with step sizes 1 / root is optimal."""
        return Polynomial(self.polynomial).roots()

    def answer(self, quadratics: Quadratic) -> Array:
        """w after the optimal coefficients, for each prompt, by Horner's rule."""
        coefficients = as_array([-c for c in self.polynomial[1:]], quadratics.moment.dtype)
        return polynomial_answer(coefficients, self.preconditioner, quadratics)

    def losses(self, quadratics: Quadratic) -> Array:
        """The loss of each given prompt, for a comparison on the same ones."""
        return jnp.sum(quadratics.residual(self.answer(quadratics)) ** 2, axis=0)


class Horner(OneStep):
    """w = q(A G) A b by Horner's rule. coefficients: of q, ascending."""

    coefficients: Float[Array, "... depth"]
    preconditioner: Float[Array, "... d d"] | None
    weights: Kernel | None = eqx.field(static=True, default=None)

    @property
    def views(self) -> tuple[str, ...]:
        return ("iterates",) if self.weights is None else ("kernel",)

    @property
    def kernel(self) -> Kernel | None:
        return self.weights

    def without_kernel(self) -> "Horner":
        return Horner(self.coefficients, self.preconditioner)

    def answer(self, quadratic: Quadratic) -> Array:
        return polynomial_answer(self.coefficients, self.preconditioner, quadratic)


def polynomial_answer(
    coefficients: Float[Array, " depth"], preconditioner: Float[Array, "d d"] | None, quadratics: Quadratic
) -> Array:
    """w = q(A G) A b with these coefficients of q, in ascending order, for each prompt."""

    def precondition(v: Array) -> Array:
        return v if preconditioner is None else matvec(preconditioner, v)

    start = precondition(quadratics.moment)
    w = coefficients[-1] * start
    for c in coefficients[-2::-1]:
        w = c * start + precondition(quadratics.hessian_times(w))
    return w


def exact_optimum(d: int, n: int, depth: int) -> Optimum:
    """The optimum for Gaussian covariates, w* ~ N(0, S^-1), no label noise, and the inverse
    covariance as preconditioner: from exact moments, in rational arithmetic.

    >>> from lfom import exact_optimum
    >>> round(exact_optimum(d=5, n=20, depth=2).log_loss, 4)
    -1.0182
    """
    d, n, depth = checks.count("d", d), checks.count("n", n), checks.count("depth", depth)
    if depth > MOST_EXACT:
        raise InputError(
            f"depth is {depth}: rational arithmetic takes half a minute for 60 layers, and more with the fourth power, so "
            f"that at most {MOST_EXACT} are computed. Use sampled_optimum, or fewer layers."
        )
    moments = [Fraction(d)] + [wishart_moment(k, d, n) / Fraction(n) ** k for k in range(1, 2 * depth + 1)]
    # minimise sum_ij p_i p_j m_{i+j} with p_0 = 1
    matrix = [[moments[i + j] for j in range(1, depth + 1)] for i in range(1, depth + 1)]
    p = [Fraction(1), *_solve(matrix, [-moments[i] for i in range(1, depth + 1)])]
    loss = sum((p[i] * moments[i] for i in range(depth + 1)), Fraction(0))
    return Optimum(tuple(float(c) for c in p), float(loss), 0.0, 0)


def with_preconditioner(optimum: Optimum, preconditioner: Array | None) -> Optimum:
    """The same coefficients with A, so that they can be run on prompts."""
    return Optimum(optimum.polynomial, optimum.loss, optimum.stderr, optimum.prompts, preconditioner)


def wishart_moment(k: int, d: int, n: int) -> Fraction:
    """E tr W^k for W = X X^T with standard normal X (d, n): the sum over partitions of k in
    docs/mathematics.md 3, with c(s) = 2(j-1) - (i-1) for the box s = (i, j), arm a and leg l. The box (3, 2) has c = 0, so that
    only partitions without it count: k^2 / 4 of them and not exp(sqrt(k)).

    >>> wishart_moment(1, 5, 20)
    Fraction(100, 1)
    """
    total = Fraction(0)
    for parts in _partitions(k):
        columns = [sum(part > j for part in parts) for j in range(parts[0])]
        above = below = 1
        for i, part in enumerate(parts):
            for j in range(part):
                c, arm, leg = 2 * j - i, part - j - 1, columns[j] - i - 1
                above *= (c if (i, j) != (0, 0) else 1) * (d + c) * (n + c)
                below *= (2 * arm + leg + 1) * (2 * arm + leg + 2)
        total += Fraction(above, below)
    return 2 * k * total


@overload
def sampled_optimum(
    distribution: Distribution,
    depth: int,
    key: PRNGKeyArray,
    *,
    preconditioner: Array | None = ...,
    kernel: Kernel | str | None = ...,
    covariates: Literal[False] = ...,
    prompts: int | None = ...,
    chunk: int | None = ...,
) -> Optimum: ...


@overload
def sampled_optimum(
    distribution: Distribution,
    depth: int,
    key: PRNGKeyArray,
    *,
    preconditioner: Array | None = ...,
    covariates: Literal[True],
    memory: str | None = ...,
    prompts: int | None = ...,
    chunk: int | None = ...,
) -> FittedOptimum: ...


def sampled_optimum(
    distribution: Distribution,
    depth: int,
    key: PRNGKeyArray,
    *,
    preconditioner: Array | None = None,
    kernel: Kernel | str | None = None,
    covariates: bool = False,
    memory: str | None = None,
    prompts: int | None = None,
    chunk: int | None = None,
) -> Optimum | FittedOptimum:
    """The optimum on any distribution, label noise included, from sampled prompts.

    The coefficients come from one half of the prompts and the loss from the other; the
    standard error is that of the second half. Powers of A G are replaced by Chebyshev
    polynomials on (0, largest eigenvalue), in which the system is well conditioned.

    kernel: of attention with this kernel, on functions; the preconditioner is the identity then.
    covariates: of GD++ with A_l = a_l preconditioner and B_l = b_l I, instead of what leaves covariates as they
    are; memory: "none", or a bank of "scalar" or "pair" numbers, which makes a difference there only.
    prompts: a million by default, five of GD++, whose loss rare ones dominate. chunk: how many are drawn at once.

    >>> import jax
    >>> import lfom
    >>> data = lfom.LinearRegression([1.0, 1.0], context=6)
    >>> found = lfom.sampled_optimum(data, 2, jax.random.key(0), prompts=20_000)
    >>> abs(found.log_loss - lfom.exact_optimum(d=2, n=6, depth=2).log_loss) < 0.2
    True
    """
    a_distribution("distribution", distribution)
    checks.random_key("key", key)
    depth = checks.count("depth", depth)
    checks.flag("covariates", covariates)
    chunk = None if chunk is None else checks.count("chunk", chunk)
    if prompts is not None:
        said = f"prompts is {checks.count('prompts', prompts)}"
        room.in_time(said, prompts * PER_PROMPT, "Pass fewer.")
        room.fits(said, 16.0 * prompts / (chunk or prompts), "Pass fewer, or draw more of them at once.")
    if chunk is not None:
        size = 4.0 * min(chunk, prompts or chunk) * distribution.dimension**2
        room.fits(f"chunk is {chunk}", size, "Draw fewer at once.")
    room.fits(f"depth is {depth}", 8.0 * depth**2, "Pass fewer layers.")
    if preconditioner is not None:
        d = distribution.dimension
        checks.real_array("preconditioner", preconditioner, (d, d))
    options: dict[str, Any] = {"preconditioner": preconditioner}
    options |= {} if prompts is None else {"prompts": prompts}
    options |= {} if chunk is None else {"chunk": chunk}
    kernel = None if kernel is None else as_kernel(kernel)
    if kernel is not None and (covariates or preconditioner is not None):
        raise InputError(
            "kernel is given: attention with a kernel has no preconditioner and leaves covariates alone."
        )
    if covariates:
        return gdpp_optima(distribution, [depth], key, memory=memory or "none", **options)[depth]
    if memory is not None:
        raise InputError(
            "memory makes no difference to this optimum, which every memory of numbers reaches: leave it out, or pass "
            "covariates=True for GD++."
        )
    return sampled_optima(distribution, [depth], key, kernel=kernel, **options)[depth]


def sampled_optima(
    distribution: Distribution,
    depths: Sequence[int],
    key: PRNGKeyArray,
    *,
    preconditioner: Array | None = None,
    kernel: Kernel | None = None,
    prompts: int = 1_000_000,
    chunk: int = 50_000,
) -> dict[int, Optimum]:
    """`sampled_optimum` for several depths from the same prompts: their systems are nested."""
    depths = [checks.count("depth", depth) for depth in depths]
    prompts = checks.count("prompts", prompts)
    chunk = min(checks.count("chunk", chunk), max(prompts // 40, 1))  # 20 scores make a standard error
    first, key = jax.random.split(key)

    # By NumPy: two threads that call JAX's own on batches at once wait for each other (jaxlib 0.10.1).
    drawn = _drawn(distribution, first, max(chunk, PILOT), kernel)  # in most cases the program of the others
    pilot = np.moveaxis(np.asarray(drawn.gram)[..., :PILOT], -1, 0)
    products = pilot if preconditioner is None else np.asarray(preconditioner) @ pilot
    scale = float(np.linalg.eigvals(products).real.max()) * 1.2

    def system(key: PRNGKeyArray) -> list[np.ndarray]:
        found = moments(
            _drawn(distribution, key, chunk, kernel), preconditioner, max(depths), as_array(scale)
        )
        return [np.asarray(a, np.float64) for a in found]

    chunks = max(prompts // (2 * chunk), 2)
    parts = [system(k) for k in jax.random.split(key, 2 * chunks)]
    fitted = [np.sum([part[i] for part in parts[:chunks]], axis=0) / chunks for i in range(3)]
    found = {}
    for depth in depths:
        theta = np.linalg.solve(fitted[0][:depth, :depth], fitted[1][:depth])
        scores = [
            float(theta @ m[:depth, :depth] @ theta - 2 * theta @ v[:depth] + s) for m, v, s in parts[chunks:]
        ]
        stderr = float(np.std(scores, ddof=1) / math.sqrt(len(scores)))
        polynomial = _polynomial(theta, scale)
        found[depth] = Optimum(
            polynomial, float(np.mean(scores)), stderr, chunks * chunk, preconditioner, kernel
        )
    return found


@jit_draws
def _drawn(distribution: Distribution, key: PRNGKeyArray, count: int, kernel: Kernel | None) -> Any:
    """Drawing is a program of its own: all kernels share that of their moments."""
    return distribution.problems(key, count, "iterates" if kernel is None else "kernel", kernel)


def _polynomial(theta: np.ndarray, scale: float) -> tuple[float, ...]:
    """p(t) = 1 - t q(t) for q = sum theta_j T_j(2t / scale - 1)."""
    shift = Polynomial([-1.0, 2 / scale])
    q = np.polynomial.Chebyshev(theta).convert(kind=Polynomial)(shift)
    p = (1 - Polynomial([0.0, 1.0]) * q).coef
    return tuple(float(c) for c in np.pad(p, (0, len(theta) + 1 - len(p))))


def _partitions(k: int) -> Iterator[tuple[int, ...]]:
    """Those of k whose third part is at most 1."""
    yield (k,)
    for first in range(1, k):
        for second in range(1, min(first, k - first) + 1):
            yield (first, second, *[1] * (k - first - second))


def _solve(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    """Gaussian elimination in rational arithmetic; the matrix is positive definite unless the
    moments are of low rank (n or d of 1), where the free coefficients are set to zero."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    pivots: list[int] = []
    for column in range(size):
        top = len(pivots)
        pivot = next((r for r in range(top, size) if rows[r][column] != 0), None)
        if pivot is None:
            continue
        rows[top], rows[pivot] = rows[pivot], rows[top]
        for r in range(size):
            if r != top and rows[r][column] != 0:
                factor = rows[r][column] / rows[top][column]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[top], strict=True)]
        pivots.append(column)
    solution = [Fraction(0)] * size
    for r, column in enumerate(pivots):
        solution[column] = rows[r][-1] / rows[r][column]
    return solution
