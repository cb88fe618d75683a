"""method.solve inside JAX: starts, transformations, derivatives, scales and shards."""

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import lfom
from lfom.core.checks import InputError
from lfom.core.memories import Forget
from lfom.core.methods import Method
from lfom.core.preconditioners import Identity
from lfom.core.readers import Gradient
from lfom.frontends import LearnedSolver
from lfom.solving import statuses
from tests.learned_problems import (
    classifications,
    energies,
    fresh_regressions,
    grids,
    learned,
    learned_from_losses,
    learned_on_grids,
    systems,
)

pytestmark = pytest.mark.usefixtures("x64")
CONJUGATE = "conjugate:jacobi+diagonal"


def left(problems: Any, w: Any) -> np.ndarray:
    """|b - A w| of every problem, by NumPy."""
    A, b, w = (np.asarray(x, np.longdouble) for x in (problems.A, problems.b, w))
    return np.sqrt(((b - np.einsum("pij,pj->pi", A, w)) ** 2).sum(axis=1))


# Starts


@pytest.mark.parametrize("name", ["scalar", CONJUGATE])
def test_a_start_is_the_same_problem_in_what_it_leaves(name: str) -> None:
    problems: Any = systems(count=40, seed=1)
    w_0 = np.random.default_rng(0).normal(size=problems.b.shape)
    rest = lfom.LinearSystems(problems.A, problems.b - jnp.einsum("pij,pj->pi", problems.A, w_0))
    for options in ({"steps": 7}, {"tolerance": 1e-6}):
        found, moved = (
            learned(name).solve(problems, **options, start=w_0),
            learned(name).solve(rest, **options),
        )
        np.testing.assert_allclose(found.value, w_0 + moved.value, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(found.steps, moved.steps)
        np.testing.assert_array_equal(found.status, moved.status)
        np.testing.assert_allclose(found.residuals, moved.residuals, rtol=1e-6, atol=1e-12)
        last = left(problems, found.value) / left(problems, w_0)
        np.testing.assert_allclose(found.residuals[:, -1], last.astype(float), rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(found.residuals[:, 0], 1, rtol=1e-14)


def test_losses_start_where_they_are_told_to() -> None:
    problems, method = classifications(count=10, seed=2), learned_from_losses()
    near = method.solve(problems, tolerance=1e-3).value
    again = method.solve(problems, steps=3, start=near)
    np.testing.assert_allclose(again.residuals[:, 0], 1)
    assert (problems.values(again.value) <= problems.values(near)).all()
    slopes = [np.linalg.norm(np.asarray(problems.gradients(w)), axis=1) for w in (near, again.value)]
    good = np.asarray(again.status) >= 0
    assert good.any()
    np.testing.assert_allclose(
        np.asarray(again.residuals)[good, -1], (slopes[1] / slopes[0])[good], rtol=1e-6
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_no_start_is_made_worse(dtype: Any) -> None:
    """Starts from the solution itself to 1e12 times as far away."""
    fresh: Any = systems(count=40, seed=1)
    problems = lfom.LinearSystems(*(np.asarray(x, dtype) for x in (fresh.A, fresh.b)))
    best = np.linalg.solve(np.asarray(fresh.A), np.asarray(fresh.b)[..., None])[..., 0]
    noise = np.random.default_rng(0).normal(size=best.shape)
    w_0 = (best + np.geomspace(1e-18, 1e12, 40)[:, None] * noise).astype(dtype)
    for name in ("scalar", CONJUGATE):
        for options in ({"steps": 6}, {"tolerance": 1e-3}):
            found = learned(name).astype(dtype).solve(problems, **options, start=w_0)
            before, after = energies(problems, w_0), energies(problems, found.value)
            eps = np.finfo(dtype).eps
            sizes = np.abs(w_0).max(axis=1).astype(float)
            assert (after - before <= 1e-2 * eps * np.abs(before) + eps**2 * sizes**2).all()
            met = np.asarray(found.status) // 10 == 1
            rounding = 10 * eps * np.linalg.norm(np.asarray(found.value, float), axis=1)
            assert (left(problems, found.value) <= 1e-3 * left(problems, w_0) + rounding)[met].all()
            assert (~np.asarray(found.failed)[22:]).all()


def test_a_start_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="start has shape"):
        learned("scalar").solve(fresh_regressions(), start=np.zeros(6))
    with pytest.raises(InputError, match="start has dtype float32"):
        learned("scalar").solve(fresh_regressions(), start=np.zeros((40, 6), np.float32))


def test_lineax_starts_at_y0() -> None:
    problems: Any = systems(count=1, seed=4)
    A, b = problems.A[0], problems.b[0]
    operator = lx.MatrixLinearOperator(A, lx.positive_semidefinite_tag)
    y_0 = jnp.linalg.solve(A, b) + 1e-3
    for name in ("scalar", CONJUGATE):
        solver = LearnedSolver(learned(name), steps=2)
        answer = lx.linear_solve(operator, b, solver, options={"y0": y_0})
        wanted = learned(name).solve(problems, steps=2, start=y_0[None])
        np.testing.assert_allclose(answer.value, wanted.value[0], rtol=1e-12)
        np.testing.assert_allclose(answer.stats["residuals"], wanted.residuals[0], rtol=1e-6)
    solver = LearnedSolver(learned(CONJUGATE), tolerance=1e-9)

    def total(b: Any) -> Any:
        return jnp.sum(lx.linear_solve(operator, b, solver, options={"y0": y_0}).value ** 2)

    np.testing.assert_allclose(jax.grad(total)(b), 2 * jnp.linalg.solve(A, jnp.linalg.solve(A, b)), rtol=1e-5)


# Transformations


def parts(solution: lfom.Solution) -> tuple[Any, ...]:
    return solution.value, solution.status, solution.steps, solution.residuals


@pytest.mark.parametrize("options", [{"tolerance": 1e-6}, {"steps": 9}], ids=str)
def test_solve_under_jit_vmap_and_scan(options: Any) -> None:
    problems: Any = systems(count=40, seed=1)
    method = learned("scalar")
    wanted = method.solve(problems, **options)

    def one(A: Any, b: Any) -> Any:
        return parts(method.solve(lfom.LinearSystems(A[None], b[None]), **options))

    compiled = jax.jit(lambda A, b: method.solve(lfom.LinearSystems(A, b), **options))(problems.A, problems.b)
    mapped = jax.vmap(one)(problems.A, problems.b)
    scanned = jax.lax.scan(lambda _, now: (None, one(*now)), None, (problems.A, problems.b))[1]
    assert compiled.path == wanted.path
    for found in (parts(compiled), *(jax.tree.map(lambda x: x[:, 0], some) for some in (mapped, scanned))):
        for got, want in zip(found, parts(wanted), strict=True):
            assert isinstance(got, jax.Array)
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-8)


def test_other_problems_under_jit() -> None:
    for method, problems in (
        (learned("scalar"), fresh_regressions()),
        (learned_on_grids(), grids(count=4, seed=2)),
        (learned_from_losses(), classifications(count=6, seed=2)),
    ):
        found = jax.jit(lambda some, m=method: m.solve(some, tolerance=1e-3))(problems)
        wanted = method.solve(problems, tolerance=1e-3)
        for got, want in zip(parts(found), parts(wanted), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-8)


def test_what_cannot_be_read_inside_jit_gets_a_status_or_an_error() -> None:
    def solved(A: Any, b: Any) -> lfom.Solution:
        return learned("scalar").solve(lfom.LinearSystems(A, b))

    A = np.stack([np.eye(6), -np.eye(6), np.full((6, 6), np.nan)])
    status = np.asarray(jax.jit(solved)(A, np.ones((3, 6))).status)
    assert status[0] >= 0
    assert status[1] < 0  # indefinite: refused when values are known
    assert status[2] == statuses.NOT_FINITE
    with pytest.raises(InputError, match="words need values"):
        jax.jit(lambda A, b: solved(A, b).path)(A, np.ones((3, 6)))


def test_a_warm_start_in_time() -> None:
    """Ten steps of a slow movement by scan, each from the last: a tolerance of 1e-3 keeps seven digits."""
    problems: Any = systems(count=1, seed=4)
    method, A = learned(CONJUGATE), problems.A

    def step(w: Any, t: Any) -> Any:
        b = problems.b * (1 + 1e-6 * t)
        warm = method.solve(lfom.LinearSystems(A, b), tolerance=1e-3, start=w)
        return warm.value, warm.failed

    first = method.solve(problems, tolerance=1e-10).value
    last, failed = jax.lax.scan(step, first, jnp.arange(1.0, 11))
    assert not failed.any()
    exact = np.linalg.solve(np.asarray(A[0]), np.asarray(problems.b[0]) * (1 + 1e-5))
    np.testing.assert_allclose(last[0], exact, rtol=1e-7)


# Derivatives


def slope(f: Any, x: Any, direction: Any, h: float) -> float:
    """The derivative of f along a direction, by central differences."""
    there = [jax.tree.map(lambda a, d, s=s: a + s * h * d, x, direction) for s in (1, -1)]
    return float(f(there[0]) - f(there[1])) / (2 * h)


def random_like(tree: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), tree)


def assert_derivatives(f: Any, x: Any, direction: Any, rtol: float, h: float = 1e-6) -> None:
    """Forwards and backwards, beside finite differences."""
    f = jax.jit(f)
    wanted = slope(f, x, direction, h)
    assert abs(wanted) > 1e-3
    found = jax.grad(f)(x)
    backwards = sum(jax.tree.leaves(jax.tree.map(lambda g, d: jnp.sum(g * d), found, direction)))
    np.testing.assert_allclose([backwards, jax.jvp(f, (x,), (direction,))[1]], wanted, rtol=rtol)


TOLERANCE: Any = {"tolerance": 1e-10}
STEPS: Any = {"steps": 3}
LONGER: Any = {"steps": 7}  # conjugate gradients go on


@pytest.mark.parametrize("options", [TOLERANCE, STEPS, LONGER], ids=str)
def test_derivatives_in_regressions(options: Any) -> None:
    """In X, y and the ridge: by the theorem with a tolerance, through the steps without."""
    problems, method = fresh_regressions()[:4], learned("scalar")
    weights = random_like(jnp.zeros((4, 6)), seed=5)

    def total(given: Any) -> Any:
        return jnp.sum(weights * method.solve(lfom.LeastSquaresProblems(*given), **options).value)

    given = (problems.X, problems.y, problems.ridge)
    assert_derivatives(total, given, random_like(given), rtol=1e-5)


@pytest.mark.parametrize("options", [TOLERANCE, LONGER], ids=str)
def test_derivatives_in_matrices_and_starts(options: Any) -> None:
    """A start matters to a number of steps, and not to a solution."""
    problems: Any = systems(count=4, seed=1)
    method, w_0 = learned("preconditioned:full"), random_like(problems.b, seed=3)

    def total(given: Any) -> Any:
        A, b, start = given
        return jnp.sum(method.solve(lfom.LinearSystems(A, b), **options, start=start).value ** 2)

    change = random_like((problems.A, problems.b, w_0))
    change = (change[0] + change[0].swapaxes(1, 2), *change[1:])
    assert_derivatives(total, (problems.A, problems.b, w_0), change, rtol=1e-5)
    moved = jax.grad(total)((problems.A, problems.b, w_0))[2]
    assert (np.abs(moved).max() == 0) == (options is TOLERANCE)


@pytest.mark.parametrize("options", [TOLERANCE, STEPS], ids=str)
def test_second_derivatives(options: Any) -> None:
    """Three steps of conjugate gradients solve systems of three unknowns, so both are those of the solution."""
    B = np.random.default_rng(0).normal(size=(2, 3, 3))
    given = (jnp.asarray(B @ B.swapaxes(1, 2) + np.eye(3)), jnp.asarray(B[:, 0]))

    def ours(A: Any, b: Any) -> Any:
        return lfom.conjugate_gradient(3).solve(lfom.LinearSystems(A, b), **options).value

    def total(given: Any, solve: Any) -> Any:
        A, b = given
        return jnp.sum(solve((A + A.swapaxes(1, 2)) / 2, b) ** 3)

    exact = jax.hessian(total)(given, lambda A, b: jnp.linalg.solve(A, b[..., None])[..., 0])
    found = jax.hessian(total)(given, ours)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-8), found, exact)


@pytest.mark.parametrize("options", [TOLERANCE, STEPS], ids=str)
def test_derivatives_of_problems_under_vmap(options: Any) -> None:
    problems: Any = systems(count=4, seed=1)
    method = lfom.conjugate_gradient(3)

    def one(A: Any, b: Any) -> Any:
        return jnp.sum(method.solve(lfom.LinearSystems(A[None], b[None]), **options).value ** 2)

    def batch(b: Any) -> Any:
        return jnp.sum(method.solve(lfom.LinearSystems(problems.A, b), **options).value ** 2)

    found = jax.grad(lambda b: jax.vmap(one)(problems.A, b).sum())(problems.b)
    np.testing.assert_allclose(found, jax.grad(batch)(problems.b), rtol=1e-6)


@pytest.mark.parametrize("options", [TOLERANCE, STEPS], ids=str)
def test_derivatives_in_the_parameters_of_an_operator(options: Any) -> None:
    problems, method = grids(count=3, seed=2), learned_on_grids()

    def total(given: Any) -> Any:
        k, b = given
        return jnp.sum(method.solve(lfom.LinearSystems(problems.operator, b, data=k), **options).value ** 2)

    given = (problems.data, problems.b)
    assert_derivatives(total, given, random_like(given), rtol=1e-5)


@pytest.mark.parametrize("options", [{"tolerance": 1e-7, "steps": 900}, {"steps": 6}], ids=str)
def test_derivatives_in_the_data_of_losses(options: Any) -> None:
    problems, method = classifications(count=3, seed=2), learned_from_losses()
    X, y = problems.data

    def total(X: Any) -> Any:
        return jnp.sum(method.solve(lfom.ConvexLosses(problems.loss, (X, y), 4), **options).value ** 2)

    h = 1e-3 if "tolerance" in options else 1e-6  # rounding of the loss leaves 1e-8 of the gradient
    assert_derivatives(total, X, random_like(X), rtol=1e-3 if h > 1e-6 else 1e-5, h=h)


def test_derivatives_in_the_numbers_of_a_method_go_through_its_steps() -> None:
    problems, sizes = fresh_regressions()[:4], jnp.asarray([0.3, 0.2, 0.4])

    def total(sizes: Any) -> Any:
        return jnp.sum(Method(Gradient(Identity()), Forget(sizes), 3).solve(problems).value ** 2)

    assert_derivatives(total, sizes, jnp.asarray([1.0, -2.0, 1.0]), rtol=1e-6)


# Scales


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["scalar", CONJUGATE])
def test_no_scale_of_the_right_hand_side_makes_a_false_status(name: str, dtype: Any) -> None:
    """From the smallest normal number to 1e30, recomputed in more than float64: a power of two changes nothing, a
    tolerance that is called met is met, at the smallest one that is accepted as well."""
    fresh: Any = systems(count=40, seed=1)
    method, info = learned(name).astype(dtype), np.finfo(dtype)
    A, b = (np.asarray(x, dtype) for x in (fresh.A, fresh.b))
    b = b / np.abs(b).max(axis=1, keepdims=True)
    exponents = np.linspace(info.minexp, min(info.maxexp - 8, 100), 40).astype(int)
    b *= np.ldexp(dtype(1), exponents)[:, None]
    problems = lfom.LinearSystems(A, b)
    for tolerance in (1e-2, method.floor):
        found = method.solve(problems, tolerance=tolerance)
        status = np.asarray(found.status)
        met = status // 10 == 1
        share = left(problems, found.value) / left(problems, np.zeros_like(b))
        assert (share[met] <= tolerance).all()
        if tolerance == 1e-2:  # where rounding hides nothing
            assert (share[~met] > tolerance * 0.5).all()
        assert not np.isin(status, (statuses.NOT_DEFINITE, statuses.NOT_FINITE)).any()
        inside = exponents > info.minexp + 2 * info.nmant  # w and its last digits are normal numbers
        assert met[inside].mean() > (0.99 if tolerance == 1e-2 else 0.5)


def test_a_tolerance_that_the_start_meets_takes_no_step() -> None:
    for method, problems in (
        (learned("scalar"), fresh_regressions()),
        (learned_from_losses(), classifications(count=6, seed=2)),
    ):
        found = method.solve(problems, tolerance=1.5)
        assert (np.asarray(found.status) // 10 == 1).all()
        assert (np.asarray(found.steps) == 0).all()
        assert (np.asarray(found.value) == 0).all()


def test_a_solution_too_small_for_a_number_is_not_called_one() -> None:
    A, b = np.eye(6, dtype=np.float32)[None] * 1e6, np.full((1, 6), 1e-37, np.float32)
    found = learned("scalar").astype(np.float32).solve(lfom.LinearSystems(A, b), tolerance=1e-2)
    assert (np.asarray(found.value) == 0).all()
    assert np.asarray(found.failed).all()


# Shards

SHARDED = """
import jax, numpy as np, lfom
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

rng = np.random.default_rng(0)
X, y = rng.normal(size=(8, 20, 3)).astype(np.float32), rng.normal(size=(8, 20)).astype(np.float32)
w_0 = np.ones((8, 3), np.float32)
for method in (lfom.conjugate_gradient(3), lfom.gradient_descent(0.3, steps=4)):
    for options in ({"tolerance": 1e-3}, {"steps": 5, "start": w_0}):
        wanted = method.solve(lfom.LeastSquaresProblems(X, y), **options)
        for mesh in (jax.make_mesh((4,), ("x",)), jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))):
            put = [jax.device_put(a, NamedSharding(mesh, P("x"))) for a in (X, y)]
            found = method.solve(lfom.LeastSquaresProblems(*put), **options)
            for name in ("value", "status", "steps", "residuals"):
                part = getattr(found, name)
                assert len(part.sharding.device_set) == 4 and part.sharding.spec[0] == "x", (mesh, part.sharding)
                np.testing.assert_allclose(part, getattr(wanted, name), rtol=1e-4, atol=1e-6)
            assert not np.asarray(found.failed).any()
            A = put[0][:, :3].mT @ put[0][:, :3] + np.eye(3, dtype=np.float32)
            assert len(method.solve(lfom.LinearSystems(A, put[1][:, :3]), **options).value.sharding.device_set) == 4
            inside = jax.jit(lambda X, y: method.solve(lfom.LeastSquaresProblems(X, y), **options).value)(*put)
            np.testing.assert_allclose(inside, wanted.value, rtol=1e-4, atol=1e-6)
print("sharded")
"""


def test_what_lies_on_four_devices_stays_there() -> None:
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run([sys.executable, "-c", SHARDED], env=environment, capture_output=True, text=True)
    assert done.stdout == "sharded\n", done.stderr
