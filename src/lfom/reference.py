"""The methods of the paper once more, in plain NumPy and from their textbook form.

Nothing here shares code with the library: `lfom verify` and the tests compare against it.
Every function takes the context X (n, d), y (n,) and returns the iterates w_0 ... w_L.
"""

from collections.abc import Callable, Sequence

import numpy as np

Vector = np.ndarray
Matrix = np.ndarray


def gradient(X: Matrix, y: Vector, w: Vector) -> Vector:
    """The gradient of |Xw - y|^2 / 2n."""
    return X.T @ (X @ w - y) / len(y)


def preconditioned_gradient_descent(X: Matrix, y: Vector, A: Sequence[Matrix]) -> list[Vector]:
    w = [np.zeros(X.shape[1])]
    for A_l in A:
        w.append(w[-1] - A_l.T @ gradient(X, y, w[-1]))
    return w


def momentum(X: Matrix, y: Vector, eta: float, beta: float, steps: int) -> list[Vector]:
    w, v = [np.zeros(X.shape[1])], np.zeros(X.shape[1])
    for _ in range(steps):
        v = beta * v - eta * gradient(X, y, w[-1])
        w.append(w[-1] + v)
    return w


def heavy_ball(X: Matrix, y: Vector, eta: float, beta: float, steps: int) -> list[Vector]:
    w = [np.zeros(X.shape[1])]
    for k in range(steps):
        previous = w[k - 1] if k else w[0]
        w.append(w[k] - eta * gradient(X, y, w[k]) + beta * (w[k] - previous))
    return w


def nesterov(X: Matrix, y: Vector, eta: float, beta: float, steps: int) -> list[Vector]:
    w = [np.zeros(X.shape[1])]
    for k in range(steps):
        previous = w[k - 1] if k else w[0]
        v = w[k] + beta * (w[k] - previous)
        w.append(v - eta * gradient(X, y, v))
    return w


def chebyshev(X: Matrix, y: Vector, lowest: float, highest: float, steps: int) -> list[Vector]:
    """By the recurrence of the scaled Chebyshev polynomials themselves."""
    H, b = X.T @ X / len(y), X.T @ y / len(y)
    theta, delta = (highest + lowest) / 2, (highest - lowest) / 2
    w = [np.zeros(X.shape[1]), b / theta]
    sigma = theta / delta
    before, now = 1.0, sigma
    for _ in range(1, steps):
        after = 2 * sigma * now - before
        omega = 2 * sigma * now / after
        w.append(omega * (w[-1] + (b - H @ w[-1]) / theta) + (1 - omega) * w[-2])
        before, now = now, after
    return w[: steps + 1]


def conjugate_gradient(
    X: Matrix, y: Vector, steps: int, A: Matrix | None = None, stop: float = 0.0
) -> list[Vector]:
    """Preconditioned conjugate gradients, stopped once r.Ar falls below stop^2 of its first."""
    H = X.T @ X / len(y)
    A = np.eye(X.shape[1]) if A is None else A
    w, r = [np.zeros(X.shape[1])], X.T @ y / len(y)
    z = A @ r
    s, rho = z, r @ z
    first = rho
    for _ in range(steps):
        curvature = s @ H @ s
        if not (rho > stop**2 * first and curvature > 0):
            w.append(w[-1])
            continue
        alpha = rho / curvature
        w.append(w[-1] + alpha * s)
        r = r - alpha * H @ s
        z = A @ r
        s, rho = z + (r @ z) / rho * s, r @ z
    return w


def lfom(X: Matrix, y: Vector, coefficients: np.ndarray) -> list[Vector]:
    """w^{k+1} = w^0 + sum_{i <= k} Gamma_i^k grad R(w^i), Gamma[k, i] a number or a diagonal."""
    w, gradients = [np.zeros(X.shape[1])], []
    for k in range(len(coefficients)):
        gradients.append(gradient(X, y, w[k]))
        w.append(w[0] + sum(coefficients[k, i] * gradients[i] for i in range(k + 1)))
    return w


def tokens(X: Matrix, y: Vector, query: Vector) -> Matrix:
    return np.vstack([np.vstack([X, query]).T, np.append(y, 0.0)])


def attention(Z: Matrix, P: Matrix, Q: Matrix) -> Matrix:
    """Masked linear attention, token by token."""
    out = np.zeros_like(Z)
    for column in range(Z.shape[1]):
        for token in range(Z.shape[1] - 1):  # the query is masked
            out[:, column] += P @ Z[:, token] * (Z[:, token] @ Q @ Z[:, column])
    return out


def sparse_weights(A: Matrix, B: Matrix | None) -> tuple[Matrix, Matrix]:
    d = A.shape[0]
    P, Q = np.zeros((d + 1, d + 1)), np.zeros((d + 1, d + 1))
    P[:d, :d] = 0 if B is None else B
    P[d, d] = 1
    Q[:d, :d] = -A
    return P, Q


def memformer(
    Z: Matrix,
    directions: Sequence[Callable[[Matrix], Matrix]],
    combine: Callable[[int, list[Matrix]], Matrix],
) -> list[float]:
    """Predictions of a Memformer: each layer's direction is stored, `combine` makes the step."""
    predictions, stored = [-Z[-1, -1]], []
    for layer, direction in enumerate(directions):
        stored.append(direction(Z) / (Z.shape[1] - 1))
        Z = Z + combine(layer, stored)
        predictions.append(-Z[-1, -1])
    return predictions


# k(x, x') from their definitions.
KERNELS: dict[str, Callable[[Vector, Vector], float]] = {
    "linear-kernel": lambda x, z: float(x @ z),
    "exponential": lambda x, z: float(np.exp(x @ z)),
    "gaussian": lambda x, z: float(np.exp(-np.sum((x - z) ** 2) / 2)),
    "arc-cosine": lambda x, z: _arc_cosine(x, z),
}


def _arc_cosine(x: Vector, z: Vector) -> float:
    size = np.linalg.norm(x) * np.linalg.norm(z)
    angle = np.arccos(np.clip(x @ z / size, -1, 1))
    return float(size * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi)


def functional_descent(
    X: Matrix, y: Vector, query: Vector, kernel: Callable[[Vector, Vector], float], table: Matrix
) -> list[float]:
    """The prediction for the query after 0, 1, ... steps on functions: the gradient of |f(X) - y|^2 / 2n at f is the
    function (1/n) sum_i (f(x_i) - y_i) k(x_i, .); step l is minus the sum over j of table[l, j] times gradient j."""
    tokens, n = [*X, query], len(y)
    f = np.zeros(n + 1)  # the function at all tokens
    gradients: list[Vector] = []
    found = [0.0]
    for row in table:
        gradients.append(
            np.array([sum((f[i] - y[i]) * kernel(X[i], t) for i in range(n)) / n for t in tokens])
        )
        f = f - sum(c * g for c, g in zip(row, gradients, strict=False))
        found.append(float(f[-1]))
    return found
