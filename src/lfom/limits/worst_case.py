"""The exact worst case of a method with fixed numbers over smooth convex functions: one semidefinite program.

A method takes gradients g_k at points x_k = x_0 - sum over j < k of H[k, j] g_j, k = 0 ... N - 1, and answers
x_N. In units of L = 1 a convex function with these values and gradients exists in some dimension if and only if

    f_i >= f_j + g_j.(x_i - x_j) + [ |g_i - g_j|^2 + q |x_i - x_j|^2 - 2 q (g_i - g_j).(x_i - x_j) ] / (2 (1 - q))

for every ordered pair of points, x* with f* = 0 and g* = 0 among them; q = mu / L (Taylor, Hendrickx and
Glineur). All of that is linear in the values and in the Gram matrix of x_0 - x*, g_0, ..., g_N, so that the
largest error is that of a semidefinite program (performance estimation, Drori and Teboulle).
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lfom.core.arrays import on_host
from lfom.core.checks import InputError, known
from lfom.core.methods import Algorithm, a_method
from lfom.core.parameters import check_layers
from lfom.core.readers import Reader
from lfom.core.room import in_time
from lfom.limits.semidefinite import Triangle, minimise
from lfom.methods.optimal import smooth_class

MEASURES = {"value": "f(w) - f*", "gradient": "|grad f(w)|^2", "distance": "|w - w*|^2"}
STARTS = {"distance": "|w_0 - w*|^2 <= 1", "value": "f(w_0) - f* <= 1"}
POWERS = {  # of L that a worst case for L = 1 is multiplied with
    ("value", "distance"): 1, ("gradient", "distance"): 2, ("distance", "distance"): 0,
    ("value", "value"): 0, ("gradient", "value"): 1, ("distance", "value"): -1,
}  # fmt: skip
GOOD, WORST = 1e-6, 1e-3  # accuracies relative to the value: enough, and too little to be an answer
SMALLEST = 1e-4  # unit of a second attempt, squared for lengths
# accuracy that is always enough: of what is so small beside the start, few digits can be had
NEGLIGIBLE = 1e-4
PER_ENTRY = 0.3  # operations of the program, times the sixth power of the steps: its matrices have as many entries squared
POINTS = 200  # quadratics that are tried
ALIKE = 1e-5  # of matrices that are multiples of one


@dataclass(frozen=True, eq=False, repr=False)
class WorstCase(float):
    """A number that says what it is: no function of the class does worse, and some do as badly, up to
    `accuracy`, by which the number may be too large. preconditioned: lengths are in the norm of M^-1 (gradients
    in that of M), and the class is smooth in that norm.

    >>> import lfom
    >>> found = lfom.worst_case(lfom.ogm(2), smoothness=2.0)
    >>> found.steps, found.smoothness, found.accuracy < 1e-6
    (2, 2.0, True)
    """

    value: float
    accuracy: float
    measure: str
    start: str
    smoothness: float
    strong_convexity: float
    steps: int
    preconditioned: bool = False

    def __new__(cls, value: float, *facts: Any, **named: Any) -> "WorstCase":
        return super().__new__(cls, value)

    @property
    def text(self) -> str:
        """The same in words."""
        norm = " in the norm of M^-1, M the preconditioner," if self.preconditioned else ""
        convexity = f" and strong convexity {self.strong_convexity:g}" if self.strong_convexity else ""
        return (
            f"{MEASURES[self.measure]} <= {self.value:.6g} after {self.steps} steps for every convex f of smoothness "
            f"{self.smoothness:g}{convexity}{norm} with {STARTS[self.start]} (exact to {self.accuracy:.0e})"
        )


def worst_case(
    method: Algorithm,
    smoothness: float = 1.0,
    strong_convexity: float = 0.0,
    measure: str = "value",
    start: str = "distance",
) -> WorstCase:
    """The largest error after the last step over all convex functions of this smoothness, in any dimension.

    method: with fixed numbers, times one preconditioner M at most. measure: "value" f(w) - f*, "gradient"
    |grad f(w)|^2, "distance" |w - w*|^2. start: "distance" |w_0 - w*|^2 <= 1, "value" f(w_0) - f* <= 1. math.inf where
    there is none: the distance from a value, without strong convexity.

    >>> import lfom
    >>> found = lfom.worst_case(lfom.gradient_descent(1.0, steps=8))  # 1 / (4 * 8 + 2)
    >>> round(found * 34, 6), found.accuracy < 1e-7
    (1.0, True)
    """
    known("measure", measure, MEASURES)
    known("start", start, STARTS)
    a_method("method", method)
    in_time(
        f"a method of {method.depth} steps", PER_ENTRY * float(method.depth) ** 6, "Pass one of fewer steps."
    )
    L, mu = smooth_class(smoothness, strong_convexity)
    H, preconditioned = points(method)
    found = largest_error(H * L, mu / L, measure, start)
    scale = L ** POWERS[measure, start]
    return WorstCase(
        found.value * scale,
        found.accuracy * scale,
        measure,
        start,
        L,
        mu,
        len(H),
        preconditioned,
    )


def points(method: Algorithm) -> tuple[np.ndarray, bool]:
    """H, (N, N): row k holds the coefficients of x_0 - x_{k+1}, the last row those of the answer; and whether the
    gradients are those times a matrix M. An error with the reason where a method is of another kind."""
    check_layers(method, method.depth, None, ())
    try:
        reader, memory = method.parts()
        sizes, preconditioned = _multiples(reader, method.depth)
        context, query = (np.asarray(on_host(table), np.float64) for table in memory.table(method.depth))
    except InputError as error:
        raise InputError(
            f"this method has no worst case that a program could find. It is known for numbers that are fixed and the "
            f"same for all unknowns, times past gradients or one matrix M times them. Here: {error}"
        ) from error
    if not memory.has_numbers or context.ndim != 2:
        raise InputError(
            f"the coefficients of this {type(memory).__name__} differ between unknowns or prompts, and a worst case is "
            "known for numbers only. Use a register, or a bank of numbers."
        )
    H = np.concatenate([np.cumsum(context, axis=0)[:-1], np.sum(query, axis=0)[None]]) * sizes
    if not np.isfinite(H).all():
        raise InputError("the method's numbers hold NaN or infinity: repair them first.")
    return np.tril(H), preconditioned


def _multiples(reader: Reader, depth: int) -> tuple[np.ndarray, bool]:
    """a_l where the reader reads a_l M times the gradient, and whether M is not the identity."""
    reads = reader.plain()
    if reads["jacobi"]:
        raise InputError("its coordinates are set by the diagonal of each problem, so that M is another one.")
    plain = {name: np.asarray(value) for name, value in reads["preconditioner"].items() if name != "kind"}
    single = reader.on_eigenvectors
    if single is not None:
        sizes = np.asarray(single.sizes(depth), np.float64)
        M = plain.get("matrix")
    else:  # one matrix per layer: multiples of the first, or not
        matrices = np.asarray(plain["matrices"], np.float64)[:depth]
        M = matrices[0]
        sizes = np.sum(matrices * M, axis=(1, 2)) / np.sum(M * M)
        if not np.abs(matrices - sizes[:, None, None] * M).max() <= ALIKE * np.abs(matrices).max():
            raise InputError("its matrices A_l differ between layers by more than a number.")
    if M is None:
        return sizes, bool(plain)
    M = np.asarray(M, np.float64)
    if np.abs(M - M.T).max() > ALIKE * np.abs(M).max() or not np.linalg.eigvalsh(M)[0] > 0:
        raise InputError("its matrix M is not symmetric and positive definite, so that it makes no norm.")
    return sizes, True


class Estimation(NamedTuple):
    """Maximise <aim, G> + aims.f over Gram matrices G and values f with <forms[p], G> + values[p].f <= 0 for every
    pair p and <first, G> + firsts.f <= 1. X, g: points and gradients, over what G is of; i, j: the pairs of points."""

    forms: np.ndarray
    values: np.ndarray
    aim: np.ndarray
    aims: np.ndarray
    first: np.ndarray
    firsts: np.ndarray
    X: np.ndarray
    g: np.ndarray
    i: np.ndarray
    j: np.ndarray
    q: float
    measure: str


class Found(NamedTuple):
    """value: of the program, at most `accuracy` too large. slopes: its derivative in H, where it has one.
    multipliers: of the pairs."""

    value: float
    accuracy: float
    slopes: np.ndarray
    multipliers: np.ndarray


def largest_error(H: np.ndarray, q: float, measure: str, start: str) -> Found:
    """The worst case for L = 1 and mu = q."""
    if (measure, start, q) == ("distance", "value", 0):  # x* may be anywhere
        return Found(math.inf, 0.0, np.zeros_like(H), np.zeros(0))
    return solved(program(H, q, measure, start), on_quadratics(H, q, measure, start))


def program(H: np.ndarray, q: float, measure: str, start: str) -> Estimation:
    """The program of a method. Points are 0 ... N, then x*; G is of x_0 - x*, g_0, ..., g_N.

    From a value and without strong convexity, x_0 - x* is in no inequality but those of x* above the others, and
    the multipliers of these are zero (its square is bounded by nothing): both are left out, since x* may be at
    infinity then, where a solver does not get.
    """
    steps = len(H)
    X, g = np.zeros((2, steps + 2, steps + 2))
    X[:-1, 0], X[1:-1, 1:-1], g[:-1, 1:] = 1, -np.tril(H), np.eye(steps + 1)
    f = np.eye(steps + 2, steps + 1)
    i, j = (~np.eye(steps + 2, dtype=bool)).nonzero()
    if start == "value" and q == 0:
        X, g = X[:, 1:], g[:, 1:]
        below = i <= steps
        i, j = i[below], j[below]
    D, E = X[i] - X[j], g[i] - g[j]
    # times 1 - q, which may be small
    forms = (1 - q) * _form(g[j], D) + (_form(E, E) + q * _form(D, D) - 2 * q * _form(E, D)) / 2
    nothing, none = np.zeros_like(forms[0]), np.zeros(steps + 1)
    aim, aims = {
        "value": (nothing, f[-2]),
        "gradient": (_form(g[-2], g[-2]), none),
        "distance": (_form(X[-2], X[-2]), none),
    }[measure]
    first, firsts = (_form(X[0], X[0]), none) if start == "distance" else (nothing, f[0])
    return Estimation(forms, (1 - q) * (f[j] - f[i]), aim, aims, first, firsts, X, g, i, j, q, measure)


def _form(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """u.v as a symmetric matrix against the Gram matrix."""
    product = u[..., :, None] * v[..., None, :]
    return (product + np.swapaxes(product, -1, -2)) / 2


def on_quadratics(H: np.ndarray, q: float, measure: str, start: str) -> float:
    """The largest error on t x^2 / 2 for numbers t from q to 1: a worst case is no smaller."""
    t = np.linspace(max(q, 1 / POINTS), 1, POINTS)
    x = np.ones((len(H) + 1, POINTS))
    for k, row in enumerate(H):
        x[k + 1] = 1 - t * (row[: k + 1] @ x[: k + 1])
    values = {"value": t / 2, "gradient": t**2, "distance": 1.0}[measure] * x[-1] ** 2
    return float(np.max(values if start == "distance" else values * 2 / t))


def solved(problem: Estimation, least: float = 0.0) -> Found:
    """The better of two attempts, the second in units in which what the first one found is about 1; made where the
    first does not reach a relative accuracy of `GOOD`. least: what the value is not below."""
    best = Found(math.nan, math.inf, np.zeros(0), np.zeros(0))
    lengths, sizes = np.ones(len(problem.aim)), np.ones(len(problem.aims))
    for _ in range(2):
        G, f, pairs, first = _solution(problem, lengths, sizes)
        upper, lower = _between(problem, G, f, pairs, first)
        accuracy = upper - max(lower, least)
        if -GOOD * upper <= accuracy < best.accuracy:
            best = Found(upper, max(accuracy, 0.0), _slopes(problem, G, pairs), pairs)
        if best.accuracy <= GOOD * best.value:
            return best
        lengths, sizes = np.sqrt(np.maximum(np.diag(G), SMALLEST)), np.maximum(np.abs(f), SMALLEST)
    if not best.accuracy <= max(WORST * best.value, NEGLIGIBLE):
        raise InputError(
            f"the worst case could not be computed: it is at least {least:.3g}. The steps are too large or too many, or "
            "mu and L too far apart, for the digits of the solver."
        )
    return best


def _solution(
    problem: Estimation, lengths: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """What the solver finds: G, f, the multipliers of the pairs and that of the start. lengths, sizes: units of the
    vectors that G is of, and of f."""
    triangle, pairs = Triangle(len(problem.aim), lengths), len(problem.i)

    def rows(matrices: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.concatenate([triangle.form(matrices), values * sizes], axis=-1)

    aim, first = rows(problem.aim, problem.aims), rows(problem.first, problem.firsts)
    cone = np.eye(len(triangle), len(aim))
    A = np.concatenate([rows(problem.forms, problem.values), first[None], -cone])
    b = np.zeros(len(A))
    b[pairs] = 1
    scale = np.abs(aim).max()
    cones = [("positive", pairs + 1), ("semidefinite", triangle.size)]
    x, z = minimise(None, -aim / scale, A, b, cones)
    z = np.maximum(z[: pairs + 1], 0) * scale
    return triangle.matrix(x[: len(triangle)]), x[len(triangle) :] * sizes, z[:-1], float(z[-1])


def _between(
    problem: Estimation, G: np.ndarray, f: np.ndarray, pairs: np.ndarray, first: float
) -> tuple[float, float]:
    """Two numbers with the worst case between them, for errors that are small.

    The multipliers bound every function: <aim, G> + aims.f <= first - <S, G> - s.f with S and s below, which should
    be positive semidefinite and zero; what they are not is charged at the size of the worst function. That
    function reaches its own value, less what it violates, at the price of the multipliers.
    """
    S = first * problem.first + np.tensordot(pairs, problem.forms, 1) - problem.aim
    s = first * problem.firsts + pairs @ problem.values - problem.aims
    upper = first + max(-np.linalg.eigvalsh(S)[0], 0) * np.trace(G) + np.abs(s) @ np.abs(f)
    violated = np.maximum(np.tensordot(problem.forms, G, 2) + problem.values @ f, 0) @ pairs
    violated += max(np.sum(problem.first * G) + problem.firsts @ f - 1, 0) * first
    violated += max(-np.linalg.eigvalsh(G)[0], 0) * np.trace(S)
    reached = np.sum(problem.aim * G) + problem.aims @ f - violated
    return float(max(upper, reached)), float(reached)


def _slopes(problem: Estimation, G: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """The derivative in H: that of the Lagrangian, at the worst function and the multipliers. Where several
    functions are worst, or several multipliers belong to one, there is no derivative, and this is not one."""
    (X, g, i, j, q), steps = problem[6:11], len(problem.aims) - 1
    pulls = pairs[:, None] * (((1 - q) * g[j] + q * (X[i] - X[j]) - q * (g[i] - g[j])) @ G)
    moved = np.zeros_like(X)
    np.subtract.at(moved, i, pulls)
    np.add.at(moved, j, pulls)
    if problem.measure == "distance":
        moved[-2] += 2 * X[-2] @ G
    return np.tril(-moved[1:-1, -steps - 1 : -1])
