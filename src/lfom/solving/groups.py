"""Groups of different lengths as one array.

Shorter groups are filled up with rows of weight 0. So that a few long groups do not decide what all others cost,
those longer than twice the mean are shortened: all that a regression reads of a group are its weight, its means and the
second moments about them, and d + outputs + 1 rows hold these.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lfom.core import checks
from lfom.core.arrays import numpy_or_jax
from lfom.core.checks import InputError


def padded(X: Sequence[Any], y: Any, weights: Any) -> tuple[Any, Any, Any]:
    """X (problems, n, d), y (problems, n, *outputs) and weights (problems, n) from lists with one entry per group."""
    xs = _arrays("X", X, X)
    ys = _arrays("y", y, X)
    one = np.dtype(xs[0].dtype).type(1)
    ws = [np.full(len(x), one) for x in xs] if weights is None else _arrays("weights", weights, X)
    if numpy_or_jax(*xs, *ys, *ws) is np:
        check_weights(ws)
        longest = 2 * sum(map(len, xs)) / len(xs)
        for i, x in enumerate(xs):
            if len(x) > max(longest, x.shape[1] + ys[i][0].size + 1):
                xs[i], ys[i], ws[i] = shortened(x, ys[i], ws[i])
    rows = max(map(len, xs))
    return _filled(xs, rows), _filled(ys, rows), _filled(ws, rows)


def _arrays(name: str, some: Any, X: Sequence[Any]) -> list[Any]:
    """One array per group, all alike but for their length, which is that of X."""
    if not np.iterable(some) or len(list(some)) != len(X):
        raise InputError(f"X is a list of {len(X)} groups: pass {name} as a list with one array for each.")
    found = checks.arrays_in(name, some)
    for i, (one, rows) in enumerate(zip(found, X, strict=True)):
        if one.shape[:1] != np.shape(rows)[:1] or 0 in one.shape:
            raise InputError(
                f"{name} of group {i} has shape {one.shape}, and its X {np.shape(rows)}: both have one row per example, and "
                "at least one."
            )
        if one.shape[1:] != found[0].shape[1:] or one.dtype != found[0].dtype:
            raise InputError(
                f"{name} of group {i} has {one.dtype} rows of shape {one.shape[1:]}, that of group 0 {found[0].dtype} rows of "
                f"{found[0].shape[1:]}. Groups may differ in the number of rows only."
            )
    return found


def _filled(some: list[Any], rows: int) -> Any:
    """On one array, with zeros behind shorter ones."""
    xp = numpy_or_jax(*some)
    if xp is np:
        whole = np.zeros((len(some), rows, *some[0].shape[1:]), some[0].dtype)
        for place, one in zip(whole, some, strict=True):
            place[: len(one)] = one
        return whole
    return xp.stack([xp.pad(one, [(0, rows - len(one))] + [(0, 0)] * (one.ndim - 1)) for one in some])


def shortened(X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fewer rows with the same weight in all, the same means and the same second moments about them: R of a QR
    decomposition has the moments, and an orthonormal basis of what is orthogonal to (1, ..., 1) moves no mean."""
    Z = np.column_stack([X, y]).astype(np.float64)
    total = float(weights.sum())
    shares = weights.astype(np.float64) / total
    with np.errstate(invalid="ignore"):  # what is not finite gets a status in solve
        mean = shares @ Z
        R = np.linalg.qr(np.sqrt(shares)[:, None] * (Z - mean), mode="r")
    m = len(R) + 1
    v = np.full(m, m**-0.5)
    v[0] += 1
    # Householder's reflection of e_1 to (1, ..., 1)
    basis = np.eye(m)[:, 1:] - np.outer(v, v[1:]) * 2 / (v @ v)
    short = (mean + m**0.5 * basis @ R).astype(X.dtype)
    d = X.shape[1]
    return short[:, :d], short[:, d:].reshape(m, *y.shape[1:]), np.full(m, total / m, weights.dtype)


def check_weights(weights: Iterable[np.ndarray]) -> None:
    """Some may be 0, not all of a problem; NaN gets a status in solve."""
    for i, one in enumerate(weights):
        if (one < 0).any():
            raise InputError(
                f"the weights of problem {i} hold {one.min()}: they must be 0 or greater. Pass 0 to leave a row out."
            )
        if not one.any():
            raise InputError(
                f"the weights of problem {i} are all 0: nothing is left of it. Leave the problem out."
            )
