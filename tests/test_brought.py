"""What people bring: groups of any length, weights, several outputs, an intercept, one problem, either precision."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

import lfom
from lfom.core.checks import InputError
from lfom.core.memories import Conjugate
from lfom.core.methods import Method
from lfom.core.preconditioners import Identity
from lfom.core.problems import ByRows, cheaper_by_rows
from lfom.core.readers import Jacobi
from lfom.frontends import learned_transformation
from lfom.solving import statuses
from lfom.solving.groups import shortened
from lfom.solving.linear_systems import surely_indefinite
from lfom.solving.program import prepared, program_of
from lfom.solving.records import _as_jax
from tests.learned_problems import fresh_regressions, grids, learned, regressions, systems

LENGTHS = (5, 30, 9, 2, 400, 12)  # the long one is shortened
CONJUGATE = "conjugate:jacobi+diagonal"


def groups(outputs: int | None = None, d: int = 6, lengths: Any = LENGTHS) -> tuple[Any, Any, Any]:
    """X with means far from 0, y and weights; one of the weights of every group is 0."""
    rng = np.random.default_rng(3)
    X = [2 + rng.normal(size=(n, d)) for n in lengths]
    y = [rng.normal(size=(n,) if outputs is None else (n, outputs)) for n in lengths]
    weights = [rng.uniform(0.1, 2, n) for n in lengths]
    for one in weights:
        one[0] = 0
    return X, y, weights


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("outputs", [None, 1, 3])
def test_groups_are_the_ridge_regressions_of_scikit_learn(
    outputs: Any, weighted: bool, intercept: bool
) -> None:
    X, y, weights = groups(outputs)
    options: Any = {"weights": weights if weighted else None, "intercept": intercept}
    problems = lfom.LeastSquaresProblems(X, y, ridge=0.1, **options)
    found = lfom.conjugate_gradient(40).solve(problems, tolerance=1e-12)
    assert not found.failed.any()
    assert found.value.shape == (len(X), 6, *(() if outputs is None else (outputs,)))
    assert (found.intercept is not None) == intercept
    for i, (rows, labels) in enumerate(zip(X, y, strict=True)):
        s = weights[i] if weighted else np.ones(len(rows))
        wanted = Ridge(0.1 * s.sum(), fit_intercept=intercept).fit(rows, labels, sample_weight=s)
        np.testing.assert_allclose(
            found.value[i].T, wanted.coef_.reshape(found.value[i].T.shape), rtol=1e-8, atol=1e-10
        )
        if intercept:
            np.testing.assert_allclose(found.intercept[i], wanted.intercept_, rtol=1e-8, atol=1e-10)


@pytest.mark.usefixtures("x64")
def test_a_group_alone_gets_the_answer_that_it_gets_among_others() -> None:
    X, y, weights = groups(2)
    method, options = lfom.conjugate_gradient(6), {"steps": 3}
    together = method.solve(lfom.LeastSquaresProblems(X, y, 0.1, weights=weights, intercept=True), **options)
    for i in (0, 3, 4):
        problem = lfom.LeastSquaresProblems(X[i], y[i], 0.1, weights=weights[i], intercept=True)
        alone = method.solve(problem, **options)
        assert alone.value.shape == (6, 2)
        assert alone.intercept.shape == alone.status.shape == (2,)
        assert alone.residuals.shape == (2, 4)
        np.testing.assert_allclose(alone.value, together.value[i], rtol=1e-7, atol=1e-9)
        np.testing.assert_array_equal(alone.status, together.status[i])


def test_long_groups_do_not_decide_what_short_ones_cost() -> None:
    X, y, _ = groups(lengths=(*(4, 8) * 50, 10_000))
    problems = lfom.LeastSquaresProblems([x.astype(np.float32) for x in X], [v.astype(np.float32) for v in y])
    total = sum(len(x) for x in X)
    assert problems.X.shape[0] * problems.X.shape[1] <= 2 * total
    few = lfom.LeastSquaresProblems(*([a.astype(np.float32) for a in some[:4]] for some in (X, y)))
    assert few.X.shape == (4, 8, 6)  # only filled up


@settings(deadline=None, max_examples=30)
@given(n=st.integers(9, 60), seed=st.integers(0, 999), outputs=st.sampled_from([None, 1, 2]))
def test_a_shortened_group_has_the_same_weight_means_and_moments(n: int, seed: int, outputs: Any) -> None:
    rng = np.random.default_rng(seed)
    X, s = 1e3 + rng.normal(size=(n, 4)), rng.uniform(0, 3, n)
    y = rng.normal(size=(n,) if outputs is None else (n, outputs))
    short = shortened(X, y, s)
    assert len(short[0]) == 4 + (outputs or 1) + 1 == len(short[1]) == len(short[2])

    def told(X: np.ndarray, y: np.ndarray, s: np.ndarray) -> tuple[Any, ...]:
        Z = np.column_stack([X, y])
        mean = s @ Z / s.sum()
        return s.sum(), mean, (s[:, None] * (Z - mean)).T @ (Z - mean)

    for now, before in zip(told(*short), told(X, y, s), strict=True):
        np.testing.assert_allclose(now, before, rtol=1e-9, atol=1e-9)
    assert short[1].shape[1:] == y.shape[1:]


@pytest.mark.usefixtures("x64")
def test_weights_count_rows() -> None:
    """2 is a row twice, 0 a row that is not there, and a common factor nothing."""
    rng = np.random.default_rng(0)
    X, y, ridge = rng.normal(size=(3, 8, 4)), rng.normal(size=(3, 8)), 0.2
    s = np.tile([1.0, 2, 0, 1, 1, 0, 2, 1], (3, 1))
    keep = np.repeat(np.arange(8), s[0].astype(int))
    method = lfom.conjugate_gradient(10)

    def solved(X: Any, y: Any, **options: Any) -> Any:
        return method.solve(lfom.LeastSquaresProblems(X, y, ridge, **options), tolerance=1e-13)

    for intercept in (False, True):
        wanted = solved(X[:, keep], y[:, keep], intercept=intercept)
        for factor in (1.0, 1e-3):
            found = solved(X, y, weights=factor * s, intercept=intercept)
            np.testing.assert_allclose(found.value, wanted.value, rtol=1e-9)
            if intercept:
                np.testing.assert_allclose(found.intercept, wanted.intercept, rtol=1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["scalar", CONJUGATE])
@pytest.mark.parametrize("options", [{"steps": 7}, {"tolerance": 1e-3}], ids=str)
def test_several_outputs_are_solved_as_one_by_one(name: str, options: Any) -> None:
    plain, method = fresh_regressions()[:12], learned(name)
    rng = np.random.default_rng(0)
    y = np.stack([np.asarray(plain.y), rng.normal(size=plain.y.shape)], axis=2)
    start = rng.normal(size=(12, 6, 2))
    A = np.asarray(plain.each().gram)
    b = np.asarray(lfom.LeastSquaresProblems(plain.X, y).formed().moment)
    both: list[Any] = [
        (lfom.LeastSquaresProblems(plain.X, y, plain.ridge), lambda k: (plain.X, y[..., k], plain.ridge)),
        (lfom.LinearSystems(A, b), lambda k: (A, b[..., k])),
    ]
    for problems, one in both:
        for first in (None, start):
            found = method.solve(problems, **options, start=first)
            assert found.value.shape == (12, 6, 2)
            for k in range(2):
                at = None if first is None else start[..., k]
                wanted = method.solve(type(problems)(*one(k)), **options, start=at)
                np.testing.assert_allclose(found.value[..., k], wanted.value, rtol=1e-8, atol=1e-9)
                np.testing.assert_array_equal(found.status[:, k], wanted.status)
                np.testing.assert_array_equal(found.steps[:, k], wanted.steps)
                np.testing.assert_allclose(found.residuals[:, k], wanted.residuals, rtol=1e-6, atol=1e-9)
                errors = problems.errors(found.value, jnp.zeros_like(found.value) + 1)
                alone = type(problems)(*one(k)).errors(wanted.value, jnp.ones((12, 6)))
                np.testing.assert_allclose(errors[:, k], alone, rtol=1e-6)
            assert len(found.path) == 12


@pytest.mark.usefixtures("x64")
def test_one_problem_has_an_answer_without_an_axis_of_problems() -> None:
    plain, method = fresh_regressions(), learned(CONJUGATE)
    wanted = method.solve(plain, tolerance=1e-6)
    X, y = np.asarray(plain.X[3]), np.asarray(plain.y[3])
    A, b = plain.each().gram[3], plain.each().moment[3]
    for problem in (
        lfom.LeastSquaresProblems(X, y, 0.01),
        lfom.LeastSquaresProblems(X.tolist(), y.tolist(), 0.01),
        lfom.LinearSystems(A, b, check=True),
    ):
        assert len(problem) == 1
        found = method.solve(problem, tolerance=1e-6)
        assert found.value.shape == (6,)
        assert found.status.shape == found.steps.shape == ()
        np.testing.assert_allclose(found.value, wanted.value[3], rtol=1e-9)
        np.testing.assert_allclose(found.residuals, wanted.residuals[3], rtol=1e-6, atol=1e-12)
        assert found.path == wanted.path[3]
        assert method.solve(problem, steps=2, start=found.value).value.shape == (6,)
        with pytest.raises(InputError, match="start has shape"):
            method.solve(problem, start=np.zeros((1, 6)))
        with pytest.raises(InputError, match="this is one problem"):
            problem[0]
    two = lfom.LinearSystems(A, np.stack([b, 2 * b], axis=1))
    np.testing.assert_allclose(
        lfom.conjugate_gradient(6).solve(two).value, np.linalg.solve(A, two.b[0]), rtol=1e-6
    )
    by_products = lfom.LinearSystems(lambda A, v: A @ v, b, data=A, diagonal=np.diag(A))
    found = lfom.conjugate_gradient(6).solve(by_products)
    assert found.value.shape == (6,)
    np.testing.assert_allclose(found.value, np.linalg.solve(A, b), rtol=1e-6)
    error = lfom.LeastSquaresProblems(X, y, 0.01).errors(jnp.zeros(6), jnp.ones(6))
    np.testing.assert_allclose(error, 1)


@pytest.mark.usefixtures("x64")
def test_parts_of_a_batch_keep_everything() -> None:
    X, y, weights = groups(2)
    problems = lfom.LeastSquaresProblems(X, y, 0.1, weights=weights, intercept=True)
    method = lfom.conjugate_gradient(5)
    whole, part = method.solve(problems), method.solve(problems[2:5])
    np.testing.assert_allclose(part.value, whole.value[2:5], rtol=1e-10)
    np.testing.assert_allclose(part.intercept, whole.intercept[2:5], rtol=1e-10)
    assert len(problems[1]) == 1
    assert method.solve(problems[1]).value.shape == (1, 6, 2)


# Under JAX's transformations


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("options", [{"tolerance": 1e-11}, {"steps": 4}], ids=str)
def test_everything_at_once_under_jit_vmap_and_grad(options: Any) -> None:
    X, y, weights = (np.stack(some) for some in groups(2, lengths=(12,) * 3))
    weights = weights + 0.1
    method = lfom.conjugate_gradient(8)

    def solved(X: Any, y: Any, weights: Any) -> Any:
        problems = lfom.LeastSquaresProblems(X, y, 0.1, weights=weights, intercept=True)
        found = method.solve(problems, **options)
        return found.value, found.intercept, found.status

    wanted = solved(X, y, weights)
    for found in (jax.jit(solved)(X, y, weights), jax.vmap(solved)(X, y, weights)):
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-9)

    def total(given: Any) -> Any:
        value, constant, _ = solved(*given)
        return jnp.sum(value**2) + jnp.sum(jnp.sin(constant))

    rng, given, h = np.random.default_rng(1), (X, y, weights), 1e-5
    step = [rng.normal(size=a.shape) for a in given]
    ends = [total([a + side * h * b for a, b in zip(given, step, strict=True)]) for side in (1, -1)]
    found = jax.grad(total)(given)
    slope = sum(np.sum(g * b) for g, b in zip(found, step, strict=True))
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * h), rtol=1e-5)


@pytest.mark.usefixtures("x64")
def test_groups_under_jit_and_the_derivative_in_a_weight_of_zero() -> None:
    X, y, weights = groups()
    method = lfom.conjugate_gradient(6)

    def total(X: Any, y: Any, weights: Any) -> Any:
        problems = lfom.LeastSquaresProblems(X, y, 0.1, weights=weights, intercept=True)
        return jnp.sum(method.solve(problems, tolerance=1e-11).value ** 2)

    given = tuple([jnp.asarray(a) for a in some] for some in (X, y, weights))
    np.testing.assert_allclose(jax.jit(total)(*given), total(X, y, weights), rtol=1e-7)
    slopes = jax.grad(total, 2)(*given)
    moved = [w.copy() for w in weights]
    moved[1][0] = h = 1e-7  # from 0
    np.testing.assert_allclose(
        slopes[1][0], (total(X, y, moved) - total(X, y, weights)) / h, rtol=1e-3, atol=1e-6
    )


# By rows or by the Gram matrix


def test_operations_are_counted() -> None:
    """Forming the Gram matrix: n d^2. A step: two products with X, or one with it, each entry read for three."""
    assert cheaper_by_rows(n=40, d=64, steps=8)  # 122,880 against 163,840 + 98,304
    assert not cheaper_by_rows(n=100, d=30, steps=8)  # 144,000 against 90,000 + 21,600
    assert cheaper_by_rows(n=100, d=30, steps=5)  # 90,000 against 90,000 + 13,500
    assert not cheaper_by_rows(n=100, d=30, steps=8, sides=20)
    assert all(cheaper_by_rows(n, 2 * n, 10_000) for n in (3, 50))  # fewer rows than half the unknowns
    assert not any(cheaper_by_rows(n, n, 10_000) for n in (3, 50))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("options", [{"steps": 3}, {"tolerance": 1e-11}], ids=str)
@pytest.mark.parametrize("everything", [False, True])
def test_by_rows_and_by_the_gram_matrix_are_the_same(options: Any, everything: bool) -> None:
    rng = np.random.default_rng(0)
    X, y = 1 + rng.normal(size=(4, 5, 16)), rng.normal(size=(4, 5, 2))
    more: Any = {"weights": rng.uniform(size=(4, 5)), "intercept": True} if everything else {}
    problems = lfom.LeastSquaresProblems(X, y if everything else y[..., 0], 0.1, **more)
    gram = problems.formed()
    systems = lfom.LinearSystems(gram.gram, gram.moment)
    start = rng.normal(size=(4, 16, 2) if everything else (4, 16))
    method = Method(Jacobi(Identity()), Conjugate(), 16)
    assert problems.by_rows(False, 3, None)
    by_rows = replace(program_of(method), by_rows=True)
    found, wanted = (method.solve(p, **options, start=start) for p in (problems, systems))
    close = 1e-10 if "steps" in options else 1e-7  # rounding grows with the steps of conjugate gradients
    np.testing.assert_allclose(found.value, wanted.value, rtol=1e-8, atol=close)
    np.testing.assert_array_equal(found.status, wanted.status)
    if "steps" in options:
        np.testing.assert_allclose(found.residuals, wanted.residuals, rtol=1e-6, atol=1e-9)
    ranged = prepared(learned_wide()).ranged
    assert not problems.by_rows(ranged, 2, None)  # what is rescaled is so by its matrix
    assert isinstance(problems.formed_for(by_rows), ByRows)
    one: Any = jax.tree.map(lambda leaf: leaf[0], problems.formed_for(by_rows))
    np.testing.assert_allclose(one.diagonal(), np.diag(gram.gram[0]), rtol=1e-12)

    def total(X: Any, options: Any) -> Any:
        made = lfom.LeastSquaresProblems(X, problems.y, 0.1, **more)
        return jnp.sum(method.solve(made, **options).value ** 2)

    h, step = 1e-4, rng.normal(size=X.shape)
    slope = jnp.sum(jax.grad(total)(X, options) * step)
    wanted_slope = (total(X + h * step, options) - total(X - h * step, options)) / (2 * h)
    np.testing.assert_allclose(slope, wanted_slope, rtol=1e-5)


@functools.cache
def learned_wide() -> lfom.Method:
    """For sixteen unknowns, with a range."""
    with jax.enable_x64(True):
        return lfom.learn(regressions(count=20, d=16, n=40), 2, "scalar", iterations=0)


# Learning


@pytest.mark.usefixtures("x64")
def test_learning_from_several_outputs_holds_out_whole_problems() -> None:
    plain = regressions(count=30)
    rng = np.random.default_rng(0)
    y = np.stack([np.asarray(plain.y), rng.normal(size=plain.y.shape)], axis=2)
    problems = lfom.LeastSquaresProblems(plain.X, y, 0.01, weights=rng.uniform(0.5, 1, plain.y.shape))
    assert problems.rows(np.array([0, 2])).tolist() == [0, 1, 4, 5]
    each: Any = problems.each()
    np.testing.assert_array_equal(each.gram[4], each.gram[5])
    np.testing.assert_allclose(each.moment[5], problems.formed().moment[2, :, 1])
    method = lfom.learn(problems, 3, [CONJUGATE, "scalar"], iterations=0)
    assert method.record.learned_from == 30
    assert method.record.accuracy.problems == 60
    found = method.solve(problems, steps=3)
    assert not found.failed.any()
    best = jnp.asarray(np.linalg.solve(problems.formed().gram, problems.formed().moment))
    errors = np.asarray(problems.errors(found.value, best))
    assert abs(np.log(np.median(errors) / method.record.accuracy.median[-1])) < 0.5
    with pytest.raises(InputError, match="problem 4 has a right-hand side of zeros"):
        lfom.learn(lfom.LeastSquaresProblems(plain.X, y * (np.arange(30) != 4)[:, None, None]), 3, "scalar")


@pytest.mark.usefixtures("x64")
def test_what_is_learned_for_optax_is_what_optax_can_run() -> None:
    method = lfom.learn(regressions(count=12), 2, for_="optax", iterations=0)
    names = method.record.compared
    assert len(names) > 2
    assert not any("conjugate" in name or "jacobi" in name for name in names)
    learned_transformation(method)
    with pytest.raises(InputError, match=r"unknown for_ 'optacs'\. Did you mean optax\?"):
        lfom.learn(regressions(count=12), for_="optacs")
    with pytest.raises(InputError, match="structure 'conjugate:full' does not exist for these problems"):
        lfom.learn(regressions(count=12), 2, "conjugate:full", for_="optax")


def stiff(count: int, seed: int) -> Any:
    """Ten stiff directions that all share, at sizes of their own, and forty of eigenvalue 1."""
    rng, Q = np.random.default_rng(seed), np.linalg.qr(np.random.default_rng(99).normal(size=(50, 50)))[0]
    values = np.ones((count, 50))
    values[:, :10] = np.geomspace(10, 1e4, 10) * rng.uniform(0.8, 1.25, (count, 10))
    A = np.einsum("ij,pj,kj->pik", Q, values, Q)
    return lfom.LinearSystems((A + A.swapaxes(1, 2)) / 2, rng.normal(size=(count, 50)) @ Q.T)


@pytest.mark.usefixtures("x64")
def test_a_matrix_of_chosen_rank_takes_a_few_stiff_directions_away(tmp_path: Any) -> None:
    """Ten of them: with rank 10 what is left is nearly the identity, with rank 3 it is not."""
    errors = {}
    for rank in (3, 10):
        method: Any = lfom.learn(stiff(12, 0), 3, f"conjugate:low-rank({rank})", iterations=0)
        assert method.structure.name == f"conjugate:low-rank({rank})"
        assert method.reader.A.V.shape == (50, rank)
        fresh = stiff(4, 1)
        method.save(tmp_path / f"{rank}.safetensors")
        found = lfom.load(tmp_path / f"{rank}.safetensors").solve(fresh)
        best = jnp.asarray(np.linalg.solve(fresh.A, np.asarray(fresh.b)[..., None])[..., 0])
        errors[rank] = float(np.median(fresh.errors(found.value, best)))
        M = np.array(method.to_json()["preconditioner"]["matrix"])
        np.testing.assert_allclose(M, method.reader.A.matrix(50), rtol=1e-10, atol=1e-12)
    assert errors[10] < 2e-3
    assert errors[3] > 0.05
    with pytest.raises(InputError, match="rank is 50, and there are 50 unknowns"):
        lfom.learn(stiff(12, 0), 3, "conjugate:low-rank(50)")
    for name, words in (
        ("conjugate:low-rank(0)", "rank is 0"),
        ("conjugate:full(3)", "unknown preconditioner"),
    ):
        with pytest.raises(InputError, match=words):
            lfom.learn(stiff(12, 0), 3, name)


# In a line


@pytest.mark.usefixtures("x64")
def test_everything_is_written_in_a_line() -> None:
    X, y, weights = groups(2)
    problems = lfom.LeastSquaresProblems(X, y, 0.1, weights=weights, intercept=True)
    wanted = "LeastSquaresProblems(6 problems of (6,) unknowns, 30 rows, 2 outputs, weights, an intercept, float64)"
    assert repr(problems) == wanted
    assert repr(lfom.LinearSystems(np.eye(2), np.ones((2, 3)))) == (
        "LinearSystems(one problem of (2,) unknowns, matrices, 3 right-hand sides, float64)"
    )
    assert repr(grids(count=3)) == "LinearSystems(3 problems of (6, 6) unknowns, an operator, float64)"
    tree = lfom.ConvexLosses(affine, (np.ones((2, 4, 3)), np.ones((2, 4))), LIKE)
    assert repr(tree) == "ConvexLosses(2 problems of (4,) unknowns, a tree of 2, float64)"
    assert repr(learned("scalar")) == "Method(scalar, 5 layers, learned from least squares of shape (6,))"
    plain = lfom.conjugate_gradient(3)
    assert repr(plain) == "Method(Gradient, Conjugate, 3 layers)"
    mixture = lfom.memformer(3, 2, heads=2, memory="bank", key=jax.random.key(0))
    assert repr(mixture).count("\n") == 0
    assert len(repr(mixture)) < 200
    solved = plain.solve(problems)
    assert repr(solved).startswith("Solution(12 answers, 0 failed, ")
    assert repr(solved).endswith(f"value of shape (6, 6, 2), by {plain!r})")
    seen = []
    jax.jit(lambda some: seen.append(repr(plain.solve(some))))(problems)
    assert seen == [f"Solution(value of shape (6, 6, 2), by {plain!r})"]
    assert "None" in repr(jax.tree.map(lambda leaf: None, problems))  # a specification, not problems


# Precision


def test_float64_is_kept_or_refused() -> None:
    X, y = np.ones((3, 5, 2)), np.ones((3, 5))
    A, b = np.stack([np.eye(2)] * 3), np.ones((3, 2))

    def loss(w: Any, data: Any) -> Any:
        return jnp.sum((w - data) ** 2)

    def made(dtype: Any) -> list[Any]:
        return [
            lambda: lfom.LeastSquaresProblems(X.astype(dtype), y.astype(dtype)),
            lambda: lfom.LeastSquaresProblems(list(X.astype(dtype)), list(y.astype(dtype))),
            lambda: lfom.LinearSystems(A.astype(dtype), b.astype(dtype)),
            lambda: lfom.LinearSystems(lambda d, v: d * v, b.astype(dtype), data=b.astype(dtype)),
            lambda: lfom.ConvexLosses(loss, b.astype(dtype), 2),
        ]

    for make in made(np.float64):
        with pytest.raises(InputError, match=r"float64, and JAX computes in float32.*jax_enable_x64"):
            make()
        with jax.enable_x64(True):
            problems = make()
            assert problems.dtype == np.float64
            assert (
                lfom.gradient_descent(0.1, steps=2).astype("float64").solve(problems).value.dtype
                == np.float64
            )
        double = jax.tree.leaves(problems)[0]
        with pytest.raises(InputError, match="float64, and JAX"):
            lfom.LinearSystems(double, b.astype(np.float32))  # JAX's own array
    for make in made(np.float32):
        for double in (False, True):
            with jax.enable_x64(double):
                assert make().dtype == np.float32
    for few in (np.float16, jnp.bfloat16):
        for make in made(few):
            with pytest.raises(InputError, match=r"has dtype b?float16: its digits are too few"):
                make()
    ones = [np.ones((2, 3), np.float32), np.ones(2, np.float32)]
    with pytest.raises(InputError, match="weights is float64"):
        lfom.LeastSquaresProblems(*ones, weights=np.ones(2))
    with pytest.raises(InputError, match="start is float64"):
        lfom.conjugate_gradient(2).solve(lfom.LeastSquaresProblems(*ones), start=np.zeros(3))


def test_numbers_of_python_take_the_precision_of_jax() -> None:
    for double, dtype in ((False, np.float32), (True, np.float64)):
        with jax.enable_x64(double):
            lists = lfom.LeastSquaresProblems([[[1, 2], [3, 4.5]]], [[1, 0]], ridge=0.1)
            assert lists.X.dtype == lists.y.dtype == lists.ridge.dtype == dtype
            uneven = lfom.LeastSquaresProblems([[[1, 2], [3, 4]], [[5, 6]]], [[1, 0], [1]], ridge=1)
            assert uneven.X.dtype == dtype
            assert uneven.X.shape == (2, 2, 2)
            assert lfom.LinearSystems([[2, 1], [1, 2]], [1, 0]).dtype == dtype
    single = lfom.LeastSquaresProblems(np.ones((4, 2), np.float32), np.ones(4, np.float32), np.float64(0.1))
    assert single.ridge.dtype == np.float32


# Trees of unknowns


def affine(w: Any, data: Any) -> Any:
    """Logistic regression with a constant, as a tree of unknowns."""
    X, y = data
    margin = y * (X @ w["slope"][0] + w["constant"])
    return jnp.mean(jax.nn.softplus(-margin)) + 0.05 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(w))


def flat(w: Any, data: Any) -> Any:
    """The same of a vector; the keys of a dictionary are sorted."""
    return affine({"constant": w[0], "slope": [w[1:]]}, data)


LIKE = {"constant": np.zeros(()), "slope": [jax.ShapeDtypeStruct((3,), jnp.float32)]}


@pytest.mark.usefixtures("x64")
def test_a_tree_of_unknowns_is_a_vector_to_the_method(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(size=(20, 30, 3)), np.sign(rng.normal(size=(20, 30)))
    trees, vectors = lfom.ConvexLosses(affine, data, LIKE), lfom.ConvexLosses(flat, data, 4)
    assert trees.shape == vectors.shape == (4,)
    lfom.learn(trees, 3, "scalar", iterations=0).save(tmp_path / "m.safetensors")
    method = lfom.load(tmp_path / "m.safetensors")
    for options in ({"tolerance": 1e-4},):
        found, wanted = method.solve(trees, **options), method.solve(vectors, **options)
        assert jax.tree.map(jnp.shape, found.value) == {"constant": (20,), "slope": [(20, 3)]}
        np.testing.assert_allclose(found.value["constant"], wanted.value[:, 0], rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(found.value["slope"][0], wanted.value[:, 1:], rtol=1e-8, atol=1e-10)
        again = method.solve(trees[2:5], steps=1, start=jax.tree.map(lambda leaf: leaf[2:5], found.value))
        wanted_again = method.solve(vectors[2:5], steps=1, start=wanted.value[2:5])
        np.testing.assert_allclose(again.value["slope"][0], wanted_again.value[:, 1:], rtol=1e-8)
        np.testing.assert_allclose(
            trees.errors(found.value, jax.tree.map(jnp.ones_like, found.value)),
            vectors.errors(wanted.value, jnp.ones((20, 4))),
            rtol=1e-8,
        )

    def total(X: Any) -> Any:
        solved = method.solve(lfom.ConvexLosses(affine, (X, data[1]), LIKE), steps=2)
        return jnp.sum(solved.value["constant"])

    h, step = 1e-6, rng.normal(size=data[0].shape)
    slope = (total(data[0] + h * step) - total(data[0] - h * step)) / (2 * h)
    np.testing.assert_allclose(jnp.sum(jax.grad(jax.jit(total))(data[0]) * step), slope, rtol=1e-5)
    for wrong, words in (
        ({"constant": np.zeros(20)}, "start is a tree"),
        ({"constant": np.zeros(20), "slope": [np.zeros((3, 20))]}, r"start has shape \(3, 20\)"),
        (np.zeros((20, 4)), "start is a tree"),
    ):
        with pytest.raises(InputError, match=words):
            method.solve(trees, start=wrong)
    for size in ({"a": (3, 4)}, {"a": 3.5}, {}, {"a": np.zeros(0)}, (2.5,), "three"):
        with pytest.raises(InputError, match="size is"):
            lfom.ConvexLosses(affine, data, size)


# Bad input

ROWS = np.ones((3, 5, 2), np.float32)
LABELS = np.ones((3, 5), np.float32)
LISTS = [np.ones((n, 2), np.float32) for n in (4, 2)], [np.ones(n, np.float32) for n in (4, 2)]
EYES = np.stack([np.eye(2, dtype=np.float32)] * 3)
BAD = {
    "y too short": (lambda: lfom.LeastSquaresProblems(ROWS, LABELS[:, :4]), r"y has shape \(3, 4\)"),
    "y of one problem": (lambda: lfom.LeastSquaresProblems(ROWS, LABELS[0]), r"y has shape \(5,\)"),
    "two axes of outputs": (lambda: lfom.LeastSquaresProblems(ROWS, np.ones((3, 5, 2, 2), np.float32)), "one axis"),
    "no outputs": (lambda: lfom.LeastSquaresProblems(ROWS, np.ones((3, 5, 0), np.float32)), "one axis"),
    "one list": (lambda: lfom.LeastSquaresProblems(LISTS[0], LABELS), "X is a list of 2 groups: pass y"),
    "a number for a list": (lambda: lfom.LeastSquaresProblems(LISTS[0], 1.0), "pass y as a list"),
    "other rows": (lambda: lfom.LeastSquaresProblems(LISTS[0], LISTS[1][::-1]), r"y of group 0 has shape \(2,\)"),
    "other columns": (
        lambda: lfom.LeastSquaresProblems([LISTS[0][0], np.ones((2, 3), np.float32)], LISTS[1]),
        r"X of group 1 has float32 rows of shape \(3,\)",
    ),
    "an empty group": (
        lambda: lfom.LeastSquaresProblems([LISTS[0][0], LISTS[0][1][:0]], [LISTS[1][0], LISTS[1][1][:0]]),
        "X of group 1 has shape",
    ),
    "negative": (lambda: lfom.LeastSquaresProblems(ROWS, LABELS, weights=-LABELS), "weights of problem 0 hold -1"),
    "negative and long": (
        lambda: lfom.LeastSquaresProblems(
            [LISTS[0][1]] * 9 + [np.ones((99, 2), np.float32)], [LISTS[1][1]] * 9 + [np.ones(99, np.float32)],
            weights=[LISTS[1][1]] * 9 + [np.linspace(-1, 9, 99, dtype=np.float32)],
        ),
        "weights of problem 9 hold -1",
    ),
    "nothing left": (lambda: lfom.LeastSquaresProblems(ROWS, LABELS, weights=0 * LABELS), "all 0"),
    "weights per output": (
        lambda: lfom.LeastSquaresProblems(ROWS, np.ones((3, 5, 2), np.float32), weights=ROWS), "weights has shape"
    ),
    "ridges": (lambda: lfom.LeastSquaresProblems(ROWS, LABELS, [1.0, 2.0]), "ridge has shape"),
    "negative ridge": (lambda: lfom.LeastSquaresProblems(ROWS, LABELS, -1), "ridge is -1"),
    "b of one": (lambda: lfom.LinearSystems(EYES, np.ones(2, np.float32)), r"b has shape \(2,\)"),
    "b with many axes": (lambda: lfom.LinearSystems(EYES, np.ones((3, 2, 2, 2), np.float32)), "right-hand sides"),
    "not square": (lambda: lfom.LinearSystems(EYES[0, :1], np.ones(1, np.float32)), "square"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_a_problem_is_refused_with_the_reason(case: str) -> None:
    make, words = BAD[case]
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.usefixtures("x64")
def test_what_is_not_finite_is_one_problems_own_trouble() -> None:
    X, y, weights = groups(2)
    clean = lfom.LeastSquaresProblems(X, y, 0.1, weights=weights, intercept=True)
    X[0][1, 2], y[4][7, 1], weights[2][3] = np.nan, np.inf, np.nan  # the fifth is shortened
    found = lfom.conjugate_gradient(5).solve(
        lfom.LeastSquaresProblems(X, y, 0.1, weights=weights, intercept=True)
    )
    wanted = lfom.conjugate_gradient(5).solve(clean)
    status = np.asarray(found.status)
    assert (status[[0, 2]] == statuses.NOT_FINITE).all()
    assert (status[4] == statuses.NOT_FINITE).any()
    good = [1, 3, 5]
    np.testing.assert_allclose(found.value[np.array(good)], wanted.value[np.array(good)], rtol=1e-9)
    assert np.isfinite(found.value).all()


# Matrices


@pytest.mark.usefixtures("x64")
def test_systems_are_refused_where_they_are_not_symmetric_and_factorised_where_that_is_asked_for() -> None:
    good: Any = systems(count=12)
    A, b = np.array(good.A), np.array(good.b)
    skew, minus, slight = A.copy(), A.copy(), A.copy()
    skew[7, 1, 2] += 1e-3
    minus[5] *= -1
    slight[3] -= (np.linalg.eigvalsh(A[3])[0] + 1e-3) * np.eye(6)  # one small negative eigenvalue
    with pytest.raises(
        InputError, match=r"A of problem 7 is not symmetric: it differs from its transpose by 0\.001"
    ):
        lfom.LinearSystems(skew, b)
    for bad, number in ((minus, 5), (slight, 3)):
        problems = lfom.LinearSystems(bad, b)
        with pytest.raises(InputError, match=f"A of problem {number} is indefinite"):
            lfom.LinearSystems(bad, b, check=True)
        with pytest.raises(InputError, match=f"A of problem {number} is indefinite"):
            lfom.learn(problems, 2, "scalar")
        for name in ("scalar", CONJUGATE):
            for options in ({"steps": 5}, {"tolerance": 1e-8}):
                found = learned(name).solve(problems, **options)
                status = np.asarray(found.status)
                others = np.arange(12) != number
                assert (status[others] >= 0).all()
                assert (status[others] % 10 != statuses.CERTIFIED).all()
                if number == 5 or "tolerance" in options:
                    assert status[number] in (statuses.NOT_DEFINITE, statuses.NO_PROGRESS)
                w = np.asarray(found.value)[number]
                assert w @ bad[number] @ w / 2 - b[number] @ w <= 1e-12  # no worse than the start
    with pytest.raises(InputError, match="check=True factorises matrices"):
        lfom.LinearSystems(lambda data, v: v, b, check=True)
    checked = learned("scalar").solve(lfom.LinearSystems(A, b, check=True))
    assert (np.asarray(checked.status) == statuses.CERTIFIED).any()


@pytest.mark.usefixtures("x64")
def test_entries_alone_show_some_indefinite_matrices_and_no_other() -> None:
    """By two by two minors; positive semidefinite ones, singular to rounding, are never called so."""
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(200, 5, 5)) * 10.0 ** rng.uniform(-8, 4, (200, 1, 5))
    factors[:50, :, 3:] = 0
    A = factors @ factors.swapaxes(1, 2)
    for dtype in (np.float64, np.float32):
        shown = np.asarray(jax.vmap(surely_indefinite)(jnp.asarray((A + A.swapaxes(1, 2)) / 2, dtype)))
        assert not shown.any()
    minor = np.eye(5)
    minor[1, 3] = minor[3, 1] = 1.001
    for bad in (np.diag([1.0, 1, 1, 1, -1e-3]), minor, -np.eye(5)):
        assert bool(surely_indefinite(jnp.asarray(bad)))
        assert bool(surely_indefinite(jnp.asarray(1e30 * bad, np.float32)))


def test_what_cores_have_found_keeps_its_precision_whatever_jax_computes_in() -> None:
    found = {"w": np.full(3, 1 / 3), "half": np.full(3, 1 / 3, np.float32), "steps": np.arange(3)}
    ours = _as_jax(found)
    for name, array in found.items():
        assert ours[name].dtype == array.dtype
        np.testing.assert_array_equal(np.asarray(ours[name]), array)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("brought", ["matrices", "operator"])
def test_nothing_is_promised_of_a_matrix_that_nobody_looked_at(brought: str) -> None:
    """Indefinite with a right-hand side that does not see it: conjugate gradients are right to the digit there."""
    A = np.array([[1, 0.9, -0.9], [0.9, 1, 0.9], [-0.9, 0.9, 1]])[None]
    b = np.linalg.eigh(A[0])[1][:, 1:].sum(axis=1)[None]
    given = np.repeat(np.eye(3)[None] * [1.0, 2.0, 3.0], 30, axis=0), np.ones((30, 3))

    def made(A: Any, b: Any) -> lfom.LinearSystems:
        if brought == "matrices":
            return lfom.LinearSystems(A, b)
        return lfom.LinearSystems(lambda a, v: a @ v, b, data=A)

    method = lfom.learn(made(*given), 1, "conjugate:diagonal", iterations=0, progress=False)
    for options in ({}, {"tolerance": 0.5}, {"steps": 1}):
        assert np.asarray(method.solve(made(A, b), **options).status)[0] % 10 != statuses.CERTIFIED
    if brought == "matrices":
        good = lfom.LinearSystems(np.eye(3)[None], b, check=True)
        assert np.asarray(method.solve(good).status)[0] == statuses.CERTIFIED
