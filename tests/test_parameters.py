"""What a field declares, and what follows from it: freeing, clipping, cutting, layers, one's own kinds."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lfom
from lfom import (
    Adam,
    InputError,
    LeastSquares,
    LinearRegression,
    Method,
    adapt,
    evaluate,
    fit,
    memformer,
    mixture,
    run,
)
from lfom.core.coefficients import Coefficient, CoordinateWise
from lfom.core.memories import Bank, Forget, Memory, Register
from lfom.core.parameters import (
    at_layer,
    by_layer,
    check_layers,
    cut,
    dimension,
    kinds,
    leaves,
    parameter,
    part,
    sizes,
)
from lfom.core.preconditioners import (
    Deflated,
    Dense,
    Diagonal,
    Factored,
    Full,
    Identity,
    LowRank,
    One,
    Scaled,
    Shared,
)
from lfom.core.problems import Tokens
from lfom.core.readers import Attention, Gradient, Heads, Normalised, Reader
from lfom.core.states import Direction, Iterate, Track
from lfom.core.unroll import last_residual, trace
from lfom.core.vectors import frees, from_vector, parameters, vector_of
from lfom.training.direct import jacobian
from tests.helpers import linear_memories, make_batch, make_prompt

D, N, DEPTH = 2, 4, 3
KEY = jax.random.key(0)
DATA = LinearRegression([1.0, 0.5], 8)
STRUCTURES = ("scalar", "pair", "rows", "diagonal", "tokens", "hadamard")


def full(depth: int = DEPTH, d: int = D) -> Full:
    return Full(jnp.asarray(0.3 * np.random.default_rng(1).normal(size=(depth, d, d))))


def banks() -> dict[str, Memory]:
    return linear_memories(0, D, N, DEPTH, STRUCTURES)


def marks(model: Any, train: Any = None) -> Any:
    """The model with True for every number that is trained."""
    chosen = parameters(model, train)
    marked = np.zeros(len(vector_of(model)))
    marked[chosen.index] = 1
    return jax.tree.map(lambda a: np.asarray(a) == 1, from_vector(model, marked))


def groups(model: Any, train: Any = None) -> Any:
    """The model with the number of its clip group for every trained entry, and -1 for the others."""
    chosen = parameters(model, train)
    labels = np.full(len(vector_of(model)), -1.0)
    labels[chosen.index] = chosen.groups
    return jax.tree.map(np.asarray, from_vector(model, labels))


# What is freed


@pytest.mark.parametrize("name", [name for name in banks() if "diagonal" not in name])
def test_what_is_never_read_is_never_trained(name: str, x64: None) -> None:
    """Exactly the entries without an effect are left out, found by their derivatives."""
    reader, memory = Gradient(full(), full()), banks()[name]
    method = Method(reader, memory, DEPTH)
    tokens = Tokens.of(make_prompt(0, N, D, noise=0.3))

    def moved(memory: Memory) -> jax.Array:
        last = trace(Method(reader, memory, DEPTH), tokens, None, lambda state, past: None)[1]
        return jnp.sum(jnp.cos(jnp.arange(last.size).reshape(last.shape)) * last)

    slopes = jax.tree.leaves(jax.jit(jax.grad(moved))(memory))
    freed = jax.tree.leaves(marks(method, ["coefficients"]).memory)
    for slope, free in zip(slopes, freed, strict=True):
        np.testing.assert_array_equal(np.asarray(slope) != 0, free)


OWN: dict[str, Any] = {  # the entries of a bank's own coefficients that A scales as well
    "scalar": lambda gamma: [gamma.value],
    "pair": lambda gamma: [gamma.context],
    "rows": lambda gamma: [gamma.value[..., -1]],
    "diagonal": lambda gamma: [gamma.value[..., -1]],
    "tokens": lambda gamma: [gamma.value[..., -1]],
    "hadamard": lambda gamma: [gamma.value[..., -1, -1]],
}


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("tied", [True, False])
def test_own_coefficients_are_fixed_where_a_is_trained(structure: str, tied: bool) -> None:
    method = Method(Gradient(full()), banks()[f"bank-{structure}{'-tied' if tied else ''}"], DEPTH)
    together, alone = (marks(method, train).memory.gamma for train in (None, ["coefficients"]))
    (fixed,), (free,) = OWN[structure](together), OWN[structure](alone)
    own = np.ones(DEPTH, bool) if tied else np.eye(DEPTH, dtype=bool)
    assert not fixed[own].any()
    assert free[own].all()
    np.testing.assert_array_equal(fixed[~own], free[~own])
    lost = sum(a.sum() for a in jax.tree.leaves(alone)) - sum(a.sum() for a in jax.tree.leaves(together))
    assert lost == DEPTH  # one number per layer, however many the coefficient has


@pytest.mark.parametrize("structure", STRUCTURES)
def test_an_own_coefficient_that_is_one_leaves_the_others_free(structure: str) -> None:
    for tied in ("", "-tied"):
        method = Method(Gradient(full()), banks()[f"bank-{structure}{tied}-own"], DEPTH)
        for train in (None, ["coefficients"]):
            for free in jax.tree.leaves(marks(method, train).memory):
                older = np.arange(DEPTH) < DEPTH - 1 if tied else np.tri(DEPTH, k=-1, dtype=bool)
                assert free[older].all()
                assert not free[~older].any()


@pytest.mark.parametrize(
    ("reader", "fixed"),
    [
        (Gradient(Identity()), False),  # nothing of it is trained
        (Gradient(Full(jnp.ones((DEPTH, D, D)))), True),
        (Gradient(Shared(jnp.ones(DEPTH), jnp.eye(D))), True),
        (Normalised(Heads((Gradient(Identity()), Gradient(Scaled(jnp.ones(DEPTH)))))), True),
        (Gradient(One(jnp.eye(D))), False),  # one scale for all layers is not one for each
        (Gradient(Diagonal(jnp.zeros(D))), False),
        (Attention(*[jnp.ones((DEPTH, D + 1, D + 1))] * 2), False),
    ],
)
def test_step_sizes_are_fixed_only_where_the_reader_has_its_own(reader: Reader, fixed: bool) -> None:
    for memory, sizes_of in (
        (Forget(jnp.ones(DEPTH)), lambda m: m.eta),
        (Register(jnp.ones(DEPTH), jnp.zeros(DEPTH)), lambda m: m.alpha),
    ):
        found = marks(Method(reader, memory, DEPTH))
        assert sizes_of(found.memory).tolist() == [not fixed] * DEPTH
        assert sizes_of(marks(Method(reader, memory, DEPTH), ["coefficients"]).memory).all()


def test_the_first_gamma_of_a_register_is_never_trained() -> None:
    method = Method(Gradient(Identity()), Register(jnp.ones(DEPTH), jnp.ones(DEPTH)), DEPTH)
    assert marks(method).memory.gamma.tolist() == [False, True, True]


def test_every_head_of_a_mixture_has_its_own_scale() -> None:
    memory = Forget(jnp.ones(DEPTH))
    heads = [Method(Gradient(A), memory, DEPTH) for A in (Identity(), full())]
    found = marks(mixture(heads))
    assert found.heads[0].memory.eta.all()
    assert not found.heads[1].memory.eta.any()
    assert found.gates.all()
    assert marks(mixture(heads), ["gates"]).gates.sum() == parameters(mixture(heads), ["gates"]).size == 2


def test_hard_gates_are_chosen_and_not_trained() -> None:
    model = mixture([Method(Gradient(full()), Forget(jnp.ones(DEPTH)), DEPTH)] * 2, gating="hard")
    assert not marks(model).gates.any()
    assert not frees(model, ["gates"])
    with pytest.raises(InputError, match=r"train=\['gates'\] frees nothing of this model"):
        parameters(model, ["gates"])


def test_a_field_that_says_nothing_is_a_constant(x64: None) -> None:
    base = jnp.asarray(np.eye(D) + 0.1)
    method = Method(Gradient(Factored(base, jnp.zeros((D, D)))), Forget(jnp.ones(DEPTH)), DEPTH)
    found = marks(method)
    assert not found.reader.A.base.any()
    assert found.reader.A.change.all()
    fixed = Method(Gradient(Dense(base)), Forget(jnp.ones(DEPTH)), DEPTH)
    assert kinds(fixed) == ("coefficients",)
    batch = make_batch(0, D + 1, N, D)  # nor does it differ from prompt to prompt
    for one in (method, fixed):
        tokens, iterates = (run(one, batch, view=view).predictions for view in ("tokens", "iterates"))
        np.testing.assert_allclose(tokens, iterates, rtol=1e-9)


class Wrapped(lfom.Memory):
    """Half the step of a memory of which it says nothing."""

    inner: lfom.Memory
    size: jax.Array = lfom.parameter(axes="layers")

    def __call__(self, direction: Any, past: Any, state: Any, problem: Any, layer: Any) -> tuple[Any, Any]:
        step, past = self.inner(direction, past, state, problem, layer)
        return self.size * step, past


def test_an_object_of_which_nothing_is_said_is_never_trained() -> None:
    inner = Register(jnp.ones(DEPTH), jnp.full(DEPTH, 0.2))
    method = Method(Gradient(Identity()), Wrapped(inner, jnp.full(DEPTH, 0.5)), DEPTH)
    assert parameters(method).size == DEPTH
    assert [leaf.axes for leaf in leaves(method)] == [("layers",)] * 3  # a layer sees its own numbers of it


class Numbers(NamedTuple):
    eta: Any
    beta: Any


class Named(lfom.Memory):
    """Its numbers are a tuple with names."""

    both: Numbers = lfom.part(axes="layers")

    def __call__(self, direction: Any, past: Any, state: Any, problem: Any, layer: Any) -> tuple[Any, Any]:
        new = direction + self.both.beta * past
        return self.both.eta * new, new


def test_a_part_may_be_a_tuple_with_names() -> None:
    named = Method(Gradient(Identity()), Named(Numbers(jnp.full(2, 0.3), jnp.full(2, 0.1))), 2)
    plain = Method(Gradient(Identity()), Register(jnp.full(2, 0.3), jnp.full(2, 0.1)), 2)
    assert kinds(named) == ("coefficients",)
    batch = DATA.prompts(KEY, 3)
    np.testing.assert_allclose(run(named, batch).predictions, run(plain, batch).predictions, rtol=1e-6)


# What is clipped together


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_coefficient_is_clipped_as_one(structure: str, tied: bool) -> None:
    method = Method(Gradient(Identity()), banks()[f"bank-{structure}{'-tied' if tied else ''}"], DEPTH)
    blocks = DEPTH if tied else DEPTH * DEPTH
    seen: set[float] = set()
    for labels in jax.tree.leaves(groups(method).memory):
        for one in labels.reshape(blocks, -1):
            assert len(set(one.tolist())) == 1  # all entries of a coefficient in one group
            label = float(one[0])
            assert label == -1 or label not in seen  # and no two coefficients in the same
            seen.add(label)
    assert len(seen - {-1.0}) == (2 if structure == "pair" else 1) * (DEPTH if tied else 6)


def test_matrices_are_clipped_one_by_one_and_numbers_alone() -> None:
    heads = [Method(Gradient(A), Register(jnp.ones(DEPTH), jnp.ones(DEPTH)), DEPTH)
             for A in (full(), Shared(jnp.ones(DEPTH), jnp.eye(D)))]  # fmt: skip
    found = groups(mixture(heads, jnp.ones((2, DEPTH)), per_layer=True))
    each = found.heads[0].reader.A.matrices.reshape(DEPTH, -1)
    assert all(len(set(one.tolist())) == 1 for one in each)
    assert len(set(each[:, 0].tolist())) == DEPTH
    assert len(set(found.heads[1].reader.A.half.reshape(-1).tolist())) == 1
    for alone in (found.heads[1].reader.A.scale, found.gates, found.heads[0].memory.gamma[1:]):
        assert len(set(alone.reshape(-1).tolist())) == alone.size
    every = [labels.reshape(-1) for labels in jax.tree.leaves(found)]
    used = np.unique(np.concatenate(every))
    np.testing.assert_array_equal(used, np.arange(-1, len(used) - 1))


# Layers


def several() -> Any:
    memories = banks()
    heads = [Method(Gradient(full()), memories["bank-rows-tied"], DEPTH),
             Method(Gradient(Shared(jnp.arange(1.0, DEPTH + 1), jnp.eye(D))), memories["bank-pair"], DEPTH)]  # fmt: skip
    return mixture(heads, jnp.asarray(np.random.default_rng(2).normal(size=(2, DEPTH))), per_layer=True)


def test_a_layer_sees_its_own_numbers_and_all_that_is_past() -> None:
    model = several()
    stacked, here = by_layer(model, DEPTH)
    for layer in range(DEPTH):
        one: Any = at_layer(model, layer)
        np.testing.assert_array_equal(one.heads[0].reader.A.matrices, model.heads[0].reader.A.matrices[layer])
        np.testing.assert_array_equal(one.heads[0].memory.gamma.value, model.heads[0].memory.gamma.value)
        np.testing.assert_array_equal(one.heads[1].reader.A.scale, layer + 1)
        np.testing.assert_array_equal(one.heads[1].reader.A.half, model.heads[1].reader.A.half)
        np.testing.assert_array_equal(
            one.heads[1].memory.gamma.query, model.heads[1].memory.gamma.query[layer]
        )
        np.testing.assert_array_equal(one.gates, model.gates[:, layer])
        again = here([array[layer] for array in stacked])
        assert jax.tree.all(jax.tree.map(np.array_equal, again, one))


def test_cutting_keeps_the_first_layers_of_everything_that_counts_them() -> None:
    model = several()
    short: Any = cut(model, 2)
    np.testing.assert_array_equal(short.gates, model.gates[:, :2])
    np.testing.assert_array_equal(short.heads[0].reader.A.matrices, model.heads[0].reader.A.matrices[:2])
    np.testing.assert_array_equal(short.heads[0].memory.gamma.value, model.heads[0].memory.gamma.value[:2])
    np.testing.assert_array_equal(
        short.heads[1].memory.gamma.query, model.heads[1].memory.gamma.query[:2, :2]
    )
    np.testing.assert_array_equal(short.heads[1].reader.A.half, model.heads[1].reader.A.half)


def test_leaves_are_in_the_order_of_the_tree() -> None:
    model = several()
    arrays = jax.tree.leaves(eqx.filter(model, eqx.is_array))
    assert all(leaf.array is array for leaf, array in zip(leaves(model), arrays, strict=True))
    assert [leaf.name for leaf in leaves(model)][-1] == ".gates"
    assert kinds(model) == ("A", "coefficients", "gates")


def test_the_dimension_is_that_of_the_arrays() -> None:
    assert dimension(Method(Gradient(full()), Forget(jnp.ones(DEPTH)), DEPTH)) == D
    assert dimension(Method(Gradient(Identity()), banks()["bank-rows"], DEPTH)) == D
    assert dimension(Attention(*[jnp.ones((DEPTH, 5, 5))] * 2)) == 4
    assert dimension(Method(Gradient(Scaled(jnp.ones(DEPTH))), Forget(jnp.ones(DEPTH)), DEPTH)) is None
    assert sizes(Method(Gradient(full()), banks()["bank-hadamard"], DEPTH)) == {
        "d": D, "rows": D + 1, "tokens": N + 1
    }  # fmt: skip


def test_too_few_entries_for_the_layers_are_refused() -> None:
    for method, message in (
        (Method(Gradient(full(2)), Forget(jnp.ones(3)), 3), "3 layers, but matrices has entries for 2"),
        (Method(Gradient(full(4)), Forget(jnp.ones(3)), 4), "4 layers, but eta has entries for 3"),
        (Method(Gradient(Identity()), banks()["bank-rows-tied"], 4), "4 layers, but value has entries for 3"),
    ):
        with pytest.raises(InputError, match=f"the method has {message}: give one entry per layer"):
            check_layers(method, method.depth)
        with pytest.raises(InputError, match=message):
            run(method, make_prompt(0, N, D))
    check_layers(Method(Gradient(full(5)), Forget(jnp.ones(4)), 3), 3)


# Classes of one's own


class Fading(Memory):
    """R = direction + decay R with one number for all layers."""

    decay: jax.Array = parameter()

    def start(self, nothing: Any, state: Any, problem: Any, room: int | None) -> Any:
        return nothing

    def __call__(self, direction: Any, past: Any, state: Any, problem: Any, layer: Any) -> tuple[Any, Any]:
        register = direction + self.decay * past
        return register, register


class Rescaled(Coefficient):
    """A number of which nothing is said."""

    views, splits = ("iterates", "tokens"), False
    value: jax.Array = parameter()

    def on_tokens(self, direction: jax.Array) -> jax.Array:
        return self.value * direction

    def on_iterates(self, direction: Direction) -> Direction:
        return self.value * direction


class Signed(Reader):
    """Another reader, and the sign of its direction with a weight of its own."""

    reader: Reader = part()
    weight: jax.Array = parameter("mine", axes="layers")

    @property
    def views(self) -> tuple[str, ...]:
        return ("iterates",)

    def on_tokens(self, Z: jax.Array, problem: Any) -> jax.Array:
        raise NotImplementedError

    def on_iterates(self, state: Iterate, problem: Any) -> Direction:
        read = self.reader.on_iterates(state, problem)
        more = Track(self.weight * jnp.tanh(read.context.w))
        return read + Direction(more, None if read.query is None else more)


QUICK = LeastSquares(first=2_000, last=2_000, passes=(6, 1))


def log_losses(**models: Any) -> dict[str, float]:
    found = evaluate(models, DATA, prompts=4_000, key=jax.random.key(9))
    return {name: score.log_loss for name, score in found.items()}


@pytest.mark.parametrize("optimiser", [QUICK, Adam(steps=300, batch=100, learning_rate=0.02)])
def test_a_memory_of_one_number_is_trained_and_comes_back(optimiser: Any) -> None:
    start = Method(Gradient(Scaled(jnp.full(DEPTH, 0.5))), Fading(jnp.asarray(0.0)), DEPTH)
    assert parameters(start).size == DEPTH + 1
    fitted = fit(start, DATA, key=KEY, optimiser=optimiser, start="model", depths=(1, DEPTH))
    model = fitted.model()
    assert model.memory.decay.shape == ()
    assert abs(float(model.memory.decay)) > 0.01
    assert fitted.per_run(1)[0].depth == 1
    # It is the same as the register that it stands for, and better than none.
    register = Register(jnp.ones(DEPTH), jnp.full(DEPTH, model.memory.decay))
    found = log_losses(model=model, register=Method(model.reader, register, DEPTH), start=start)
    assert found["model"] == pytest.approx(found["register"], abs=1e-4)
    assert found["model"] < found["start"] - 0.1


def test_a_coefficient_that_says_nothing_of_scales_keeps_all_its_entries() -> None:
    method = Method(Gradient(full()), Bank(Rescaled(jnp.eye(DEPTH)), tied=False), DEPTH)
    np.testing.assert_array_equal(marks(method).memory.gamma.value, np.tri(DEPTH, dtype=bool))
    assert kinds(method) == ("A", "coefficients")


def test_a_kind_of_ones_own_is_trained_alone() -> None:
    plain = memformer(D, 2, memory="register", preconditioner="scalar", scale=0.3, key=KEY)
    start = Method(Signed(plain.reader, jnp.zeros(2)), plain.memory, 2)
    assert kinds(start) == ("A", "mine", "coefficients")
    assert marks(start, "mine").reader.weight.all()
    assert parameters(start, "mine").size == 2
    fitted = fit(start, DATA, key=KEY, train="mine", optimiser=QUICK, start="model").model()
    assert not np.allclose(fitted.reader.weight, 0)
    for array, before in zip(
        jax.tree.leaves((fitted.reader.reader, fitted.memory)),
        jax.tree.leaves((plain.reader, plain.memory)),
        strict=True,
    ):
        np.testing.assert_array_equal(array, before)
    found = log_losses(before=start, after=fitted)
    assert found["after"] < found["before"] - 0.01
    with pytest.raises(InputError, match=r"unknown parameter kind 'mines'. Did you mean mine"):
        parameters(start, ["mines"])
    with pytest.raises(InputError, match="unknown parameter kind 'mine'"):
        parameters(plain, ["mine"])


@pytest.mark.parametrize("value", [[0.5, 0.5], 0.5, None, "half"])
def test_what_is_declared_and_no_array_is_refused_where_a_method_is_made(value: Any) -> None:
    with pytest.raises(
        InputError, match=r"decay of Fading is .*must be an array of JAX. Pass jax.numpy.asarray"
    ):
        Method(Gradient(Identity()), Fading(value), 2)
    with pytest.raises(InputError, match="decay of Fading is"):  # in a part of a part
        Method(Signed(Gradient(Identity()), jnp.ones(2)), Fading(value), 2)
    with pytest.raises(InputError, match="weight of Signed is"):
        Method(Signed(Gradient(Identity()), value), Fading(jnp.ones(())), 2)


def test_scores_need_an_entry_per_layer_too() -> None:
    method = Method(Gradient(Identity()), Forget(jnp.ones(1)), 2)
    with pytest.raises(InputError, match="2 layers, but eta has entries for 1"):
        evaluate({"mine": method}, DATA, prompts=10, key=jax.random.key(0))


class Turned(Reader):
    """A matrix of which no axis says that it is d."""

    turn: jax.Array = parameter("mine", axes="layers first second")

    def on_tokens(self, Z: jax.Array, problem: Any) -> jax.Array:
        return self.turn @ Z


def test_a_reader_for_another_d_ends_with_a_sentence() -> None:
    prompt, turn = make_prompt(0, N, D), jnp.ones((2, D + 3, D + 3))
    free = Method(Turned(turn), Fading(jnp.ones(())), 2)
    message = (
        rf"Turned.on_tokens cannot read a state of shape \({D + 1}, {N + 1}\) .*Build the reader for prompts"
    )
    with pytest.raises(InputError, match=message):
        run(free, prompt)
    said = Method(Attention(turn, turn), Fading(jnp.ones(())), 2)
    with pytest.raises(InputError, match=rf"prompts have d = {D} covariates and the model d = {D + 2}"):
        run(said, prompt)


class Picks(Memory):
    which: jax.Array  # a constant
    eta: jax.Array = parameter(axes="layers")
    numbers: jax.Array = parameter("sizes", axes="entries")

    def __call__(self, direction: Any, past: Any, state: Any, problem: Any, layer: Any) -> tuple[Any, Any]:
        return self.eta * self.numbers[self.which] * direction, past


def picking(which: int, eta: Any = 0.5) -> Method:
    return Method(Gradient(Identity()), Picks(jnp.asarray(which), jnp.full(2, eta), jnp.ones(3)), 2)


@pytest.mark.parametrize("optimiser", [QUICK, Adam(steps=10, batch=20)])
def test_whole_numbers_stay_as_they_are(optimiser: Any) -> None:
    method = picking(1)
    assert vector_of(method).size == parameters(method).vector(method).size == 5
    found = fit(method, DATA, key=KEY, optimiser=optimiser).model().memory
    assert found.which == 1
    assert found.which.dtype == method.memory.which.dtype  # type: ignore[attr-defined]
    assert np.asarray(found.numbers[0]) == 1 != np.asarray(found.numbers[1])  # only what is picked is moved
    adapted = adapt(method, DATA.prompts(KEY, 20), train=("coefficients",), steps=1)
    assert adapted.model.memory.which.dtype == found.which.dtype


def test_models_with_other_whole_numbers_share_no_program() -> None:
    adam = Adam(steps=10, batch=20)
    for which in (0, 2):
        table = np.asarray(fit(picking(which), DATA, key=KEY, optimiser=adam).model().memory.numbers)
        assert [place for place, value in enumerate(table) if value != 1] == [which]


def test_whole_numbers_that_cannot_be_what_is_asked_are_refused() -> None:
    for refused in (
        lambda: fit([picking(0), picking(1)], DATA, key=KEY),
        lambda: adapt([picking(0), picking(1)], DATA.prompts(KEY, 20), train=("coefficients",)),
    ):
        with pytest.raises(
            InputError, match="run 1 of model differs from run 0 in an array of whole numbers"
        ):
            refused()
    with pytest.raises(InputError, match=r"memory.eta is of int32, and train=.* frees it: only real numbers"):
        fit(picking(0, 1), DATA, key=KEY)


# Axes, wherever they stand


class Steps(Memory):
    """Own step sizes, with whatever axes a test declares."""

    eta: jax.Array = parameter(axes=lambda m: m.axes)
    axes: str = eqx.field(static=True, default="layers")

    def __call__(self, direction: Any, past: Any, state: Any, problem: Any, layer: Any) -> tuple[Any, Any]:
        return self.eta * direction, past


class LastOfLayers(Memory):
    eta: jax.Array = parameter(axes="layers d", scales="last")

    def __call__(self, direction: Any, past: Any, state: Any, problem: Any, layer: Any) -> tuple[Any, Any]:
        return direction, past


def test_the_last_of_every_layer_is_fixed_and_layers_are_clipped_wherever_their_axis_stands() -> None:
    fixed = marks(Method(Gradient(full()), LastOfLayers(jnp.ones((DEPTH, D))), DEPTH)).memory.eta
    np.testing.assert_array_equal(fixed, [[True, False]] * DEPTH)
    method = Method(Gradient(Identity()), Steps(jnp.ones((D, DEPTH)), "d layers"), DEPTH)
    np.testing.assert_array_equal(groups(method).memory.eta, [[0, 1, 2]] * D)


def test_an_axis_that_is_not_declared_is_refused_at_every_door() -> None:
    """Read as one number per prompt it would give an answer wherever there are as many prompts as it has entries."""
    undeclared = Method(Gradient(Identity()), Steps(jnp.full(D, 0.5), ""), DEPTH)
    matrix = jnp.eye(D)[None]
    problems = lfom.LinearSystems(matrix, jnp.ones((1, D)))
    quick = LeastSquares(first=100, last=100, passes=(1, 1))
    doors = {
        "run": lambda m: run(m, DATA.prompts(KEY, D)),
        "run on a problem": lambda m: run(m, DATA.prompts(KEY, D).problem("iterates")),
        "fit": lambda m: fit(m, DATA, key=KEY, optimiser=quick),
        "evaluate": lambda m: evaluate({"own": m}, DATA, prompts=D, key=KEY),
        "adapt": lambda m: lfom.adapt(m, DATA.prompts(KEY, D), train=("coefficients",)),
        "solve": lambda m: m.solve(problems),
    }
    for door in doors.values():
        with pytest.raises(InputError, match=r"eta has shape \(2,\), and its axes are declared as ''"):
            door(undeclared)
    per_prompt = Method(Gradient(Identity()), Steps(jnp.full((DEPTH, D), 0.5)), DEPTH)
    assert run(per_prompt, DATA.prompts(KEY, D)).predictions.shape == (DEPTH + 1, D)
    with pytest.raises(InputError, match=r"eta has shape \(3, 2\).*on that batch"):
        run(per_prompt, DATA.prompts(KEY, D + 2))
    for name in ("fit", "evaluate", "adapt", "solve"):
        with pytest.raises(InputError, match=r"eta has shape \(3, 2\).*only lfom.run takes"):
            doors[name](per_prompt)


@pytest.mark.parametrize("d", [2, 18])  # prompts ride last, or lead
def test_coefficients_per_coordinate_may_differ_from_prompt_to_prompt(d: int, x64: None) -> None:
    gammas = 0.1 * np.random.default_rng(0).normal(size=(2, 2, d, 3))
    batch = make_batch(0, 3, 4, d)

    def method(gamma: Any) -> Method:
        return Method(Gradient(Identity()), Bank(CoordinateWise(jnp.asarray(gamma)), tied=False), 2)

    found = run(method(gammas), batch).predictions
    for k in range(3):
        alone = run(method(gammas[..., k]), jax.tree.map(lambda a, k=k: a[k], batch)).predictions
        np.testing.assert_allclose(found[:, k], alone, rtol=1e-10)


# Matrices whose products take no axis of prompts


@pytest.mark.parametrize(
    "A",
    [
        LowRank(jnp.zeros(D), jnp.full((D, 1), 0.3)),
        Deflated(jnp.zeros(D), jnp.full((D, 1), 0.3)),
        Factored(jnp.eye(D), jnp.full((D, D), 0.1)),
    ],
    ids=lambda A: type(A).__name__,
)
def test_least_squares_and_adapt_train_matrices_prompt_by_prompt(A: Any, x64: None) -> None:
    model = Method(Gradient(jax.tree.map(lambda a: a.astype(float), A)), Forget(jnp.full(2, 0.4)), 2)
    chosen = parameters(model, ["A"])
    vector = chosen.vector(model)
    averaged = DATA.quadratics(KEY, 5)  # all prompts share one probe
    for prompts in (DATA.prompts(KEY, 5).problem("iterates"), averaged):
        residual, J = jacobian(chosen, vector, prompts, jnp.ones(2))

        def moved(numbers: Any, prompts: Any = prompts) -> Any:
            return last_residual(chosen.assemble(vector, numbers), prompts)

        wanted = jax.jacfwd(moved)(vector[chosen.index])  # (k, prompts, p)
        np.testing.assert_allclose(residual, moved(vector[chosen.index]), rtol=1e-10)
        np.testing.assert_allclose(J, jnp.moveaxis(wanted, -1, 1), rtol=1e-8, atol=1e-12)
    if isinstance(A, LowRank):
        assert lfom.adapt(model, DATA.prompts(KEY, 8), train=("A",), steps=1).prompts == 8


@pytest.mark.parametrize("trail", [(), (3,)], ids=["shared", "per prompt"])
def test_trained_numbers_take_their_places(trail: tuple[int, ...]) -> None:
    """Of an untied bank some rows are trained in part; the others stay as they are."""
    model = memformer(2, 4, memory="bank", key=KEY)
    chosen = parameters(model, ["coefficients"])
    vector = np.arange(vector_of(model).size, dtype=np.float32)
    trained = -1 - np.arange(chosen.size * int(np.prod(trail, dtype=int)), dtype=np.float32)
    trained = trained.reshape(chosen.size, *trail)
    built = chosen.assemble(jnp.asarray(vector), jnp.asarray(trained))
    wanted = np.broadcast_to(vector.reshape(-1, *(1,) * len(trail)), (vector.size, *trail)).copy()
    wanted[chosen.index] = trained
    assert 4 < chosen.size < 16
    at = 0
    for before, after in zip(jax.tree.leaves(model), jax.tree.leaves(built), strict=True):
        part = wanted[at : at + before.size].reshape(*before.shape, *trail)
        at += before.size
        if after.shape == before.shape:  # nothing of it is trained: it is shared by all prompts
            part = part.reshape(*before.shape, -1)[..., 0]
        np.testing.assert_array_equal(after, part)
