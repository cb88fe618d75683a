"""GD++ in spectral coordinates, its optimum, and the fit that finds it (docs/mathematics.md 5)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lfom import (
    InputError,
    LeastSquares,
    LinearRegression,
    Method,
    evaluate,
    exact_optimum,
    fit,
    memformer,
    run,
    sampled_optimum,
)
from lfom.core.coefficients import Pair, Scalar
from lfom.core.memories import Bank, Forget, Memory
from lfom.core.preconditioners import Scaled, Shared
from lfom.core.problems import Quadratic
from lfom.core.readers import Gradient
from lfom.core.vectors import parameters, vector_of
from lfom.limits.gdpp import gdpp_optima, template
from lfom.limits.spectra import MANY, PIECE, sampled_spectra, spectra
from lfom.limits.spectral import (
    AtPoints,
    FittedTo,
    NumberFit,
    answers,
    fitted_depths,
    in_float64,
    on_eigenvalues,
)
from lfom.prompts.distributions import PUBLISHED_SPECTRUM
from tests.helpers import make_batch, relative, safe_step

PAPER = LinearRegression(PUBLISHED_SPECTRUM, 20)
INVERSE = np.diag(1 / np.asarray(PUBLISHED_SPECTRUM))
OPTIMA = {1: 0.143, 2: -2.856, 3: -7.308}  # docs/mathematics.md 3, from two million prompts
DEPTH = 3


def memories() -> dict[str, Memory]:
    rng = np.random.default_rng(1)
    tables = [jnp.asarray(np.tril(rng.uniform(0.3, 1, (DEPTH, DEPTH)))) for _ in range(2)]
    return {
        "none": Forget(jnp.asarray(rng.uniform(0.5, 1, DEPTH))),
        "scalar": Bank(Scalar(tables[0]), False),
        "scalar, tied, own 1": Bank(Scalar(jnp.asarray([0.3, -0.2, 0.5])), True, True),
        "pair": Bank(Pair(*tables), False),
    }


@pytest.mark.parametrize("memory", memories())
@pytest.mark.parametrize(("d", "n"), [(4, 9), (4, 3), (1, 2)])
def test_eigenvalues_answer_as_the_prompts_do(memory: str, d: int, n: int, x64: None) -> None:
    rng, prompts = np.random.default_rng(d), make_batch(2, 6, n, d, noise=0.4)
    half = rng.normal(size=(d, d))
    M = np.eye(d) + half @ half.T
    a = 0.5 * safe_step(prompts) / np.linalg.norm(M, 2) * rng.uniform(0.5, 1.5, DEPTH)
    reader = Gradient(Shared(jnp.asarray(a), jnp.asarray(M)), Scaled(jnp.asarray(rng.uniform(0.3, 1, DEPTH))))
    method = Method(reader, memories()[memory], DEPTH)
    plain = method.on_eigenvalues
    assert plain is not None
    found = spectra(Quadratic.of(prompts), M)
    g = np.asarray(on_eigenvalues(plain, jnp.asarray(found.t)))
    seen = np.einsum("kdn,dn->kn", found.seen, g)[0]
    assert relative(seen, run(method, prompts, view="tokens").predictions[-1]) < 1e-10
    np.testing.assert_allclose(found.target[0], prompts.target, rtol=1e-12)


@pytest.mark.parametrize("memory", memories())
def test_numpy_answers_as_the_method_itself_does(memory: str, x64: None) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.uniform(0.3, 1, (2, DEPTH))
    reader = Gradient(Scaled(jnp.asarray(a)), Scaled(jnp.asarray(b)))
    method, t = Method(reader, memories()[memory], DEPTH), rng.uniform(0, 2, (2, 7))
    found, left = answers(method, t)
    assert relative(found, on_eigenvalues(method, jnp.asarray(t))) < 1e-13
    if memory == "none":  # T after every layer, by hand
        steps, T = np.asarray(method.memory.eta), np.ones_like(t)  # type: ignore[attr-defined]
        for factor in a * b * steps:
            T = T - factor * t * T**3
        assert relative(left, T) < 1e-13


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 6])
def test_a_few_points_tell_what_all_prompts_lose(depth: int) -> None:
    """More prompts than are added up at a time; six layers have a higher degree than there are points."""
    given = PAPER.quadratics(jax.random.key(1), PIECE + 500)
    prompts = spectra(given, np.linalg.inv(np.asarray(PAPER.covariance, np.float64)))
    rng, start = np.random.default_rng(depth), template("pair", depth)
    start = jax.tree.map(lambda a: a * rng.uniform(0.5, 0.9, a.shape), start)
    fitted, vector = NumberFit(start), vector_of(start)
    ends, losses = fitted.fit(vector[None], asked := AtPoints(prompts, depth), 0)
    np.testing.assert_array_equal(ends[0], vector)
    np.testing.assert_allclose(losses[0], fitted.losses(vector, prompts).mean(), rtol=1e-10)
    assert len(asked.points) == {1: 1, 2: 4, 3: 13, 4: 40, 6: 121}[depth]


def test_fits_step_by_the_derivatives_and_each_start_by_itself() -> None:
    prompts = spectra(PAPER.quadratics(jax.random.key(2), 500), INVERSE)
    asked, fitted = AtPoints(prompts, 2), NumberFit(template("scalar", 2))
    start = vector_of(template("scalar", 2))
    starts = np.stack([start, 0.5 * start, 2 * start])
    ends, losses = fitted.fit(starts, asked, 60)
    alone = [fitted.fit(one[None], asked, 60) for one in starts]
    np.testing.assert_allclose(losses, [loss[0] for _, loss in alone], rtol=1e-9)
    step, index = 1e-6, parameters(template("scalar", 2)).index

    def loss(at: np.ndarray) -> float:
        return float(fitted.losses(at, prompts).mean())

    for end in ends[losses < 1.01 * losses.min()]:  # a minimum: no number can be changed for the better
        for i in index:
            unit = step * (np.arange(end.size) == i)
            assert abs(loss(end + unit) - loss(end - unit)) / (2 * step) < 1e-2 * losses.min()


def test_what_does_not_act_on_eigenvalues_says_none() -> None:
    one, M = jnp.ones(2), jnp.eye(2)
    pairs = [(Shared(one, M), Shared(one, M)), (Scaled(one), Shared(one, M))]
    assert all(Method(Gradient(A, B), Forget(one), 2).on_eigenvalues is None for A, B in pairs)
    assert Method(Gradient(Shared(one, M), Scaled(one)), Forget(one), 2).on_eigenvalues is not None
    assert memformer(2, 2, covariates=True, gamma="rows", key=jax.random.key(0)).on_eigenvalues is None


@pytest.fixture(scope="module")
def optima() -> dict[int, Any]:
    return gdpp_optima(PAPER, (1, 2, 3), jax.random.key(0), preconditioner=INVERSE, prompts=100_000)


def test_the_fitted_optimum_is_the_known_one(optima: dict[int, Any]) -> None:
    for depth, wanted in OPTIMA.items():
        found = optima[depth]
        assert (found.depth, found.prompts) == (depth, 40_000)
        assert abs(found.log_loss - wanted) < 3 * found.log_stderr + 5e-4  # which has three digits


def test_one_layer_cannot_use_its_covariates(optima: dict[int, Any]) -> None:
    assert abs(optima[1].loss - exact_optimum(5, 20, 1).loss) < 3 * optima[1].stderr


def test_its_method_scores_what_it_promises(optima: dict[int, Any]) -> None:
    score = evaluate({"optimum": optima[2]}, PAPER, prompts=40_000, key=jax.random.key(5))["optimum"]
    error = np.hypot(score.log_stderr[0, -1], optima[2].log_stderr)
    assert abs(score.log_loss - optima[2].log_loss) < 4 * error


def test_the_loss_is_that_of_other_prompts() -> None:
    data, key = LinearRegression([1.0, 0.5], 6, noise=0.3), jax.random.key(4)
    found = gdpp_optima(data, (2,), key, prompts=1_000, preconditioner=jnp.eye(2))[2]
    halves = [
        sampled_spectra([data.quadratics(one, 500)], np.eye(2)) for (one,) in jax.random.split(key, (2, 1))
    ]
    single = in_float64(found.method.on_eigenvalues)
    own, wanted = (float(NumberFit(single).losses(vector_of(single), half).mean()) for half in halves)
    np.testing.assert_allclose(found.loss, wanted, rtol=1e-3)
    assert abs(own / wanted - 1) > 0.01


@pytest.mark.parametrize(("prompts", "kept", "within"), [(20_000, 0.2, 0.2), (MANY, 0.05, 0.5)])
def test_a_part_of_the_prompts_says_what_all_say(prompts: int, kept: float, within: float) -> None:
    """Rare prompts are all taken, of the others some with more weight; fewer where many are drawn."""
    q = PAPER.quadratics(jax.random.key(5), 20_000)
    M = np.linalg.inv(np.asarray(PAPER.covariance, np.float64))
    train = FittedTo.of(spectra(q, M), 2)
    fitted = fitted_depths([template("none", depth) for depth in (1, 2)], train, spectra(q, M))[-1]
    whole, part = (
        NumberFit(fitted).losses(vector_of(fitted), own)
        for own in (spectra(q, M), sampled_spectra([q], M, prompts))
    )
    assert kept / 4 * whole.size < part.size < kept * whole.size
    error = float(part.std() / part.size**0.5)
    assert abs(part.mean() - whole.mean()) < 3 * error < within * whole.mean()


def test_gdpp_is_fitted_to_its_optimum(optima: dict[int, Any]) -> None:
    model = memformer(5, 2, memory="none", covariates=True, key=jax.random.key(1))
    found = fit(model, PAPER, key=jax.random.key(2), depths=(1, 2))
    assert {row["phase"] for row in found.history} == {"all, one matrix"}
    methods = {"fit": found.model(), "optimum": optima[2]}
    scores = evaluate(methods, PAPER, prompts=100_000, key=jax.random.key(3))
    assert abs(scores["fit"].minus(scores["optimum"])[0]) < 0.05


@pytest.fixture(scope="module")
def small() -> tuple[Method, LinearRegression]:
    data = LinearRegression([1.0, 0.5], 8, noise=0.2)
    return memformer(
        2, 2, covariates=True, preconditioner="scalar", gamma="pair", key=jax.random.key(1)
    ), data


def test_a_fit_goes_on_where_it_stopped(small: Any) -> None:
    states: list[Any] = []
    few = LeastSquares(last=4_000)

    def trained(**options: Any) -> Any:
        return fit(*small, key=jax.random.key(2), optimiser=few, **options)

    whole = trained(watch=lambda state, record: states.append(state))
    assert len(states) == len(whole.history) == 1
    again = trained(resume=states[0])
    assert again.vectors.tobytes() == whole.vectors.tobytes()
    assert again.history == whole.history


def test_from_the_models_own_numbers_it_goes_by_passes(small: Any) -> None:
    few = LeastSquares(first=2_000, last=2_000, passes=(1, 1))
    found = fit(*small, key=jax.random.key(2), optimiser=few, start="model")
    assert [row["level"] for row in found.history] == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "bank"}, "unknown memory 'bank'"),
        ({"depth": 0}, "depth is 0"),
        ({"prompts": 0}, "prompts is 0"),
        ({"preconditioner": jnp.eye(3)}, r"preconditioner has shape \(3, 3\)"),
        ({"preconditioner": -jnp.eye(2)}, "preconditioner .*positive definite"),
        ({"preconditioner": jnp.array([[1.0, 0.5], [0.0, 1.0]])}, "preconditioner .*symmetric"),
        ({"covariates": False, "memory": "pair"}, "memory makes no difference"),
    ],
)
def test_bad_input_is_refused(options: dict[str, Any], message: str) -> None:
    given = {"depth": 1, "covariates": True} | options
    data = LinearRegression([1.0, 0.5], 8)
    with pytest.raises(InputError, match=message):
        sampled_optimum(data, given.pop("depth"), jax.random.key(0), **given)  # type: ignore[call-overload]


def test_runs_that_are_not_alike_are_fitted_each_by_itself() -> None:
    """Another variance is no other problem once M is known: the second run begins well with the first one's numbers."""
    data = [LinearRegression([1.0, 0.5], 8, variance=v) for v in (1.0, 25.0)]
    model = memformer(2, 2, memory="none", covariates=True, key=jax.random.key(1))
    found = fit(model, data, key=jax.random.key(2), optimiser=LeastSquares(prompts=0.1))
    last = np.asarray(found.history[-1]["log_loss"])[:, -1]
    assert abs(last[0] - last[1]) < 0.5  # few prompts scatter by .2
    scales = [float(found.model(run).reader.A.matrices[0, 0, 0]) for run in range(2)]
    np.testing.assert_allclose(scales[0] / scales[1], 25.0, rtol=0.1)


def test_memories_that_share_prompts_end_as_they_do_alone() -> None:
    kept: dict[Any, Any] = {}

    def keep(name: Any, make: Any) -> Any:
        if name not in kept:
            kept[name] = make()
        return kept[name]

    data = [LinearRegression(spectrum, 6) for spectrum in ([1.0, 0.5], [1.0, 0.2])]
    given: Any = {"key": jax.random.key(3), "optimiser": LeastSquares(first=200, last=400, passes=(2, 1))}
    models = [
        memformer(2, 2, memory=memory, covariates=True, key=jax.random.key(0)) for memory in ("none", "bank")
    ]
    alone = [fit(model, data, **given).vectors for model in models]
    together = [fit(model, data, **given, keep=keep).vectors for model in models]
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
    assert sum("spectra" in name for name in kept) == 4  # two runs, to fit to and to judge by
