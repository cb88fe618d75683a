"""Does any status of `method.solve` say what is not true? Adversarial problems, recomputed in extended precision.

Every kind of problem with every structure that `learn` has for it, both precisions, scales from the smallest normal number to
1e30, starts from the solution itself to 1e12 times as far away, with a tolerance and without. Run from the source folder:

    PYTHONPATH=src python benchmarks/faults.py [problems in all, 20,000] [kinds, or kind/structure]

Kinds: systems, regressions (with weights, an intercept, groups of any length), operators, grids, losses. A program is compiled for
every structure and precision, with and without tolerance and start in turn. It ends with a table of what was found wrong, which
should be empty.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import lfom  # noqa: E402
from lfom.solving import statuses  # noqa: E402
from lfom.solving.structures import available  # noqa: E402

D, ROWS, STEPS = 6, 24, 5
GRID = (2, 3)
ONE_PROGRAM = (64, 250, 1_000)  # problems that are solved in one part, see lfom.solving.sizes
TOLERANCES = (0.5, 1e-2, "smallest")
SLACK = 1e-9  # of the recomputed residual
VARIANTS = ((True, True), (False, False), (True, False), (False, True))  # a tolerance, a start
LONG = np.longdouble


class Batch(NamedTuple):
    """Problems as solve gets them, and A, b and the starts, flat, in extended precision. size: of the largest number that a
    problem is made of."""

    problems: Any
    A: np.ndarray
    b: np.ndarray
    start: np.ndarray
    size: np.ndarray


def rows_of(count: int, rng: Any) -> np.ndarray:
    shared = np.random.default_rng(99).normal(size=(D, D)) / D**0.5 * np.linspace(0.2, 1.5, D)
    return rng.normal(size=(count, ROWS, D)) @ shared


def family(count: int, rng: Any) -> tuple[np.ndarray, np.ndarray]:
    X = rows_of(count, rng)
    A = np.einsum("pni,pnj->pij", X, X) / ROWS + 0.01 * np.eye(D)
    return (A + A.swapaxes(1, 2)) / 2, np.einsum("pij,pj->pi", A, rng.normal(size=(count, D)))


def powers(count: int, rng: Any, dtype: Any, share: float = 1.0) -> np.ndarray:
    """Two exponents of ten for every problem over the whole range of numbers, a third of them 0."""
    found = rng.uniform(share * np.log10(float(np.finfo(dtype).tiny)), share * 30.0, (2, count))
    found[:, rng.integers(0, 3, count) == 0] = 0
    return found


def scaled(array: np.ndarray, exponent: np.ndarray, dtype: Any) -> np.ndarray:
    factor = LONG(10) ** exponent.reshape(-1, *[1] * (array.ndim - 1))
    with np.errstate(all="ignore"):
        return (np.asarray(array, LONG) * factor).astype(dtype)


def matrices(count: int, rng: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """A and b: of the family, ill conditioned, singular, indefinite by rounding, with one large eigenvalue, and zero; times
    factors over the whole range of numbers."""
    Q = np.linalg.qr(rng.normal(size=(count, D, D)))[0]
    low, high = rng.uniform(-8, 1, count), rng.uniform(-1, 2, count)
    eigenvalues = 10 ** (low[:, None] + (high - low)[:, None] * rng.uniform(0, 1, (count, D)))
    kind = rng.integers(0, 8, count)
    eigenvalues[kind == 0, : D // 2] = 0
    eigenvalues[kind == 1, 0] = -1e-16 * eigenvalues[kind == 1].max(1)
    eigenvalues[kind == 2, 0] = 1e4
    eigenvalues[kind == 3] = 0
    A = np.einsum("pij,pj,pkj->pik", Q, eigenvalues, Q)
    A = np.where((kind >= 5)[:, None, None], family(count, rng)[0], (A + A.swapaxes(1, 2)) / 2)
    b = rng.normal(size=(count, D))
    inside = rng.integers(0, 2, count) == 0
    b = np.where((inside & (kind != 3))[:, None], np.einsum("pij,pj->pi", A, b), b)
    exponents = powers(count, rng, dtype)
    return scaled(A, exponents[0], dtype), scaled(b, exponents[1], dtype)


def begun(A: np.ndarray, b: np.ndarray, rng: Any, dtype: Any) -> np.ndarray:
    """Starts from the solution itself to far away; some of them subnormal numbers."""
    with np.errstate(all="ignore"):
        best = np.stack([_solution(a, c) for a, c in zip(A, b, strict=True)])
        size = np.abs(b).max(axis=1) / np.where(A.any(axis=(1, 2)), np.abs(A).max(axis=(1, 2)), 1)
        away = LONG(10) ** rng.uniform(-18, 12, len(b)) * np.clip(size, LONG("1e-300"), LONG("1e30"))
        start = best + away[:, None] * rng.normal(size=b.shape)
        tiny = rng.integers(0, 20, len(b)) == 0
        subnormal = rng.uniform(-1, 1, b.shape) * LONG(np.finfo(dtype).tiny)
        start = np.where(tiny[:, None], subnormal, start)
        return np.where(np.isfinite(start.astype(dtype)), start, 0).astype(dtype)


def _solution(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    scale, size = np.abs(A).max() or LONG(1), np.abs(b).max() or LONG(1)
    unit = np.linalg.lstsq((A / scale).astype(float), (b / size).astype(float), rcond=None)[0]
    return np.asarray(unit, LONG) * (LONG(size) / LONG(scale))


def _batch(problems: Any, A: np.ndarray, b: np.ndarray, size: Any, rng: Any, dtype: Any) -> Batch:
    A, b = A.astype(LONG), b.astype(LONG)
    return Batch(problems, A, b, begun(A, b, rng, dtype), size)


def systems(count: int, rng: Any, dtype: Any) -> Batch:
    A, b = matrices(count, rng, dtype)
    return _batch(lfom.LinearSystems(A, b), A, b, np.abs(A).max(axis=(1, 2)), rng, dtype)


def product(A: Any, v: Any) -> Any:
    return jnp.matmul(A, v.ravel(), precision="highest").reshape(v.shape)


def operators(count: int, rng: Any, dtype: Any) -> Batch:
    A, b = matrices(count, rng, dtype)
    return _batch(lfom.LinearSystems(product, b, data=A), A, b, np.abs(A).max(axis=(1, 2)), rng, dtype)


def grids(count: int, rng: Any, dtype: Any) -> Batch:
    A, b = matrices(count, rng, dtype)
    diagonal = np.diagonal(A, axis1=1, axis2=2).reshape(-1, *GRID)
    problems = lfom.LinearSystems(product, b.reshape(-1, *GRID), data=A, diagonal=diagonal)
    return _batch(problems, A, b, np.abs(A).max(axis=(1, 2)), rng, dtype)


def regressions(count: int, rng: Any, dtype: Any) -> Batch:
    """In turn as they are, with weights, with an intercept, and groups of any length."""
    X, form = rows_of(count, rng), int(rng.integers(0, 4))
    X[rng.integers(0, 4, count) == 0, :, 0] = 0  # singular without a ridge
    y = np.einsum("pni,pi->pn", X, rng.normal(size=(count, D))) + 0.1 * rng.normal(size=(count, ROWS))
    exponents = powers(count, rng, dtype, 0.5)
    X, y = scaled(X, exponents[0], dtype), scaled(y, exponents[1], dtype)
    ridge = scaled(rng.choice([0.0, 0.01], count), 2 * exponents[0], dtype)
    weights = scaled(rng.uniform(1, 10, (count, ROWS)), powers(count, rng, dtype)[0], dtype)  # none subnormal
    lengths = rng.integers(1, ROWS + 1, count)
    kept = np.arange(ROWS) < lengths[:, None] if form == 3 else np.ones((count, ROWS), bool)
    counted = (weights if form == 1 else np.ones_like(weights)) * kept
    if form == 3:
        cut = [slice(n) for n in lengths]
        groups = [[x[c] for x, c in zip(some, cut, strict=True)] for some in (X, y)]
        problems = lfom.LeastSquaresProblems(*groups, ridge)
    else:
        own = {1: {"weights": weights}, 2: {"intercept": True}}.get(form, {})
        problems = lfom.LeastSquaresProblems(X, y, ridge, **own)
    size = np.abs(X).max(axis=(1, 2))
    X, y, shares = (x.astype(LONG) for x in (X, y, counted))
    shares /= shares.sum(axis=1, keepdims=True)
    if form == 2:
        X, y = X - np.einsum("pn,pni->pi", shares, X)[:, None], y - (shares * y).sum(axis=1)[:, None]
    A = np.einsum("pn,pni,pnj->pij", shares, X, X) + ridge.astype(LONG)[:, None, None] * np.eye(D)
    return _batch(problems, A, np.einsum("pn,pni,pn->pi", shares, X, y), size, rng, dtype)


def quadratic_loss(w: Any, data: Any) -> Any:
    A, b = data
    v = w.ravel()
    return jnp.vdot(v, jnp.matmul(A, v, precision="highest")) / 2 - jnp.vdot(b, v)


def losses(count: int, rng: Any, dtype: Any) -> Batch:
    """Quadratics that solve does not know to be: their values and gradients are exact here."""
    A, b = matrices(count, rng, dtype)
    return _batch(
        lfom.ConvexLosses(quadratic_loss, (A, b), GRID), A, b, np.abs(A).max(axis=(1, 2)), rng, dtype
    )


KINDS: dict[str, Callable[[int, Any, Any], Batch]] = {
    "systems": systems, "regressions": regressions, "operators": operators, "grids": grids, "losses": losses,
}  # fmt: skip


def learning(kind: str) -> Any:
    A, b = family(60, np.random.default_rng(1))
    return {
        "systems": lambda: lfom.LinearSystems(A, b),
        "regressions": lambda: lfom.LinearSystems(A, b),
        "operators": lambda: lfom.LinearSystems(product, b, data=A),
        "grids": lambda: lfom.LinearSystems(
            product,
            b.reshape(-1, *GRID),
            data=A,
            diagonal=np.diagonal(A, axis1=1, axis2=2).reshape(-1, *GRID),
        ),
        "losses": lambda: lfom.ConvexLosses(quadratic_loss, (A, b), GRID),
    }[kind]()


def structures(kind: str) -> list[str]:
    shape = GRID if kind in ("grids", "losses") else (D,)
    found = available(shape, kind not in ("operators", "losses"), kind == "losses")
    return [one.name for one in found]


def wrong(
    batch: Batch, start: np.ndarray, found: Any, tolerance: float | None, convex: bool
) -> dict[str, Any]:
    """Which statuses are not true, by what is wrong with them. convex: whether solve takes them for general losses."""
    A, b, count = batch.A, batch.b, len(batch.b)
    start, w = (np.asarray(x).reshape(count, -1).astype(LONG) for x in (start, found.value))
    convex = np.bool_(convex)
    status, limits = np.asarray(found.status), np.finfo(found.value.dtype)
    eps, tiny, most = LONG(limits.eps), LONG(limits.tiny), LONG(limits.max)

    def energy(w: Any) -> Any:
        return np.einsum("pi,pij,pj->p", w, A, w) / 2 - np.einsum("pi,pi->p", b, w)

    def left(w: Any) -> Any:
        return np.sqrt(((b - np.einsum("pij,pj->pi", A, w)) ** 2).sum(axis=1))

    def length(w: Any) -> Any:
        return np.sqrt((w**2).sum(axis=1))

    before, after, scale = left(start), left(w), np.abs(A).max(axis=(1, 2))
    room = eps * (np.abs(energy(start)) + scale * (w**2).sum(axis=1) + np.abs(b * w).sum(axis=1))
    if convex:  # values are compared as they are computed
        room = (
            D * room + D * eps * (scale * (start**2).sum(axis=1) + np.abs(b * start).sum(axis=1)) + D * tiny
        )
    unit = (A / np.where(scale > 0, scale, 1)[:, None, None]).astype(float)
    values = np.linalg.eigvalsh(unit)
    least = tiny / eps**2  # beyond, products are lost
    easy = (scale > 0) & (values[:, 0] > 1e-3 * values[:, -1])
    fair = (
        (scale > 10 * least) & (scale < 0.1 / least) & (batch.size > 10 * least) & (batch.size < 0.1 / least)
    )
    needed = np.abs(b).max(axis=1) / np.where(scale > 0, scale, 1)
    reachable = (needed < 1e-3 * most) & (needed > 1e6 * tiny)
    squares = (np.abs(energy(start)) < most / 100) & (np.abs(energy(_best(A, b))) < most / 100)
    fair &= ~convex | (squares & (np.abs(energy(start) - energy(_best(A, b))) > 1e3 * tiny))
    visible = before > 100 * eps * scale * length(start)
    visible &= ~convex | (energy(start) - energy(_best(A, b)) > 1e3 * room)
    formed = (scale < most / 10 / D) & (batch.size**2 < most / 10)
    products = scale * np.abs(start).sum(axis=1) * (np.maximum(1, np.abs(start).sum(axis=1)) if convex else 1)
    inside = formed & (before < most / 10) & (products < most / 10) & (~convex | squares)
    inside &= np.abs(start).sum(axis=1) + np.abs(_best(A, b)).sum(axis=1) < most / 10
    inside &= before > 100 * D * tiny * scale  # of a step
    if convex:  # no step of the line search reached it, which is what the status says
        easy = np.zeros_like(easy)
    says = {
        "value not finite": ~np.isfinite(w).all(axis=1),
        "worse than the start": energy(w) > energy(start) + room,
        "not finite, and all is": (status == statuses.NOT_FINITE) & formed,
        "out of range, and it is not": (status == statuses.OUT_OF_RANGE) & inside & (easy | convex) & fair & visible
        & (before > 1e3 * tiny * (1 + np.abs(start).sum(axis=1) + np.abs(w).sum(axis=1))),
        "not definite, and it is": (status == statuses.NOT_DEFINITE) & easy,
        "no progress on an easy one": (status == statuses.NO_PROGRESS)
        & easy & fair & reachable & visible & (before > 1e3 * tiny),
        "failed, and not the start": np.isin(status, (statuses.NOT_FINITE, statuses.NO_PROGRESS, statuses.OUT_OF_RANGE))
        & (w != start).any(axis=1),
        "done, and nothing was": (status >= 0) & (status < statuses.MET) & (w == start).all(axis=1) & (before > 0)
        & (np.asarray(found.steps) == 0),
    }  # fmt: skip
    if tolerance is not None:
        met = (status >= statuses.MET) & (status < statuses.NOT_MET)
        says["met, and it is not"] = met & (after > tolerance * before * (1 + SLACK))
        seen = eps * D * scale * (length(w) + length(start))
        seen += tiny * 100 * (1 + scale + np.abs(w).sum(axis=1))
        clear = (after < 0.5 * tolerance * before) & (seen < 0.1 * tolerance * before)
        says["not met, and it is"] = (status >= statuses.NOT_MET) & clear & fair
    return says


def _best(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.stack([_solution(a, c) for a, c in zip(A, b, strict=True)])


def main(count: int, *asked: str) -> None:
    pairs = [(kind, name) for kind in KINDS for name in structures(kind)]
    if asked:
        pairs = [(kind, name) for kind, name in pairs if kind in asked or f"{kind}/{name}" in asked]
    begins, faults, total, ends = time.perf_counter(), Counter[Any](), 0, Counter[int]()
    runs = 2 * len(pairs)
    each = next((n for n in ONE_PROGRAM if n * runs * 3 >= count), ONE_PROGRAM[-1])
    known: dict[Any, Any] = {}
    for number, (kind, name) in enumerate(pairs):
        own = ("systems" if kind == "regressions" else kind, name)
        if own not in known:
            known[own] = lfom.learn(learning(kind), STEPS, name, iterations=0, progress=False)
        for place, dtype in enumerate((np.float32, np.float64)):
            method, (limited, given) = known[own].astype(dtype), VARIANTS[(number + 2 * place + place) % 4]
            for turn in range(3):
                rng = np.random.default_rng([turn, place, *map(ord, kind + name)])
                tolerance = TOLERANCES[turn] if limited else None
                limit = method.floor if tolerance == "smallest" else tolerance
                batch = KINDS[kind](each, rng, dtype)
                start = batch.start if given else np.zeros_like(batch.start)
                options: dict[str, Any] = {"tolerance": limit} if limited else {"steps": 12}
                if given:
                    options["start"] = start.reshape(-1, *method.shape)
                found = method.solve(batch.problems, **options)
                total += each
                ends.update(np.asarray(found.status).tolist())
                for what, which in wrong(batch, start, found, limit, kind == "losses").items():
                    if which.any():
                        faults[what, kind, name, np.dtype(dtype).name, str(tolerance), given] += int(
                            which.sum()
                        )
                        _show(
                            what, kind, name, batch, start, found, limit, turn, int(np.flatnonzero(which)[0])
                        )
    print(f"{total} problems in {time.perf_counter() - begins:.0f} s; statuses {dict(sorted(ends.items()))}")
    print(f"{sum(faults.values())} false statuses")
    for key, times in sorted(faults.items()):
        print(f"{times:6d}  {key}")


def _show(
    what: str, kind: str, name: str, batch: Batch, start: Any, found: Any, limit: Any, turn: int, i: int
) -> None:
    w = np.asarray(found.value).reshape(len(start), -1)
    sizes = " ".join(
        f"|{n}| {float(np.abs(x[i]).max()):.1e}"
        for n, x in zip(("A", "b", "start", "w"), (batch.A, batch.b, start, w), strict=True)
    )
    print(f"  {what}: {kind}/{name} {w.dtype} tolerance {limit} turn {turn} problem {i} status {int(found.status[i])} "
          f"|numbers| {batch.size[i]:.1e} {sizes}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000, *sys.argv[2:])
