"""Are AdaGrad and Adam linear first-order methods with fixed coefficients? (Section 1, docs/mathematics.md 2.16)"""

import numpy as np

from lfom.experiments.statistics import Finding, listed


def adagrad(X: np.ndarray, y: np.ndarray, steps: int, eta: float = 0.5) -> np.ndarray:
    w = total = np.zeros(X.shape[1])
    for _ in range(steps):
        g = X.T @ (X @ w - y) / len(y)
        total = total + g**2
        w = w - eta * g / (np.sqrt(total) + 1e-12)
    return w


def adam(X: np.ndarray, y: np.ndarray, steps: int, eta: float = 0.3) -> np.ndarray:
    w = m = v = np.zeros(X.shape[1])
    for k in range(1, steps + 1):
        g = X.T @ (X @ w - y) / len(y)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w = w - eta * (m / (1 - 0.9**k)) / (np.sqrt(v / (1 - 0.999**k)) + 1e-12)
    return w


def nonlinearity(seed: int = 0) -> Finding:
    """A method with fixed coefficients is linear in the labels on a quadratic; measure how far
    doubling the labels is from doubling the answer."""
    rng = np.random.default_rng(seed)
    errors: dict[str, list[float]] = {"AdaGrad": [], "Adam": []}
    for _ in range(100):
        X, w = rng.normal(size=(20, 5)), rng.normal(size=5)
        for name, method in (("AdaGrad", adagrad), ("Adam", adam)):
            once, twice = method(X, X @ w, 4), method(X, 2 * X @ w, 4)
            errors[name].append(float(np.linalg.norm(twice - 2 * once) / np.linalg.norm(2 * once)))
    return Finding(
        "fixed coefficients make the answer linear in the labels on least squares: doubling the labels must "
        "double the answer (relative error below 1e-6 on every one of 100 problems)",
        [min(each) < 1e-6 for each in errors.values()],
        listed(
            errors, lambda each: f"relative error {np.mean(each):.2f} on average, {min(each):.2f} at least"
        ),
    )
