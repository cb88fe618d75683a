"""docs/extend.md runs as it stands; and what a user writes from it works where the page does not go."""

import ast
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lfom
import lfom.core.unroll
from lfom import Method, adapt, evaluate, fit, mixture, run
from lfom.core.parameters import kinds
from lfom.core.states import Direction, Track
from lfom.experiments.workbench import PRESETS, Preset
from lfom.report import read_experiment

PAGE = Path(__file__).parent.parent / "docs" / "extend.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf8"), re.DOTALL)
KEY = jax.random.key(0)
DEFINITIONS = ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The classes and functions that the page defines; it trains as well, which takes a minute."""
    found: dict[str, Any] = {"__name__": "page"}
    for number, block in enumerate(BLOCKS):
        tree = ast.parse(block)
        tree.body = [one for one in tree.body if isinstance(one, DEFINITIONS)]
        exec(compile(tree, f"docs/extend.md, block {number}", "exec"), found)
    return found


def test_the_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {"__name__": "page"}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"docs/extend.md, block {number}", "exec"), found)


def test_every_block_is_short() -> None:
    assert BLOCKS
    assert max(len(block.strip().splitlines()) for block in BLOCKS) <= 40


def test_the_page_shows_every_base_class(page: dict[str, Any]) -> None:
    shown = "\n".join(BLOCKS)
    for base in (
        "Memory",
        "Reader",
        "Coefficient",
        "Preconditioner",
        "Distribution",
        "Algorithm",
        "IterateProblem",
    ):
        assert re.search(rf"\(lfom\.(problems\.)?{base}\)", shown), base


def test_the_experiment_of_the_page_stands_in_the_report(
    page: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "quick", Preset("quick", prompts=1_000, adam_steps=5, least_squares=0.01))
    (done,) = lfom.reproduce([page["ShortTraining"]()], tmp_path)
    assert done.status == "made", done.message
    rows = read_experiment(tmp_path / "short_training").rows
    assert {row.training for row in rows if row.curve == "running average"} == {"short", "longer"}
    assert "A running average lowers the loss" in (tmp_path / "report.html").read_text("utf8")


def models(page: dict[str, Any], depth: int) -> dict[str, Any]:
    """One model with each class of the page."""
    gradient = lfom.readers.Gradient(lfom.preconditioners.Scaled(jnp.full(depth, 0.4)))
    P, Q = 0.1 * jax.random.normal(KEY, (2, depth, 4, 4))
    register = lfom.memories.Register(jnp.ones(depth), jnp.full(depth, 0.1))
    rank_one = page["RankOne"](jnp.full(depth, 0.3), jnp.asarray([0.1, 0.2, 0.3]))
    return {
        "memory": Method(gradient, page["Averaged"](jnp.full(depth, 0.5), jnp.asarray(0.1)), depth),
        "reader": Method(page["ReluAttention"](P, Q), lfom.memories.Forget(jnp.ones(depth)), depth),
        "coefficient": Method(
            gradient, lfom.memories.Bank(page["LabelsOnly"](0.3 * jnp.eye(depth)), False), depth
        ),
        "preconditioner": Method(lfom.readers.Gradient(rank_one), register, depth),
        "algorithm": page["TakingTurns"](
            Method(gradient, register, depth), lfom.gradient_descent(0.3, steps=depth)
        ),
    }


NAMES = ("memory", "reader", "coefficient", "preconditioner", "algorithm")


@pytest.mark.parametrize("name", NAMES)
def test_views_agree_and_a_loop_is_what_is_written_out(
    page: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = lfom.LinearRegression([1.0, 0.5, 0.25], context=7).prompts(KEY, 3)
    deep = models(page, 10)[name]
    found = [run(deep, prompts, view=view).predictions for view in deep.views]
    monkeypatch.setattr(lfom.core.unroll, "WRITTEN_OUT", 20)
    jax.clear_caches()
    found.append(run(deep, prompts).predictions)
    for other in found[1:]:
        np.testing.assert_allclose(found[0], other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_users_model_and_distribution_go_everywhere(page: dict[str, Any], name: str) -> None:
    """Two runs and two depths at once, least squares where it can, all settings of adaptation."""
    model = models(page, 2)[name]
    data = [page["OneActive"](jnp.asarray([1.0, 0.7, 0.5])), page["OneActive"](jnp.ones(3))]
    small = lfom.LeastSquares(first=200, last=400, passes=(2, 1), chunk=200)
    optimiser = small if "iterates" in model.views else lfom.Adam(20, batch=50)
    found = fit(model, data, key=KEY, depths=(1, 2), optimiser=optimiser)
    scores = evaluate(
        {"1": found.per_run(1), "2": found.per_run(2), "built": model}, data, prompts=500, key=KEY
    )
    assert all(np.isfinite(score.mean).all() and score.mean.shape[0] == 2 for score in scores.values())
    prompts = data[0].prompts(KEY, 30)
    for setting in ("labelled", "label-free"):
        adapted = adapt(found.model(0), prompts, train=kinds(model)[:1], setting=setting, steps=1)
        assert not (adapted.after > adapted.before).any()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "algorithm"])
def test_gates_over_a_users_methods_are_adapted(page: dict[str, Any], name: str) -> None:
    model = models(page, 2)[name]
    prompts = page["OneActive"](jnp.ones(3)).prompts(KEY, 30)
    for setting in ("labelled", "label-free", "per prompt"):
        found = adapt(mixture([model, model]), prompts, setting=setting, steps=1)
        assert not (found.after > found.before).any()


def test_a_method_of_ours_solves_a_problem_of_the_user(page: dict[str, Any]) -> None:
    prompt = lfom.LinearRegression([1.0, 0.5, 0.25], context=9).prompt(KEY)
    problem = page["Ridge"](prompt.X, prompt.y, 0.1)
    steps = run(lfom.gradient_descent(0.5, steps=200), problem)
    exact = np.linalg.solve(
        np.asarray(prompt.X.T @ prompt.X / 9) + 0.1 * np.eye(3), np.asarray(prompt.X.T @ prompt.y / 9)
    )
    assert steps.view == "Ridge"
    assert steps.predictions.shape == (201, 3)
    np.testing.assert_allclose(steps.predictions[-1], exact, atol=1e-5)


def test_a_loss_needs_its_start_and_its_gradient_only() -> None:
    class Quartic(lfom.problems.IterateProblem):
        w_0: jax.Array

        def initial(self) -> Any:
            return self.w_0, self.gradient(self.w_0)

        def gradient(self, w: jax.Array) -> jax.Array:
            return w**3

    problem = Quartic(jnp.ones(2))
    steps = run(lfom.gradient_descent(0.5, steps=2), problem).predictions
    np.testing.assert_allclose(steps[:, 0], [1, 0.5, 0.5 - 0.5 * 0.125])
    assert problem.unknowns() == 2
    with pytest.raises(lfom.InputError, match="needs a quadratic"):
        run(lfom.conjugate_gradient(2), problem)


def test_what_acts_on_iterates_runs_there() -> None:
    class Halved(lfom.Coefficient):
        splits = False
        value: jax.Array = lfom.parameter()

        def on_tokens(self, direction: Any) -> Any:
            return self.value * direction / 2

        def on_iterates(self, direction: Any) -> Any:
            return direction * self.value / 2

    prompts = lfom.LinearRegression([1.0, 0.5], context=5).prompts(KEY, 3)
    gradient = lfom.readers.Gradient(lfom.preconditioners.Scaled(jnp.ones(2)))
    model = Method(gradient, lfom.memories.Bank(Halved(jnp.tril(jnp.ones((2, 2)))), False), 2)
    assert model.views == ("iterates", "tokens")
    iterates, tokens = (run(model, prompts, view=view).predictions for view in model.views)
    np.testing.assert_allclose(iterates, tokens, atol=1e-6)


def test_a_difference_of_directions_is_that_on_tokens() -> None:
    class Changed(lfom.Memory):
        def __call__(self, direction: Any, past: Any, state: Any, problem: Any, layer: Any) -> Any:
            return direction * 0.5 - past / 4, direction

    prompts = lfom.LinearRegression([1.0, 0.5], context=5).prompts(KEY, 3)
    model = Method(lfom.readers.Gradient(lfom.preconditioners.Scaled(jnp.ones(3))), Changed(), 3)
    one, *others = (run(model, prompts, view=view).predictions for view in model.views)
    assert len(others) == 2
    for other in others:
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_the_image_of_a_direction_goes_where_it_goes() -> None:
    """It is H w, so that it is added and multiplied as w is."""
    random = np.random.default_rng(0)
    H = random.normal(size=(3, 3)).astype(np.float32)

    def direction() -> Direction:
        w = random.normal(size=3).astype(np.float32)
        return Direction(Track(jnp.asarray(w)), image=jnp.asarray(H @ w))

    a, b = direction(), direction()
    for made in (0.5 * a, a * 0.5, a / 4, a + b, a - b, 2.0 * a - b / 3):
        np.testing.assert_allclose(
            np.asarray(made.image), H @ np.asarray(made.context.w), rtol=1e-5, atol=1e-5
        )
    assert (a + Direction(a.context)).image is None


def test_mistakes_are_named(page: dict[str, Any], tmp_path: Path) -> None:
    class Row(lfom.Reader):
        def on_tokens(self, Z: Any, problem: Any) -> Any:
            return Z[-1]

    class Alone(lfom.Memory):
        def __call__(self, direction: Any, past: Any, state: Any, problem: Any, layer: Any) -> Any:
            return direction

    data = lfom.LinearRegression([1.0, 0.5], context=5)
    prompts = data.prompts(KEY, 3)
    gradient = lfom.readers.Gradient(lfom.preconditioners.Scaled(jnp.ones(2)))
    forget = lfom.memories.Forget(jnp.ones(2))
    flat = Method(page["ReluAttention"](jnp.eye(3), jnp.eye(3)), forget, 2)
    other = lfom.memformer(3, 2, key=KEY)
    for wrong, said in (
        (lambda: run(Method(Row(), forget, 2), prompts), r"Row.on_tokens returns .* \(6,\).* \(3, 6\)"),
        (lambda: run(Method(gradient, Alone(), 2), prompts), "Alone returns a Direction.*step, past"),
        (lambda: run(flat, prompts), "P has shape .*layers rows rows"),
        (lambda: fit(flat, data, key=KEY, optimiser=lfom.Adam(1)), "P has shape .*layers rows rows"),
        (lambda: run(other, prompts), "the prompt has d = 2"),
        (lambda: fit(other, data, key=KEY), "d = 2 covariates and the model d = 3"),
        (lambda: lfom.save(tmp_path / "x", None), "is a NoneType"),
    ):
        with pytest.raises(lfom.InputError, match=said):
            wrong()
    assert not (tmp_path / "x").exists()


def test_a_mixture_of_algorithms_is_saved(page: dict[str, Any], tmp_path: Path) -> None:
    turns = models(page, 2)["algorithm"]
    lfom.save(tmp_path / "x", mixture([turns, turns]))
    again = lfom.load(tmp_path / "x", types=page["TakingTurns"])
    prompts = lfom.LinearRegression([1.0, 0.5, 0.2], context=5).prompts(KEY, 3)
    assert (run(again, prompts).predictions == run(mixture([turns, turns]), prompts).predictions).all()
