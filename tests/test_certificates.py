"""What a certificate promises, and what `solve` calls certified: neither is ever too much."""

import functools

import jax
import numpy as np
import pytest

import lfom
from lfom.core.arrays import as_array
from lfom.core.memories import Register
from lfom.core.preconditioners import Identity
from lfom.core.readers import Gradient
from lfom.solving import statuses
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
