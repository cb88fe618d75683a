"""lfom.learn and method.solve: optimality, promises, agreement with plain NumPy, both precisions."""

import itertools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import lfom
from lfom.core import preconditioners as pre
from lfom.core.checks import InputError
from lfom.core.memories import Register
from lfom.core.methods import Method
from lfom.core.preconditioners import Identity
from lfom.core.problems import Quadratic
from lfom.core.readers import Gradient
from lfom.solving.certificate import certify, residual_polynomials
from lfom.solving.joint import best_register
from lfom.solving.learn import _affordable
from lfom.solving.pieces import mapped, piece
from lfom.solving.spectra import matrices
from lfom.solving.structures import available, parse
from tests.learned_problems import (
    GRADIENT_STEPS,
    classifications,
    diffusion,
    fresh_regressions,
    grids,
    learned,
    learned_from_losses,
    learned_on_grids,
    logistic,
    regressions,
    relative_errors,
    systems,
)

pytestmark = pytest.mark.usefixtures("x64")
EACH = list(GRADIENT_STEPS)
CONJUGATE = "conjugate:jacobi+diagonal"
SOME = ["scalar", "preconditioned:full", CONJUGATE]


def by_hand(method: lfom.Method, problems: Any, steps: int) -> np.ndarray:
    """The exported coefficients in plain NumPy: every iterate, (steps + 1, problems, d)."""
    content = json.loads(json.dumps(method.to_json()))
    each = problems.each()
    A, b = np.asarray(each.gram), np.asarray(each.moment)
    d = b.shape[1]
    matrix = content["preconditioner"]
    M = np.eye(d)
    if matrix["kind"] == "diagonal":
        M = np.diag(matrix["diagonal"])
    elif matrix["kind"] == "low-rank":
        V, S = np.array(matrix["V"]), np.diag(np.sqrt(matrix["diagonal"]))
        M = S @ (np.eye(d) + V @ V.T) @ S
    elif matrix["kind"] == "full":
        M = np.array(matrix["matrix"])
    s = 1 / np.sqrt(np.diagonal(A, axis1=1, axis2=2)) if content["jacobi"] else np.ones_like(b)
    w, rows = np.zeros_like(b), [np.zeros_like(b)]
    if content["run"] == "conjugate":
        r, direction, before = b, 0.0, None
        for _ in range(steps):
            z = s * (s * r @ M)
            rz = (r * z).sum(1, keepdims=True)
            direction = z if before is None else z + rz / before * direction
            image = np.einsum("pij,pj->pi", A, direction)
            alpha = rz / (direction * image).sum(1, keepdims=True)
            w, r, before = w + alpha * direction, r - alpha * image, rz
            rows.append(w)
        return np.stack(rows)
    bank, past = np.array(content["bank"]), []
    for step in range(steps):
        past.append(s * (s * (b - np.einsum("pij,pj->pi", A, w)) @ M))
        w = w + sum(bank[step, j] * z for j, z in enumerate(past))
        rows.append(w)
    return np.stack(rows)


@pytest.mark.parametrize("name", EACH)
def test_solve_is_the_exported_recursion(name: str) -> None:
    method, fresh = learned(name), fresh_regressions()
    each = fresh.each()
    A, b = np.asarray(each.gram), np.asarray(each.moment)
    iterates = by_hand(method, fresh, 5)
    for steps in (3, 5) if name in ("scalar", "diagonal") else (5,):  # a register and a bank cut short
        solution = method.solve(fresh, steps=steps)
        kept = np.isin(solution.status, (0, 1))  # neither rescaled nor fallen back
        assert kept.mean() > 0.5
        np.testing.assert_allclose(solution.value[kept], iterates[steps][kept], atol=1e-10)
        sizes = np.linalg.norm(b - np.einsum("pij,kpj->kpi", A, iterates[: steps + 1]), axis=2).T
        sizes = sizes / sizes[:, :1]
        np.testing.assert_allclose(solution.residuals[kept], sizes[kept], rtol=1e-7, atol=1e-10)
        assert (solution.steps == steps).all()


def test_errors_are_as_expected_on_fresh_problems() -> None:
    fresh = fresh_regressions()
    for name in SOME:
        method = learned(name)
        found = np.median(relative_errors(fresh, method.solve(fresh).value))
        expected = method.record.accuracy.median[-1]
        assert 0.3 * expected < found < 3 * expected, name
    assert learned(CONJUGATE).record.accuracy.median[-1] < 0.5 * learned("scalar").record.accuracy.median[-1]


def test_the_register_is_the_least_squares_optimum() -> None:
    """Against plain normal equations in powers of A: the smallest sum of squared energy errors."""
    problems = systems(count=7, d=4)
    A, b = np.asarray(problems.A), np.asarray(problems.b)
    best = np.linalg.solve(A, b[..., None])[..., 0]
    weights = 1 / (b * best).sum(1)
    register = best_register(Gradient(Identity()), problems.each(), jnp.asarray(weights), 3)
    rows, targets, power = [], [], b
    for _ in range(3):
        rows.append(power)
        power = np.einsum("pij,pj->pi", A, power)
    K = np.stack(rows)
    gram = np.einsum("kpi,pij,lpj,p->kl", K, A, K, weights)
    targets = np.einsum("kpi,pi,p->k", K, b, weights)
    q = np.linalg.solve(gram, targets)
    optimum = np.einsum("k,kpi->pi", q, K)
    bank, past, w = np.asarray(register.table(3)[0]), [], np.zeros_like(b)
    for step in range(3):
        past.append(b - np.einsum("pij,pj->pi", A, w))
        w = w + sum(bank[step, j] * z for j, z in enumerate(past))
    np.testing.assert_allclose(w, optimum, rtol=1e-8, atol=1e-10)


def krylov_optimum(A: np.ndarray, b: np.ndarray, weights: np.ndarray, steps: int) -> np.ndarray:
    """The w = q(A) b, q a polynomial of degree steps - 1 that all problems share, with the smallest sum over
    problems of weight |w - w*|_A^2: plain normal equations in powers of A."""
    powers = [b]
    for _ in range(steps - 1):
        powers.append(np.einsum("pij,pj->pi", A, powers[-1]))
    K = np.stack(powers)
    gram = np.einsum("kpi,pij,lpj,p->kl", K, A, K, weights)
    return np.einsum("k,kpi->pi", np.linalg.solve(gram, np.einsum("kpi,pi,p->k", K, b, weights)), K)


def test_hard_problems_count_less_than_typical_ones() -> None:
    """What `learn` fits: least squares of the relative errors, then again with weights 1 / (squared error +
    their geometric mean). From 30 problems, all of them are learned from in the end."""
    problems: Any = systems(count=30, d=4, ridge=0.3)
    A, b = np.asarray(problems.A), np.asarray(problems.b)
    method = lfom.learn(problems, 3, "scalar", iterations=0)
    best = np.linalg.solve(A, b[..., None])[..., 0]
    energies = np.einsum("pi,pi->p", b, best)
    off = best - krylov_optimum(A, b, 1 / energies, 3)
    squares = np.einsum("pi,pij,pj->p", off, A, off) / energies
    typical = np.exp(np.mean(np.log(squares)))
    assert squares.max() > 10 * typical > 40 * squares.min()
    wanted = krylov_optimum(A, b, 1 / (energies * (squares + typical)), 3)
    np.testing.assert_allclose(by_hand(method, problems, 3)[-1], wanted, rtol=1e-8, atol=1e-10)


def of_their_own(first: int, last: int, d: int) -> lfom.LinearSystems:
    """Problem p is the identity, but for coordinate p: all are alike, and none has met another's."""
    own = np.eye(d)[first:last]
    return lfom.LinearSystems(np.eye(d) + 99 * own[:, None] * own[:, :, None], 1 + 9 * own)


@pytest.mark.parametrize(("count", "how"), [(50, "held out"), (20, "cross-validated")])
def test_expected_accuracy_is_that_of_problems_not_learned_from(count: int, how: str) -> None:
    d = count + 4
    learning, fresh = of_their_own(0, count, d), of_their_own(count, d, d)
    method = lfom.learn(learning, 1, "conjugate:diagonal", iterations=0)
    accuracy = method.record.accuracy
    assert accuracy.how == how
    known, new = (relative_errors(some, method.solve(some).value) for some in (learning, fresh))
    assert known.min() < new.min() - 0.01  # a problem that was learned from is solved better
    if how == "cross-validated":  # in the end all are
        assert known.max() < new.min() - 0.01
    assert abs(accuracy.median[-1] - new[0]) < (1e-9 if how == "held out" else 0.003)


def test_structures_that_are_tried_together_score_as_they_do_alone() -> None:
    problems, names = (
        fresh_regressions(),
        ["conjugate:diagonal", "conjugate:jacobi+diagonal", "conjugate:full"],
    )
    together = lfom.learn(problems, 3, names, iterations=0).record.compared
    for name in names:
        assert lfom.learn(problems, 3, name, iterations=0).record.compared == {name: together[name]}
    assert min(abs(a - b) for a, b in itertools.combinations(together.values(), 2)) > 0.01


def test_conjugate_gradients_are_exact_after_d_steps() -> None:
    problems: Any = systems(count=5, d=4)
    solution = lfom.conjugate_gradient(4).solve(problems)
    exact = np.linalg.solve(problems.A, problems.b[..., None])[..., 0]
    np.testing.assert_allclose(solution.value, exact, rtol=1e-7)
    assert (solution.residuals[:, -1] < 1e-8).all()


def registered(alpha: Any, gamma: Any) -> Method:
    return Method(Gradient(Identity()), Register(jnp.asarray(alpha), jnp.asarray(gamma)), len(alpha))


def by_recurrence(alpha: Any, gamma: Any, t: np.ndarray) -> np.ndarray:
    """The residual polynomial of a register in plain NumPy: e <- e - alpha t R, R <- e + gamma R."""
    p, register = np.ones_like(t), np.zeros_like(t)
    for a, g in zip(alpha, gamma, strict=True):
        register = p + g * register
        p = p - a * t * register
    return p


@settings(max_examples=30, deadline=None)
@example(7, 2884)  # the largest value lies between the points of a grid
@given(st.integers(1, 9), st.integers(0, 10**6))
def test_the_certificate_holds(steps: int, seed: int) -> None:
    """Every eigenvalue inside the interval contracts, and just outside it does not."""
    rng = np.random.default_rng(seed)
    alpha, gamma = rng.uniform(0.1, 1.5, steps), np.append(0.0, rng.uniform(0, 0.8, steps - 1))
    method = registered(alpha, gamma)
    certificate = certify(method, (0.1, 1.0), True)
    for n, reach in enumerate(certificate.reach, 1):
        inside = np.linspace(0, reach, 3000)[1:]
        assert (np.abs(by_recurrence(alpha[:n], gamma[:n], inside)) <= 1).all()
        outside = by_recurrence(alpha[:n], gamma[:n], np.array([reach * (1 + 1e-4)]))
        assert abs(outside[0]) > 1 - 1e-2
    seen = by_recurrence(alpha, gamma, np.linspace(0.1, 1, 500))
    assert certificate.contraction is not None
    assert np.abs(seen).max() <= certificate.contraction + 1e-12
    t = np.linspace(0, 2, 50)
    np.testing.assert_allclose(residual_polynomials(method, t)[-1], by_recurrence(alpha, gamma, t), rtol=1e-9)


def test_the_promise_holds_on_every_problem() -> None:
    """For any problem with its eigenvalues in the interval: the error shrinks by max |p| or more."""
    method = learned("scalar")
    certificate = method.certificate
    assert certificate is not None
    assert certificate.reach[-1] >= 1.04 * certificate.seen[1]  # the guard's margin
    rng = np.random.default_rng(5)
    eigenvalues = rng.uniform(0.01, certificate.reach[-1] * 0.999, size=(40, 6))
    Q = np.linalg.qr(rng.normal(size=(40, 6, 6)))[0]
    A = np.einsum("pij,pj,pkj->pik", Q, eigenvalues, Q)
    problems = lfom.LinearSystems((A + A.swapaxes(1, 2)) / 2, rng.normal(size=(40, 6)))
    p = residual_polynomials(method, eigenvalues.ravel())[-1].reshape(40, 6)
    solution = method.solve(problems)
    kept = np.isin(solution.status, (0, 1))  # a problem may be rescaled
    assert kept.any()
    assert (relative_errors(problems, solution.value)[kept] <= np.abs(p).max(1)[kept] + 1e-10).all()


@pytest.mark.parametrize("kind", ["diagonal", "low-rank", "deflated", "sine", "cosine", "full"])
def test_preconditioners_are_symmetric_positive_definite_and_bounded(kind: str) -> None:
    rng = np.random.default_rng(3)
    shape, d = (3, 4), 12
    logs = jnp.asarray(rng.normal(size=shape))
    M: pre.Definite = {
        "diagonal": pre.Diagonal(logs),
        "low-rank": pre.LowRank(logs, jnp.asarray(rng.normal(size=(*shape, 2)))),
        "deflated": pre.Deflated(logs, jnp.asarray(rng.normal(size=(*shape, 2)))),
        "sine": pre.Transformed(logs, "sine"),
        "cosine": pre.Transformed(logs, "cosine"),
        "full": pre.Factored(
            jnp.asarray(rng.normal(size=(d, d))), jnp.asarray(0.1 * rng.normal(size=(d, d)))
        ),
    }[kind]
    units = jnp.eye(d).reshape(d, *shape)
    matrix = np.asarray(jax.vmap(M.transposed_times)(units)).reshape(d, d)
    prompts_last = M.transposed_times(jnp.moveaxis(units, 0, -1))
    np.testing.assert_allclose(np.asarray(prompts_last).reshape(d, d), matrix.T, atol=1e-12)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    assert np.linalg.eigvalsh(matrix).min() > 0
    np.testing.assert_allclose(np.asarray(M.diagonal(units[0])).ravel(), np.diag(matrix), atol=1e-12)
    c = jnp.asarray(rng.uniform(0, 2, size=(5, *shape)))
    largest = [np.linalg.eigvals(matrix @ np.diag(np.asarray(one).ravel())).real.max() for one in c]
    assert (np.asarray(jax.vmap(M.bound)(c)) >= np.array(largest) - 1e-10).all()


def test_matrices_are_dominated_by_their_row_sums() -> None:
    rng = np.random.default_rng(4)
    A = rng.normal(size=(20, 5, 5))
    A = A + A.swapaxes(1, 2)
    problems = jax.vmap(Quadratic)(jnp.asarray(A), jnp.zeros((20, 5)))
    c = jax.vmap(lambda one, x: one.dominating(x))(problems, jnp.asarray(rng.uniform(0.1, 2, (20, 5))))
    assert np.linalg.eigvalsh(np.einsum("pi,ij->pij", c, np.eye(5)) - A).min() > -1e-12


def test_operators_and_grids() -> None:
    method, fresh = learned_on_grids(), grids(count=4, seed=1)
    assert method.structure.name == "conjugate:sine"
    assert method.record.accuracy.median[-1] < 0.1  # conjugate gradients alone reach 0.25 and Jacobi's 0.2
    solution = method.solve(fresh, tolerance=1e-9)
    assert solution.value.shape == (4, 6, 6)
    assert (solution.status == 11).all()
    A = np.asarray(matrices(fresh.each()))
    expected = np.linalg.solve(A, np.asarray(fresh.b).reshape(4, 36, 1)).reshape(4, 6, 6)
    np.testing.assert_allclose(solution.value, expected, rtol=1e-6, atol=1e-8)


def test_convex_losses() -> None:
    method, fresh = learned_from_losses(), classifications(count=10, seed=1)
    start = np.asarray(fresh.values(jnp.zeros((10, 4))))
    exact = method.solve(fresh, tolerance=1e-7, steps=500)
    assert (exact.status // 10 == 1).all()
    solution = method.solve(fresh, steps=4)
    best = np.asarray(fresh.values(exact.value))
    excess = (np.asarray(fresh.values(solution.value)) - best) / (start - best)
    assert np.median(excess) < 5 * method.record.accuracy.median[-1] + 1e-9
    assert method.record.accuracy.median[-1] < 0.02
    assert "checked" in solution.path[0]
    assert "line-searched gradient" in solution.meaning[3]


def test_more_steps_and_tolerances() -> None:
    fresh = regressions(count=6, seed=3)
    for name in ("scalar", CONJUGATE):
        method = learned(name)
        met = method.solve(fresh, tolerance=1e-8)
        assert (met.status // 10 == 1).all()
        assert relative_errors(fresh, met.value).max() < 1e-5, name
        b = np.asarray(fresh.each().moment)
        size = np.linalg.norm(b - np.asarray(fresh.times(met.value)), axis=1)
        assert (size <= 1e-8 * np.linalg.norm(b, axis=1)).all()
        assert met.residuals.shape[1] >= met.steps.max() + 1
        with pytest.raises(InputError, match=r"Pass \d\.?\d*e-\d+ or more"):
            method.solve(fresh, tolerance=1e-17)
    unmet = learned("scalar").solve(fresh, steps=2, tolerance=1e-8)
    assert (unmet.status // 10 == 2).all()
    assert unmet.failed.all()
    longer = learned("preconditioned:full").solve(fresh, steps=30)
    assert relative_errors(fresh, longer.value).max() < 1e-5


def test_one_problem_is_a_batch_of_one() -> None:
    fresh, method = fresh_regressions(), learned("scalar")
    np.testing.assert_allclose(method.solve(fresh[2]).value[0], method.solve(fresh).value[2], rtol=1e-9)
    assert len(fresh[1:3]) == 2
    with pytest.raises(InputError, match="does not exist"):
        fresh[40]


@pytest.mark.parametrize("size", [1, 3, 12])
def test_pieces_of_any_size_are_put_together(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One problem at a time goes without an axis for it."""
    matrices, vectors = np.arange(12 * 4.0).reshape(12, 2, 2), np.arange(24.0).reshape(12, 2)
    monkeypatch.setattr("lfom.solving.pieces.SMALL", 0)
    monkeypatch.setattr("lfom.solving.pieces.PIECE", (matrices[0].nbytes + vectors[0].nbytes) * size)
    assert piece((matrices, vectors)) == size
    found = mapped(lambda A, v: A @ v, *map(jnp.asarray, (matrices, vectors)))
    np.testing.assert_allclose(found, np.einsum("pij,pj->pi", matrices, vectors))


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    method, fresh = learned("scalar"), regressions(count=14, seed=6)
    assert piece(fresh) == 14
    monkeypatch.setattr("lfom.solving.pieces.SMALL", 0)
    monkeypatch.setattr("lfom.solving.pieces.PIECE", sum(x.nbytes for x in jax.tree.leaves(fresh)) // 3)
    assert piece(fresh) == 2
    solution = method.solve(fresh)  # of a size that was not compiled before
    kept = np.isin(solution.status, (0, 1))
    assert kept.any()
    np.testing.assert_allclose(solution.value[kept], by_hand(method, fresh, 5)[-1][kept], atol=1e-10)


def test_auto_picks_by_held_out_loss_in_float32() -> None:
    each = regressions(count=50, d=3, dtype=np.float32).each()
    problems = lfom.LinearSystems(lambda A, v: A @ v, each.moment, data=each.gram)
    told: list[tuple[float, str]] = []
    method = lfom.learn(problems, 2, iterations=0, progress=lambda *now: told.append(now))
    scores = list(method.record.compared.values())
    assert scores == sorted(scores)
    assert method.structure.name == next(iter(method.record.compared))
    assert {"scalar", "diagonal", "conjugate:full"} <= set(method.record.compared)
    assert "trying scalar" in [text for _, text in told]
    assert method.dtype == np.float32
    assert method.solve(problems[:3]).value.dtype == np.float32


def test_too_few_problems_are_said() -> None:
    problems = regressions(count=12, d=8)
    everything = available((8,), True, False)
    kept, (left_out,) = _affordable(everything, problems, 8, True)
    assert "too few for" in left_out
    assert "left out" in left_out
    assert parse("preconditioned:full") in everything
    assert parse("preconditioned:full") not in kept
    assert parse("scalar") in kept
    method = lfom.learn(problems, 2, "preconditioned:full", iterations=0)
    assert any("learned all the same" in text for text in method.warnings)
    assert any("rough figure" in text for text in method.warnings)
    assert method.record.accuracy.how == "cross-validated"
    assert method.record.accuracy.problems == 10


def test_precisions_do_not_mix() -> None:
    method, fresh = learned("preconditioned:full"), fresh_regressions(dtype=np.float32)
    solution = method.astype("float32").solve(fresh)
    assert solution.value.dtype == np.float32
    double = method.solve(fresh_regressions())
    np.testing.assert_allclose(solution.value, double.value, atol=1e-3)
    with pytest.raises(InputError, match="float64 and these problems of float32"):
        method.solve(fresh)
    single = method.astype("float32")
    ratio = float(np.finfo(np.float32).eps / np.finfo(np.float64).eps)
    assert single.floor == pytest.approx(ratio * method.floor)
    with pytest.raises(InputError, match="rounded off at"):
        single.solve(fresh, tolerance=single.floor / 2)
    assert single.astype("float64").floor == pytest.approx(method.floor)


def test_the_same_seed_learns_the_same_method() -> None:
    again = lfom.learn(regressions(), 5, "preconditioned:full", iterations=3)
    assert again.to_json() == learned("preconditioned:full").to_json()


def test_names_of_structures() -> None:
    for one in available((4, 4), True, False):
        assert parse(one.name) == one
    with pytest.raises(InputError, match="Did you mean"):
        parse("conjugat")
    with pytest.raises(InputError, match="unknown preconditioner"):
        parse("conjugate:fulll")
    with pytest.raises(InputError, match="only preconditioned and conjugate"):
        parse("scalar:full")
    with pytest.raises(InputError, match="does not exist for these problems"):
        lfom.learn(regressions(), 3, "conjugate:sine")
    with pytest.raises(InputError, match="does not exist for these problems"):
        lfom.learn(classifications(), 3, "conjugate:full")


def test_losses_and_operators_are_checked() -> None:
    X, y = np.ones((12, 5, 3)), np.ones((12, 5))
    with pytest.raises(InputError, match="failed"):
        lfom.ConvexLosses(logistic, (X, y), size=4)
    with pytest.raises(InputError, match="one number"):
        lfom.ConvexLosses(lambda w, data: data[0] @ w, (X, y), size=3)
    with pytest.raises(InputError, match="leading axis"):
        lfom.ConvexLosses(logistic, (X, y[:3]), size=3)
    with pytest.raises(InputError, match="leading axis"):
        lfom.LinearSystems(diffusion, np.ones((3, 4, 4)), data=np.ones((4, 4)))
    with pytest.raises(InputError, match="must return the same"):
        lfom.LinearSystems(lambda data, v: v[:1], np.ones((3, 4)), data=np.ones(3))
    minus = lfom.LinearSystems(lambda data, v: -data * v, np.ones((12, 4)), data=np.ones((12, 4)))
    with pytest.raises(InputError, match="not positive definite"):
        lfom.learn(minus)
