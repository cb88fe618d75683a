"""The fault test: 1,000 adversarial problems, and bad input. No wrong success, no trouble for others."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import lfom
from lfom.core.checks import InputError
from lfom.solving import statuses
from tests.learned_problems import (
    classifications,
    energies,
    fresh_regressions,
    grids,
    learned,
    learned_from_losses,
    learned_on_grids,
    regressions,
    systems,
)

pytestmark = pytest.mark.usefixtures("x64")
METHODS = ["scalar", "diagonal", "preconditioned:full", "conjugate:jacobi+diagonal"]
D = 6


def adversarial(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Systems scaled by 1e-6 to 1e6, singular, indefinite by rounding, ill conditioned, with a few large
    eigenvalues, zero, and of the family itself."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(count, D, D)))[0]
    low, high = rng.uniform(-8, 1, count), rng.uniform(-1, 2, count)
    eigenvalues = 10 ** (low[:, None] + (high - low)[:, None] * rng.uniform(0, 1, (count, D)))
    kind = rng.integers(0, 6, count)
    eigenvalues[kind == 0, : D // 2] = 0  # singular, b outside the range
    eigenvalues[kind == 1, 0] = -1e-16 * eigenvalues[kind == 1].max(1)  # indefinite by rounding
    eigenvalues[kind == 2, 0] = 1e4  # far outside the interval
    eigenvalues[kind == 3] = 0  # A = 0
    A = np.einsum("pij,pj,pkj->pik", Q, eigenvalues, Q)
    family: Any = systems(count=count, d=D, seed=seed + 1)
    A = np.where((kind == 5)[:, None, None], family.A, A)
    b = rng.normal(size=(count, D))
    inside = rng.integers(0, 2, count) == 0  # half of the singular ones have a solution
    b = np.where((inside & (kind != 3))[:, None], np.einsum("pij,pj->pi", A, b), b)
    A = A * 10 ** rng.uniform(-6, 6, count)[:, None, None]
    return (A + A.swapaxes(1, 2)) / 2, b * 10 ** rng.uniform(-6, 6, count)[:, None]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", METHODS)
def test_a_thousand_adversarial_problems(name: str, dtype: Any) -> None:
    """Every method in both precisions; with and without a tolerance in turn, so that every method and
    every precision meets both."""
    A, b = (x.astype(dtype) for x in adversarial(1_000, seed=11))
    problems, method = lfom.LinearSystems(A, b), learned(name).astype(dtype)
    limit = 1e-3 if (METHODS.index(name) + (dtype == np.float32)) % 2 else None
    options = {"steps": 12, "tolerance": limit}
    solution = method.solve(problems, **options)  # type: ignore[arg-type]
    check_no_wrong_success(problems, solution, limit)
    check_isolation(method, A, b, solution, options)


def check_no_wrong_success(problems: Any, solution: lfom.Solution, limit: float | None) -> None:
    value = np.asarray(solution.value)
    assert np.isfinite(value).all()
    eps = np.finfo(value.dtype).eps
    b, A = np.asarray(problems.b, float), np.asarray(problems.A, float)
    # f(0) = 0: nothing is worse than the start, whether it is called a success or not
    assert (energies(problems, value) <= 100 * eps * np.abs(np.einsum("pi,pi->p", b, value))).all()
    assert set(solution.status.tolist()) <= set(solution.meaning)
    assert (~solution.failed).sum() > 400  # and most of those that can be solved are
    impossible = np.abs(A).max(axis=(1, 2)) == 0
    assert impossible.any()
    assert solution.failed[impossible].all()
    if limit is not None:
        left = np.linalg.norm(b - np.einsum("pij,pj->pi", A, value), axis=1)
        size = np.linalg.norm(b, axis=1)
        rounding = 10 * eps * np.linalg.norm(A, axis=(1, 2)) * np.linalg.norm(value, axis=1)
        met = ~solution.failed
        assert (solution.status[met] // 10 == 1).all()
        assert (left[met] <= limit * size[met] + rounding[met]).all()


def check_isolation(method: Any, A: Any, b: Any, before: lfom.Solution, options: Any) -> None:
    for bad in (np.nan, np.inf):
        broken, side = A.copy(), b.copy()
        broken[17, 2, 3] = broken[17, 3, 2] = bad
        side[40, 1] = bad
        after = method.solve(lfom.LinearSystems(broken, side), **options)
        others = ~np.isin(np.arange(len(b)), (17, 40))
        for part in ("value", "status", "steps", "residuals"):
            now, then = (np.asarray(getattr(x, part))[others].tobytes() for x in (after, before))
            assert now == then, part
        assert (np.asarray(after.status)[[17, 40]] == statuses.NOT_FINITE).all()
        assert (np.asarray(after.value)[[17, 40]] == 0).all()


@pytest.mark.parametrize("name", ["scalar", "conjugate:jacobi+diagonal"])
def test_no_tolerance_is_met_by_rounding_alone(name: str) -> None:
    """Starts so near the solution that what they leave is mostly rounding: a tolerance relative to that is met, by the
    residual in float64, or not claimed to be."""
    fresh: Any = systems(count=400, seed=5, dtype=np.float32)
    A, b = (np.asarray(x, np.float64) for x in (fresh.A, fresh.b))
    best = np.linalg.solve(A, b[..., None])[..., 0]
    rng = np.random.default_rng(0)
    w_0 = best * (1 + 10 ** rng.uniform(-9, -4, (400, 1)) * rng.normal(size=best.shape))
    w_0 = w_0.astype(np.float32)

    def left(w: Any) -> np.ndarray:
        return np.linalg.norm(b - np.einsum("pij,pj->pi", A, np.asarray(w, np.float64)), axis=1)

    for tolerance in (0.5, 0.01):
        found = learned(name).astype(np.float32).solve(fresh, tolerance=tolerance, start=w_0)
        met = np.asarray(found.status) // 10 == 1
        assert met.any()
        assert (left(found.value)[met] <= tolerance * left(w_0)[met]).all()


@pytest.mark.parametrize("name", ["scalar", "conjugate:jacobi+diagonal"])
def test_products_that_are_lost_make_no_matrix_singular(name: str) -> None:
    """A positive definite matrix of the smallest numbers there are is not called indefinite or singular."""
    fresh: Any = systems(count=20, seed=5)
    for size in (1e-37, 1e-30, 1e-26, 1e26, 1e30):
        A = (np.asarray(fresh.A) * size).astype(np.float32)
        problems = lfom.LinearSystems(A, np.asarray(fresh.b, np.float32))
        for options in ({"steps": 8}, {"tolerance": 1e-2}):
            found = learned(name).astype(np.float32).solve(problems, **options)
            assert (np.asarray(found.status) != statuses.NOT_DEFINITE).all()
            assert np.isfinite(found.value).all()


def test_scaled_problems_are_solved_as_well_as_the_family() -> None:
    fresh: Any = systems(count=20, seed=3)
    for name in ("scalar", "preconditioned:full"):
        plain = learned(name).solve(fresh)
        for factor in (1e-6, 1e6):
            scaled = learned(name).solve(lfom.LinearSystems(fresh.A * factor, fresh.b))
            assert np.mean(scaled.status == statuses.RESCALED) > 0.8
            assert (scaled.status >= 0).all()
            assert any("rescaled" in path for path in scaled.path)
            gain = np.median(scaled.residuals[:, -1] / scaled.residuals[:, 0])
            assert gain < 3 * np.median(plain.residuals[:, -1] / plain.residuals[:, 0])


def test_losses_fall_back_and_isolate() -> None:
    method = learned_from_losses()
    for dtype in (np.float64, np.float32):
        fresh = classifications(count=10, seed=2, dtype=dtype)
        X, y = (np.asarray(x) for x in fresh.data)
        X = X * np.array([1, 1e-6, 1e-3, 1, 30, 1e3, 1e6, 1, 1, 1], dtype)[:, None, None]
        first = method.astype(dtype).solve(lfom.ConvexLosses(fresh.loss, (X, y), 4), steps=8)
        values = np.asarray(lfom.ConvexLosses(fresh.loss, (X, y), 4).values(first.value))
        good = ~first.failed
        assert (values[good] <= np.log(2) + 1e-6).all()
        assert (values <= np.log(2) + 1e-6).all()
        assert (first.status == statuses.FALLBACK).any()
        X = X.copy()
        X[7, 0, 0] = np.nan
        second = method.astype(dtype).solve(lfom.ConvexLosses(fresh.loss, (X, y), 4), steps=8)
        others = np.arange(10) != 7
        assert np.asarray(second.value)[others].tobytes() == np.asarray(first.value)[others].tobytes()
        assert second.status[7] == statuses.NOT_FINITE


def test_operators_that_are_not_positive_definite_get_a_status() -> None:
    method = learned_on_grids()
    fresh = grids(count=4, seed=2)
    k = np.asarray(fresh.data).copy()
    k[1] *= -1
    solution = method.solve(lfom.LinearSystems(fresh.operator, fresh.b, data=k))
    assert solution.status[1] == statuses.NOT_DEFINITE
    assert (
        np.asarray(solution.status)[[0, 2, 3]] == statuses.CHECKED
    ).all()  # nothing is promised of an operator


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lfom.LinearSystems(np.triu(np.ones((2, 3, 3))), np.ones((2, 3))), "not symmetric"),
        (lambda: lfom.LinearSystems(-np.eye(3)[None], np.ones((1, 3)), check=True), "indefinite"),
        (lambda: lfom.LinearSystems(np.diag([1.0, 1, -0.1]), np.ones(3), check=True), "indefinite"),
        (lambda: lfom.LinearSystems(np.eye(3)[None], np.ones((2, 3))), "asks for"),
        (lambda: lfom.LinearSystems(np.ones((2, 3, 4)), np.ones((2, 3))), "square"),
        (lambda: lfom.LinearSystems(np.eye(3)[None], np.ones((1, 3), np.float32)), "dtype"),
        (lambda: lfom.LeastSquaresProblems(np.ones((2, 5, 3)), np.ones((2, 5)), ridge=-0.1), "ridge is -0.1"),
        (lambda: lfom.LeastSquaresProblems(np.ones((2, 5, 3)), np.ones((2, 4))), "asks for"),
        (lambda: lfom.LeastSquaresProblems(np.ones(5), np.ones(5)), "X has shape"),
        (
            lambda: lfom.LeastSquaresProblems(np.ones((2, 5, 3)), np.ones((2, 5)), np.ones(3)),
            "ridge has shape",
        ),
        (lambda: lfom.learn(regressions(count=9)), "too few"),
        (lambda: lfom.learn(np.ones(3)), "must be problems to solve"),  # type: ignore[arg-type]
        (lambda: lfom.learn(regressions(), 0), "steps is 0"),
    ],
)
def test_bad_input_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_nothing_is_learned_from_broken_problems() -> None:
    good: Any = systems(count=12)
    A, b = np.asarray(good.A).copy(), np.asarray(good.b).copy()
    b[3] = 0
    with pytest.raises(InputError, match="problem 3 has a right-hand side of zeros"):
        lfom.learn(lfom.LinearSystems(A, b))
    b[3, 0] = np.nan
    with pytest.raises(InputError, match="problem 3 holds NaN"):
        lfom.learn(lfom.LinearSystems(A, b))
    A[3] = np.diag([0.0, 1, 1, 1, 1, 1])
    b[3] = 1
    with pytest.raises(InputError, match="problem 3 has no solution"):
        lfom.learn(lfom.LinearSystems(A, b))


def test_another_family_is_refused() -> None:
    method = learned("scalar")
    with pytest.raises(InputError, match=r"unknowns of shape \(6,\)"):
        method.solve(systems(count=2, d=5))
    with pytest.raises(InputError, match="learned from least squares, and these are convex losses"):
        method.solve(classifications(count=2))
    with pytest.raises(InputError, match="must be problems to solve"):
        method.solve(np.ones((2, 6)))  # type: ignore[arg-type]
    assert (method.solve(fresh_regressions()).status >= 0).all()  # least squares are systems


def product(A: Any, v: Any) -> Any:
    return A @ v


def begun_at_the_solution(size: float) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """Systems of such numbers in float32, and starts that are right to rounding."""
    fresh: Any = systems(count=30, seed=5)
    A, b = (np.asarray(x) for x in (fresh.A, fresh.b))
    best = np.linalg.solve(A, b[..., None])[..., 0].astype(np.float32)
    return fresh, (A * size).astype(np.float32), (b * size).astype(np.float32), best


@pytest.mark.parametrize("matrix_free", [False, True])
def test_a_start_that_is_right_to_rounding_makes_nothing_indefinite(matrix_free: bool) -> None:
    """The true residual cannot fall then, whatever the steps do."""
    for size in (1e-20, 1.0):
        _, A, b, best = begun_at_the_solution(size)
        problems = lfom.LinearSystems(product, b, data=A) if matrix_free else lfom.LinearSystems(A, b)
        found = lfom.conjugate_gradient(steps=14).solve(problems, start=best)
        assert (np.asarray(found.status) != statuses.NOT_DEFINITE).all()


def test_operators_of_the_smallest_numbers_are_not_called_indefinite() -> None:
    """Steps overflow there, and none tells how large the operator is."""
    fresh: Any = systems(count=20, seed=5)
    b = np.asarray(fresh.b, np.float32)
    method = lfom.conjugate_gradient(steps=8)
    small = (statuses.NO_PROGRESS, statuses.OUT_OF_RANGE)
    for size, expected in ((1e-38, small), (-1.0, (statuses.NOT_DEFINITE,))):
        A = (np.asarray(fresh.A) * size).astype(np.float32)
        found = method.solve(lfom.LinearSystems(product, b * 1e5, data=A))
        assert np.isin(np.asarray(found.status), expected).all()


def test_regressions_of_the_smallest_numbers_are_not_called_singular() -> None:
    """Squares of their covariates are lost, and nothing is known of their Gram matrices."""
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(20, 24, 6)) * 1e-21).astype(np.float32)
    y = rng.normal(size=(20, 24)).astype(np.float32) * np.float32(1e3)
    for options in ({"steps": 8}, {"tolerance": 0.1}):
        found = learned("scalar").astype(np.float32).solve(lfom.LeastSquaresProblems(X, y), **options)
        assert (np.asarray(found.status) != statuses.NOT_DEFINITE).all()


def _valley(w: Any, curvature: Any) -> Any:
    return jnp.sum(curvature * w**2) / 2


def test_losses_claim_nothing_below_the_smallest_normal_number() -> None:
    """A tolerance below it is met by numbers that are lost."""
    start = np.full((1, 4), 1.0, np.float32)
    problems = lfom.ConvexLosses(_valley, np.full((1, 4), 1e-36, np.float32), 4)
    method = learned_from_losses().astype(np.float32)
    assert method.solve(problems, tolerance=0.5, start=start).status[0] // 10 != 2
    assert method.solve(problems, tolerance=1e-4, start=start).status[0] // 10 != 1


BOTH = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def soft(dtype: Any, count: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, b and starts: eigenvalues from 1 down to eps, and starts far along the softest of them, which leave what rounding
    leaves of A w."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(count, D, D)))[0]
    least = np.log10(float(np.finfo(dtype).eps))
    A = np.einsum("pij,j,pkj->pik", Q, np.logspace(0, least, D), Q)
    A = ((A + A.swapaxes(1, 2)) / 2).astype(dtype)
    best = Q[:, :, -1] * 10 ** rng.uniform(0, -least, (count, 1)) + rng.normal(size=(count, D))
    b = np.einsum("pij,pj->pi", A.astype(np.longdouble), best).astype(dtype)
    return A, b, best.astype(dtype)


def remains(A: Any, b: Any, w: Any) -> np.ndarray:
    """|b - A w| in more than double precision."""
    A, b, w = (np.asarray(x).astype(np.longdouble) for x in (A, b, w))
    return np.sqrt(((b - np.einsum("pij,pj->pi", A, w)) ** 2).sum(axis=1))


def _bowl(w: Any, data: Any) -> Any:
    A, b = data
    return w @ product(A, w) / 2 - b @ w


@BOTH
@pytest.mark.parametrize("convex", [False, True])
def test_operators_and_losses_meet_no_tolerance_by_rounding_alone(convex: bool, dtype: Any) -> None:
    """Nothing but their steps tells how large their numbers are, and A w is small in a soft direction."""
    A, b, start = soft(dtype)
    problems = lfom.ConvexLosses(_bowl, (A, b), D) if convex else lfom.LinearSystems(product, b, data=A)
    method = lfom.gradient_descent(0.5, steps=4).astype(dtype)
    for options in ({"tolerance": 0.5}, {"tolerance": 0.1}):
        found = method.solve(problems, start=start, **options)
        met = np.asarray(found.status) // 10 == 1
        assert (remains(A, b, found.value) <= options["tolerance"] * remains(A, b, start))[met].all()
        fair = method.solve(problems, start=np.zeros_like(b), **options)
        assert (~fair.failed).mean() > 0.6  # there rounding hides less


@BOTH
@pytest.mark.parametrize("matrix_free", [False, True])
def test_subnormal_numbers_are_not_taken_for_zeros(matrix_free: bool, dtype: Any) -> None:
    """Processors do; a residual of such numbers is not called zero, nor a start that holds them changed for a worse one."""
    fresh: Any = systems(count=60, seed=5)
    A, b = (np.asarray(x) for x in (fresh.A, fresh.b))
    best, tiny = np.linalg.solve(A, b[..., None])[..., 0], np.finfo(dtype).tiny
    A = (A * 10 ** np.linspace(0, 6, 60)[:, None, None]).astype(dtype)
    for size in (1e-3, 0.3, 10):
        side = (b / np.abs(b).max() * float(tiny) * size).astype(dtype)
        start = (best / np.abs(best).max() * float(tiny) * size).astype(dtype)
        if size == 10:  # some of its numbers alone
            start[:, 0] = tiny / 2
        problems = lfom.LinearSystems(product, side, data=A) if matrix_free else lfom.LinearSystems(A, side)
        for options in ({"steps": 8}, {"tolerance": 0.5}, {"tolerance": 1.0}):
            found = lfom.conjugate_gradient(8).solve(problems, start=start, **options)  # type: ignore[arg-type]
            w, status = np.asarray(found.value), np.asarray(found.status)
            same = (w.view(f"i{w.itemsize}") == start.view(f"i{w.itemsize}")).all(axis=1)
            left, begun = remains(A, side, w), remains(A, side, start)
            assert (left <= options.get("tolerance", 1.0) * begun)[status // 10 == 1].all()
            assert same[(status < -2) | (np.asarray(found.steps) == 0)].all()
            held = lfom.LinearSystems(A, side)
            assert (same | (energies(held, w) <= energies(held, start))).all()


@BOTH
@pytest.mark.parametrize("matrix_free", [False, True])
def test_starts_near_the_largest_number_are_solved_from(matrix_free: bool, dtype: Any) -> None:
    """Norms and sums of their entries overflow; products with a small matrix do not."""
    fresh: Any = systems(count=20, seed=5)
    A, b = (np.asarray(fresh.A) * 1e-6).astype(dtype), np.asarray(fresh.b, dtype)
    rng = np.random.default_rng(0)
    start = (rng.choice([-0.4, 0.4], b.shape) * float(np.finfo(dtype).max)).astype(dtype)
    problems = lfom.LinearSystems(product, b, data=A) if matrix_free else lfom.LinearSystems(A, b)
    found = lfom.conjugate_gradient(8).solve(problems, tolerance=1e-2, start=start)
    assert (np.asarray(found.status) // 10 == 1).all()
    assert (remains(A, b, found.value) <= 1e-2 * remains(A, b, start)).all()


@BOTH
def test_what_overflows_is_told_from_what_is_not_finite(dtype: Any) -> None:
    """Numbers that are finite are not called anything else."""
    fresh: Any = systems(count=20, seed=5)
    most = float(np.finfo(dtype).max)
    A, b = (np.asarray(fresh.A) * most**0.5).astype(dtype), np.asarray(fresh.b, dtype)
    start = np.full(b.shape, most**0.6, dtype)
    for problems, method in (
        (lfom.LinearSystems(A, b), lfom.conjugate_gradient(8)),
        (lfom.LinearSystems(product, b, data=A), lfom.conjugate_gradient(8)),
        (lfom.LinearSystems(product, b, data=A), lfom.gradient_descent(0.5, steps=4).astype(dtype)),
        (lfom.ConvexLosses(_bowl, (A, b), D), lfom.gradient_descent(0.5, steps=4).astype(dtype)),
    ):
        found = method.solve(problems, start=start)
        assert (np.asarray(found.status) == statuses.OUT_OF_RANGE).all()
        assert (np.asarray(found.value) == start).all()
        assert "Scale the problem" in found.meaning[statuses.OUT_OF_RANGE]
        broken = start.copy()
        broken[3, 1] = np.inf
        status = np.asarray(method.solve(problems, start=broken).status)
        assert (status == statuses.NOT_FINITE).tolist() == [n == 3 for n in range(20)]


@BOTH
def test_what_the_start_leaves_may_be_lost_in_products(dtype: Any) -> None:
    """Off the diagonal A holds subnormal numbers, which the start multiplies and the answer does not."""
    tiny = float(np.finfo(dtype).tiny)
    A = np.array([[[1.5, 0.9], [0.9, 1.5]]] * 20) * tiny
    start = np.random.default_rng(0).uniform(1, 2, (20, 2)) * [1, -1] / np.finfo(dtype).eps
    A, start = A.astype(dtype), start.astype(dtype)
    b = np.einsum("pij,pj->pi", A.astype(np.longdouble), start).astype(dtype)
    problems = lfom.LinearSystems(product, b, data=A)
    found = lfom.conjugate_gradient(2).solve(problems, start=start)
    held = lfom.LinearSystems(A, b)
    assert (energies(held, found.value) <= energies(held, start)).all()


def test_a_gradient_of_zeros_meets_no_tolerance_of_a_loss() -> None:
    """It may be what rounding or the smallest number has made of it."""
    A, b = np.eye(4, dtype=np.float32)[None], np.full((1, 4), 1e-40, np.float32)
    found = learned_from_losses().astype(np.float32).solve(lfom.ConvexLosses(_bowl, (A, b), 4), tolerance=0.5)
    assert found.status[0] == statuses.NO_PROGRESS
