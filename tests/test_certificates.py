"""What a certificate promises, and what `solve` calls certified: neither is ever too much."""

import functools
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import lfom
from lfom.core.arrays import as_array
from lfom.core.memories import Register
from lfom.core.preconditioners import Identity
from lfom.core.readers import Gradient
from lfom.solving import certificate, statuses
from lfom.solving.certificate import certify

pytestmark = pytest.mark.usefixtures("x64")


def plain_polynomials(alpha: np.ndarray, gamma: np.ndarray, t: np.ndarray) -> np.ndarray:
    """p_0, ..., p_k of a register by its own recurrence, in NumPy."""
    p, register = np.ones_like(t), np.zeros_like(t)
    rows = [p]
    for a, g in zip(alpha, gamma, strict=True):
        register = p + g * register
        p = p - a * t * register
        rows.append(p)
    return np.stack(rows)


@pytest.mark.parametrize("spread", [0.0, 0.01, 0.1])
def test_promises_of_many_steps_are_kept(spread: float) -> None:
    """Chebyshev's coefficients, a little off: from some dozen steps on, rounding moves the roots from which
    the interval is found, and it must not be promised too long."""
    lowest, steps = 1e-3, 24
    for seed in range(3):
        rng = np.random.default_rng(seed)
        register = lfom.chebyshev(lowest, 1.0, steps).memory
        factors = 1 + spread * rng.normal(size=(2, steps))
        alpha, gamma = np.asarray([register.alpha, register.gamma]) * factors  # type: ignore[attr-defined]
        with jax.enable_x64(True):
            method = lfom.Method(Gradient(Identity()), Register(as_array(alpha), as_array(gamma)), steps)
        certificate = certify(method, (lowest, 1.0), True)
        for n, reach in enumerate(certificate.reach, 1):
            p = plain_polynomials(alpha[:n], gamma[:n], np.linspace(0, reach, 20_001))[-1]
            assert np.abs(p).max() <= 1 + 1e-6, n
    if not spread:  # and not too short either: all of the interval that they are made for
        assert certificate.reach[15] >= 1.0


def test_promises_after_a_tiny_first_step_are_kept() -> None:
    """Where polynomials leave [-1, 1] says their fall at 0, not the first step size: there those of later steps have long
    left it, and roots found from such large values are wrong."""
    steps = 24
    register = lfom.chebyshev(1e-2, 1.0, steps).memory
    alpha, gamma = np.array([register.alpha, register.gamma])  # type: ignore[attr-defined]
    alpha[0] *= 1e-4
    with jax.enable_x64(True):
        method = lfom.Method(Gradient(Identity()), Register(as_array(alpha), as_array(gamma)), steps)
    reaches = certify(method).reach
    for n, reach in enumerate(reaches, 1):
        p = plain_polynomials(alpha[:n], gamma[:n], np.linspace(0, reach, 20_001))[-1]
        assert np.abs(p).max() <= 1 + 1e-6, n
    assert reaches[16] > 0.99  # and no shorter than that: other steps are 10,000 times the first


def test_roots_that_are_wrong_make_no_promise_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 37,000 polynomials of perturbed registers none had such roots: this is the net below."""
    register = lfom.chebyshev(1e-2, 1.0, 6)
    right, crossing = certify(register).reach, certificate._crossing
    monkeypatch.setattr(certificate, "_crossing", lambda p, top: 1.3 * crossing(p, top))
    for wrong, good in zip(certify(register).reach, right, strict=True):
        assert 0.99 * good < wrong <= good


@functools.cache
def mostly_small() -> lfom.Method:
    """Learned from systems with one eigenvalue between 1 and 4 that hardly matters: its first step is so
    long that it does not contract the largest ones, and later steps make up for that."""
    rng = np.random.default_rng(0)
    eigenvalues = np.concatenate([rng.uniform(0.2, 1, (60, 2)), rng.uniform(1, 4, (60, 1))], axis=1)
    b = rng.normal(size=(60, 3)) * [1, 1, 0.02]
    with jax.enable_x64(True):
        return lfom.learn(lfom.LinearSystems(eigenvalues[:, None] * np.eye(3), b), 4, "scalar", iterations=0)


def test_certified_is_what_the_steps_that_run_contract() -> None:
    method = mostly_small()
    certificate = method.certificate
    assert certificate is not None
    assert certificate.reach[0] < 3 < certificate.reach[-1]
    largest = np.linspace(1.1, 3.8, 200)
    A = np.stack([np.diag([0.3, 0.5, top]) for top in largest])
    problems = lfom.LinearSystems(A, np.random.default_rng(1).normal(size=(200, 3)), check=True)
    for steps in (1, 2, 4):
        found = method.solve(problems, steps=steps)
        certified = found.status == statuses.CERTIFIED
        np.testing.assert_array_equal(certified, largest <= certificate.reach[steps - 1])
        assert (found.status[~certified] > 0).all()


def test_what_changes_a_learned_method_forgets_what_was_learned_of_it() -> None:
    """Its certificate, its record and its range are of other numbers, or of more layers."""
    method = mostly_small()
    data = lfom.LinearRegression([9.0, 4.0, 1.0], 12)
    options: dict[str, Any] = {"train": ("coefficients",), "steps": 3}
    adapted = lfom.adapt(method, data.prompts(jax.random.key(0), 60), setting="labelled", **options).model
    adam = lfom.Adam(steps=20, batch=20, learning_rate=0.03)
    for changed in (
        adapted,
        lfom.fit(method, data, key=jax.random.key(0), optimiser=adam).model(),
        method.truncated(1),
    ):
        assert not eqx.tree_equal(changed.as_algorithm(), method.as_algorithm())
        plain = lfom.Method(changed.reader, changed.memory, changed.depth)
        assert changed.record is None
        assert changed.promise == plain.promise != method.promise
    assert method.truncated(method.depth).promise == method.promise
    both = lfom.mixture([method, method])
    assert [head.facts for head in both.as_algorithm().heads] == [None, None]


def test_learned_methods_are_trained_by_least_squares_and_scored_as_a_list() -> None:
    """As what they are without what is known of them: a list may hold several of one structure."""
    method = mostly_small()
    assert method.learned is not None
    half = Register(method.memory.alpha / 2, method.memory.gamma)  # type: ignore[attr-defined]
    methods = [method, lfom.Method(method.reader, half, 4, replace(method.learned, floor=1e-3))]
    data, key = lfom.LinearRegression([2.0, 1.0, 0.5], 12), jax.random.key(0)
    quick = lfom.LeastSquares(first=200, last=200, passes=(2, 1))
    assert lfom.fit(methods, data, key=key, optimiser=quick).runs == 2
    both = lfom.mixture(methods)
    trained = lfom.fit(both, data, key=key, train="gates", optimiser=quick).model()
    assert eqx.tree_equal(trained.heads, both.as_algorithm().heads)  # frozen, and nothing is claimed of them
    score = lfom.evaluate({"both": methods}, data, prompts=100, key=key)["both"]
    assert score.mean[0, -1] != score.mean[1, -1]
    adapted = lfom.adapt(methods, data.prompts(key, 20), train=("coefficients",), steps=1)
    assert adapted.model.runs == 2
