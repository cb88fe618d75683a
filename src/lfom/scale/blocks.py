"""method.map_blocks: a method on the blocks of Dask arrays."""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from lfom.core.checks import InputError, keeps_precision
from lfom.core.methods import Algorithm
from lfom.files import as_bytes, of_bytes
from lfom.scale.extras import extra
from lfom.solving import LeastSquaresProblems, LinearSystems, kinds
from lfom.solving.solve import check_dtype, check_kind, check_shape


class Blocks(NamedTuple):
    """Dask arrays, not computed yet: value (problems, d) and status (problems,), see `Solution`."""

    value: Any
    status: Any


def map_blocks(
    method: Algorithm, sides: Any, X: Any, A: Any, ridge: float, steps: int | None, tolerance: float | None
) -> Blocks:
    """See `Method.map_blocks`."""
    da = extra("dask.array", "map_blocks")
    if (X is None) == (A is None):
        raise InputError(
            "map_blocks takes the right-hand sides, and X=... (least squares) or A=... (systems)."
        )
    if not isinstance(sides, da.Array) or sides.ndim != 2:
        raise InputError(
            f"the first argument of map_blocks is a {type(sides).__name__}: pass a Dask array with two axes, of problems "
            "and of what each has."
        )
    name, given_matrix = ("A", A) if X is None else ("X", X)
    shared = not isinstance(given_matrix, da.Array)
    matrix: Any = np.asarray(given_matrix) if shared else given_matrix
    _check_shapes(name, matrix.shape, sides.shape, shared)
    d, dtype = matrix.shape[-1], np.dtype(sides.dtype)
    for label, array in ((name, matrix), ("the right-hand sides", sides)):
        keeps_precision(label, array)
    check_kind(method, kinds.SYSTEMS if X is None else kinds.LEAST_SQUARES)
    check_shape(method, (d,))
    check_dtype(method, dtype, "these arrays")
    sides = sides.rechunk({1: -1})
    common = {
        "content": as_bytes(method, "a worker"),
        "kind": name,
        "shared": matrix if shared else None,
        "options": (float(ridge), steps, tolerance, bool(jax.config.jax_enable_x64)),  # type: ignore[attr-defined]
    }
    given: tuple[Any, ...] = (sides, "pn") if shared else (sides, "pn", matrix.rechunk({1: -1, 2: -1}), "pab")
    made: dict[str, Any] = {"new_axes": {"w": d + 1}, "dtype": dtype, "meta": np.zeros((0, 0), dtype)}
    packed = da.blockwise(_solved, "pw", *given, concatenate=True, **made, **common)
    return Blocks(packed[:, :d], packed[:, d].astype(np.int64))


def _check_shapes(name: str, matrix: tuple[int, ...], sides: tuple[int, ...], shared: bool) -> None:
    wanted = (sides[1], None) if shared else (*sides, None)
    fits = len(matrix) == len(wanted) and all(w in (None, m) for m, w in zip(matrix, wanted, strict=True))
    if not fits or (name == "A" and matrix[-1] != sides[1]):
        told = "(d, d)" if name == "A" else "(n, d)"
        raise InputError(
            f"{name} has shape {matrix}, and the right-hand sides {sides}: pass one {told} for all problems, or a Dask array "
            f"with an axis of problems before it."
        )


def _solved(
    sides: np.ndarray,
    matrices: np.ndarray | None = None,
    *,
    content: bytes,
    kind: str,
    shared: np.ndarray | None,
    options: tuple[float, int | None, float | None, bool],
) -> np.ndarray:
    """w and behind it the status of every problem of a block. Statuses are small whole numbers, exact in any precision."""
    ridge, steps, tolerance, double = options
    if not len(sides):
        return np.zeros((0, 1), sides.dtype)
    with jax.enable_x64(double):
        method = _method(content, double)
        matrix, rows = (matrices, sides) if shared is None else (shared, sides.T)
        problems: Any = (
            LinearSystems(matrix, rows) if kind == "A" else LeastSquaresProblems(matrix, rows, ridge)
        )
        found = method.solve(problems, steps, tolerance)
        w, status = np.asarray(found.value), np.asarray(found.status)
    w = w if shared is None else w.T
    return np.concatenate([w, status[:, None].astype(w.dtype)], axis=1)


@functools.lru_cache(maxsize=4)
def _method(content: bytes, double: bool) -> Any:
    return of_bytes(content, "the method")[0]
