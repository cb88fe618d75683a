"""Rivals agree with a direct solve, steps are exact, and the benchmark runs at a tiny size."""

import io
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import lfom
from lfom.bench import solve
from lfom.bench.loops import chebyshev, conjugate_gradients
from lfom.bench.rival import Judge, Rival
from lfom.bench.rivals import _batched, baseline, rivals
from lfom.bench.solve_report import COLUMNS, _verdict, method_table, rows, summary_table, write
from lfom.bench.timing import all_times
from lfom.bench.views import view
from lfom.cli import app
from lfom.families import FAMILIES


def test_every_rival_for_losses_reaches_the_optimum() -> None:
    batch = FAMILIES["digits"].held_out(3)
    score = Judge(batch)
    for rival in rivals(batch):
        error = score(rival.run(40))
        # JAX's line search gives up on some problems in float32.
        assert (np.median(error) if rival.library == "JAX" else error.max()) < 1e-4, rival.name


@pytest.mark.parametrize("name", ["diffusion", "deblurring"])
def test_views_of_the_large_families_agree_with_their_operators(name: str) -> None:
    batch = FAMILIES[name].held_out(1)
    seen = view(batch)
    v = np.random.default_rng(0).standard_normal(batch.b.shape).astype(np.float32)
    image = np.asarray(batch.times(v)).ravel()
    np.testing.assert_allclose(seen.system(0) @ v.ravel(), image, rtol=1e-4, atol=1e-4)
    K, y, damping = seen.rectangular(0)
    square = K @ (K @ v.ravel()) + damping**2 * v.ravel()
    if name == "deblurring":  # least squares: A = K' K + damping^2, b = K' y
        np.testing.assert_allclose(square, image, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(K @ y, seen.b[0].ravel(), rtol=1e-4, atol=1e-5)
    score = Judge(batch)
    assert score(seen.direct(0)[None])[0] < 1e-3
    lowest, highest = seen.extremes(True)
    root = 1 / np.sqrt(np.asarray(seen.diagonal))
    rayleigh = np.sum(v * root * np.asarray(batch.times(root * v))) / np.sum(v * v)
    assert lowest[0] < rayleigh < highest[0]


@pytest.mark.usefixtures("x64")
def test_pieces_give_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = FAMILIES["table"].held_out(4)
    whole = baseline(batch).run(5)
    monkeypatch.setattr("lfom.bench.rivals.piece", lambda problems: 2)
    monkeypatch.setattr("lfom.bench.rivals.side_by_side", lambda *_: {"whole": 2.0, "pieces": 1.0})
    pieces = _batched(batch, conjugate_gradients, jacobi=True)(5)
    np.testing.assert_allclose(pieces, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_loops_solve_a_small_system() -> None:
    values = np.linspace(1, 10, 6)
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0]
    A, b = (rotation * values) @ rotation.T, jnp.arange(1.0, 7.0)
    exact = np.linalg.solve(A, b)
    np.testing.assert_allclose(conjugate_gradients(lambda v: A @ v, b, None, 6), exact, rtol=1e-9)
    np.testing.assert_allclose(conjugate_gradients(lambda v: A @ v, b, 1 / np.diag(A), 60), exact, rtol=1e-9)
    found = chebyshev(lambda v: A @ v, b, None, 40, values[0], values[-1])
    np.testing.assert_allclose(found, exact, rtol=1e-9)


@pytest.mark.usefixtures("x64")
def test_chebyshev_keeps_its_bound() -> None:
    """|e_k|_A / |e_0|_A <= 1 / T_k((high + low) / (high - low)) on every spectrum within the interval."""
    random = np.random.default_rng(1)
    for steps in (1, 3, 7):
        values = jnp.asarray(random.uniform(0.1, 5.0, 20))
        b = jnp.asarray(random.standard_normal(20))
        found = np.asarray(chebyshev(lambda v: values * v, b, None, steps, 0.1, 5.0))
        error = np.sqrt(np.sum(values * (found - b / values) ** 2) / np.sum(b**2 / values))
        assert error <= 1 / np.cosh(steps * np.arccosh(5.1 / 4.9)) * (1 + 1e-9)


def test_jacobi_makes_a_diagonal_system_one_step() -> None:
    rng = np.random.default_rng(0)
    k = np.exp(rng.normal(size=(3, 6))).astype(np.float32)
    b = rng.normal(size=(3, 6)).astype(np.float32)
    problems = lfom.LinearSystems(lambda k, v: k * v, b, data=k, diagonal=k)
    np.testing.assert_allclose(baseline(problems).run(1), b / k, rtol=1e-4)
    plain = _batched(problems, conjugate_gradients, jacobi=False, tune=False)(1)
    assert np.abs(plain - b / k).max() > 0.1


def test_scores_know_the_start_the_optimum_and_failures() -> None:
    batch = FAMILIES["table"].held_out(3)
    score = Judge(batch)
    best = score.optimum
    np.testing.assert_allclose(score(np.zeros_like(best)), 1, rtol=1e-6)
    np.testing.assert_allclose(score(0.5 * best), 0.5, rtol=1e-6)
    assert score(best[:2]).tolist() == [0, 0]  # an answer to the first two only
    assert np.isinf(score(np.full_like(best, np.nan))).all()


def test_fewest_steps_are_found_exactly() -> None:
    calls = []

    def run(steps: int) -> np.ndarray:
        calls.append(steps)
        return np.asarray([[0.8**steps]])

    def score(answer: np.ndarray) -> np.ndarray:
        return answer[:, 0]

    result = solve.Measured(Rival("made up", "test", run, 1))
    solve._count_steps(result, score)
    assert {a: at.steps for a, at in result.reached.items()} == {1e-2: 21, 1e-4: 42}
    assert len(calls) == len(set(calls))  # nothing is run twice


def test_slow_programs_lose_patience_and_fast_ones_do_not() -> None:
    import time

    times = all_times({"slow": lambda: time.sleep(0.02), "fast": lambda: None}, 5, patience=0.03)
    assert len(times["slow"]) == 2
    assert len(times["fast"]) == 5


def test_the_summary_says_who_is_faster_and_by_how_much(tmp_path: Path) -> None:
    def made(method: str, library: str, milliseconds: dict[float, float]) -> solve.Measured:
        rival = Rival(method, library, lambda steps: None, 4, learned=library == "learned")
        reached = {a: solve.Reached(8, 1e-3 * ms) for a, ms in milliseconds.items()}
        return solve.Measured(rival, {8: (0.1, 0.2, 0.3)}, reached=reached)

    ours = made("scalar", "learned", {1e-2: 2.0, 1e-4: 6.0})
    others = [made("CG", "JAX", {1e-2: 5.0, 1e-4: 3.0}), made("CG", "SciPy", {1e-2: 9.0})]
    comparison = solve.Comparison("table", 4, 60, ours, [ours, *others])
    assert _verdict(comparison, 1e-2) == (
        "scalar, learned", "2.0", "2.0", "learned, 2.5 times faster than CG, JAX",
    )  # fmt: skip
    assert _verdict(comparison, 1e-4) == ("CG, JAX", "3.0", "6.0", "do not use: CG, JAX is 2.0 times faster")
    times = {row.name: (row.ours, row.rival) for row in rows(comparison) if row.unit == "ms"}
    assert times["table to 0.01: CG, SciPy"] == (pytest.approx(2.0), pytest.approx(9.0))
    assert times["table to 0.0001: CG, SciPy"] == (pytest.approx(6.0), None)
    write([comparison], tmp_path)
    line = dict(zip(COLUMNS, (tmp_path / "curves.csv").read_text().splitlines()[1].split(","), strict=True))
    assert (line["lower"], line["error"], line["upper"]) == ("0.1", "0.2", "0.3")
    assert (line["method"], line["steps"], line["problems"]) == ("scalar", "8", "4")


@pytest.fixture(scope="module")
def tiny() -> solve.Comparison:
    patch = pytest.MonkeyPatch()
    patch.setattr(solve, "STRUCTURES", {"table": ("scalar",)})  # the quickest to learn
    few = [rival for rival in rivals(FAMILIES["table"].held_out(4)) if rival.method != "CG"]
    patch.setattr(solve, "rivals", lambda batch: few)
    patch.setattr(solve, "ROUNDS", 1)
    patch.setattr(solve, "GRID", (8, 64))
    patch.setattr(solve, "MOST_STEPS", 64)
    patch.setattr(solve, "MOST_LEARNED", 9)
    with patch.context():
        found = solve.compare(FAMILIES["table"], problems=4, learn_from=60)
    patch.undo()
    return found


def test_the_comparison_has_every_method_and_ours_is_learned(tiny: solve.Comparison) -> None:
    methods = {result.rival.method for result in tiny.results}
    assert {"Jacobi CG", "Chebyshev", "Jacobi Chebyshev", "LSQR", "direct", "scalar"} <= methods
    assert {"SciPy", "Lineax", "JAX", "learned"} <= {result.rival.library for result in tiny.results}
    assert tiny.ours.rival.learned
    assert tiny.ours.learning is not None
    direct = tiny.fastest(1e-2, lambda result: result.rival.method == "direct")
    assert direct is not None
    assert direct.reached[1e-2].seconds > 0
    for result in tiny.results:  # every rival agrees with the direct reference
        best = min(median for _, median, _ in result.errors.values())
        loose = result.rival.learned or "Chebyshev" in result.rival.method
        assert best < (0.9 if loose else 1e-3), result.name
    jacobi = {r.reached[1e-2].steps for r in tiny.results if r.rival.method == "Jacobi CG"}
    assert max(jacobi) - min(jacobi) <= 1  # every implementation takes the same steps


def test_rows_are_plain_and_complete(tiny: solve.Comparison) -> None:
    found = json.loads(json.dumps([row.as_dict() for row in rows(tiny)], allow_nan=False))
    assert {row["measure"] for row in found} == {"error", "time"}
    for row in found:
        assert {"name", "ours", "rival", "unit", "ratio", "family", "problems", "ours_method"} <= set(row)
        if row["ours"] is not None and row["rival"] is not None:
            assert row["ratio"] == pytest.approx(row["rival"] / row["ours"])


def test_tables_fit_eighty_columns_and_files_are_written(tiny: solve.Comparison, tmp_path) -> None:
    from rich.console import Console

    screen = Console(width=80, record=True, file=io.StringIO())
    screen.print(method_table(tiny))
    screen.print(summary_table([tiny]))
    text = screen.export_text()
    assert "Jacobi CG, SciPy" in text
    assert "Which is fastest" in text
    write([tiny], tmp_path / "bench")
    lines = (tmp_path / "bench" / "curves.csv").read_text().splitlines()
    assert lines[0].split(",") == COLUMNS
    assert len(lines) > len(tiny.results)
    assert (tmp_path / "bench" / "figure.png").stat().st_size > 1_000


def test_unknown_families_are_refused_with_a_hint() -> None:
    result = CliRunner().invoke(app, ["bench", "solve", "--family", "digit"])
    assert result.exit_code != 0
    assert "digits" in str(result.exception)
