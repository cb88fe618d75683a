"""The Bayes predictor and ridge regression after every number of examples, in float64 on the host.

With w* ~ N(0, C) and label noise s the mean of w* given k examples is w_k = C X^T (X C X^T + s^2 I)^-1 y, ridge is the
same with C = I and its strength for s^2. The matrix for k examples is a block of that for more, and so is its Cholesky
factor L: with L V = X and L z = y,

    w_k = C sum over j <= k of V_j z_j

so that one factor serves every k. In float32 the Gram matrix of k = d examples has too few digits: without noise the
loss there would be that of rounding.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lfom.prompts.distributions import Prior

NO_NOISE = 1e-12  # stands for no noise, relative to the mean of x.Cx: far above rounding, far below all that is measured
LONG = 64  # with more examples than this, and than d, each k has a system of d equations


def posterior_means(X: Any, y: Any, prior: Prior, contexts: Sequence[int]) -> np.ndarray:
    """E[w* | the first k examples] for each k of `contexts`: (prompts, contexts, d) from X (prompts, n, d), y (prompts, n).

    >>> rng = np.random.default_rng(0)
    >>> X, w = rng.normal(size=(1, 5, 2)), rng.normal(size=2)
    >>> found = posterior_means(X, X @ w, Prior(np.eye(2), 0.0), [1, 5])
    >>> bool(np.allclose(found[0, 1], w)), bool(np.allclose(found[0, 0], w))
    (True, False)
    """
    X, y, C = (np.asarray(a, np.float64) for a in (X, y, prior.covariance))
    n, d = X.shape[1:]
    spread = X @ C
    scale = np.mean(np.sum(spread * X, axis=2), axis=1)
    variance = np.maximum(float(prior.noise) ** 2, NO_NOISE * scale + np.finfo(float).tiny)[:, None, None]
    most = max(LONG, d)
    short = min(max((k for k in contexts if k <= most), default=0), n)
    K = spread[:, :short] @ np.swapaxes(X[:, :short], 1, 2)
    L = np.linalg.cholesky(K + variance * np.eye(short))
    both = np.linalg.solve(L, np.concatenate([X, y[..., None]], axis=2)[:, :short])
    sums = np.cumsum(both[..., :-1] * both[..., -1:], axis=1) @ C
    found = [sums[:, k - 1] if k <= most else _long(X[:, :k], y[:, :k], C, variance) for k in contexts]
    return np.stack(found, axis=1)


def _long(X: np.ndarray, y: np.ndarray, C: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """(C^1/2 X^T X C^1/2 + s^2 I)^-1 in place of the larger matrix."""
    root = np.linalg.cholesky(C)
    white = X @ root
    gram = np.swapaxes(white, 1, 2) @ white + variance * np.eye(X.shape[2])
    moment = np.sum(white * y[..., None], axis=1)
    return np.linalg.solve(gram, moment[..., None])[..., 0] @ root.T
