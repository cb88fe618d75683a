"""Methods that are best, or nearly so, in the worst case over smooth convex functions; see lfom.worst_case.

L is the smoothness, mu the strong convexity and N the number of steps. Rows of a table say where a point is:
x_0 minus the row times the gradients, in steps of 1/L.
"""

import numpy as np

from lfom.core import checks, room
from lfom.core.arrays import as_array
from lfom.core.checks import InputError
from lfom.core.coefficients import Pair
from lfom.core.memories import Bank
from lfom.core.methods import Method
from lfom.core.preconditioners import Identity
from lfom.core.readers import Gradient
from lfom.methods.classical import gradient_descent, lfom, nesterov

RHO = 1 + np.sqrt(2)  # the silver ratio


def smooth_class(smoothness: float, strong_convexity: float = 0.0) -> tuple[float, float]:
    """The two numbers of a class of functions, 0 <= mu < L, checked."""
    checks.positive("smoothness", smoothness)
    L, mu = float(smoothness), checks.number("strong_convexity", strong_convexity)
    if not 0 <= mu < L:
        raise InputError(
            f"strong_convexity is {mu:g}: it must be at least 0 and below the smoothness ({L:g}). Where both are equal "
            "every function is the same quadratic, and gradient_descent(1 / smoothness, steps=1) is exact."
        )
    return L, mu


def thetas(steps: int) -> np.ndarray:
    """theta_0 ... theta_N of the optimised gradient method, the last one larger:
    theta_{k+1} = (1 + sqrt(1 + 4 theta_k^2)) / 2 and theta_N = (1 + sqrt(1 + 8 theta_{N-1}^2)) / 2."""
    theta = [1.0]
    for k in range(steps):
        theta.append((1 + np.sqrt(1 + (8 if k == steps - 1 else 4) * theta[-1] ** 2)) / 2)
    return np.asarray(theta)


def ogm_bound(steps: int) -> float:
    """The worst case of OGM, (f(x_N) - f*) / (L |x_0 - x*|^2), which no first-order method undercuts."""
    return float(1 / (2 * thetas(steps)[-1] ** 2))


def ogm(steps: int, smoothness: float = 1.0) -> Method:
    """The optimised gradient method (Drori and Teboulle; Kim and Fessler): the smallest worst case of f(x_N) - f*
    from |x_0 - x*|, L / (2 theta_N^2).

        y_{k+1} = x_k - grad(x_k) / L
        x_{k+1} = y_{k+1} + (theta_k - 1) / theta_{k+1} (y_{k+1} - y_k) + theta_k / theta_{k+1} (y_{k+1} - x_k)

    >>> import lfom
    >>> round(lfom.worst_case(lfom.ogm(2)), 4)
    0.0619
    """
    return lfom(-ogm_points(_tabled(steps)) / smooth_class(smoothness)[0])


def _tabled(steps: int) -> int:
    return room.table("steps", checks.count("steps", steps), 4.0)


def ogm_points(steps: int) -> np.ndarray:
    """x_1 ... x_N of OGM."""
    theta, units = thetas(steps), np.eye(steps)
    x, y, points = np.zeros(steps), np.zeros(steps), []
    for k in range(steps):
        after = x + units[k]
        x, y = (
            after + (theta[k] - 1) / theta[k + 1] * (after - y) + theta[k] / theta[k + 1] * (after - x),
            after,
        )
        points.append(x)
    return np.stack(points)


def ogm_g(steps: int, smoothness: float = 1.0) -> Method:
    """OGM-G (Kim and Fessler): the smallest worst case of |grad(x_N)|^2 from f(x_0) - f*, 2 L / theta_N^2.

    Its steps are those of OGM in the opposite order: the coefficient of gradient j in step k is OGM's of
    gradient N-1-k in step N-1-j.

    >>> import lfom
    >>> round(lfom.worst_case(lfom.ogm_g(2), measure="gradient", start="value"), 4)
    0.2476
    """
    points = ogm_points(_tabled(steps))
    increments = np.diff(points, axis=0, prepend=0)
    return lfom(-np.cumsum(increments[::-1, ::-1].T, axis=0) / smooth_class(smoothness)[0])


def item(steps: int, smoothness: float, strong_convexity: float) -> Method:
    """The information-theoretic exact method (Taylor and Drori): the smallest worst case of |z_N - x*|^2 from
    |x_0 - x*|, 1 / (1 + q A_N) with q = mu / L, after every number of steps.

        y_k = (1 - beta_k) z_k + beta_k x_k          x_{k+1} = y_k - grad(y_k) / L
        z_{k+1} = (1 - q delta_k) z_k + q delta_k y_k - delta_k grad(y_k) / L

    Its gradients sit at y and its answer is z, so it is a bank with one value for each, as Nesterov's is.

    >>> import lfom
    >>> method = lfom.item(4, smoothness=1.0, strong_convexity=0.1)
    >>> round(lfom.worst_case(method, 1.0, 0.1, measure="distance"), 3)
    0.094
    """
    steps, (L, mu) = _tabled(steps), smooth_class(smoothness, strong_convexity)
    if mu == 0:
        raise InputError(
            "strong_convexity is 0: without it no method brings x_N nearer to x* in the worst case. Use lfom.ogm."
        )
    q, A = mu / L, item_growth(steps, mu / L)
    x, z, y = np.zeros(steps), np.zeros(steps), []
    answers = [z]
    for k, unit in enumerate(np.eye(steps)):
        beta = A[k] / ((1 - q) * A[k + 1])
        delta = ((1 - q) ** 2 * A[k + 1] - (1 + q) * A[k]) / (2 * (1 + q + q * A[k]))
        y.append((1 - beta) * z + beta * x)
        x, z = y[k] + unit, (1 - q * delta) * z + q * delta * y[k] + delta * unit
        answers.append(z)
    y.append(z)  # the context's last move is never read
    context, query = (as_array(np.diff(rows, axis=0) / L) for rows in (np.stack(y), np.stack(answers)))
    return Method(Gradient(Identity()), Bank(Pair(context, query), tied=False), steps)


def item_growth(steps: int, q: float) -> np.ndarray:
    """A_0 ... A_N of ITEM."""
    A = [0.0]
    for _ in range(steps):
        root = np.sqrt((1 + A[-1]) * (1 + q * A[-1]))
        A.append(((1 + q) * A[-1] + 2 * (1 + root)) / (1 - q) ** 2)
    return np.asarray(A)


def fast_gradient(steps: int, smoothness: float = 1.0, strong_convexity: float = 0.0) -> Method:
    """Nesterov's fast gradient method with steps of 1/L and momentum (t_{k-1} - 1) / t_k, t_0 = 1,
    t_k = (1 + sqrt(1 + 4 t_{k-1}^2)) / 2: f(x_N) - f* is at most L / (2 t_{N-1}^2) |x_0 - x*|^2. With strong
    convexity the momentum is (1 - sqrt(q)) / (1 + sqrt(q)), q = mu / L, in every step.

    >>> import lfom
    >>> lfom.worst_case(lfom.fast_gradient(8)) < lfom.worst_case(lfom.gradient_descent(1.0, steps=8))
    True
    """
    steps, (L, mu) = _tabled(steps), smooth_class(smoothness, strong_convexity)
    if mu > 0:
        return nesterov(1 / L, (1 - np.sqrt(mu / L)) / (1 + np.sqrt(mu / L)), steps)
    t = np.concatenate([[1.0], thetas(steps)[:-1]])  # t_{-1} = t_0: no momentum in the first step
    return nesterov(1 / L, (t[:-1] - 1) / t[1:], steps)


def silver(steps: int, smoothness: float = 1.0) -> Method:
    """Gradient descent with the silver steps (Altschuler and Parrilo) (1 + rho^(nu(k) - 1)) / L, rho = 1 + sqrt(2)
    and 2^nu(k) the largest power of two in k = 1 ... N, for N = 2^n - 1: f(x_N) - f* falls as N^-1.27, with no memory.

    >>> import lfom
    >>> [round(eta, 4) for eta in lfom.silver(3).memory.eta.tolist()]
    [1.4142, 2.0, 1.4142]
    """
    steps = checks.count("steps", steps)
    if steps & (steps + 1):
        below = 2 ** (steps.bit_length() - 1) - 1
        raise InputError(
            f"steps is {steps}: silver steps come in numbers of 2^n - 1. Pass {below} or {2 * below + 1}."
        )
    k = np.arange(1, room.layers("steps", steps, 4.0) + 1)
    powers = np.log2(k & -k)
    return gradient_descent((1 + RHO ** (powers - 1)) / smooth_class(smoothness)[0], steps)


def best_constant_step(steps: int, smoothness: float = 1.0, strong_convexity: float = 0.0) -> Method:
    """Gradient descent with the constant step h / L whose worst case of f(x_N) - f* from |x_0 - x*| is smallest:
    where the two numbers of `constant_step_bounds` meet.

    >>> import lfom
    >>> round(float(lfom.best_constant_step(1).memory.eta[0]), 4)  # longer than 1 / L
    1.5
    """
    from scipy.optimize import brentq  # here: `import lfom` need not wait for it

    steps, (L, mu) = checks.count("steps", steps), smooth_class(smoothness, strong_convexity)

    def difference(h: float) -> float:
        slow, overshoot = _constant_step_logs(h, steps, mu / L)
        return slow - overshoot

    return gradient_descent(brentq(difference, 1 + 1e-12, 2 / (1 + mu / L), xtol=1e-15) / L, steps)


def constant_step_bounds(h: float, steps: int, q: float = 0.0) -> tuple[float, float]:
    """Gradient descent with steps h / L, 0 < h < 2 and h != 1: its worst case (f(x_N) - f*) / (L |x_0 - x*|^2) is the
    larger of two numbers, which a function that is flat away from x* and the steepest quadratic reach. q = mu / L.
    """
    slow, overshoot = _constant_step_logs(h, steps, q)
    return float(np.exp(slow) / 2), float(np.exp(overshoot) / 2)


def _constant_step_logs(h: float, steps: int, q: float) -> tuple[float, float]:
    """Logs of twice these: 1 / (1 + ((1 - q h)^-2N - 1) / q), or 1 / (1 + 2 N h) for q = 0, and (1 - h)^2N."""
    growth = -2 * steps * np.log1p(-q * h)
    flat = np.log(2 * steps * h) if q == 0 else growth + np.log(-np.expm1(-growth)) - np.log(q)
    return -np.logaddexp(0, flat), 2 * steps * np.log(abs(1 - h))
