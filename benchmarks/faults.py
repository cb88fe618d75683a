"""Does any status of `method.solve` say what is not true? Adversarial systems, recomputed in extended precision.

Every structure, both precisions, scales of A and b from the smallest normal number to 1e30, starts from the solution itself to
1e12 times as far away, with a tolerance and without. Run from the source folder:

    PYTHONPATH=src python benchmarks/faults.py [problems in all, 20,000] [structures]

It ends with a table of what was found wrong, which should be empty.
"""

import sys
import time
from collections import Counter
from typing import Any

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402

import lfom  # noqa: E402
from lfom.solving import statuses  # noqa: E402

D, STEPS = 6, 5
STRUCTURES = (
    "scalar", "diagonal", "preconditioned:diagonal", "preconditioned:jacobi+low-rank", "preconditioned:full",
    "conjugate:diagonal", "conjugate:jacobi+diagonal", "conjugate:jacobi+full",
)  # fmt: skip
TOLERANCES = (None, 0.5, 1e-2, "smallest")
SLACK = 1e-9  # of the recomputed residual


def family(count: int, rng: Any) -> Any:
    shared = np.random.default_rng(99).normal(size=(D, D)) / D**0.5 * np.linspace(0.2, 1.5, D)
    X = rng.normal(size=(count, 24, D)) @ shared
    A = np.einsum("pni,pnj->pij", X, X) / 24 + 0.01 * np.eye(D)
    return (A + A.swapaxes(1, 2)) / 2, np.einsum("pij,pj->pi", A, rng.normal(size=(count, D)))


def adversarial(count: int, rng: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, b and starts: of the family, ill conditioned, singular, indefinite by rounding, with one large eigenvalue, and
    zero; times factors over the whole range of numbers."""
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
    smallest, largest = np.log10(float(np.finfo(dtype).tiny)), 30.0
    powers = rng.uniform(smallest, largest, (2, count))
    powers[:, rng.integers(0, 3, count) == 0] = 0  # a third as they are
    A, b = (np.asarray(x, np.longdouble) for x in (A, b))
    A = (A * np.longdouble(10) ** powers[0][:, None, None]).astype(dtype)
    b = (b * np.longdouble(10) ** powers[1][:, None]).astype(dtype)
    with np.errstate(all="ignore"):
        size = np.where(powers[1] - powers[0] > largest, largest, powers[1] - powers[0])
        best = np.stack([_solution(a, c) for a, c in zip(A, b, strict=True)])
        away = 10.0 ** rng.uniform(-18, 12, count) * 10.0 ** np.clip(size, -300, 300)
        start = best + away[:, None] * rng.normal(size=b.shape)
        start = np.where(np.isfinite(start.astype(dtype)), start, 0).astype(dtype)
    return A, b, start


def _solution(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    scale, size = float(np.abs(A).max()) or 1.0, float(np.abs(b).max()) or 1.0
    unit = np.linalg.lstsq(A.astype(float) / scale, b.astype(float) / size, rcond=None)[0]
    return np.asarray(unit, np.longdouble) * (np.longdouble(size) / np.longdouble(scale))


def wrong(A: Any, b: Any, start: Any, found: Any, tolerance: float | None) -> dict[str, np.ndarray]:
    """Which statuses are not true, by what is wrong with them."""
    A, b, start, w = (np.asarray(x).astype(np.longdouble) for x in (A, b, start, found.value))
    status, eps = np.asarray(found.status), np.finfo(found.value.dtype).eps

    def energy(w: Any) -> Any:
        return np.einsum("pi,pij,pj->p", w, A, w) / 2 - np.einsum("pi,pi->p", b, w)

    def left(w: Any) -> Any:
        return np.sqrt(((b - np.einsum("pij,pj->pi", A, w)) ** 2).sum(axis=1))

    before, after, scale = left(start), left(w), np.abs(A).max(axis=(1, 2))
    room = eps * (np.abs(energy(start)) + scale * (w**2).sum(axis=1) + np.abs(b * w).sum(axis=1))
    unit = (A / np.where(scale > 0, scale, 1)[:, None, None]).astype(float)
    lowest = np.linalg.eigvalsh(unit)[:, 0]
    highest = np.linalg.eigvalsh(unit)[:, -1]
    limits = np.finfo(found.value.dtype)
    least = float(limits.tiny) / float(limits.eps) ** 2  # beyond, products are lost
    easy = (scale > 0) & (lowest > 1e-3 * highest)
    fair = (scale > 10 * least) & (scale < 0.1 / least)
    reachable = (np.abs(b).max(axis=1) / np.where(scale > 0, scale, 1) < 1e-3 * float(limits.max)) & (
        np.abs(b).max(axis=1) / np.where(scale > 0, scale, 1) > 1e6 * float(limits.tiny)
    )
    says = {
        "value not finite": ~np.isfinite(w.astype(float)).all(axis=1) & (status != statuses.NOT_FINITE),
        "worse than the start": energy(w) > energy(start) + room,
        "not finite, and all is": (status == statuses.NOT_FINITE) & (before < float(limits.max) / 10),
        "not definite, and it is": (status == statuses.NOT_DEFINITE) & easy,
        "no progress on an easy one": (status == statuses.NO_PROGRESS)
        & easy
        & fair
        & reachable
        & (before > 100 * eps * scale * np.sqrt((start**2).sum(axis=1)))
        & (before > 1e3 * float(limits.tiny)),
    }
    if tolerance is not None:
        met = (status >= statuses.MET) & (status < statuses.NOT_MET)
        says["met, and it is not"] = met & (after > tolerance * before * (1 + SLACK))
        seen = eps * D * scale * (np.sqrt((w**2).sum(axis=1)) + np.sqrt((start**2).sum(axis=1)))
        seen += float(limits.tiny) * 100 * (1 + scale + np.abs(w).sum(axis=1))
        clear = (after < 0.5 * tolerance * before) & (seen < 0.1 * tolerance * before)
        says["not met, and it is"] = (status >= statuses.NOT_MET) & clear
    return says


def main(count: int, *structures: str) -> None:
    structures = structures or STRUCTURES
    rng = np.random.default_rng([0, *map(ord, structures[0])])
    learning = lfom.LinearSystems(*family(60, rng))
    begun, faults, total, ends = time.perf_counter(), Counter(), 0, Counter()
    each = -(-count // (len(structures) * 2 * len(TOLERANCES) * 2))
    for name in structures:
        learned = lfom.learn(learning, STEPS, name, iterations=3)
        for dtype in (np.float32, np.float64):
            method = learned.astype(dtype)
            for tolerance in TOLERANCES:
                limit = method.floor if tolerance == "smallest" else tolerance
                for begins in (False, True):
                    A, b, start = adversarial(each, rng, dtype)
                    at = start if begins else np.zeros_like(start)
                    options = {"tolerance": limit} if limit else {"steps": 12}
                    found = method.solve(lfom.LinearSystems(A, b), **options, start=at if begins else None)
                    total += each
                    ends.update(np.asarray(found.status).tolist())
                    for what, which in wrong(A, b, at, found, limit).items():
                        if which.any():
                            faults[what, name, np.dtype(dtype).name, str(tolerance), begins] += int(
                                which.sum()
                            )
                            i = int(np.flatnonzero(which)[0])
                            print(f"  {what}: {name} {np.dtype(dtype).name} tolerance {limit} start {begins} problem {i} "
                                  f"status {int(found.status[i])} |A| {np.abs(A[i]).max():.1e} |b| {np.abs(b[i]).max():.1e} "
                                  f"|start| {np.abs(at[i]).max():.1e} |w| {np.abs(np.asarray(found.value[i])).max():.1e}", flush=True)  # fmt: skip
    print(f"{total} problems in {time.perf_counter() - begun:.0f} s; statuses {dict(sorted(ends.items()))}")
    print(f"{sum(faults.values())} false statuses")
    for key, number in sorted(faults.items()):
        print(f"{number:6d}  {key}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000, *sys.argv[2:])
