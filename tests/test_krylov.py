"""The Krylov view of training is the plain one in other coordinates."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lfom import LinearRegression, memformer
from lfom.core.coefficients import Pair
from lfom.core.memories import Bank
from lfom.core.methods import Method
from lfom.core.parameters import at_layer
from lfom.core.preconditioners import Identity
from lfom.core.problems import Quadratic
from lfom.core.readers import Gradient
from lfom.core.unroll import unroll
from lfom.core.vectors import from_vector, parameters, vector_of
from lfom.limits.krylov import coefficients
from lfom.training import direct, krylov
from lfom.training.least_squares import DAMPING
from lfom.training.sources import sources
from lfom.training.state import Setting
from tests.helpers import draw_prompts, draw_quadratics

MODELS: list[dict[str, Any]] = [
    {"memory": "none"},
    {"memory": "register"},
    {"memory": "bank"},
    {"memory": "bank", "tied": True},
    {"memory": "bank", "tied": True, "own_is_one": True},
    {"memory": "bank", "gamma": "pair", "tied": True},
    {"memory": "bank", "gamma": "pair"},
    {"memory": "register", "preconditioner": "scalar"},
]


def started(options: dict[str, Any], d: int, depth: int, seed: int = 0) -> Method:
    """A model with one matrix and numbers that are nothing special."""
    model = memformer(d, depth, key=jax.random.key(seed), **options)
    start = model.begin(jnp.asarray(np.linspace(0.4, 0.9, depth)))
    arrays, rest = eqx.partition(start, eqx.is_array)
    rng = np.random.default_rng(seed + 1)
    moved = jax.tree.map(lambda a: jnp.asarray(np.asarray(a) + 0.1 * rng.normal(size=a.shape)), arrays)
    return eqx.combine(moved, rest)


def setting(d: int, depth: int, depths: tuple[int, ...] | None = None) -> Setting:
    data = LinearRegression([1.0, 0.5][:d], 8, rotation=jax.random.orthogonal(jax.random.key(2), d))
    return Setting(sources(data, chunk=50, hold_out=0.2), depths or (depth,), depth, jax.random.key(4), None)


def spanned(first: int, last: int, depths: int = 1) -> tuple[jax.Array, ...]:
    return jnp.asarray(first), jnp.asarray(last), jnp.asarray([last] * depths)


def matrix_of(model: Method, d: int) -> jax.Array:
    reader = model.reader
    assert isinstance(reader, Gradient)
    scale = reader.A.scale  # type: ignore[attr-defined]
    return at_layer(reader.A, 0).matrix(d) / scale[0]


@pytest.mark.parametrize(("options", "depth"), [(MODELS[0], 1), *((options, 3) for options in MODELS)])
def test_the_answer_is_a_combination_of_the_basis(options: dict[str, Any], depth: int, x64: None) -> None:
    d = 2
    model = started(options, d, depth)
    assert krylov.has_krylov_view(model)
    q = draw_quadratics(LinearRegression([1.0, 0.5], 8), jax.random.key(1), 6)

    @eqx.filter_jit  # run op by op, this is mostly compilation
    def both(model: Method, c: jax.Array, active: jax.Array) -> tuple[jax.Array, jax.Array]:
        M = matrix_of(model, d)
        v = jnp.einsum("ij,ljp->lip", M, krylov.basis(q, M, depth, 2.7))
        return jnp.tensordot(c, v, axes=1), unroll(model, q, active)[-1]

    for last in (1.0, 0.0):
        active = np.array([1.0] * (depth - 1) + [last])
        c = krylov.coefficients_of_tables(krylov.tables_of(model, depth), np.array(2.7), active)[-1]
        found, wanted = both(model, jnp.asarray(c), jnp.asarray(active))
        np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_coefficients_of_tables_are_those_of_the_method_run(x64: None) -> None:
    rng = np.random.default_rng(0)
    depth, h, active = 4, np.array([2.0, 3.0]), np.array([1.0, 0.5, 1.0, 0.0])
    tables = np.tril(rng.normal(size=(2, 2, depth, depth)))  # context and query, two methods
    found = krylov.coefficients_of_tables(np.moveaxis(tables, 1, -1), h, active[:, None])[-1]
    for one in range(2):
        bank = Bank(Pair(*jnp.asarray(tables[:, one])), False)
        method = Method(Gradient(Identity()), bank, depth)
        wanted = coefficients(method, h[one], jnp.asarray(active))[-1]
        np.testing.assert_allclose(found[:, one], wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("options", "depth"), [(MODELS[0], 1), (MODELS[1], 4), *((MODELS[i], 3) for i in (4, 5, 7))]
)
def test_normal_equations_are_those_of_automatic_differentiation(
    options: dict[str, Any], depth: int, x64: None
) -> None:
    """J^T J and J^T r of the plain view, by the chain rule through the coordinates."""
    d = 2
    model = started(options, d, depth)
    chosen, here = parameters(model), setting(d, depth)
    vectors = np.asarray(chosen.vector(model))[None, None]
    span = (here.keys(0, 0), *spanned(0, 2))
    plain, fast = direct.Direct(chosen, here), krylov.Krylov(chosen, here)
    wanted = [np.asarray(a)[0, 0] for a in plain.equations(vectors, *span)]
    normal, slope = (np.asarray(a)[0, 0] for a in fast.equations(vectors, *span))

    step = 1e-6
    columns = []
    for place in chosen.index:  # central differences of the coordinates, which are smooth and exact
        shift = np.zeros(vectors.shape)
        shift[..., place] = step
        both = fast.coordinates(vectors + shift) - fast.coordinates(vectors - shift)
        columns.append(both[0, 0] / (2 * step))
    D = np.stack(columns, axis=1)
    np.testing.assert_allclose(D.T @ normal @ D, wanted[0], rtol=1e-6, atol=1e-6 * np.abs(wanted[0]).max())
    np.testing.assert_allclose(D.T @ slope, wanted[1], rtol=1e-6, atol=1e-6 * np.abs(wanted[1]).max())


def test_scores_are_those_of_the_plain_view(x64: None) -> None:
    model = started({"memory": "bank", "gamma": "pair", "tied": True}, 2, 3)
    chosen, here = parameters(model), setting(2, 3)
    vector = np.asarray(chosen.vector(model))
    candidates = np.stack([vector, 0.9 * vector, 1.05 * vector])[None, None]
    span = (here.keys(0, 0), *spanned(1, 3))
    for ours, wanted in zip(
        krylov.Krylov(chosen, here).score(candidates, *span),
        direct.Direct(chosen, here).score(candidates, *span),
        strict=True,
    ):
        np.testing.assert_allclose(ours, wanted, rtol=1e-9)


@pytest.mark.parametrize("memory", ["none", "register", "bank"])
def test_a_step_reaches_the_minimum_of_the_quadratic_model(memory: str, x64: None) -> None:
    """With M fixed the loss is quadratic in c: one step of a scalar model is the exact optimum."""
    model = started({"memory": memory, "preconditioner": "scalar"}, 2, 2)
    chosen, here = parameters(model), setting(2, 2)
    view = krylov.Krylov(chosen, here)
    vectors = np.asarray(chosen.vector(model))[None, None]
    span = (here.keys(0, 0), *spanned(0, 4))
    normal, slope = (np.asarray(a) for a in view.equations(vectors, *span))
    tried = view.candidates(vectors, normal, slope, DAMPING)[:, :, 1]  # the least damped
    _, left = (np.asarray(a) for a in view.equations(tried, *span))
    size = len(view.coordinates(vectors)[0, 0]) - 2
    assert np.abs(left[..., size:]).max() <= 1e-4 * np.abs(slope[..., size:]).max()


def test_steps_keep_the_scale_that_m_and_c_share(x64: None) -> None:
    model = started({"memory": "none"}, 2, 2)
    chosen, here = parameters(model), setting(2, 2)
    view = krylov.Krylov(chosen, here)
    vectors = np.asarray(chosen.vector(model))[None, None]
    span = (here.keys(0, 0), *spanned(0, 4))
    normal, slope = (np.asarray(a) for a in view.equations(vectors, *span))
    tried = view.candidates(vectors, normal, slope, (1e-6, 1e-2))
    mean = here.pilot.mean_gram[0]
    sizes = [np.sum(matrix_of(chosen.build(jnp.asarray(v)), 2) * mean) for v in tried[0, 0]]
    np.testing.assert_allclose(sizes, sizes[0], rtol=2e-2)
    assert not np.allclose(tried[0, 0, 1], tried[0, 0, 0])


def test_layers_that_are_switched_off_do_not_count(x64: None) -> None:
    model = started({"memory": "none"}, 2, 3)
    chosen, here = parameters(model), setting(2, 3, (1, 3))
    view = krylov.Krylov(chosen, here)
    vectors = np.repeat(np.asarray(chosen.vector(model))[None, None], 2, axis=1)
    span = (here.keys(0, 0), *spanned(0, 2, 2))
    normal, slope = (np.asarray(a) for a in view.equations(vectors, *span))
    tried = view.candidates(vectors, normal, slope, (1e-3,))
    c = view.coordinates(tried[:, :, 1])[0, :, 3:]
    assert np.all(c[0, 1:] == 0)
    assert np.all(c[1] != 0)


@pytest.mark.parametrize(
    "options",
    [
        {"memory": "conjugate"},
        {"memory": "none", "covariates": True},
        {"memory": "bank", "gamma": "diagonal"},
        {"memory": "none"},  # full matrices, before they are replaced by one
        {"memory": "none", "heads": 2},
    ],
)
def test_other_models_have_no_krylov_view(options: dict[str, Any]) -> None:
    model = memformer(3, 2, key=jax.random.key(0), **options)
    assert not krylov.has_krylov_view(model)


@pytest.mark.parametrize("fixed", [False, True], ids=["fresh", "fixed"])
def test_pieces_of_a_chunk_add_up_to_it(fixed: bool, monkeypatch: pytest.MonkeyPatch, x64: None) -> None:
    """Prompts that share what is asked of them, and prompts with a query each."""
    here, model = setting(2, 2), started({"memory": "register"}, 2, 2)
    if fixed:
        prompts = draw_prompts(LinearRegression([1.0, 0.5], 8), jax.random.key(0), 100)
        here = Setting(sources(prompts, chunk=50, hold_out=0.0), (2,), 2, jax.random.key(4), None)
    chosen = parameters(model)
    vectors = np.asarray(chosen.vector(model))[None, None]
    found = []
    for piece in (10, 1_000):
        monkeypatch.setattr(krylov, "IN_CACHE", piece)
        jax.clear_caches()
        found.append(krylov.Krylov(chosen, here).equations(vectors, here.keys(0, 0), *spanned(0, 2)))
    jax.clear_caches()
    for pieces, whole in zip(*found, strict=True):
        np.testing.assert_allclose(pieces, whole, rtol=1e-11, atol=1e-11 * np.abs(whole).max())


def test_prompts_with_one_query_each(x64: None) -> None:
    """A fixed set, with a probe of its own for every prompt."""
    prompts = draw_prompts(LinearRegression([1.0, 0.5], 8), jax.random.key(0), 40)
    model = started({"memory": "register"}, 2, 2)
    here = Setting(sources(prompts, chunk=20, hold_out=0.0), (2,), 2, jax.random.key(4), None)
    chosen = parameters(model)
    vectors = np.asarray(chosen.vector(model))[None, None]
    span = (here.keys(0, 0), *spanned(0, 2))
    total = krylov.Krylov(chosen, here).score(vectors[:, :, None], *span)[0]

    @eqx.filter_jit
    def loss(model: Method) -> jax.Array:
        quadratics = jax.vmap(Quadratic.of, out_axes=-1)(prompts)
        return jnp.sum(quadratics.residual(unroll(model, quadratics)[-1]) ** 2)

    wanted = loss(model)
    np.testing.assert_allclose(total[0, 0, 0], wanted, rtol=1e-10)


def test_each_depth_stops_at_its_limit(x64: None) -> None:
    model = started({"memory": "none"}, 2, 2)
    chosen, here = parameters(model), setting(2, 2, (1, 2))
    view = krylov.Krylov(chosen, here)
    vectors = np.repeat(np.asarray(chosen.vector(model))[None, None], 2, axis=1)
    keys = here.keys(0, 0)

    def sums(limits: list[int]) -> np.ndarray:
        span = (jnp.asarray(0), jnp.asarray(3), jnp.asarray(limits))
        return np.asarray(view.score(vectors[:, :, None], keys, *span)[0])[0, :, 0]

    all_of_it = sums([3, 3])
    np.testing.assert_allclose(sums([1, 3])[1], all_of_it[1])
    one = np.asarray(view.score(vectors[:, :, None], keys, *spanned(0, 1, 2))[0])[0, 0, 0]
    np.testing.assert_allclose(sums([1, 3])[0], one)


@pytest.mark.parametrize("memory", ["register", "bank"])
def test_the_best_coefficients_for_the_same_matrix(memory: str, x64: None) -> None:
    """Of all models with this M the one that is found has the least loss on the prompts it is fitted to, and M stays."""
    here, model = setting(2, 3), started({"memory": memory}, 2, 3)
    passes = krylov.Krylov(parameters(model), here)
    vector = vector_of(model)[None, None]
    keys, span = here.keys(0, 0), spanned(0, 4)
    normal, right = (np.asarray(a) for a in passes.coefficient_equations(vector, keys, *span))
    found = passes.with_best_coefficients(vector, normal, right)
    one = from_vector(model, found[0, 0])
    np.testing.assert_allclose(matrix_of(one, 2), matrix_of(model, 2), rtol=1e-6)
    rng = np.random.default_rng(0)
    others = found[:, :, None] + np.concatenate([np.zeros((1, 1)), np.ones((5, 1))]) * 1e-2 * rng.normal(
        size=(1, 1, 6, found.shape[-1])
    )
    half = passes._matrix  # M is the same in all of them
    others[..., half] = found[:, :, None, half]
    losses = np.asarray(passes.score(others, keys, *span)[0])[0, 0]
    assert losses.argmin() == 0
    assert losses[0] < 0.9 * float(passes.score(vector[:, :, None], keys, *span)[0][0, 0, 0])
