"""The best method for a loss among those whose worst case stays below a bound.

The worst case W(H) has kinks where several functions are worst, and OGM sits at one, so that a slope of W says
little there. What is smooth is its certificate: W(H) <= bound if and only if multipliers m >= 0 exist with

    S(m, H) = bound * first + sum over pairs p of m_p forms_p(H), positive semidefinite,   sum of m_p values_p = aims

(see lfom.limits.worst_case). S is linear in m and in H. So each step minimises a quadratic model of the loss over
(m, H) together, with S linearised at the multipliers of where it stands: a small semidefinite program.
"""

from collections.abc import Callable

import numpy as np

from lfom.core.checks import InputError
from lfom.limits.semidefinite import Triangle, minimise
from lfom.limits.worst_case import Estimation, Found, largest_error, program
from lfom.methods.optimal import ogm_points

Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]  # of a table, and its slopes
CLASS = (0.0, "value", "distance")  # of functions, and what is bounded
ITERATIONS = 200
GAIN, STALLS = 1e-4, 3  # it ends after so many steps that gain less
FIRST, SMALLEST, LARGEST = 1e-2, 1e-6, 1e3  # damping


def table_of(H: np.ndarray) -> np.ndarray:
    """What every step adds: table[l, j] of gradient j in step l. The points H are its sums over l."""
    return np.diff(H, axis=0, prepend=0)


def best_under(loss: Loss, steps: int, bound: float, iterations: int = ITERATIONS) -> np.ndarray:
    """A table, in steps of 1 / L, with the smallest loss that is found and a worst case (f(x_N) - f*) / (L |x_0 - x*|^2)
    of `bound` or very little more: whoever promises it, asks the program again.

    Begins at OGM, whose worst case is the smallest. Steps must lower loss + price * max(0, log W - log bound), with
    a price above the bound's multiplier; damping grows where they do not.
    """
    lower = np.tril_indices(steps)
    table = table_of(ogm_points(steps))
    (value, slopes), worst = loss(table), _worst(table)
    B, damping, price, stalls = np.eye(len(lower[0])), FIRST, 1.0, 0
    for _ in range(iterations):
        change, multiplier = _step(table, worst, slopes[lower], B + damping * np.eye(len(B)), bound)
        price = max(price, 2 * multiplier * bound)
        new = table.copy()
        new[lower] += change
        reached = _worst(new)
        gain = -np.inf
        if np.isfinite(reached.value):
            new_value, new_slopes = loss(new)
            gain = value - new_value + price * (_excess(worst, bound) - _excess(reached, bound))
        if not gain > 0:
            damping *= 8
            if damping > LARGEST:
                break
            continue
        B = _updated(B, change, (new_slopes - slopes)[lower])
        table, value, slopes, worst = new, new_value, new_slopes, reached
        damping = max(damping / 4, SMALLEST)
        stalls = stalls + 1 if gain < GAIN else 0
        if stalls == STALLS:
            break
    return table


def _worst(table: np.ndarray) -> Found:
    """Infinite where the program cannot be solved: far outside every bound."""
    try:
        return largest_error(np.cumsum(table, axis=0), *CLASS)
    except InputError:
        return Found(np.inf, np.inf, table, table)


def _excess(worst: Found, bound: float) -> float:
    return max(0.0, np.log(worst.value / bound))


def _updated(B: np.ndarray, s: np.ndarray, y: np.ndarray) -> np.ndarray:
    """BFGS, damped (Powell) so that B stays positive definite."""
    Bs = B @ s
    size = s @ Bs
    share = 1.0 if s @ y >= 0.2 * size else 0.8 * size / (size - s @ y)
    y = share * y + (1 - share) * Bs
    return B - np.outer(Bs, Bs) / size + np.outer(y, y) / (s @ y)


def _step(
    table: np.ndarray, worst: Found, slopes: np.ndarray, B: np.ndarray, bound: float
) -> tuple[np.ndarray, float]:
    """The change of the lower triangle of the table that the model likes best, and the multiplier of the bound."""
    problem = program(np.cumsum(table, axis=0), *CLASS)
    moved = certificate_slopes(problem, worst.multipliers)
    triangle, pairs, values = Triangle(len(problem.aim)), len(problem.i), len(problem.aims)
    A = np.block(
        [
            [problem.values.T, np.zeros((values, len(B)))],
            [-np.eye(pairs), np.zeros((pairs, len(B)))],
            [-triangle.form(problem.forms).T, -triangle.form(moved).T],
        ]
    )
    b = np.concatenate([problem.aims, np.zeros(pairs), bound * triangle.form(problem.first)])
    P = np.zeros((pairs + len(B),) * 2)
    P[pairs:, pairs:] = B
    q = np.concatenate([np.zeros(pairs), slopes])
    cones = [("zero", values), ("positive", pairs), ("semidefinite", triangle.size)]
    x, z = minimise(P, q, A, b, cones)
    return x[pairs:], float(z[values + pairs])


def certificate_slopes(problem: Estimation, multipliers: np.ndarray) -> np.ndarray:
    """The derivative of S in every entry of the lower triangle of the table, (entries, size, size), for q = 0."""
    X, g, i, j = problem.X, problem.g, problem.i, problem.j
    pulls, steps = np.zeros_like(X), len(problem.aims) - 1
    np.add.at(pulls, i, multipliers[:, None] * g[j])
    np.subtract.at(pulls, j, multipliers[:, None] * g[j])
    later = np.cumsum(pulls[-2:0:-1], axis=0)[::-1]  # an entry moves this point and all later ones
    found = []
    for row, column in zip(*np.tril_indices(steps), strict=True):
        one = np.outer(later[row], g[column])
        found.append(-(one + one.T) / 2)
    return np.stack(found)
