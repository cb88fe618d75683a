"""The worst case over smooth convex functions: closed forms, functions that reach it or stay below, laws, refusals."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import lfom
from lfom.cli import app
from lfom.core.arrays import as_array
from lfom.core.coefficients import Pair, Scalar
from lfom.core.memories import Bank, Forget, Register, scalar_bank
from lfom.core.preconditioners import Diagonal, Full, Identity, One, Scaled, Shared
from lfom.core.readers import Gradient, Heads, Jacobi, Normalised
from lfom.experiments import guarantee
from lfom.experiments.workbench import TRAININGS, Workbench
from lfom.limits.under_bound import best_under, certificate_slopes, table_of
from lfom.limits.worst_case import (
    MEASURES,
    POWERS,
    STARTS,
    WorstCase,
    largest_error,
    on_quadratics,
    points,
    program,
    solved,
)
from lfom.methods.optimal import constant_step_bounds, ogm_bound, ogm_points
from lfom.solving.bounded import Bounded
from lfom.solving.spectra import extreme_eigenvalues

pytestmark = pytest.mark.usefixtures("x64")

CLASSES = [(measure, start) for measure in MEASURES for start in STARTS]


def table(seed: int, steps: int, size: float = 0.8) -> np.ndarray:
    """Points of a random method near gradient descent."""
    rng = np.random.default_rng(seed)
    increments = size * np.eye(steps) + np.tril(rng.normal(size=(steps, steps)), -1) * 0.15 / steps
    return np.cumsum(increments * rng.uniform(0.6, 1.4, steps)[:, None], axis=0)


# Closed forms


def test_gradient_descent_is_one_over_four_n_plus_two() -> None:
    assert abs(lfom.worst_case(lfom.gradient_descent(1.0, steps=8)) - 1 / 34) < 1e-9
    for steps in (1, 3, 20):
        assert abs(lfom.worst_case(lfom.gradient_descent(1.0, steps)) - 1 / (4 * steps + 2)) < 1e-9


@pytest.mark.parametrize("h", [0.3, 1.5, 1.7, 1.95])
@pytest.mark.parametrize("q", [0.0, 0.1])
def test_both_branches_of_a_constant_step(h: float, q: float) -> None:
    for steps in (1, 4):
        found = lfom.worst_case(lfom.gradient_descent(h / 5, steps), 5.0, 5 * q)
        assert abs(found - 5 * max(constant_step_bounds(h, steps, q))) < 1e-7


@pytest.mark.parametrize("h", [0.5, 1.0, 1.8])
def test_the_tables_of_measures_and_starts_of_gradient_descent(h: float) -> None:
    """With mu all of them but the value from a distance are reached by quadratics: (1 - h mu)^2N or (1 - h)^2N."""
    steps, q, method = 4, 0.2, lfom.gradient_descent(h, 4)
    soft, steep = (1 - h * q) ** (2 * steps), (1 - h) ** (2 * steps)
    rate = max(soft, steep)
    expected = {
        ("distance", "distance"): rate,
        ("value", "value"): rate,
        ("distance", "value"): 2 * max(soft / q, steep),
    }
    for (measure, start), value in expected.items():
        assert abs(lfom.worst_case(method, 1.0, q, measure, start) - value) < 1e-7
    for same in ("distance", "value"):  # flat functions, where nothing moves
        assert abs(lfom.worst_case(method, measure=same, start=same) - 1) < 1e-7
    # from a value the gradient falls as 2 / (2 N h + 1) for short steps
    if h == 1.0:
        assert abs(lfom.worst_case(method, measure="gradient", start="value") - 2 / (2 * steps + 1)) < 1e-7
        assert abs(lfom.worst_case(method, measure="gradient") - 1 / (steps + 1) ** 2) < 1e-7


def test_a_distance_from_a_value_has_no_bound_without_strong_convexity() -> None:
    method = lfom.ogm(3)
    assert lfom.worst_case(method, measure="distance", start="value") == math.inf
    for measure, start in CLASSES:
        if (measure, start) != ("distance", "value"):
            assert math.isfinite(lfom.worst_case(method, measure=measure, start=start))
    # a function that shows it: slope s, with x* at a distance of about 1 / s from a value of 1
    reached = []
    for s in (0.1, 0.01):
        x, g = 1 / s + s / 2, []  # Huber's function: s |x| - s^2 / 2 beyond s
        H, _ = points(method)
        at = x
        for row in H:
            g.append(np.clip(at, -s, s))
            at = x - row[: len(g)] @ g
        reached.append(at**2)
    assert reached[1] > 50 * reached[0]


def test_the_number_is_a_float_that_says_what_it_is() -> None:
    found = lfom.worst_case(lfom.gradient_descent(0.5, steps=2), 2.0, 0.1, measure="distance")
    assert isinstance(found, float)
    assert isinstance(found, WorstCase)
    assert float(found) == found.value == found + 0.0
    assert (found.measure, found.start, found.steps) == ("distance", "distance", 2)
    assert (found.smoothness, found.strong_convexity) == (2.0, 0.1)
    assert 0 <= found.accuracy < 1e-7
    assert "|w - w*|^2 <= " in found.text
    assert "strong convexity 0.1" in found.text
    assert f"{found:.3f}" == f"{float(found):.3f}"
    assert hash(found) == hash(float(found))
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.value = 0.0  # type: ignore[misc]


# Functions


def huber(s: float) -> tuple[Callable, Callable]:
    """Slope s and curvature 1 around 0."""
    r = lambda x: np.linalg.norm(x)  # noqa: E731
    return (
        lambda x: r(x) ** 2 / 2 if r(x) <= s else s * r(x) - s**2 / 2,
        lambda x: x if r(x) <= s else s * x / r(x),
    )


def logistic(rng: np.random.Generator, d: int) -> tuple[Callable, Callable, np.ndarray]:
    """Smoothness 1, minimiser by Newton's method."""
    X = rng.normal(size=(30, d))
    y = np.where(rng.random(30) < 0.5, 1.0, -1.0)
    scale = 1 / (np.linalg.eigvalsh(X.T @ X)[-1] / 4 + 1e-2)

    def value(w: np.ndarray) -> float:
        return scale * (np.logaddexp(0, -y * (X @ w)).sum() + 5e-3 * w @ w)

    def slope(w: np.ndarray) -> np.ndarray:
        return scale * (X.T @ (-y / (1 + np.exp(y * (X @ w)))) + 1e-2 * w)

    w = np.zeros(d)
    for _ in range(50):
        p = 1 / (1 + np.exp(-X @ w))
        w = w - np.linalg.solve(scale * ((X.T * (p * (1 - p))) @ X + 1e-2 * np.eye(d)), slope(w))
    return value, slope, w


def reached(
    H: np.ndarray, value: Callable, slope: Callable, x0: np.ndarray, best: np.ndarray
) -> dict[Any, float]:
    """Every measure over every start after the method that takes its gradients at the points H."""
    g: list[np.ndarray] = []
    x = x0
    for row in H:
        g.append(slope(x))
        x = x0 - np.tensordot(row[: len(g)], np.stack(g), 1)
    ends = {
        "value": value(x) - value(best),
        "gradient": np.sum(slope(x) ** 2),
        "distance": np.sum((x - best) ** 2),
    }
    starts = {"distance": np.sum((x0 - best) ** 2), "value": value(x0) - value(best)}
    return {(m, s): ends[m] / starts[s] for m in ends for s in starts}


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), steps=st.integers(1, 5), size=st.sampled_from([0.5, 1.0, 1.8]))
def test_no_smooth_convex_function_does_worse(seed: int, steps: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    H = table(seed, steps, size)
    worst = {at: largest_error(H, 0.0, *at).value for at in CLASSES}
    for _ in range(5):
        d = 4
        Q, _ = np.linalg.qr(rng.normal(size=(d, d)))
        A = (Q * np.append(rng.uniform(0.01, 1, d - 1), 1.0)) @ Q.T
        x0 = rng.normal(size=d) * 10 ** rng.uniform(-1, 1)
        f, slope, best = logistic(rng, d)
        tried = [
            reached(H, lambda x, A=A: x @ A @ x / 2, lambda x, A=A: A @ x, x0, np.zeros(d)),
            reached(H, *huber(10 ** rng.uniform(-2, 0)), x0, np.zeros(d)),
            reached(H, f, slope, x0, best),
        ]
        for one in tried:
            for at, value in one.items():
                assert value <= worst[at] * (1 + 1e-6) + 1e-9, at


def test_quadratics_and_huber_reach_it() -> None:
    """Gradient descent's two worst functions: |x|^2 / 2, and Huber's of slope 1 / (2 N + 1)."""
    for h, (value, slope) in ((1.9, huber(10.0)), (1.0, huber(1 / 17))):
        H = h * np.tril(np.ones((8, 8)))
        found = reached(H, value, slope, np.ones(1), np.zeros(1))["value", "distance"]
        assert largest_error(H, 0.0, "value", "distance").value == pytest.approx(found, abs=1e-8)
    for q, at in (
        (0.0, ("value", "distance")),
        (0.3, ("distance", "distance")),
        (0.3, ("gradient", "value")),
    ):
        H = table(1, 3)
        assert on_quadratics(H, q, *at) <= largest_error(H, q, *at).value + 1e-9


# Laws


@pytest.mark.parametrize(("measure", "start"), CLASSES)
def test_scaling_by_the_smoothness(measure: str, start: str) -> None:
    L, H = 7.0, table(2, 3)
    mu = 0.1 if (measure, start) == ("distance", "value") else 0.0
    plain = lfom.worst_case(lfom.lfom(-H), 1.0, mu, measure, start)
    scaled = lfom.worst_case(lfom.lfom(-H / L), L, L * mu, measure, start)
    powers = {"value": 1, "gradient": 2, "distance": 0}
    assert scaled == pytest.approx(plain * L ** (powers[measure] - powers[start]), rel=1e-6)
    assert POWERS[measure, start] == powers[measure] - powers[start]


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), at=st.sampled_from(CLASSES))
def test_strong_convexity_and_smaller_smoothness_only_help(seed: int, at: tuple[str, str]) -> None:
    """Smaller classes of functions."""
    H = table(seed, 3)
    values = [largest_error(H, q, *at).value for q in (0.0, 0.05, 0.3)]
    assert values[0] >= values[1] * (1 - 1e-6)
    assert values[1] >= values[2] * (1 - 1e-6)
    method = lfom.lfom(-H)
    large, small = (lfom.worst_case(method, L, 0.1, *at) for L in (1.0, 0.7))
    assert small <= large * (1 + 1e-6)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_fewer_inequalities_never_lower_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = program(table(seed, 4), 0.0, "value", "distance")
    points_of = len(whole.aims)
    # those of x* with every point keep it bounded
    kept = (whole.i == points_of) | (whole.j == points_of) | (rng.random(len(whole.i)) < 0.6)
    fewer = whole._replace(**{n: getattr(whole, n)[kept] for n in ("forms", "values", "i", "j")})
    assert solved(fewer).value >= solved(whole).value * (1 - 1e-6)


def test_where_gradients_are_taken_counts_and_not_the_answers_between() -> None:
    """Nesterov's method by its own two sequences, on functions of one unknown."""
    method = lfom.nesterov(0.8, 0.5, steps=3)
    H, _ = points(method)
    _, slope = huber(0.3)
    x0 = np.asarray([0.6])  # its gradients change on the way
    w, before = x0, x0
    for k in range(3):
        v = w + (0.5 * (w - before) if k else 0)
        w, before = v - 0.8 * slope(v), w
    g: list[np.ndarray] = []
    x = x0
    for row in H:
        g.append(slope(x))
        x = x0 - row[: len(g)] @ np.stack(g)
    assert np.allclose(x, w)
    on_quadratics_alone = -np.asarray(lfom.lfom_coefficients(method))[..., 0]
    assert not np.allclose(H, on_quadratics_alone)


def test_every_way_to_write_a_method_gives_the_same_points() -> None:
    rng = np.random.default_rng(0)
    alpha, gamma, a = rng.uniform(0.5, 1, 3), rng.uniform(0, 0.5, 3), rng.uniform(0.5, 1, 3)
    register = Register(as_array(alpha), as_array(gamma))
    rows = register.table(3)[0]
    same = [
        lfom.Method(Gradient(Scaled(as_array(a))), register, 3),
        lfom.Method(Gradient(Identity()), scalar_bank(as_array(rows * a)), 3),
        lfom.Method(Gradient(Scaled(as_array(a))), Bank(Pair(as_array(rows), as_array(rows)), tied=False), 3),
    ]
    wanted = np.cumsum(rows * a, axis=0)
    assert all(np.allclose(points(method)[0], wanted) for method in same)
    tied = lfom.Method(Gradient(Identity()), Bank(Scalar(as_array(alpha)), tied=True), 3)
    assert np.allclose(points(tied)[0], np.cumsum(np.tril(np.ones((3, 3))) * alpha, axis=0))
    momentum = lfom.momentum(0.5, 0.3, steps=3)
    assert np.allclose(-lfom.lfom_coefficients(momentum)[..., 0], points(momentum)[0])


def test_a_preconditioner_counts_in_its_own_norm() -> None:
    rng = np.random.default_rng(0)
    half = rng.normal(size=(4, 4))
    M = half @ half.T + np.eye(4)
    plain = lfom.worst_case(lfom.gradient_descent(0.9, 4))
    assert not plain.preconditioned
    steps, eta = 4, as_array(np.full(4, 0.9))
    for reader in (
        Gradient(Shared(as_array(np.ones(4)), as_array(M))),
        Gradient(One(as_array(M))),
        Gradient(Diagonal(as_array(rng.normal(size=4)))),
        Gradient(Full(as_array(np.stack([M] * 4)))),
    ):
        found = lfom.worst_case(lfom.Method(reader, Forget(eta), steps))
        assert found == pytest.approx(plain, abs=1e-9)
        assert found.preconditioned
        assert "norm of M^-1" in found.text
    whole = lfom.worst_case(lfom.preconditioned_gradient_descent(M, 0.9, 4))
    assert whole == pytest.approx(plain, abs=1e-9)
    several = Gradient(Full(as_array(np.stack([M, 2 * M, M, M]))))
    twice = lfom.worst_case(lfom.Method(several, Forget(as_array([0.9, 0.45, 0.9, 0.9])), 4))
    assert twice == pytest.approx(plain, abs=1e-7)


def test_what_a_preconditioned_method_does_stays_below() -> None:
    """f(x) = g(M^-1/2 x) with g smooth: the method runs as gradient descent on g."""
    rng = np.random.default_rng(3)
    half = rng.normal(size=(3, 3))
    M = half @ half.T + 0.5 * np.eye(3)
    method = lfom.preconditioned_gradient_descent(M, 1.0, 5)
    bound = lfom.worst_case(method)
    for _ in range(20):
        Q, _ = np.linalg.qr(rng.normal(size=(3, 3)))
        root = np.linalg.cholesky(np.linalg.inv(M))
        A = root @ (Q * np.append(rng.uniform(0.01, 1, 2), 1.0)) @ Q.T @ root.T
        x = best = rng.normal(size=3)
        x = np.zeros(3)
        for _ in range(5):
            x = x - M @ (A @ (x - best))
        assert (x - best) @ A @ (x - best) / 2 <= bound * (best @ np.linalg.solve(M, best)) * (1 + 1e-9)


# Accuracy and slopes


def test_the_accuracy_is_one() -> None:
    for steps in (2, 8, 16):
        for method, wanted in (
            (lfom.gradient_descent(1.0, steps), 1 / (4 * steps + 2)),
            (lfom.ogm(steps), ogm_bound(steps)),
        ):
            found = lfom.worst_case(method)
            assert wanted <= found * (1 + 1e-12)
            assert found - wanted <= found.accuracy + 1e-13
            assert found.accuracy < 1e-7


def test_small_numbers_are_found_in_units_of_their_own() -> None:
    found = lfom.worst_case(lfom.gradient_descent(1.0, 20), 1.0, 0.5, measure="distance")
    assert 0.5**40 <= found <= 0.5**40 + found.accuracy
    assert found.accuracy < 1e-6
    found = lfom.worst_case(lfom.gradient_descent(1.3, 8), 1.0, 0.3)
    assert found == pytest.approx(max(constant_step_bounds(1.3, 8, 0.3)), rel=1e-4)


def test_what_cannot_be_computed_is_said() -> None:
    with pytest.raises(lfom.InputError, match="at least"):
        lfom.worst_case(lfom.gradient_descent(100.0, 8))


NEAR = {
    "gradient descent": np.tril(np.ones((4, 4))),
    "longer steps": 1.2 * np.tril(np.ones((4, 4))),
    "OGM, shorter": 0.9 * ogm_points(4),
    "near gradient descent": table(5, 4, 1.0),
}


@pytest.mark.parametrize("name", NEAR)
@pytest.mark.parametrize(("q", "measure"), [(0.0, "value"), (0.1, "value"), (0.1, "distance")])
def test_slopes_are_those_of_differences(name: str, q: float, measure: str) -> None:
    """Multipliers are known to about the square root of the accuracy, which is poorer with strong convexity."""
    H, rng = NEAR[name], np.random.default_rng(1)
    found = largest_error(H, q, measure, "distance")
    for _ in range(2):
        along = np.tril(rng.normal(size=H.shape))
        along /= np.linalg.norm(along)

        def at(k: float) -> float:
            return largest_error(H + 2e-3 * k * along, q, measure, "distance").value

        difference = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * 2e-3)
        assert np.sum(found.slopes * along) == pytest.approx(difference, abs=3e-5 if q else 1e-6)


def test_slopes_of_the_certificate_are_those_of_differences() -> None:
    """S is linear in the points."""
    H, rng = table(0, 3), np.random.default_rng(0)
    one = program(H, 0.0, "value", "distance")
    multipliers = rng.uniform(size=len(one.i))
    moved = certificate_slopes(one, multipliers)
    for place, (row, column) in enumerate(zip(*np.tril_indices(3), strict=True)):
        increments = table_of(H)
        increments[row, column] += 1.0
        other = program(np.cumsum(increments, axis=0), 0.0, "value", "distance")
        change = np.tensordot(multipliers, other.forms - one.forms, 1)
        assert np.allclose(moved[place], change, atol=1e-12)


# Refusals


def stepped(reader: Any, eta: Any = (1.0, 1.0)) -> lfom.Method:
    return lfom.Method(reader, Forget(as_array(np.asarray(eta))), 2)


PLAIN = Gradient(Identity())
DIFFERENT = np.stack([np.eye(3), np.diag([1.0, 2.0, 3.0])])
SKEW = np.eye(3) + np.asarray([[0, 1, 0], [-1, 0, 0], [0, 0, 0]])
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "conjugate": (lambda: lfom.conjugate_gradient(3), "compute their coefficients from each prompt"),
    "per coordinate": (lambda: lfom.lfom(-np.ones((2, 2, 3))), "differ between unknowns"),
    "matrices": (lambda: stepped(Gradient(Full(as_array(DIFFERENT)))), "differ between layers"),
    "not symmetric": (lambda: lfom.preconditioned_gradient_descent(SKEW, 0.5, 2), "not symmetric"),
    "indefinite": (lambda: stepped(Gradient(One(as_array(-np.eye(3))))), "positive definite"),
    "GD++": (lambda: lfom.gd_plus_plus(np.eye(3), np.eye(3), 2), "B = 0"),
    "heads": (lambda: stepped(Heads((PLAIN, PLAIN))), "one head"),
    "normalised": (lambda: stepped(Normalised(PLAIN)), "not normalised"),
    "jacobi": (lambda: stepped(Jacobi(Identity())), "diagonal of each problem"),
    "mixture": (lambda: lfom.mixture((lfom.ogm(2), lfom.ogm(2)), as_array(np.ones(2))), "several methods"),
    "not a number": (lambda: stepped(PLAIN, [1.0, np.nan]), "NaN"),
    "per prompt": (lambda: stepped(PLAIN, np.ones((2, 5))), "each prompt"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_methods_are_refused_with_the_reason(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(lfom.InputError, match=words):
        lfom.worst_case(make())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"smoothness": 0.0}, "smoothness"),
        ({"strong_convexity": 1.0}, "below the smoothness"),
        ({"strong_convexity": -0.1}, "at least 0"),
        ({"measure": "values"}, "value"),
        ({"start": "gradient"}, "unknown start"),
    ],
)
def test_bad_questions_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(lfom.InputError, match=words):
        lfom.worst_case(lfom.ogm(2), **options)


# Learned under a bound


def regressions(count: int = 60, d: int = 5, seed: int = 0) -> lfom.LeastSquaresProblems:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, 20, d)) * np.linspace(1, 0.3, d)
    return lfom.LeastSquaresProblems(X, np.einsum("pnd,pd->pn", X, rng.normal(size=(count, d))))


@pytest.fixture(scope="module")
def under() -> dict[float, lfom.Method]:
    with jax.enable_x64(True):
        bounds = [factor * ogm_bound(3) for factor in (1.05, 2.0, 50.0)]
        return {bound: lfom.learn(regressions(), 3, worst_case=bound) for bound in bounds}


def test_learned_methods_keep_their_bound_and_use_it(under: dict[float, lfom.Method]) -> None:
    losses = []
    for bound, method in under.items():
        told = method.facts.bound  # type: ignore[union-attr]
        found = lfom.worst_case(method, told.smoothness)
        assert found <= bound * told.smoothness
        assert found >= 0.98 * bound * told.smoothness
        assert told.worst_case == pytest.approx(found / told.smoothness, rel=1e-9)
        assert told.asked == bound
        losses.append(method.record.scores[0][1])
    assert losses == sorted(losses, reverse=True)
    largest = max(np.linalg.eigvalsh(X.T @ X / 20)[-1] for X in np.asarray(regressions().X))
    assert told.smoothness == pytest.approx(1.05 * largest)
    free = lfom.learn(regressions(), 3, "scalar")
    assert losses[-1] == pytest.approx(free.record.scores[0][1], abs=0.1)
    L = told.smoothness
    ogm = Bounded(regressions().learner(3, 0), 1.0, L).confirmed(table_of(ogm_points(3)))[0]
    scored = lfom.learn(regressions(), 3, worst_case=ogm_bound(3) * (1 + 1e-6), smoothness=L)
    assert np.allclose(points(scored)[0], points(ogm)[0], atol=0.02)
    assert losses[0] < scored.record.scores[0][1]


def test_the_promise_states_both_and_is_saved(under: dict[float, lfom.Method], tmp_path: Any) -> None:
    bound, method = next(iter(under.items()))
    assert f"after 3 steps f(w) - f* <= {bound:.4g} L |w_0 - w*|^2" in method.promise
    assert "12 problems held out" in method.promise
    assert "eigenvalues of M A" in method.promise
    method.save(tmp_path / "bounded.safetensors")
    again = lfom.load(tmp_path / "bounded.safetensors")
    assert again.facts.bound == method.facts.bound  # type: ignore[union-attr]
    assert again.promise == method.promise


def test_problems_are_taken_as_they_are(under: dict[float, lfom.Method]) -> None:
    """A bound holds for the problem itself: it is not rescaled into the family's range."""
    method, problems = under[2.0 * ogm_bound(3)], regressions(10, seed=1)
    L = method.facts.bound.smoothness  # type: ignore[union-attr]
    small = lfom.LeastSquaresProblems(problems.X / 30, problems.y)
    solution = method.solve(small)
    for X, y, w in zip(np.asarray(small.X), np.asarray(small.y), np.asarray(solution.value), strict=True):
        best = np.linalg.lstsq(X, y, rcond=None)[0]
        error = np.sum((X @ (w - best)) ** 2) / 40
        assert error <= 2.0 * ogm_bound(3) * L * np.sum(best**2)
    assert not any("rescaled" in path for path in solution.path)


def losses(count: int = 20) -> lfom.ConvexLosses:
    rng = np.random.default_rng(0)
    data = {"X": rng.normal(size=(count, 15, 3)), "y": np.sign(rng.normal(size=(count, 15)))}

    def loss(w: Any, data: Any) -> Any:
        return jnp.mean(jnp.logaddexp(0.0, -data["y"] * (data["X"] @ w))) + 0.05 * jnp.sum(w**2)

    return lfom.ConvexLosses(loss, data, size=3)


def test_convex_losses_are_learned_from_under_a_bound() -> None:
    problems, bound = losses(), 1.5 * ogm_bound(2)
    method = lfom.learn(problems, 2, worst_case=bound)
    told = method.facts.bound  # type: ignore[union-attr]
    X = np.asarray(problems.data["X"])
    curvature = max(np.linalg.eigvalsh(x.T @ x / 15 / 4)[-1] for x in X) + 0.1  # at w = 0
    assert told.smoothness == pytest.approx(1.05 * curvature, rel=1e-6)
    assert lfom.worst_case(method, told.smoothness) <= bound * told.smoothness
    assert "(worst case)" in method.promise
    assert "eigenvalues" not in method.promise
    given = lfom.learn(problems, 2, worst_case=bound, smoothness=3.0)
    assert given.facts.bound.smoothness == 3.0  # type: ignore[union-attr]


def test_bounds_that_cannot_be_kept_are_refused() -> None:
    problems = regressions(12)
    with pytest.raises(lfom.InputError, match="no method of 3 steps"):
        lfom.learn(problems, 3, worst_case=0.999 * ogm_bound(3))
    with pytest.raises(lfom.InputError, match="numbers alone"):
        lfom.learn(problems, 3, "preconditioned", worst_case=1.0)
    with pytest.raises(lfom.InputError, match="pass worst_case"):
        lfom.learn(problems, 3, smoothness=1.0)
    with pytest.raises(lfom.InputError, match="worst_case"):
        lfom.learn(problems, 3, worst_case=-1.0)


def test_a_table_that_breaks_its_bound_is_drawn_towards_ogm() -> None:
    bound = 1.2 * ogm_bound(3)
    keeper = Bounded(regressions(12).learner(3, 0), bound, 2.0)
    far = 1.3 * table_of(ogm_points(3))
    assert largest_error(np.cumsum(far, axis=0), 0.0, "value", "distance").value > bound
    method, found = keeper.confirmed(far)
    assert found <= 2.0 * bound
    assert found == lfom.worst_case(method, 2.0)


def test_the_best_table_under_a_bound_of_a_known_problem() -> None:
    """One step h on one quadratic of curvature t: the loss (1 - h t)^2 wants h = 1 / t, and the bound allows the step at
    which (h - 1)^2 / 2 meets it."""
    t, bound = 0.4, 0.2

    def loss(table: np.ndarray) -> tuple[float, np.ndarray]:
        h = table[0, 0]
        return (1 - h * t) ** 2, np.asarray([[-2 * t * (1 - h * t)]])

    assert best_under(loss, 1, bound)[0, 0] == pytest.approx(1 + np.sqrt(2 * bound), abs=1e-4)
    assert best_under(loss, 1, 2.0)[0, 0] == pytest.approx(1 / t, abs=1e-2)


def test_the_experiment_sees_what_is_kept_and_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {"STEPS": 2, "LEARNING": 12, "FACTORS": (1.05, 50.0), "ITERATIONS": 2, "NOTHING": 1e3}
    tiny |= {"HELD_OUT": {"quick": 8}, "RUNS": {"quick": 2}}
    for name, value in tiny.items():
        monkeypatch.setattr(guarantee, name, value)
    guarantee.promises.cache_clear()
    outcome = guarantee.Guarantee().run(Workbench())
    guarantee.promises.cache_clear()
    verdicts = {claim.id: claim.verdict for claim in outcome.claims}
    assert verdicts["guarantee-kept"] == verdicts["guarantee-better-than-ogm"] == "holds"
    assert verdicts["guarantee-none-without-bound"] != "holds"  # hardly trained, it promises something
    places = {row.curve: sorted({r.x for r in outcome.rows if r.curve == row.curve}) for row in outcome.rows}
    assert places["OGM"] == [1.0]
    assert places["GD"][0] == pytest.approx(0.1 / ogm_bound(2), rel=1e-5)
    assert places[guarantee.LEARNED] == sorted({1.05, 50.0, *places["GD"], *places["Fast gradient"]})
    assert all(row.prompts == 8 and row.run in (0, 1) for row in outcome.rows)
    none = guarantee.Guarantee().run(Workbench(trainings={"paper": TRAININGS["paper"]}))
    assert not none.rows


def test_the_command_line_takes_a_bound(tmp_path: Path) -> None:
    problems = regressions(12)
    np.savez(tmp_path / "problems.npz", X=np.asarray(problems.X), y=np.asarray(problems.y))
    out, bound = tmp_path / "method.safetensors", 2 * ogm_bound(2)
    options = ["--steps", "2", "--worst-case", str(bound), "--out", str(out), "--json"]
    answer = CliRunner().invoke(app, ["learn", str(tmp_path / "problems.npz"), *options])
    assert answer.exit_code == 0, answer.output
    told = json.loads(answer.stdout)["worst_case"]
    assert told["asked"] == bound
    assert told["worst_case"] <= bound
    shown = CliRunner().invoke(app, ["inspect", str(out), "--no-plot"])
    assert "(worst case)" in " ".join(shown.stdout.split())
    plain = CliRunner().invoke(app, ["learn", str(tmp_path / "problems.npz"), "--worst-case", "0.001"])
    assert plain.exit_code != 0


def test_extreme_eigenvalues_survive_convergence() -> None:
    """Lanczos' coefficients are those of rounding once nothing is left: here after six steps of forty."""
    rng = np.random.default_rng(0)
    eigenvalues = np.concatenate([np.full(60, 0.01), [0.1, 0.2, 0.4, 0.7, 1.0]])
    turns = [np.linalg.qr(rng.normal(size=(65, 65)))[0] for _ in range(20)]
    A = np.stack([(Q * eigenvalues) @ Q.T for Q in turns]).astype(np.float32)
    with jax.enable_x64(False):
        problems = lfom.LinearSystems(lambda A, v: A @ v, A.sum(axis=2), data=jnp.asarray(A))
        low, high, exact = extreme_eigenvalues(problems.each(), Gradient(Identity()))
    assert not exact
    assert high == pytest.approx(1.0, rel=1e-3)
    assert low == pytest.approx(0.01, rel=1e-2)
