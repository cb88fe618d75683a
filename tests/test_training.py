"""Training reaches the exact optimum: distances to it are asserted, not that the loss fell."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lfom import Adam, LeastSquares, LinearRegression, PerRun, conjugate_gradient, evaluate, fit, memformer
from lfom.core.checks import InputError
from lfom.core.memories import Bank, Conjugate, Forget, Register
from lfom.core.problems import Quadratic
from lfom.core.unroll import last_residual
from lfom.core.vectors import parameters
from lfom.limits.optimum import exact_optimum, with_preconditioner
from lfom.training.adam import clip_groups
from lfom.training.direct import jacobian
from tests.helpers import make_batch

KEY = jax.random.key(3)


def rotated(d: int, runs: int, n: int = 20) -> list[LinearRegression]:
    spectrum = [1.0, 0.25, 0.5][:d]
    turns = [jax.random.orthogonal(key, d) for key in jax.random.split(KEY, runs)]
    return [LinearRegression(spectrum, n, rotation=turn) for turn in turns]


def model(d: int, depth: int, **options: Any) -> Any:
    return memformer(d, depth, key=jax.random.key(0), **options)


def scores(fitted: Any, data: list[LinearRegression], **others: Any) -> dict[str, Any]:
    methods = {"model": fitted.per_run(), "optimum": optimum(data, fitted.depths[-1]), **others}
    return evaluate(methods, data, prompts=20_000, key=jax.random.key(99))


def optimum(data: list[LinearRegression], depth: int) -> PerRun:
    """The exact optimum with every run's inverse covariance."""
    best = exact_optimum(data[0].dimension, data[0].context, depth)
    return PerRun([with_preconditioner(best, jnp.linalg.inv(one.covariance)) for one in data])


@pytest.mark.parametrize("memory", ["register", "bank"])
def test_least_squares_reaches_the_optimum(memory: str) -> None:
    data = rotated(2, runs=2)
    found = scores(fit(model(2, 2, memory=memory), data, key=KEY), data)
    assert abs(found["model"].minus(found["optimum"])[0]) <= 0.03


def test_gd_plus_plus_gets_below_what_is_best_without_b() -> None:
    data = rotated(3, runs=1)
    found = scores(fit(model(3, 2, memory="none", covariates=True), data, key=KEY), data)
    assert found["model"].minus(found["optimum"])[0] < -0.5


def test_the_conjugate_register_learns_the_inverse_covariance() -> None:
    data = rotated(3, runs=2)
    inverses = [jnp.linalg.inv(one.covariance) for one in data]
    best = PerRun([conjugate_gradient(2, (inverse + inverse.T) / 2) for inverse in inverses])
    found = scores(fit(model(3, 2, memory="conjugate"), data, key=KEY), data, best=best)
    assert abs(found["model"].minus(found["best"])[0]) <= 0.05


def test_adam_as_in_the_paper_comes_near() -> None:
    data = rotated(2, runs=1)
    start = model(2, 1, memory="none")
    found = scores(fit(start, data, key=KEY, optimiser=Adam(steps=1_000)), data)
    assert -0.01 <= found["model"].minus(found["optimum"])[0] <= 0.2


def test_stages_train_what_they_name() -> None:
    data = rotated(2, runs=1)
    start = model(2, 2, memory="register", preconditioner="scalar")
    seen: list[Any] = []
    trained = fit(
        start,
        data,
        key=KEY,
        train=(("A",), ("coefficients",)),
        watch=lambda state, record: seen.append((record["phase"], state.vectors)),
    ).model()
    assert list(dict.fromkeys(name for name, _ in seen)) == ["A", "coefficients"]
    first = parameters(start).build(jnp.asarray([v for name, v in seen if name == "A"][-1][0, 0]))
    np.testing.assert_array_equal(first.memory.gamma, start.memory.gamma)
    np.testing.assert_array_equal(first.memory.alpha, start.memory.alpha)
    np.testing.assert_array_equal(trained.reader.A.scale, first.reader.A.scale)
    moved = eqx.tree_at(lambda m: m.reader.A.scale, start, jnp.asarray([0.5, 0.5]))
    only = fit(moved, data, key=KEY, train="coefficients", start="model").model()
    np.testing.assert_array_equal(only.reader.A.scale, [0.5, 0.5])
    assert not np.array_equal(only.memory.gamma[1:], start.memory.gamma[1:])


def test_a_fixed_set_is_fitted_or_generalised_from() -> None:
    """Without held-out prompts the set itself is fitted at least as well."""
    data = LinearRegression([1.0, 0.25], 20)
    prompts = data.prompts(KEY, 200)
    quadratics = jax.vmap(Quadratic.of, out_axes=-1)(prompts)

    def loss(hold_out: float) -> float:
        start = model(2, 2, memory="none", preconditioner="shared")
        fitted = fit(start, prompts, key=KEY, optimiser=LeastSquares(hold_out=hold_out))
        return float(np.log(jnp.mean(jnp.sum(last_residual(fitted.model(), quadratics) ** 2, axis=0))))

    everything, held = loss(0.0), loss(0.2)
    assert everything <= held + 1e-3
    assert abs(held - exact_optimum(2, 20, 2).log_loss) <= 1.0  # of 200 prompts with one query each


def test_the_jacobian_is_that_of_automatic_differentiation(x64: None) -> None:
    for options in ({"memory": "register"}, {"memory": "bank"}, {"memory": "none", "covariates": True}):
        start = model(3, 2, scale=0.3, **options)
        chosen = parameters(start)
        vector = chosen.vector(start)
        quadratics = jax.vmap(Quadratic.of, out_axes=-1)(make_batch(1, prompts=3, n=6, d=3))

        def residual_of(trained: Any, one: Quadratic, active: Any) -> Any:
            return last_residual(chosen.build(vector.at[chosen.index].set(trained)), one, active)

        def wanted(active: Any) -> Any:
            """Prompt by prompt, in forward mode."""
            both = lambda one: (  # noqa: E731
                residual_of(vector[chosen.index], one, active),
                jax.jacfwd(residual_of)(vector[chosen.index], one, active),
            )
            return jax.vmap(both, in_axes=-1, out_axes=-1)(quadratics)

        for active in (jnp.ones(2), jnp.asarray([1.0, 0.0])):
            found = jax.jit(lambda a: jacobian(chosen, vector, quadratics, a))(active)
            for ours, theirs in zip(found, jax.jit(wanted)(active), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_gradients_are_clipped_matrix_by_matrix() -> None:
    gradient = jnp.asarray([3.0, 4.0, 0.003, 0.004, 0.0])
    clipped = clip_groups(gradient, np.array([0, 0, 1, 1, 2]), 0.01)
    np.testing.assert_allclose(clipped, [0.006, 0.008, 0.003, 0.004, 0.0], rtol=1e-6)


# Which of the memory's numbers are trained while A is: what A scales is fixed.
GAUGE = [
    ({"memory": "none"}, Forget, []),
    ({"memory": "register"}, Register, ["gamma 1", "gamma 2"]),
    ({"memory": "bank"}, Bank, ["1 0", "2 0", "2 1"]),
    ({"memory": "bank", "own_is_one": True}, Bank, ["1 0", "2 0", "2 1"]),
    ({"memory": "bank", "tied": True}, Bank, []),
    ({"memory": "bank", "tied": True, "own_is_one": True}, Bank, ["0", "1"]),
    ({"memory": "conjugate"}, Conjugate, []),
]


@pytest.mark.parametrize(("options", "kind", "free"), GAUGE)
def test_what_shares_a_scale_with_a_is_fixed(options: dict[str, Any], kind: type, free: list[str]) -> None:
    start = model(2, 3, **options)
    assert isinstance(start.memory, kind)
    chosen = parameters(start)
    marks = chosen.build(jnp.zeros(len(chosen.vector(start))).at[chosen.index].set(1.0))
    for leaf in jax.tree.leaves(marks.reader):
        assert bool(jnp.all(leaf == 1))
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(marks.memory):
        prefix = "gamma " if kind is Register and "gamma" in jax.tree_util.keystr(path) else ""
        prefix = "alpha " if "alpha" in jax.tree_util.keystr(path) else prefix
        found += [prefix + " ".join(map(str, where)) for where in np.argwhere(np.asarray(leaf) == 1)]
    assert [text.replace("[", "").replace("]", "") for text in found] == free


def test_kinds_are_free_or_frozen() -> None:
    start = model(2, 3, memory="register", covariates=True)
    sizes = {kind: parameters(start, [kind]).size for kind in ("A", "B", "coefficients")}
    assert sizes == {"A": 12, "B": 12, "coefficients": 5}  # alpha is free where A is frozen; gamma_0 never
    with pytest.raises(InputError, match="frees nothing"):
        parameters(start, ["gates"])
    with pytest.raises(InputError, match="unknown parameter kind"):
        parameters(start, ["alpha"])
