"""What shared scalar coefficients with one symmetric preconditioner promise on quadratics.

After l steps the error is p_l(M A) e_0 for a polynomial p_l with p_l(0) = 1, whatever the problem. M A
is similar to a symmetric matrix whose eigenvectors are orthogonal in the energy norm, so that norm of
the error shrinks by at least max |p_l| over the eigenvalues of M A. The polynomials are found by running
the method itself on problems with one unknown, t w^2 / 2 - t w: it starts with an error of 1.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax import Array
from numpy.polynomial import Chebyshev

from lfom.core.arrays import as_array
from lfom.core.checks import InputError
from lfom.core.methods import Algorithm
from lfom.core.parameters import check_layers, check_numbers, kinds
from lfom.core.problems import Quadratic
from lfom.core.unroll import unroll, with_room
from lfom.core.vectors import real
from lfom.core.words import brief

INSIDE = 2_000  # points at which an interval is checked
BLOCK = 4_096  # points that are computed at a time
# where the end of an interval is looked for, as factors on the farthest that it can be
LOWEST, BEYOND = 1e-6, 1.01


@dataclass(frozen=True)
class Certificate:
    """reach: after l = 1, 2, ... steps every eigenvalue of M A between 0 and reach[l-1] contracts.
    seen: the extreme eigenvalues of M A over the learning problems; exact, or estimated from inside by
    Lanczos. contraction: the largest |p_k| between them. Both None for a method that was not learned."""

    __repr__ = brief

    reach: tuple[float, ...]
    seen: tuple[float, float] | None = None
    exact: bool = False
    contraction: float | None = None


def certificate_of(method: Algorithm) -> Certificate | None:
    """What was found while learning, or is found now; None where no polynomial speaks for the method."""
    if method.facts is not None:
        return method.facts.certificate
    check_layers(method, method.depth, None, ())
    check_numbers("the method", method)
    return None if method.on_eigenvectors is None else certify(method)


def promise_of(method: Algorithm) -> str:
    """What is known of every problem before it is solved, in words; a worst case with what is usual beside it."""
    if method.facts is None or method.facts.bound is None:
        return _without_bound(method)
    facts, accuracy = method.facts, method.facts.record.accuracy
    usual = (
        f"the {facts.kind.measure} of {accuracy.problems} problems {accuracy.how} is {accuracy.median[-1]:.3g} of the "
        f"start's (median; quartiles {accuracy.lower[-1]:.3g} to {accuracy.upper[-1]:.3g})"
    )
    return f"after {method.steps} steps {facts.bound}; {usual}" + (
        f"; {_without_bound(method)}" if facts.kind.quadratic else ""
    )


def _without_bound(method: Algorithm) -> str:
    if method.facts is not None and not method.facts.kind.quadratic:
        return "none before the solve: the loss is checked afterwards and is never above the start's"
    certificate = certificate_of(method)
    if certificate is not None:
        text = (
            "the energy norm of the error shrinks wherever the eigenvalues of M A lie in "
            f"(0, {certificate.reach[-1]:.4g})"
        )
        if certificate.contraction is None:
            return text
        if certificate.contraction < 1:
            return f"{text}; to {certificate.contraction:.3g} or less on those seen in learning"
        return f"{text}; some seen in learning lie outside"
    if method.is_conjugate:
        free = method.facts is None and kinds(method)  # a matrix that was trained or handed over
        known = ", if its matrix is positive definite" if free else ""
        return f"the energy norm of the error falls with every step (conjugate gradients{known})"
    if "iterates" not in method.views:
        return "none: it answers prompts (lfom.run), and has no w to solve a problem with"
    return "none before the solve: the answer is checked afterwards and is never worse than the start"


def residual_polynomials(method: Algorithm, t: np.ndarray) -> np.ndarray:
    """p_0, ..., p_k at the points t, in float64; (k+1, points)."""
    return 1 - _answers(method, t, t)


def _answers(method: Algorithm, t: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """What the method answers to problems of one unknown. In blocks of one size: one program."""
    single = method.as_algorithm().on_eigenvectors
    if single is None:
        raise InputError("this method is no polynomial in M A with one symmetric M and fixed numbers.")
    blocks = [np.pad(np.asarray(a, np.float64), (0, -len(a) % BLOCK)).reshape(-1, BLOCK) for a in (t, moment)]
    with jax.enable_x64(True):
        full, turns = with_room(single)
        double: Any = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64) if real(leaf) else leaf, full)
        found = [np.asarray(_run(double, turns, *map(as_array, own))) for own in zip(*blocks, strict=True)]
    return np.concatenate(found, axis=1)[: method.depth + 1, : len(t)]


@eqx.filter_jit
def _run(method: Algorithm, turns: Any, t: Array, moment: Array) -> Array:
    quadratic = Quadratic(t[None, None], moment[None])
    return unroll(method, quadratic, loop=turns is not None, turns=turns)[:, 0]


def certify(method: Algorithm, seen: tuple[float, float] | None = None, exact: bool = False) -> Certificate:
    """Every p_l is interpolated at Chebyshev's points between 0 and where it is known to have left [-1, 1]:
    exact, since it is a polynomial of degree l, and well conditioned, since it is small there."""
    steps = method.depth
    ends = _exits(method)
    nodes = (_nodes(steps + 1) + 1) / 2
    rows = residual_polynomials(method, np.outer(ends, nodes).ravel()).reshape(steps + 1, steps, steps + 1)
    fits = [_interpolated(rows[n + 1, n], n + 1, 0.0, ends[n]) for n in range(steps)]
    found = np.array([_crossing(p, end) for p, end in zip(fits, ends, strict=True)])
    # Rounding of the roots must not make the promise too large: back off until it holds.
    grid = np.linspace(0, 1, INSIDE + 1)[1:]
    values = residual_polynomials(method, np.outer(found, grid).ravel()).reshape(steps + 1, steps, INSIDE)
    reach = []
    for n in range(steps):
        broken = np.flatnonzero(~(np.abs(values[n + 1, n]) <= 1))
        good = int(broken[0]) if len(broken) else INSIDE
        reach.append(float(found[n] * grid[good - 1]) if good else 0.0)
    if seen is None:
        return Certificate(tuple(reach))
    return Certificate(tuple(reach), seen, exact, _largest(method, *seen))


def _exits(method: Algorithm) -> np.ndarray:
    """For every p_l, l >= 1, a t by which it has left [-1, 1]: the first such point of a grid. A polynomial of degree l
    that stays there up to T falls no faster than 2 l^2 / T at 0 (Markov), so none stays beyond 2 l^2 over its fall."""
    degrees = 1 + np.arange(method.depth)
    # -p_l'(0): what steps add up to without curvature
    falls = _answers(method, np.zeros(1), np.ones(1))[1:, 0]
    farthest = BEYOND * 2 * degrees**2 / np.where(falls > 0, falls, 1.0)
    t = np.outer(farthest, np.geomspace(LOWEST, 1, INSIDE))
    values = residual_polynomials(method, t.ravel()).reshape(-1, *t.shape)[degrees, degrees - 1]
    outside = ~(np.abs(values) <= 1)
    outside[:, -1] = True
    return t[degrees - 1, np.argmax(outside, axis=1)]


def _nodes(count: int) -> np.ndarray:
    """Chebyshev's points in [-1, 1]."""
    return np.polynomial.chebyshev.chebpts1(count)


def _interpolated(values: np.ndarray, degree: int, low: float, high: float) -> Chebyshev:
    """The polynomial of this degree through values at more of Chebyshev's points."""
    basis = np.polynomial.chebyshev.chebvander(_nodes(len(values)), degree)
    coefficients = basis.T @ values * 2 / len(values)
    coefficients[0] /= 2
    return Chebyshev(coefficients, domain=[low, high])


def _crossing(p: Chebyshev, top: float) -> float:
    """The first t > 0 with |p(t)| = 1, from the roots of p - 1 and p + 1; 0 if p does not fall at 0."""
    if p.deriv()(0.0) >= 0:
        return 0.0
    roots = np.concatenate([(p - 1).roots(), (p + 1).roots()])
    real = roots[np.abs(roots.imag) < 1e-6 * top].real
    crossings = real[real > 1e-9 * top]
    return float(crossings.min()) * (1 - 1e-7) if len(crossings) else 0.0


def _largest(method: Algorithm, low: float, high: float) -> float:
    """max |p| on [low, high]: at an end, or where p' is zero; a grid stands in for lost roots. Rounded up."""
    points = np.linspace(low, high, 2 * INSIDE + 1)
    steps = method.depth
    if high > low:
        values = residual_polynomials(method, low + (_nodes(steps + 1) + 1) * (high - low) / 2)[-1]
        roots = _interpolated(values, steps, low, high).deriv().roots().real
        points = np.concatenate([points, np.clip(roots, low, high)])
    return float(np.abs(residual_polynomials(method, points)[-1]).max()) * (1 + 1e-9)
