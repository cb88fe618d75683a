"""Methods that are best in the worst case: their closed forms, and that they run as all methods do."""

from collections.abc import Callable

import jax
import numpy as np
import pytest

import lfom
from lfom.core.problems import Quadratic
from lfom.limits.worst_case import points
from lfom.methods.optimal import RHO, constant_step_bounds, item_growth, ogm_bound, thetas
from lfom.solving import statuses

pytestmark = pytest.mark.usefixtures("x64")

METHODS: dict[str, Callable[[int, float, float], lfom.Method]] = {  # steps, L, mu
    "OGM": lambda steps, L, mu: lfom.ogm(steps, L),
    "OGM-G": lambda steps, L, mu: lfom.ogm_g(steps, L),
    "ITEM": lambda steps, L, mu: lfom.item(steps, L, mu),
    "fast gradient": lambda steps, L, mu: lfom.fast_gradient(steps, L),
    "fast gradient, mu": lambda steps, L, mu: lfom.fast_gradient(steps, L, mu),
    "silver": lambda steps, L, mu: lfom.silver(steps, L),
    "best constant step": lambda steps, L, mu: lfom.best_constant_step(steps, L),
    "best constant step, mu": lambda steps, L, mu: lfom.best_constant_step(steps, L, mu),
}


@pytest.mark.parametrize("steps", [1, 2, 5, 8])
def test_ogm_and_ogm_g_are_their_closed_forms(steps: int) -> None:
    theta, L = thetas(steps)[-1], 3.0
    assert abs(lfom.worst_case(lfom.ogm(steps, L), L) - L / (2 * theta**2)) < 1e-8
    found = lfom.worst_case(lfom.ogm_g(steps, L), L, measure="gradient", start="value")
    assert abs(found - 2 * L / theta**2) < 1e-8
    assert ogm_bound(steps) == 1 / (2 * theta**2)


def test_ogm_is_written_as_its_authors_write_it() -> None:
    """h[i+1, k] of x_{i+1} = x_i - sum of h[i+1, k] g_k / L (Kim and Fessler), by their recursion."""
    steps, theta = 5, thetas(5)
    h = np.zeros((steps, steps))
    for i in range(steps):
        for k in range(i):
            h[i, k] = (2 * theta[k] - h[k:i, k].sum()) / theta[i + 1]
        h[i, i] = 1 + (2 * theta[i] - 1) / theta[i + 1]
    assert np.allclose(points(lfom.ogm(steps))[0], np.cumsum(h, axis=0), atol=1e-12)


@pytest.mark.parametrize("steps", [1, 3, 8])
@pytest.mark.parametrize("q", [0.01, 0.1])
def test_item_is_its_closed_form_after_every_number_of_steps(steps: int, q: float) -> None:
    method = lfom.item(8, 2.0, 2 * q).truncated(steps)
    found = lfom.worst_case(method, 2.0, 2 * q, measure="distance")
    assert abs(found - 1 / (1 + q * item_growth(steps, q)[-1])) < 1e-8


@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_silver_steps_are_their_closed_form(power: int) -> None:
    steps = 2**power - 1
    found = lfom.worst_case(lfom.silver(steps))
    assert abs(found - 1 / (2 * (2 * RHO**power - 1))) < 1e-9
    proven = 1 / (1 + np.sqrt(4 * RHO ** (2 * power) - 3))  # Altschuler and Parrilo
    assert found < proven


def test_silver_steps_of_other_numbers_are_refused_with_the_nearest() -> None:
    for steps, named in ((2, "1 or 3"), (8, "7 or 15"), (16, "15 or 31")):
        with pytest.raises(lfom.InputError, match=f"Pass {named}"):
            lfom.silver(steps)


@pytest.mark.parametrize("q", [0.0, 0.05])
@pytest.mark.parametrize("steps", [1, 4, 8])
def test_the_best_constant_step_is_best(steps: int, q: float) -> None:
    L = 4.0
    method = lfom.best_constant_step(steps, L, q * L)
    h = L * float(method.memory.eta[0])  # type: ignore[attr-defined]
    slow, overshoot = constant_step_bounds(h, steps, q)
    assert slow == pytest.approx(overshoot, rel=1e-9)
    found = lfom.worst_case(method, L, q * L)
    assert abs(found - L * slow) < 1e-7
    for other in (0.97 * h, 1.03 * h):
        assert lfom.worst_case(lfom.gradient_descent(other / L, steps), L, q * L) > found * 1.001


def test_the_best_constant_step_of_many_steps_does_not_overflow() -> None:
    eta = float(lfom.best_constant_step(5_000, 1.0, 0.5).memory.eta[0])  # type: ignore[attr-defined]
    assert eta == pytest.approx(2 / 1.5, abs=1e-3)


def test_the_fast_gradient_method_keeps_its_bounds() -> None:
    for steps in (1, 4, 8):
        found = lfom.worst_case(lfom.fast_gradient(steps, 2.0), 2.0)
        assert ogm_bound(steps) * 2 < found <= 2 / (2 * thetas(steps)[-2] ** 2)
        assert found == pytest.approx(float(lfom.worst_case(lfom.fast_gradient(steps))) * 2, rel=1e-6)
    # (1 - sqrt(q))^N (f(x_0) - f* + mu / 2 |x_0 - x*|^2), with f(x_0) - f* <= L / 2
    q = 0.1
    found = lfom.worst_case(lfom.fast_gradient(6, 1.0, q), 1.0, q)
    assert found <= (1 - np.sqrt(q)) ** 6 * (0.5 + q / 2)
    assert found < lfom.worst_case(lfom.gradient_descent(1.0, 6), 1.0, q)


def quadratic(L: float, mu: float, seed: int = 0) -> Quadratic:
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    A = (Q * np.linspace(mu, L, 6)) @ Q.T
    return Quadratic(jax.numpy.asarray(A), jax.numpy.asarray(A @ rng.normal(size=6)))


@pytest.mark.parametrize("name", METHODS)
def test_they_run_solve_and_converge(name: str) -> None:
    L, mu, steps = 5.0, 0.5, 31
    method, problem = METHODS[name](steps, L, mu), quadratic(L, mu)
    best = np.linalg.solve(problem.gram, problem.moment)
    errors = np.linalg.norm(np.asarray(lfom.run(method, problem).predictions) - best, axis=1)
    assert errors[-1] < 0.05 * errors[0]
    solution = method.solve(
        lfom.LinearSystems(np.asarray(problem.gram)[None], np.asarray(problem.moment)[None])
    )
    assert solution.path == ["checked"] or solution.status[0] in (statuses.CHECKED, statuses.CERTIFIED)
    assert np.allclose(solution.value[0], lfom.run(method, problem).predictions[-1])


def test_they_are_scored_as_all_methods_are() -> None:
    data = lfom.LinearRegression(np.ones(3), context=12)
    methods = {"OGM": lfom.ogm(4, 8.0), "ITEM": lfom.item(4, 8.0, 0.2), "silver": lfom.silver(3, 8.0)}
    scores = lfom.evaluate(methods, data, prompts=2_000, key=jax.random.key(0))
    for score in scores.values():
        assert score.mean[0, -1] < 0.5 * score.mean[0, 0]


@pytest.mark.parametrize("L", [0.25, 1.0, 7.0])
def test_the_smoothness_only_scales_the_steps(L: float) -> None:
    for name, make in METHODS.items():
        H, unit = points(make(7, L, 0.1 * L))[0], points(make(7, 1.0, 0.1))[0]
        assert np.allclose(L * H, unit, rtol=1e-10), name


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lfom.ogm(0), "steps is 0"),
        (lambda: lfom.ogm(4, 0.0), "smoothness"),
        (lambda: lfom.ogm_g(4, -1.0), "smoothness"),
        (lambda: lfom.item(4, 1.0, 0.0), "strong_convexity is 0"),
        (lambda: lfom.item(4, 1.0, 1.0), "below the smoothness"),
        (lambda: lfom.fast_gradient(4, 1.0, -0.1), "at least 0"),
        (lambda: lfom.best_constant_step(4, 1.0, 2.0), "below the smoothness"),
        (lambda: lfom.silver(3, float("nan")), "smoothness"),
    ],
)
def test_bad_classes_are_refused(make: Callable[[], lfom.Method], words: str) -> None:
    with pytest.raises(lfom.InputError, match=words):
        make()
