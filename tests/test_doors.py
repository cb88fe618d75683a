"""What the doors of a method say and do, for methods of every origin: solve, JSON, Optax, Lineax, gates of each prompt."""

import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from jax import Array

import lfom
from lfom import memories, preconditioners, readers
from lfom.frontends import LearnedSolver, learned_transformation

KEY = jax.random.key(0)
DATA = lfom.LinearRegression([1.0, 0.5], 8)
GRADIENT = readers.Gradient(preconditioners.Identity())
QUICK = lfom.LeastSquares(first=300, last=300, passes=(1, 1), chunk=300)


class Damped(lfom.Memory):
    """A user's memory that is not linear, and no conjugate register."""

    linear = False
    eta: Array = lfom.parameter(axes="layers")

    def __call__(self, direction: Any, past: Any, state: Any, problem: Any, layer: Any) -> Any:
        return (self.eta / (1 + problem.slope(state, direction))) * direction, past


def regressions(seed: int = 0, count: int = 6) -> lfom.LeastSquaresProblems:
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(count, 12, 3)) * [1.5, 1.0, 0.5]).astype(np.float32)
    return lfom.LeastSquaresProblems(X, (X @ rng.normal(size=(count, 3, 1)))[..., 0].astype(np.float32))


def asked(problems: lfom.LeastSquaresProblems) -> lfom.Prompt:
    X, y = np.asarray(problems.X), np.asarray(problems.y)
    return lfom.prompt_from_arrays(X, y, X[:, 0], y[:, 0])


def test_a_users_memory_is_no_conjugate_register() -> None:
    method = lfom.Method(GRADIENT, Damped(jnp.array([0.2, 0.5, 0.8])), 3)
    assert not method.is_conjugate
    assert "conjugate" not in method.promise
    with pytest.raises(lfom.InputError, match="no fixed coefficients"):
        method.to_json()
    problems = regressions()
    wanted = np.asarray(lfom.run(method, asked(problems)).weights)
    for steps in (2, 3):
        np.testing.assert_allclose(method.solve(problems, steps=steps).value, wanted[steps], rtol=1e-4)
    mixture = lfom.mixture([method, lfom.gradient_descent(0.1, 3)])
    wanted = np.asarray(lfom.run(mixture, asked(problems)).weights)
    np.testing.assert_allclose(mixture.solve(problems).value, wanted[-1], rtol=1e-4)
    losses = lfom.ConvexLosses(lambda w, x: jnp.log1p(jnp.exp(x @ w)).mean() + w @ w, problems.X, size=3)
    assert (np.asarray(method.solve(losses).status) >= 0).all()


@pytest.mark.parametrize("per_layer", [False, True])
def test_gates_of_each_problem_are_found_with_a_tolerance_and_without(per_layer: bool) -> None:
    sizes = jnp.array([[0.2, 0.7], [0.6, 0.3]])  # other ones in every layer, so that gates differ too
    mixture = lfom.mixture(
        [lfom.Method(GRADIENT, memories.Forget(eta), 2) for eta in sizes], per_layer=per_layer
    )
    method, problems = lfom.PerPrompt(mixture, steps=4 * per_layer), regressions()
    free, bound = (method.solve(problems, 2, limit) for limit in (None, 1e-5))
    np.testing.assert_allclose(bound.value, free.value, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(bound.residuals[:, -1], free.residuals[:, -1], rtol=1e-3)
    prompts = asked(problems)
    ours = lfom.run(method.adapted(prompts.problem("iterates")), prompts).weights
    theirs = lfom.run(mixture, prompts).weights
    assert ours is not None
    assert theirs is not None
    np.testing.assert_allclose(free.value, ours[-1], rtol=1e-3, atol=1e-3)
    assert np.abs(theirs[-1] - ours[-1]).max() > 0.05


def test_gates_of_each_prompt_over_kernels() -> None:
    heads = [
        lfom.memformer(2, 2, reader="gaussian", memory="none", scale=s, key=KEY, preconditioner="scalar")
        for s in (0.3, 0.9)
    ]
    method, prompts = lfom.PerPrompt(lfom.mixture(heads), steps=1), DATA.prompts(KEY, 4)
    assert method.kernel == heads[0].kernel
    each = [np.asarray(lfom.run(method, prompts, view=view).predictions) for view in ("kernel", "tokens")]
    np.testing.assert_allclose(each[0], each[1], rtol=1e-3, atol=1e-4)
    scores = lfom.evaluate({"own": method, "mixture": method.model}, DATA, prompts=100, key=KEY)
    assert scores["own"].mean.shape == scores["mixture"].mean.shape == (1, 3)


def test_where_a_conjugate_register_stops_is_exported() -> None:
    methods = [lfom.Method(GRADIENT, memories.Conjugate(stop), 3) for stop in (0.0, 0.3)]
    assert [json.loads(json.dumps(one.to_json()))["stop"] for one in methods] == [0.0, 0.3]
    assert lfom.Method(GRADIENT, memories.ConjugateBank(), 3).to_json()["stop"] == 0.0


class OneNumber(lfom.Preconditioner):
    """A user's multiple of the identity, which does not say its numbers."""

    one_matrix = True
    a: Array = lfom.parameter(axes="layers")

    def matrix(self, d: int) -> Array:
        return self.a * jnp.eye(d)

    def transposed_times(self, vector: Array) -> Array:
        return self.a * vector


class TwoNumbers(lfom.Coefficient):
    """A user's pair of numbers under other names."""

    splits, is_number = True, True
    ours: Array = lfom.parameter(scales="all")
    theirs: Array = lfom.parameter()

    def numbers(self) -> tuple[Any, Any]:
        return self.ours, self.theirs

    def on_tokens(self, direction: Array) -> Array:
        return jnp.full(direction.shape[1], self.ours).at[-1].set(self.theirs) * direction

    def on_iterates(self, direction: Any) -> Any:
        return lfom.coefficients.Pair(self.ours, self.theirs).on_iterates(direction)


def scaled(depth: int) -> readers.Reader:
    return readers.Gradient(preconditioners.Scaled(jnp.full(depth, 0.5)))


@pytest.mark.parametrize("which", ["preconditioner", "coefficient"])
def test_fit_asks_a_users_classes_for_their_numbers(which: str) -> None:
    if which == "preconditioner":
        own = readers.Gradient(OneNumber(jnp.full(2, 0.5)))
        model: Any = lfom.Method(own, memories.Forget(jnp.ones(2)), 2)
    else:
        gamma = TwoNumbers(jnp.ones(2), jnp.ones(2))
        model = lfom.Method(scaled(2), memories.Bank(gamma, tied=True), 2)
    fitted = lfom.fit(model, DATA, key=KEY, optimiser=QUICK).model()
    scores = lfom.evaluate({"before": model, "after": fitted}, DATA, prompts=500, key=KEY)
    assert scores["after"].mean[0, -1] < scores["before"].mean[0, -1]


def optax_path(method: Any, A: Array, b: Array) -> Array:
    transformation = learned_transformation(method)
    w, state = jnp.zeros_like(b), transformation.init(jnp.zeros_like(b))
    for _ in range(method.depth):
        step, state = transformation.update(A @ w - b, state)
        w = w + step
    return w


A, B = jnp.array([[1.0, 0.2, 0.0], [0.2, 0.8, 0.1], [0.0, 0.1, 0.5]]), jnp.array([1.0, -1.0, 2.0])
PROBLEM = lfom.problems.Quadratic(A, B)


def trained(**options: Any) -> Any:
    return lfom.memformer(3, 3, scale=0.3, key=KEY, **options)


OPTAX: dict[str, Any] = {
    **{m: partial(trained, memory=m, preconditioner="scalar") for m in ("none", "register", "bank")},
    "a user's memory": lambda: lfom.Method(GRADIENT, Damped(jnp.full(3, 0.5)), 3),
    "mixture": lambda: lfom.mixture([trained(), trained(memory="register")]),
}


@pytest.mark.parametrize("name", list(OPTAX))
def test_optax_runs_what_gradients_are_enough_for(name: str) -> None:
    method = OPTAX[name]()
    wanted = lfom.run(method, PROBLEM).predictions[-1]
    np.testing.assert_allclose(optax_path(method, A, B), wanted, rtol=1e-4, atol=1e-6)


def test_optax_refuses_mixtures_that_need_more_and_grids_of_another_size() -> None:
    with pytest.raises(lfom.InputError, match="sees gradients only"):
        learned_transformation(lfom.mixture([trained(), trained(normalised=True)]))
    grid = preconditioners.Transformed(jnp.zeros((3, 4)), "sine")
    method = lfom.Method(readers.Gradient(grid), memories.Forget(jnp.ones(2)), 2)
    assert method.shape == (3, 4)
    with pytest.raises(lfom.InputError, match="7 numbers"):
        learned_transformation(method).init(jnp.zeros(7))


@pytest.mark.parametrize("options", [{"normalised": True}, {"covariates": True}, {"heads": 2}])
def test_a_matrix_of_lineax_tells_what_linear_systems_do(options: Any) -> None:
    method = trained(**options)
    operator = lx.TaggedLinearOperator(lx.MatrixLinearOperator(A), lx.positive_semidefinite_tag)
    answer = lx.linear_solve(operator, B, LearnedSolver(method), throw=False)
    wanted = method.solve(lfom.LinearSystems(A[None], B[None]))
    np.testing.assert_allclose(answer.value, wanted.value[0], rtol=1e-5)
    assert answer.stats["status"] == wanted.status[0] >= 0


def test_a_method_learned_from_operators_reads_the_diagonal_of_a_matrix() -> None:
    rng = np.random.default_rng(0)
    k = np.exp(0.3 * rng.normal(size=(30, 3))).astype(np.float32)
    systems = lfom.LinearSystems(
        lambda k, v: k * v, rng.normal(size=(30, 3)).astype(np.float32), data=k, diagonal=k
    )
    method = lfom.learn(systems, 2, "conjugate:jacobi+diagonal", iterations=0, progress=False)
    operator = lx.MatrixLinearOperator(jnp.diag(jnp.asarray(k[0])), lx.positive_semidefinite_tag)
    answer = lx.linear_solve(operator, B, LearnedSolver(method))
    np.testing.assert_allclose(answer.value, B / k[0], rtol=1e-4)


def test_a_method_learned_from_matrices_is_not_one_for_operators() -> None:
    """There a step is a product with a matrix that is there: promises and scales are those of matrices."""
    rng = np.random.default_rng(0)
    b = rng.normal(size=(30, 3)).astype(np.float32)
    method = lfom.learn(
        lfom.LinearSystems(np.stack([np.eye(3, dtype=np.float32)] * 30), b), 2, "scalar", progress=False
    )
    operators = lfom.LinearSystems(lambda data, v: v, b)
    with pytest.raises(lfom.InputError, match="learned from linear systems, and these are operators"):
        method.solve(operators)


def by_json(method: Any) -> Array:
    """The exported numbers by hand: identity or one matrix per layer."""
    content = json.loads(json.dumps(method.to_json()))
    matrices = content["preconditioner"].get("matrices", np.broadcast_to(np.eye(3), (3, 3, 3)))
    w, past = jnp.zeros(3), []
    for row, M in zip(content["bank"], matrices, strict=True):
        past.append(jnp.asarray(M) @ (B - A @ w))
        w = w + sum(c * z for c, z in zip(row, past, strict=False))
    return w


def test_a_matrix_of_every_layer_is_exported_as_it_acts() -> None:
    """Transposed (docs/mathematics.md 2.2): here they are not symmetric."""
    rng = np.random.default_rng(0)
    own = lfom.preconditioners.Full(jnp.asarray(0.1 * rng.normal(size=(3, 3, 3)), jnp.float32))
    table = jnp.asarray(np.tril(rng.normal(size=(3, 3))), jnp.float32)
    method = lfom.Method(lfom.readers.Gradient(own), memories.scalar_bank(table), 3)
    np.testing.assert_allclose(by_json(method), lfom.run(method, PROBLEM).predictions[-1], rtol=1e-5)


@pytest.mark.parametrize("preconditioner", ["full", "shared", "scalar"])
def test_heads_that_add_up_to_one_are_exported(preconditioner: str) -> None:
    method = trained(heads=2, preconditioner=preconditioner)
    np.testing.assert_allclose(
        by_json(method), lfom.run(method, PROBLEM).predictions[-1], rtol=1e-4, atol=1e-6
    )
    with pytest.raises(lfom.InputError, match="plain numbers do not tell"):
        trained(heads=2, covariates=True).to_json()


def test_rows_multiply_w_by_their_last_number() -> None:
    rng = np.random.default_rng(0)
    gamma = jnp.asarray(rng.uniform(0.1, 0.5, (3, 3, 4)), jnp.float32)
    rows = lfom.Method(GRADIENT, memories.Bank(lfom.coefficients.Rows(gamma), tied=False), 3)
    numbers = lfom.Method(GRADIENT, memories.scalar_bank(gamma[..., -1]), 3)
    np.testing.assert_allclose(by_json(rows), lfom.run(rows, PROBLEM).predictions[-1], rtol=1e-4)
    assert rows.certificate == numbers.certificate
    assert rows.promise == numbers.promise
    moves = readers.Gradient(preconditioners.Identity(), preconditioners.Scaled(jnp.ones(3)))
    assert lfom.Method(moves, rows.memory, 3).certificate is None


class OnTokens(readers.Reader):
    """What another reader reads, on tokens alone."""

    reader: readers.Reader = lfom.part()

    def on_tokens(self, Z: Array, problem: Any) -> Array:
        return self.reader.on_tokens(Z, problem)


def experts(reader: str, tokens: bool) -> lfom.Mixture:
    heads = []
    for seed in range(2):
        own: Any = {} if reader == "linear" else {"scale": 0.3 + 0.5 * seed, "preconditioner": "scalar"}
        head = lfom.memformer(
            2, 1 + (reader == "linear"), reader=reader, memory="none", key=jax.random.key(seed), **own
        )
        heads.append(lfom.Method(OnTokens(head.reader), head.memory, head.depth) if tokens else head)
    return lfom.mixture(heads)


@pytest.mark.parametrize("setting", ["labelled", "label-free", "per prompt"])
@pytest.mark.parametrize("data", ["kernel", "joint", "logistic"])
def test_gates_are_adapted_in_the_cheapest_view(
    data: str, setting: str, monkeypatch: pytest.MonkeyPatch, x64: None
) -> None:
    """And end as on tokens; of prompts with a link too."""
    source: Any = lfom.LogisticRegression([1.0, 0.5], 5) if data == "logistic" else DATA
    reader = {"kernel": "gaussian", "joint": "linear", "logistic": "sparse"}[data]
    prompts = jax.tree.map(lambda a: a.astype(float), source.prompts(KEY, 21))
    with monkeypatch.context() as without_tokens:
        for views in (lfom.prompts.prompt.OF_VIEW, lfom.prompts.prompt.OF_LINK):
            without_tokens.delitem(views, "tokens")
        found = lfom.adapt(experts(reader, tokens=False), prompts, setting=setting, steps=2)
    wanted = lfom.adapt(experts(reader, tokens=True), prompts, setting=setting, steps=2)
    np.testing.assert_allclose(found.before, wanted.before, rtol=1e-6)
    np.testing.assert_allclose(found.after, wanted.after, rtol=1e-4)
    assert found.after[0] < found.before[0]


LONGER = {
    "steps": lfom.gradient_descent(0.3, steps=2).truncated(4),
    "bank": lfom.Method(GRADIENT, memories.scalar_bank(jnp.eye(2) / 3), 2).truncated(4),
    "heads": lfom.mixture([lfom.gradient_descent(0.3, steps=2)] * 2).truncated(4),
}
DOORS: dict[str, Any] = {
    "Optax": learned_transformation,
    "Lineax": LearnedSolver,
    "promise": lambda method: method.promise,
    "evaluate": lambda method: lfom.evaluate({"one": method}, DATA, prompts=5, key=KEY),
    "JSON": lambda method: method.to_json(),
    "worst case": lfom.worst_case,
    "solve": lambda method: method.solve(regressions()),
    "run": lambda method: lfom.run(method, asked(regressions())),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", LONGER)
def test_more_layers_than_numbers_are_refused_at_every_door(name: str, door: str) -> None:
    with pytest.raises(lfom.InputError, match=r"4 layers, but .* for 2"):
        DOORS[door](LONGER[name])


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("depth", [0, -1])
def test_no_layers_are_refused_at_every_door(depth: int, door: str) -> None:
    with pytest.raises(lfom.InputError, match=rf"(depth|steps) is {depth}: it must be"):
        DOORS[door](lfom.Method(GRADIENT, memories.Forget(jnp.ones(2)), depth))


@pytest.mark.parametrize("door", ["Optax", "Lineax"])
def test_gates_of_each_prompt_are_refused_where_there_is_one_problem(door: str) -> None:
    gates = jnp.ones((2, 3)) / 2
    mixture = lfom.mixture([lfom.gradient_descent(0.3, 2), lfom.momentum(0.4, 0.3, 2)], gates=gates)
    with pytest.raises(lfom.InputError, match=r"only lfom\.run takes"):
        DOORS[door](mixture)


def test_numbers_that_are_none_promise_nothing() -> None:
    with pytest.raises(lfom.InputError, match=r"the method holds NaN or infinity in memory\.eta"):
        lfom.Method(GRADIENT, memories.Forget(jnp.array([jnp.nan, 1.0])), 2).promise  # noqa: B018


def test_gates_set_for_each_problem_solve_to_a_tolerance() -> None:
    gated = lfom.PerPrompt(lfom.mixture([lfom.gradient_descent(0.4, 2), lfom.momentum(0.4, 0.3, 2)]))
    found = gated.solve(regressions(), tolerance=1e-3)
    assert (np.asarray(found.status) // 10 == 1).all()
    exact = [
        np.linalg.lstsq(X, y, rcond=None)[0] for X, y in zip(regressions().X, regressions().y, strict=True)
    ]
    np.testing.assert_allclose(found.value, exact, atol=0.03)


def test_conjugate_gradients_promise_what_holds() -> None:
    with pytest.raises(lfom.InputError, match="preconditioner is indefinite: its smallest eigenvalue is -1"):
        lfom.conjugate_gradient(2, -np.eye(2))
    turned = np.array([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(lfom.InputError, match="indefinite"):
        lfom.conjugate_gradient(2, turned)
    assert "if its matrix" not in lfom.conjugate_gradient(2).promise
    assert "if its matrix is positive definite" in lfom.memformer(2, 2, memory="conjugate", key=KEY).promise


def test_what_answers_in_one_step_has_no_heads() -> None:
    best = lfom.exact_optimum(d=2, n=4, depth=2).as_algorithm()
    with pytest.raises(lfom.InputError, match="answers in one step, and has neither a reader nor a memory"):
        best.to_json()


@pytest.mark.parametrize("structure", ["scalar", "diagonal", "preconditioned:full", "conjugate:full"])
def test_the_transformer_of_a_learned_method_answers_as_it_does(structure: str, x64: None) -> None:
    """And has its precision; also of one that was cut and has no tokens of its own."""
    method = lfom.learn(regressions(count=30), 2, structure, iterations=0, progress=False)
    prompts = asked(regressions(1))
    for one in [method, method.truncated(1)][: 1 + (structure == "diagonal")]:
        transformer = lfom.theorems.memformer_of(one)
        assert transformer.dtype == one.dtype == jnp.float32
        found = lfom.run(transformer, prompts, view="tokens").predictions
        np.testing.assert_allclose(found, lfom.run(one, prompts).predictions, rtol=1e-4, atol=1e-6)


def test_what_no_transformer_runs_is_refused_with_the_reason() -> None:
    transformer = lfom.theorems.memformer_of
    jacobi = lfom.learn(regressions(count=30), 2, "scalar:jacobi", iterations=0, progress=False)
    with pytest.raises(lfom.InputError, match="they differ from problem to problem"):
        transformer(jacobi)
    with pytest.raises(lfom.InputError, match=r'not learned.*run it with view="tokens"'):
        transformer(lfom.gradient_descent(0.3, 2))
    with pytest.raises(lfom.InputError, match=r'not learned.*run it with view="iterates"'):
        transformer(lfom.newton(2, 0.1))


def test_what_has_tokens_alone_promises_nothing_of_a_solve() -> None:
    method = lfom.memformer(2, 2, gamma="tokens", context=4, key=KEY)
    assert method.promise.startswith("none: it answers prompts")
    with pytest.raises(lfom.InputError, match="Use Scalar, Pair, Rows or CoordinateWise"):
        method.to_json()
    with pytest.raises(lfom.InputError, match=r"gradients only. Use lfom\.run"):
        learned_transformation(method)


def test_a_method_learned_on_a_grid_stays_one_when_it_is_cut_and_is_none_for_prompts() -> None:
    rng = np.random.default_rng(0)
    k, b = np.exp(0.3 * rng.normal(size=(2, 30, 2, 3))).astype(np.float32)
    grids = lfom.LinearSystems(lambda k, v: k * v, b, data=k)
    method = lfom.learn(grids, 2, "preconditioned:full", iterations=0, progress=False)
    wanted = method.solve(grids[:2], steps=1).value
    np.testing.assert_allclose(method.truncated(1).solve(grids[:2]).value, wanted, rtol=1e-5)
    with pytest.raises(
        lfom.InputError, match=r"made for unknowns of shape \(6,\), and these problems have \(3,\)"
    ):
        method.truncated(1).solve(regressions())
    diagonal = lfom.learn(grids, 2, "diagonal", iterations=0, progress=False)
    with pytest.raises(
        lfom.InputError, match=r"unknowns of shape \(2, 3\), and a prompt has d of them in a row"
    ):
        lfom.run(diagonal, asked(regressions()))
