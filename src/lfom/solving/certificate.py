"""What shared scalar coefficients with one symmetric preconditioner promise on quadratics.

After l steps the error is p_l(M A) e_0 for a polynomial p_l with p_l(0) = 1, whatever the problem. M A
is similar to a symmetric matrix whose eigenvectors are orthogonal in the energy norm, so that norm of
the error shrinks by at least max |p_l| over the eigenvalues of M A.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import Chebyshev


@dataclass(frozen=True)
class Certificate:
    """reach: after l = 1, 2, ... steps every eigenvalue of M A between 0 and reach[l-1] contracts.
    seen: the extreme eigenvalues of M A over the learning problems; exact, or estimated from inside by
    Lanczos. contraction: the largest |p_k| between them."""

    reach: tuple[float, ...]
    seen: tuple[float, float]
    exact: bool
    contraction: float


def residual_polynomials(alpha: Sequence[float], gamma: Sequence[float], t: np.ndarray) -> np.ndarray:
    """p_0, ..., p_k at the points t, by the register's own recurrence; (k+1, points)."""
    p, register = np.ones_like(t), np.zeros_like(t)
    rows = [p]
    for a, g in zip(alpha, gamma, strict=True):
        register = p + g * register
        p = p - a * t * register
        rows.append(p)
    return np.stack(rows)


def certify(
    alpha: Sequence[float], gamma: Sequence[float], seen: tuple[float, float], exact: bool
) -> Certificate:
    steps = len(alpha)
    reach = tuple(_reach(alpha[:n], gamma[:n], seen[1]) for n in range(1, steps + 1))
    return Certificate(reach, seen, exact, _largest(alpha, gamma, *seen))


def _largest(alpha: Sequence[float], gamma: Sequence[float], low: float, high: float) -> float:
    """max |p| on [low, high]: at an end, or where p' is zero; a grid stands in for lost roots. Rounded up."""
    points = np.linspace(low, high, 4001)
    if high > low:
        roots = _interpolated(alpha, gamma, low, high).deriv().roots().real
        points = np.concatenate([points, np.clip(roots, low, high)])
    return float(np.abs(residual_polynomials(alpha, gamma, points)[-1]).max()) * (1 + 1e-9)


def _interpolated(alpha: Sequence[float], gamma: Sequence[float], low: float, high: float) -> Chebyshev:
    """p in the Chebyshev basis: exact, since it is a polynomial of that degree."""
    return Chebyshev.interpolate(
        lambda t: residual_polynomials(alpha, gamma, np.asarray(t, float))[-1], len(alpha), domain=[low, high]
    )


def _reach(alpha: Sequence[float], gamma: Sequence[float], typical: float) -> float:
    """The first t > 0 with |p(t)| = 1, from the roots of p - 1 and p + 1; 0 if p does not fall at 0."""
    top = 2 * typical

    def last(t: np.ndarray) -> np.ndarray:
        return residual_polynomials(alpha, gamma, np.asarray(t, float))[-1]

    p = _interpolated(alpha, gamma, 0, top)
    if p.deriv()(0.0) >= 0:
        return 0.0
    roots = np.concatenate([(p - 1).roots(), (p + 1).roots()])
    real = roots[np.abs(roots.imag) < 1e-6 * top].real
    crossings = real[real > 1e-9 * top]
    if not len(crossings):
        return 0.0
    # Rounding of the roots must not make the promise too large: back off until it holds.
    found = float(crossings.min()) * (1 - 1e-7)
    inside = np.linspace(0, found, 2001)[1:]
    broken = np.flatnonzero(np.abs(last(inside)) > 1)
    return found if not len(broken) else float(inside[max(broken[0] - 1, 0)]) * bool(broken[0])
