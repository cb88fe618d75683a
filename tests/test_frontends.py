"""The front doors agree with the library to rounding: scikit-learn, Optax, Lineax, NumPy, PyTorch."""

import functools
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optax
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import lfom
from lfom.core import preconditioners as pre
from lfom.core.checks import InputError
from lfom.core.coefficients import CoordinateWise
from lfom.core.memories import Bank, Conjugate, Register, scalar_bank
from lfom.core.methods import Learned
from lfom.frontends import InContextRegressor, LearnedSolver, learned_transformation
from lfom.solving.fitting import reader_of
from lfom.solving.kinds import KINDS
from lfom.solving.records import Accuracy, Record
from lfom.solving.structures import parse
from tests.learned_problems import classifications, diffusion, logistic

pytestmark = pytest.mark.usefixtures("x64")
DOCS = Path(__file__).parents[1] / "docs" / "frontends.md"
TORCH = importlib.util.find_spec("torch") is not None
D, STEPS = 5, 4
NAMES = ["diagonal", "preconditioned:full", "preconditioned:jacobi+low-rank", "conjugate:jacobi+diagonal"]
FROM_GRADIENTS = NAMES[:2]


@functools.cache
def made(name: str, kind: str = "linear systems", shape: tuple[int, ...] = (D,)) -> lfom.Method:
    """A method with numbers of nobody's choice, that takes every problem as it is: what is compared
    here are two ways to run it."""
    structure, rng = parse(name), np.random.default_rng(len(name))
    logs, d = jnp.asarray(0.3 * rng.normal(size=shape)), int(np.prod(shape))
    matrix: Any = {
        "identity": lambda: pre.Identity(),
        "diagonal": lambda: pre.Diagonal(logs),
        "low-rank": lambda: pre.LowRank(logs, jnp.asarray(0.3 * rng.normal(size=(*shape, 2)))),
        "full": lambda: pre.Factored(
            jnp.asarray(np.eye(d) + 0.1 * rng.normal(size=(d, d))), jnp.zeros((d, d))
        ),
        "sine": lambda: pre.Transformed(logs, "sine"),
        "cosine": lambda: pre.Transformed(logs, "cosine"),
    }[structure.preconditioner]()
    table = 0.05 * rng.uniform(0.5, 1, size=(STEPS, STEPS)) + 0.2 * np.eye(STEPS)
    register = Register(
        jnp.asarray(0.3 * rng.uniform(0.5, 1, STEPS)), jnp.asarray(rng.uniform(0, 0.3, STEPS))
    )
    wide = jnp.asarray(np.multiply.outer(table, rng.uniform(0.8, 1, size=shape)))
    memory: Any = {
        "scalar": register,
        "diagonal": Bank(CoordinateWise(wide), tied=False),
        "preconditioned": scalar_bank(jnp.asarray(table)) if structure.jacobi else register,
        "conjugate": Conjugate(),
    }[structure.family]
    record = Record(0, 0, Accuracy((), (), (), 0, "not measured"))
    facts = Learned(jnp.asarray([1e-9, 1, 1e9]), structure, KINDS[kind], shape, 1e-14, record)
    return lfom.Method(reader_of(matrix, structure.jacobi), memory, STEPS, facts)


def regression(n: int = 12, d: int = D, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.linspace(0.5, 1, d)
    return X, X @ rng.normal(size=d) + 0.1 * rng.normal(size=n)


def system(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X, y = regression(seed=seed)
    return X.T @ X / len(X) + 0.1 * np.eye(D), X.T @ y / len(X)


@functools.cache
def reference(name: str) -> lfom.Solution:
    A, b = system()
    solution = made(name).solve(lfom.LinearSystems(A[None], b[None]))
    assert solution.status[0] in (0, 1)  # the problem as it is: neither rescaled nor fallen back
    return solution


def assert_agrees(name: str, path: list[Any], A: np.ndarray, b: np.ndarray) -> None:
    """Iterates w_1, ..., w_k against the library's residuals of each and its last value."""
    iterates = np.array([np.asarray(w) for w in path])
    assert iterates.shape == (STEPS, D)
    sizes = np.linalg.norm(b - iterates @ A, axis=1)
    wanted = np.asarray(reference(name).residuals)[0, 1:]
    np.testing.assert_allclose(sizes / np.linalg.norm(b), wanted, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(iterates[-1], reference(name).value[0], rtol=1e-11, atol=1e-13)


# scikit-learn


def test_scikit_learn_accepts_the_estimator() -> None:
    results = check_estimator(InContextRegressor(), on_skip=None)
    assert {result["status"] for result in results} <= {"passed", "skipped"}
    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    assert len(results) - len(skipped) > 40
    # The first needs SCIPY_ARRAY_API to be set, the second pandas.
    assert skipped <= {"check_array_api_input", "check_regressor_data_not_an_array"}


@pytest.mark.parametrize("name", NAMES)
def test_the_estimator_runs_the_method(name: str) -> None:
    X, y = regression()
    fitted = InContextRegressor(made(name), ridge=0.1, fit_intercept=False).fit(X, y)
    np.testing.assert_allclose(fitted.coef_, reference(name).value[0], rtol=1e-10)
    np.testing.assert_allclose(fitted.residuals_, reference(name).residuals[0], rtol=1e-8)
    assert fitted.n_iter_ == STEPS
    assert fitted.intercept_ == 0
    assert "did the steps asked for" in fitted.message_
    np.testing.assert_allclose(fitted.predict(X), X @ fitted.coef_)


def test_the_estimator_without_a_method_is_least_squares() -> None:
    X, y = regression(n=40)
    X = X * 10.0 ** np.arange(-2, 3) + 3
    for ours, theirs in (
        (InContextRegressor(), LinearRegression()),
        (InContextRegressor(ridge=0.5 / 40), Ridge(alpha=0.5, tol=1e-12)),
        (InContextRegressor(ridge=0.5 / 40, fit_intercept=False), Ridge(alpha=0.5, fit_intercept=False)),
    ):
        with jax.enable_x64(False):  # float64 whatever JAX's setting is
            ours.fit(X, y)
        theirs.fit(X, y)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-5)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-5)
    X, y = regression(n=3)  # fewer samples than features: one of many solutions
    np.testing.assert_allclose(InContextRegressor().fit(X, y).predict(X), y, atol=1e-6)
    X[:, 1] = X[:, 0]
    X[:, 2] = 0
    np.testing.assert_allclose(InContextRegressor().fit(X, y).predict(X), y, atol=1e-6)


def test_the_estimator_lives_among_others() -> None:
    X, y = regression(n=40)
    method = made("conjugate:jacobi+diagonal")
    pipeline = make_pipeline(StandardScaler(), InContextRegressor(method, tolerance=1e-6))
    assert cross_val_score(clone(pipeline), X, y, cv=3).min() > 0.8
    assert clone(InContextRegressor(method)).method.to_json() == method.to_json()


def test_the_estimator_says_what_is_wrong() -> None:
    X, y = regression()
    with pytest.warns(ConvergenceWarning, match="tolerance not met"):
        InContextRegressor(steps=1, tolerance=1e-10).fit(X, y)
    with pytest.raises(InputError, match="ridge is -1"):
        InContextRegressor(ridge=-1).fit(X, y)
    with pytest.raises(InputError, match=r"unknowns of shape \(5,\)"):
        InContextRegressor(made("scalar")).fit(X[:, :3], y)
    with pytest.raises(InputError, match="learned from convex losses"):
        InContextRegressor(made("scalar", "convex losses")).fit(X, y)
    with pytest.raises(InputError, match="or more"):
        InContextRegressor(tolerance=1e-17).fit(X, y)


# Optax


def optax_path(method: lfom.Method, gradient: Any, start: Any, steps: int) -> list[Any]:
    transformation = learned_transformation(method)
    update = jax.jit(transformation.update)
    w, state, path = start, transformation.init(start), []
    for _ in range(steps):
        updates, state = update(gradient(w), state)
        w = optax.apply_updates(w, updates)
        path.append(w)
    return path


@pytest.mark.parametrize("name", FROM_GRADIENTS)
def test_the_transformation_runs_the_method_and_starts_again(name: str) -> None:
    A, b = system()
    path = optax_path(made(name), lambda w: A @ w - b, jnp.zeros(D), 2 * STEPS)
    assert_agrees(name, path[:STEPS], A, b)
    left = made(name).solve(lfom.LinearSystems(A[None], (b - A @ path[STEPS - 1])[None]))
    np.testing.assert_allclose(path[-1], path[STEPS - 1] + left.value[0], rtol=1e-11)


def test_the_transformation_on_losses_and_trees() -> None:
    method = made("diagonal", "convex losses", (4,))
    problems = classifications(count=1, seed=3)
    (X, y), solution = (leaf[0] for leaf in problems.data), method.solve(problems)
    assert solution.status[0] == 1

    def gradient(tree: Any) -> Any:
        flat = jax.grad(logistic)(jnp.concatenate([tree["a"].ravel(), tree["b"]]), (X, y))
        return {"a": flat[:2].reshape(1, 2), "b": flat[2:]}

    end = optax_path(method, gradient, {"a": jnp.zeros((1, 2)), "b": jnp.zeros(2)}, STEPS)[-1]
    np.testing.assert_allclose(jnp.concatenate([end["a"][0], end["b"]]), solution.value[0], rtol=1e-11)


def test_the_transformation_keeps_precision_and_takes_any_size_of_scalars() -> None:
    w = optax_path(made("scalar"), lambda w: w - 1, jnp.zeros((3, 7), jnp.float32), STEPS)[-1]
    assert w.shape == (3, 7)
    assert w.dtype == jnp.float32
    one = optax_path(made("scalar"), lambda w: w - 1, jnp.zeros(D), STEPS)[-1]
    np.testing.assert_allclose(w[0, 0], one[0], rtol=1e-6)


def test_the_transformation_refuses_what_gradients_cannot_tell() -> None:
    with pytest.raises(InputError, match="computes its coefficients from A"):
        learned_transformation(made("conjugate:jacobi+diagonal"))
    with pytest.raises(InputError, match="diagonal of A"):
        learned_transformation(made("preconditioned:jacobi+low-rank"))
    with pytest.raises(InputError, match="7 numbers"):
        learned_transformation(made("preconditioned:full")).init(jnp.zeros(7))


# Lineax


def operator_of(A: Any) -> lx.AbstractLinearOperator:
    return lx.MatrixLinearOperator(jnp.asarray(A), lx.positive_semidefinite_tag)


@pytest.mark.parametrize("name", NAMES[1:])
def test_the_linear_solver_runs_the_method(name: str) -> None:
    A, b = system()
    answer = lx.linear_solve(operator_of(A), jnp.asarray(b), LearnedSolver(made(name)))
    np.testing.assert_allclose(answer.value, reference(name).value[0], rtol=1e-11)
    np.testing.assert_allclose(answer.stats["residuals"], reference(name).residuals[0], rtol=1e-8)
    assert answer.stats["num_steps"] == STEPS
    assert answer.stats["status"] == reference(name).status[0]
    assert answer.result == lx.RESULTS.successful


def test_the_linear_solver_on_an_operator_over_a_tree() -> None:
    method = made("conjugate:sine", "operators", (4, 4))
    k, b = np.exp(np.random.default_rng(1).normal(size=(2, 4, 4)))
    problem = lfom.LinearSystems(diffusion, b[None], data=k[None])

    def product(v: Any) -> Any:
        image = diffusion(jnp.asarray(k), jnp.concatenate([v["rest"], v["top"]]))
        return {"rest": image[:3], "top": image[3:]}

    tree = {"rest": jnp.asarray(b[:3]), "top": jnp.asarray(b[3:])}
    operator = lx.FunctionLinearOperator(product, jax.eval_shape(lambda: tree), lx.positive_semidefinite_tag)
    answer = lx.linear_solve(operator, tree, LearnedSolver(method))
    found = np.concatenate([answer.value["rest"], answer.value["top"]])
    np.testing.assert_allclose(found, method.solve(problem).value[0], rtol=1e-9)
    scaled = made("conjugate:jacobi+sine", "operators", (4, 4))
    with pytest.raises(InputError, match="diagonal of the operator"):
        lx.linear_solve(operator, tree, LearnedSolver(scaled))
    with pytest.raises(InputError, match="diagonal="):
        scaled.solve(problem)


def test_the_linear_solver_tells_how_it_went() -> None:
    A, b = system()
    method = made("scalar")

    @jax.jit
    def result(A: Any, b: Any) -> Any:
        solver = LearnedSolver(method, steps=6, tolerance=1e-9)
        answer = lx.linear_solve(operator_of(A), b, solver, throw=False)
        return answer.result, answer.stats["num_steps"], answer.value

    met, steps, value = result(A, b)
    assert met == lx.RESULTS.max_steps_reached
    assert steps == 6
    met, steps, value = result(np.eye(D), b)
    assert met == lx.RESULTS.successful
    assert steps == 5  # four learned steps, and one of conjugate gradients
    np.testing.assert_allclose(value, b, rtol=1e-8)
    assert result(np.diag([1.0, 1, 1, 1, 0]), b)[0] == lx.RESULTS.singular
    met, _, value = result(np.where(np.eye(D) > 0, np.nan, A), b)
    assert met == lx.RESULTS.nonfinite_input
    assert (value == 0).all()
    assert result(0 * A, b)[0] != lx.RESULTS.successful


def test_the_linear_solver_under_vmap_and_grad() -> None:
    A, b = system()
    solver = LearnedSolver(made("conjugate:jacobi+diagonal"), tolerance=1e-12)

    def total(A: Any, b: Any) -> Any:
        return jnp.sum(lx.linear_solve(operator_of(A), b, solver).value ** 2)

    sides = np.stack([b, 2 * b, b[::-1]])
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(total, 1), (None, 0)))(A, sides)
    exact = np.linalg.solve(A, sides.T).T
    np.testing.assert_allclose(values, (exact**2).sum(1), rtol=1e-8)
    np.testing.assert_allclose(slopes, np.linalg.solve(A, 2 * exact.T).T, rtol=1e-8)


def test_the_linear_solver_says_what_is_wrong() -> None:
    A, b = system()
    solver = LearnedSolver(made("scalar"))
    with pytest.raises(InputError, match="tag it"):
        lx.linear_solve(lx.MatrixLinearOperator(jnp.asarray(A)), jnp.asarray(b), solver)
    with pytest.raises(InputError, match=r"unknowns of shape \(5,\)"):
        lx.linear_solve(operator_of(A[:3, :3]), jnp.asarray(b[:3]), solver)
    with pytest.raises(InputError, match="knows diagonal and y0"):
        lx.linear_solve(operator_of(A), jnp.asarray(b), solver, options={"x0": jnp.asarray(b)})
    with pytest.raises(InputError, match="y0 has shape"):
        lx.linear_solve(operator_of(A), jnp.asarray(b), solver, options={"y0": jnp.asarray(b[:3])})
    with pytest.raises(InputError, match="right-hand side of float32"):
        lx.linear_solve(operator_of(A.astype(np.float32)), jnp.asarray(b, jnp.float32), solver)
    with pytest.raises(InputError, match="convex losses"):
        LearnedSolver(made("scalar", "convex losses"))
    with pytest.raises(InputError, match="or more"):
        LearnedSolver(made("scalar"), tolerance=1e-17)


# The documentation


def blocks(*containing: str) -> list[str]:
    """The Python of docs/frontends.md, as it stands."""
    found = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    assert len(found) > 8
    return [block for block in found if not containing or any(text in block for text in containing)]


def defined(*names: str) -> dict[str, Any]:
    space: dict[str, Any] = {"np": np}
    for block in blocks(*(f"def {name}(" for name in names)):
        exec(block, space)
    return space


def test_the_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    for block in blocks():
        if TORCH or "torch" not in block:
            exec(block, space)
    expected = np.asarray(space["solution"].value[0])
    assert space["solution"].status[0] in (0, 1)
    answers = [space["regressor"].coef_, space["w"], space["answer"].value, space["path"][-1]]
    if TORCH:
        answers.append(space["path_torch"][-1])
    for answer in answers:
        np.testing.assert_allclose(np.asarray(answer), expected, rtol=1e-4, atol=1e-6)  # the page is float32


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_the_lines_in_the_documentation_run_every_structure(name: str, framework: str) -> None:
    content, (A, b) = json.loads(json.dumps(made(name).to_json())), system()
    s = 1 / np.sqrt(np.diag(A)) if content["jacobi"] else np.ones(D)
    convert: Any = np.asarray
    if framework == "torch":
        convert = pytest.importorskip("torch").as_tensor
    here = (
        defined("matrix", "run", "run_conjugate")
        if framework == "numpy"
        else defined("matrix_torch", "run_torch", "run_conjugate")
    )
    ending = "" if framework == "numpy" else "_torch"
    A_here, b_here, s_here = convert(A), convert(b), convert(s)
    if content["run"] == "conjugate":
        M = here[f"matrix{ending}"](**content)
        path = list(here["run_conjugate"](content, M, A_here, b_here, s_here))
    else:
        path = list(here[f"run{ending}"](content, lambda w: b_here - A_here @ w, s_here))
    assert_agrees(name, path, A, b)


@pytest.mark.parametrize("stop", [0.0, 0.3])
def test_the_lines_in_the_documentation_stop_where_the_register_does(stop: float) -> None:
    A, b = system()
    method = lfom.Method(lfom.readers.Gradient(lfom.preconditioners.Identity()), Conjugate(stop), D)
    path = list(defined("run_conjugate")["run_conjugate"](method.to_json(), np.eye(D), A, b))
    problem = lfom.problems.Quadratic(jnp.asarray(A), jnp.asarray(b))
    np.testing.assert_allclose(path, lfom.run(method, problem).predictions[1:], atol=1e-8)
    assert (path[1] == path[-1]).all() == (stop > 0)


@pytest.mark.parametrize("kind", ["sine", "cosine"])
def test_the_transform_in_the_documentation(kind: str) -> None:
    method = made(f"conjugate:{kind}", "operators", (3, 4))
    r = np.random.default_rng(2).normal(size=(3, 4))
    found = defined("apply_on_grid")["apply_on_grid"](method.to_json()["preconditioner"], r)
    reader: Any = method.reader
    np.testing.assert_allclose(found, reader.A.transposed_times(jnp.asarray(r)), rtol=1e-12)


def test_the_ten_lines_are_ten() -> None:
    for block in blocks("def run(", "def run_torch("):
        assert len([line for line in block.splitlines() if line and not line.startswith("import")]) <= 10


def test_nobody_waits_for_a_library_that_is_not_used() -> None:
    check = "import sys, lfom.frontends; sys.exit(bool({'sklearn', 'lineax'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
    with pytest.raises(ImportError):
        from lfom.frontends import nothing  # type: ignore[attr-defined]  # noqa: F401
