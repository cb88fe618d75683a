"""Method files and the commands lfom learn, solve and inspect, as a user runs them."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from sklearn.linear_model import Ridge
from typer.testing import CliRunner

import lfom
from lfom.cli import app
from lfom.core.checks import InputError
from lfom.solving import npz
from lfom.solving.npz import load_arrays, read_problems
from tests.learned_problems import fresh_regressions, learned, regressions

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize(
    "name", ["scalar", "diagonal", "preconditioned:jacobi+low-rank", "preconditioned:full"]
)
def test_a_file_gives_back_the_method(name: str, tmp_path: Path) -> None:
    method, path = learned(name), tmp_path / "method.safetensors"
    method.save(path)
    again = lfom.load(path)
    assert again.to_json() == method.to_json()
    assert again.record == method.record
    assert again.certificate == method.certificate
    assert again.promise == method.promise
    fresh = fresh_regressions()
    assert np.asarray(again.solve(fresh).value).tobytes() == np.asarray(method.solve(fresh).value).tobytes()
    content = path.read_bytes()
    with pytest.raises(InputError, match="force=True"):
        again.save(path)
    again.save(path, force=True)
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_files_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        lfom.load(tmp_path / "none")
    with pytest.raises(InputError, match="cannot be read"):
        lfom.load(tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        learned("scalar").save(tmp_path / "no" / "method.safetensors")


def test_another_precision_is_refused_or_converted(tmp_path: Path) -> None:
    path = tmp_path / "method.safetensors"
    learned("scalar").save(path)
    with jax.enable_x64(False):
        with pytest.raises(InputError, match="float64, and JAX computes in float32"):
            lfom.load(path)
        single = lfom.load(path, dtype="float32")
        assert single.dtype == np.float32
        assert single.floor > 1e6 * learned("scalar").floor
        with pytest.raises(InputError, match="enable it first"):
            single.astype("float64")


def write(path: Path, problems: Any, **changes: Any) -> Path:
    arrays = {"X": problems.X, "y": problems.y, "ridge": problems.ridge} | changes
    np.savez(path, **{name: np.asarray(value) for name, value in arrays.items()})  # type: ignore[arg-type]
    return path


def test_learn_solve_inspect(tmp_path: Path) -> None:
    runner = CliRunner(env={"COLUMNS": "80"})
    method, out = tmp_path / "method.safetensors", tmp_path / "solutions.npz"
    problems = write(tmp_path / "problems.npz", regressions())
    options = ["--steps", "5", "--structure", "scalar,preconditioned:full", "--out", str(method)]
    result = runner.invoke(app, ["learn", str(problems), *options], catch_exceptions=False)
    assert result.exit_code == 0
    assert max(len(line) for line in result.stdout.splitlines() if str(tmp_path) not in line) <= 80
    assert "preconditioned:full, 5 steps, float64" in result.stdout
    assert "Promise" in result.stdout
    before = method.read_bytes()
    refused = runner.invoke(app, ["learn", str(problems), *options])
    assert "--force" in str(refused.exception)
    assert method.read_bytes() == before

    fresh = fresh_regressions()
    X = np.asarray(fresh.X).copy()
    more = write(tmp_path / "fresh.npz", fresh)
    result = runner.invoke(app, ["solve", str(method), str(more), "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0
    assert max(len(line) for line in result.stdout.splitlines() if str(tmp_path) not in line) <= 80
    with np.load(out) as content:
        assert content["w"].shape == (40, 6)
        assert content["residuals"].shape == (40, 6)
        assert content["status"].dtype == np.int64
        assert (content["steps"] == 5).all()
        meaning = dict(zip(content["meaning_of"].tolist(), content["meaning"].tolist(), strict=True))
        assert all("did the steps" in meaning[s] for s in content["status"].tolist())
        w = content["w"]
    with jax.enable_x64(True):
        np.testing.assert_array_equal(w, np.asarray(lfom.load(method).solve(fresh).value))

    X[3, 0, 0] = np.nan
    write(more, fresh, X=X)
    result = runner.invoke(app, ["solve", str(method), str(more), "--out", str(out), "--force", "--json"])
    assert result.exit_code == 1
    rows = json.loads(result.stdout)
    assert rows[0]["status"] == -1
    assert rows[0]["problems"] == 1
    with np.load(out) as content:
        assert content["status"][3] == -1
        np.testing.assert_array_equal(np.delete(content["w"], 3, 0), np.delete(w, 3, 0))

    result = runner.invoke(app, ["inspect", str(method)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "quartiles" in result.stdout
    picture = tmp_path / "method.png"
    assert picture.read_bytes()[:4] == b"\x89PNG"
    picture.write_bytes(b"mine")
    assert "--force" in str(runner.invoke(app, ["inspect", str(method)]).exception)
    assert picture.read_bytes() == b"mine"
    runner.invoke(app, ["inspect", str(method), "--force"], catch_exceptions=False)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    result = runner.invoke(app, ["inspect", str(method), "--json", "--no-plot"], catch_exceptions=False)
    shown = json.loads(result.stdout)
    assert len(shown["accuracy"]) == 6
    assert shown["accuracy"][0]["median"] == 1
    assert shown["interval"][1] > shown["eigenvalues_seen"][1]
    assert shown["contraction"] < 1


def test_bad_files_of_problems_write_nothing(tmp_path: Path) -> None:
    method, out, file = tmp_path / "method.safetensors", tmp_path / "out.npz", tmp_path / "problems.npz"
    learned("scalar").save(method)
    out.write_bytes(b"precious")

    def refused(message: str, *arguments: str) -> None:
        command = arguments or ("solve", str(method), str(file), "--out", str(out), "--force")
        result = CliRunner().invoke(app, list(command))
        assert isinstance(result.exception, InputError), result.output
        assert message in str(result.exception)
        assert out.read_bytes() == b"precious"

    fresh = regressions(count=4, seed=1)
    refused("does not exist")
    file.write_bytes(b"nothing")
    refused("cannot be read as .npz")
    with file.open("wb") as one_array:
        np.save(one_array, np.ones(3))
    refused("cannot be read as .npz")
    np.savez(file, X=np.ones((2, 3, 4)))
    refused("it must hold X")
    np.savez(file, X=np.array([{}]), y=np.ones(1))  # needs pickle
    refused("cannot be read as .npz")
    write(file, fresh, ridge=-1.0)
    refused("ridge is -1")
    write(file, fresh, y=np.ones((4, 3)))
    refused("asks for")
    write(file, regressions(count=4, d=5))
    refused("shape (6,)")
    write(file, regressions(count=4, dtype=np.float32))
    refused("float64 and these problems of float32")
    np.savez(file, A=np.triu(np.ones((2, 6, 6))), b=np.ones((2, 6)))
    refused("not symmetric")
    np.savez(file, A=np.stack([-np.eye(6)] * 12), b=np.ones((12, 6)))
    refused("indefinite", "learn", str(file), "--out", str(tmp_path / "new.safetensors"))
    rows = {"X": np.ones((7, 6)), "y": np.ones(7), "rows": [3, 4]}
    for wrong in ({"rows": [3, 3]}, {"rows": [3.5, 3.5]}, {"rows": [7, 0]}, {"y": np.ones(6)}, {"rows": 7}):
        np.savez(file, **rows | wrong)  # type: ignore[arg-type]
        refused("rows in")
    np.savez(file, **rows, intercept=2)  # type: ignore[arg-type]
    refused("intercept in")
    np.savez(file, **rows, bias=1)  # type: ignore[arg-type]
    refused("it must hold X")
    write(file, fresh)
    refused("Pass", "solve", str(method), str(file), "--out", str(out), "--force", "--tolerance", "1e-18")
    refused("--force", "solve", str(method), str(file), "--out", str(out))
    refused("is a folder", "solve", str(method), str(file), "--out", str(tmp_path))
    refused("too few", "learn", str(file), "--out", str(tmp_path / "new.safetensors"))
    assert not (tmp_path / "new.safetensors").exists()


def test_groups_weights_outputs_and_an_intercept_in_a_file(tmp_path: Path) -> None:
    rng, lengths = np.random.default_rng(0), np.array([5, 9, 30])
    X, y, weights = rng.normal(size=(44, 6)), rng.normal(size=(44, 2)), rng.uniform(0.1, 1, 44)
    file, method, out = tmp_path / "p.npz", tmp_path / "m.safetensors", tmp_path / "w.npz"
    np.savez(file, X=X, y=y, weights=weights, rows=lengths, ridge=0.1, intercept=True)
    learned("conjugate:jacobi+diagonal").save(method)
    command = ["solve", method, file, "--out", out, "--tolerance", "1e-10"]
    result = CliRunner().invoke(app, [*map(str, command)])
    assert result.exit_code == 0, result.output
    assert "0 of 3 problems failed" in result.output
    with np.load(out) as content:
        found = dict(content)
    assert found["status"].shape == (3, 2)
    ends = np.cumsum(lengths)
    for i, end in enumerate(ends):
        own = slice(end - lengths[i], end)
        wanted = Ridge(0.1 * weights[own].sum()).fit(X[own], y[own], sample_weight=weights[own])
        np.testing.assert_allclose(found["w"][i], wanted.coef_.T, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(found["intercept"][i], wanted.intercept_, rtol=1e-6, atol=1e-8)


def test_arrays_that_lie_by_columns_are_read_as_they_are(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    X, y = np.asfortranarray(random.normal(size=(3, 6, 2))), random.normal(size=(3, 6))
    np.savez(tmp_path / "p.npz", X=X, y=y)
    found = read_problems(tmp_path / "p.npz")
    assert isinstance(found, lfom.LeastSquaresProblems)
    np.testing.assert_array_equal(found.X, X)
    np.testing.assert_array_equal(found.y, y)


def test_what_a_file_unpacks_to_is_that_of_all_its_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, A = tmp_path / "p.npz", np.ones((8, 16, 16))
    np.savez_compressed(file, A=A, b=A)
    monkeypatch.setattr(npz, "RATIO", 0)
    monkeypatch.setattr(npz, "UNPACKED", int(2.1 * A.nbytes))
    assert load_arrays(file, "", "").keys() == {"A", "b"}
    monkeypatch.setattr(npz, "UNPACKED", int(1.9 * A.nbytes))
    with pytest.raises(InputError, match="unpacked it is larger than"):
        load_arrays(file, "", "")


def test_no_command_writes_over_its_input(tmp_path: Path) -> None:
    """Not even with --force; also where the same file is named in another way."""
    method, file, link = tmp_path / "m.safetensors", tmp_path / "problems.npz", tmp_path / "link.npz"
    learned("scalar").save(method)
    write(file, fresh_regressions())
    link.hardlink_to(file)
    before = method.read_bytes(), file.read_bytes()
    for command in (
        ("inspect", method, "--plot", method),
        ("solve", method, file, "--out", method),
        ("solve", method, file, "--out", file),
        ("solve", method, file, "--out", link),
        ("learn", file, "--out", file),
    ):
        result = CliRunner().invoke(app, [*map(str, command), "--force"])
        assert isinstance(result.exception, InputError), result.output
        assert "is an input of this command" in str(result.exception)
    assert before == (method.read_bytes(), file.read_bytes())
