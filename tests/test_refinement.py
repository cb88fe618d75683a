"""Learning on grids: where preconditioners begin, gradients from a few problems, references, and progress."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import lfom
from lfom.cli import app
from lfom.core.checks import InputError
from lfom.core.memories import Conjugate
from lfom.core.methods import Method
from lfom.core.preconditioners import Identity, transform_matrix
from lfom.core.readers import Gradient, Jacobi
from lfom.solving.descent import Refined, batches, descend
from lfom.solving.fitting import Matrix, Sample, errors, trainable
from lfom.solving.learn import _shown
from lfom.solving.learners import ITERATIONS, ITERATIONS_OF_PARTS, Fold, QuadraticLearner
from lfom.solving.progress import GUESSES, Course, Lines
from lfom.solving.references import solutions, solved
from lfom.solving.spectra import matrices
from lfom.solving.starts import start
from lfom.solving.structures import parse
from tests.learned_problems import grids, regressions

pytestmark = pytest.mark.usefixtures("x64")
SIDE = 20  # more unknowns than those up to which mean operators are formed


def in_modes(data: Any, v: jax.Array) -> jax.Array:
    """A = T^T diag(data) T with the sine or the cosine transform T of both axes."""
    values, T = data
    return T.T @ (values * (T @ v @ T.T)) @ T


def diagonal_family(
    transform: str, count: int = 12, side: int = SIDE
) -> tuple[lfom.LinearSystems, np.ndarray]:
    """Systems that one transform diagonalises, A_p = scale_p T^T diag(values) T."""
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(size=(side, side)))
    scales = np.exp(rng.normal(size=(count, 1, 1)))
    T = np.broadcast_to(transform_matrix(transform, side), (count, side, side))
    b = rng.normal(size=(count, side, side))
    return lfom.LinearSystems(in_modes, b, data=(scales * values, T)), values * scales.mean()


@pytest.mark.parametrize("transform", ["sine", "cosine"])
def test_the_start_is_the_inverse_where_the_transform_diagonalises(transform: str) -> None:
    problems, mean = diagonal_family(transform)
    each = problems.each()
    matrix: Any = start(transform, each, solutions(each), Gradient(Identity()), 0)
    np.testing.assert_allclose(matrix.logs, -np.log(mean), atol=1e-9)
    method = lfom.learn(problems, 2, f"conjugate:{transform}", iterations=0)
    assert max(method.record.accuracy.upper[1:]) < 1e-6  # one step of conjugate gradients is the solution


@pytest.mark.parametrize(("jacobi", "transform"), [(False, "sine"), (True, "cosine")])
def test_the_start_is_the_diagonal_of_the_mean_operator_in_modes(jacobi: bool, transform: str) -> None:
    """Against matrices: every problem divided by its mean diagonal; within what 16 probes of 40 problems leave."""
    side, rng = 6, np.random.default_rng(1)
    A = np.asarray(matrices(grids(count=40, side=side).each()))
    A = A * np.exp(rng.normal(size=(40, 1, 1)))
    A[::2] = 30 * (
        A[::2] + 5 * np.eye(side**2)
    )  # large problems have another spectrum, and count no more than small ones
    b = rng.normal(size=(40, side, side))

    def apply(A: jax.Array, v: jax.Array) -> jax.Array:
        return (A @ v.reshape(-1)).reshape(v.shape)

    known = np.diagonal(A, axis1=1, axis2=2).reshape(b.shape) if jacobi else None
    each = lfom.LinearSystems(apply, b, data=A, diagonal=known).each()
    reader: Any = Jacobi(Identity()) if jacobi else Gradient(Identity())
    found: Any = start(transform, each, solutions(each), reader, 0)
    s = 1 / np.sqrt(np.diagonal(A, axis1=1, axis2=2)) if jacobi else np.ones(A.shape[:2])
    T = np.kron(*[transform_matrix(transform, side)] * 2)
    modes = np.einsum("mi,pi,pij,pj,mj->pm", T, s, A, s, T)
    sizes = modes.mean(axis=1, keepdims=True)
    wanted = (modes / sizes).mean(axis=0) * sizes.mean()
    np.testing.assert_allclose(np.exp(-found.logs).ravel(), wanted, rtol=0.1)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 20))
def test_every_problem_has_its_turn(count: int, size: int, iterations: int) -> None:
    learning = np.arange(count) * 3 + 5
    rows = batches(learning, size, iterations, 0)
    assert rows.shape == (iterations, min(size, count))
    assert np.isin(rows, learning).all()
    turns = np.array([(rows == one).sum() for one in learning])
    assert turns.max() - turns.min() <= 1
    np.testing.assert_array_equal(rows, batches(learning, size, iterations, 0))


class Parabola(Refined):
    """No method at all: its sample's loss is |free - mean of what the sample holds|^2."""

    def method(self, free: Any, sample: Any) -> Any:
        return free


class Points(Sample):
    def loss(self, method: Any) -> jax.Array:
        return jnp.sum((method - jnp.mean(self.w, axis=0)) ** 2)


@pytest.mark.parametrize("size", [4, 20])
def test_adam_ends_at_the_optimum_of_all_problems(size: int) -> None:
    """With all of them in every iteration, and with a few at a time; members that are held out do not count."""
    w = np.random.default_rng(0).normal(size=(24, 3))
    points = Points(None, jnp.asarray(w), jnp.ones(24))  # type: ignore[arg-type]
    ticks: list[float] = []
    learning, zero = np.arange(20), jnp.zeros(3)
    found = descend(Parabola(), zero, points, batches(learning, size, 400, 0), 0.05, ticks.append)
    np.testing.assert_allclose(found, w[:20].mean(axis=0), atol=1e-3 if size == 20 else 0.05)
    assert ticks == [(k + 1) / 400 for k in range(400)]
    assert descend(Parabola(), zero, points, batches(learning, size, 0, 0), 0.05, ticks.append) is zero


def test_a_few_problems_at_a_time_are_as_good_as_all() -> None:
    """On a grid large enough: on problems that were not learned from, and on those that were, where both improve."""
    problems, fresh = (
        grids(count=count, side=32, seed=seed, dtype=np.float32) for count, seed in ((24, 0), (12, 9))
    )
    one, each = parse("conjugate:sine"), fresh.each()
    learner = QuadraticLearner(problems, 4, 0)
    assert learner.at_once(one) == 8
    assert learner.iterations(one) == ITERATIONS_OF_PARTS
    assert QuadraticLearner(grids(), 4, 0).iterations(one) == ITERATIONS
    sample, found = Sample(each, solutions(each), jnp.ones(12, np.float32)), {}
    for name, size in (("start", 0), ("parts", 8), ("all", 24)):
        free, put = trainable(learner.begin(one, Fold(0, np.arange(24), np.arange(24))))
        rows = batches(np.arange(24), max(size, 1), 40 if size else 0, 0)
        reader = put(descend(Matrix(put(free), True, 4), free, learner.all, rows, 0.05, lambda part: None))
        for on, some in (("fresh", sample), ("learned", learner.all)):
            last = np.asarray(errors(Method(reader, Conjugate(), 4), some))[-1]
            found[name, on] = float(np.exp(np.mean(np.log(last))))
    assert found["parts", "fresh"] < 1.03 * found["all", "fresh"]
    assert found["parts", "learned"] < 0.98 * found["start", "learned"]
    assert found["parts", "learned"] > found["all", "learned"]


def test_references_are_solutions_and_tell_the_largest_eigenvalue() -> None:
    each: Any = grids(count=7, side=8).each()
    A = np.asarray(matrices(each))
    w, high = solved(each)
    exact = np.linalg.solve(A, np.asarray(each.moment).reshape(7, 64, 1)).reshape(7, 8, 8)
    np.testing.assert_allclose(w, exact, atol=1e-10 * np.abs(exact).max())
    top = np.linalg.eigvalsh(A).max()
    assert 0.4 * top < high <= top * (1 + 1e-12)  # which steps are taken depends on rounding


def test_what_cannot_be_solved_is_not_learned_from() -> None:
    signs = np.ones((12, 4, 4))
    signs[5, 0, 0] = -1
    problems = lfom.LinearSystems(lambda d, v: d * v, np.ones((12, 4, 4)), data=signs)
    with pytest.raises(InputError, match="problem 5 is not positive definite"):
        lfom.learn(problems, 2, "scalar")
    b = np.ones((12, 4, 4))
    b[7, 1, 2] = np.nan
    with pytest.raises(InputError, match="problem 7 holds NaN"):
        lfom.learn(lfom.LinearSystems(lambda d, v: d * v, b, data=np.abs(signs)), 2, "scalar")


def test_progress_counts_stages_and_corrects_its_guesses() -> None:
    now, told = [0.0], []
    course = Course(
        lambda *what: told.append(what), ["solving", "trying", "refining", "finishing"], lambda: now[0]
    )
    course.begin("solving", "10 problems")
    assert told[-1][1] == "solving 10 problems"
    left = sum(GUESSES.values())
    assert told[-1][0] == pytest.approx(0.1 / (0.1 + left))
    now[0] = 2 * GUESSES["solving"]  # this machine is half as fast
    course.begin("trying", "scalar")
    left = 2 * (GUESSES["trying"] + GUESSES["refining"] + GUESSES["finishing"])
    assert told[-1] == (pytest.approx(now[0] / (now[0] + left)), "trying scalar")
    now[0] += 2 * GUESSES["trying"]
    course.begin("refining", "scalar")
    now[0] += 30
    course.tick(0.25)  # 90 s more, whatever was guessed
    assert told[-1] == (
        pytest.approx(now[0] / (now[0] + 90 + 2 * GUESSES["finishing"])),
        "refining scalar: 25%",
    )


def test_lines_come_with_every_stage_and_while_a_program_runs() -> None:
    out = io.StringIO()
    with Lines(stages=True, every=0.2, out=out) as told:
        told(0.5, "trying conjugate:sine")
        told(0.5, "trying conjugate:sine")
        told(0.6, "refining conjugate:sine: 1%")
        told(0.001, "refining conjugate:sine: 2%")
        assert len(out.getvalue().splitlines()) == 2
        time.sleep(0.5)
    lines = out.getvalue().splitlines()
    assert 3 <= len(lines) <= 5
    assert "refining conjugate:sine: 2%, about" in lines[-1]
    time.sleep(0.3)
    assert out.getvalue().splitlines() == lines  # nothing afterwards
    late = io.StringIO()
    with Lines(every=0.2, out=late) as told:
        told(0.999, "trying scalar")  # done in a moment
        time.sleep(0.5)
    assert late.getvalue().splitlines()[-1].endswith("trying scalar")  # no estimate once it has run out
    quiet = io.StringIO()
    with Lines(out=quiet) as told:
        told(0.5, "trying scalar")
    assert quiet.getvalue() == ""


def test_learning_tells_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[float, str]] = []
    problems = grids(count=16)
    lfom.learn(problems, 2, "conjugate:diagonal", iterations=2, progress=lambda *now: told.append(now))
    texts = [text for _, text in told]
    assert texts[0] == "solving 16 problems to learn from"
    assert "trying conjugate:diagonal, part 1 of 5" in texts
    assert "refining conjugate:diagonal, part 5 of 5: 100%" in texts
    assert texts[-1] == "finishing conjugate:diagonal"
    assert all(0 < done < 1 for done, _ in told)
    assert told[-1][0] > 0.5
    assert capsys.readouterr().err == ""
    with pytest.raises(InputError, match="progress is 'loud'"):
        _shown("loud")


def test_the_command_says_what_it_does(tmp_path: Path) -> None:
    problems, method = tmp_path / "problems.npz", tmp_path / "method.safetensors"
    given = regressions(count=60)
    np.savez(problems, X=given.X, y=given.y)
    options = ["--structure", "conjugate:diagonal", "--steps", "2", "--out", str(method)]
    result = CliRunner().invoke(app, ["learn", str(problems), *options], catch_exceptions=False)
    assert result.exit_code == 0
    for stage in (
        "solving 60 problems",
        "trying conjugate:diagonal",
        "refining conjugate",
        "finishing conjugate",
    ):
        lines = [line for line in result.stderr.splitlines() if stage in line]
        assert lines, stage
        assert "s left" in lines[0]


def test_ctrl_c_ends_the_command_with_a_sentence(tmp_path: Path) -> None:
    problems, method = tmp_path / "problems.npz", tmp_path / "method.safetensors"
    given = regressions(count=60)
    np.savez(problems, X=given.X, y=given.y)
    command = [sys.executable, "-m", "lfom", "learn", str(problems), "--out", str(method)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stderr is not None
        estimate, first = process.stderr.readline(), process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert "60 problems of 6 unknowns: about" in estimate
    assert "solving" in first
    assert process.returncode == 130
    assert "nothing was written" in rest
    assert "Traceback" not in rest
    assert not method.exists()
