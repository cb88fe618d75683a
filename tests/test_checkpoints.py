"""Checkpoints: bit for bit, whole or not at all, and going on from one gives the same numbers."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors
from typer.testing import CliRunner

import lfom
from lfom.cli import app
from lfom.core import archive
from lfom.core.checks import InputError
from lfom.training import LeastSquares, State, fit
from lfom.training.adam import Adam
from lfom.training.checkpoints import Checkpoint, regressions
from lfom.training.fitting import default_optimiser


def unfinished(**changes: Any) -> Checkpoint:
    """One before its first pass."""
    model = lfom.memformer(2, 2, memory="none", preconditioner="shared", key=jax.random.key(0))
    data = regressions((1.0, 0.3), 6, 2, 11, noise=0.1, variance=2.0)
    train = (("A",), ("A", "coefficients"))
    base = Checkpoint(model, data, (1, 2), train, LeastSquares(first=500, passes=(4, 2)), 11)
    return replace(base, **changes)


def checkpoint(dtype: str = "float32") -> Checkpoint:
    """One with awkward numbers in it: tiny, negative zero, not representable in decimal."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(2, 2, 8)).astype(dtype)
    vectors[0, 0, :3] = [-0.0, np.finfo(dtype).tiny, np.finfo(dtype).max]
    extra: dict[str, np.ndarray] = {
        "normal": rng.normal(size=(2, 2, 3, 3)) * 1e300,
        "slope": np.asfortranarray(rng.normal(size=(2, 2, 3))),
        "adam_0": np.array(7, np.int32),
    }
    history = (
        {
            "phase": "A",
            "number": 0,
            "level": 0,
            "step": 0,
            "prompts": 500,
            "log_loss": [[0.1, 1 / 3], [-1e-17, 2.5]],
        },
    )
    return unfinished(state=State(1, 0, 3, vectors, extra, history))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "model.safetensors"
    lfom.save(file, checkpoint())
    return file


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_everything_comes_back_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    saved, file = checkpoint(dtype), tmp_path / "model.safetensors"
    lfom.save(file, saved)
    found = lfom.load(file)
    assert found.optimiser == saved.optimiser
    assert (found.depths, found.train, found.seed) == (saved.depths, saved.train, saved.seed)
    assert saved.state is not None
    assert (found.state.phase, found.state.level, found.state.step) == (1, 0, 3)
    assert found.state.history == saved.state.history
    pairs = [(found.state.vectors, saved.state.vectors)]
    pairs += [(found.state.extra[name], values) for name, values in saved.state.extra.items()]
    pairs += list(zip(*(jax.tree.leaves((one.model, one.data)) for one in (found, saved)), strict=True))
    for a, b in pairs:
        assert type(a) is type(b)
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert np.asarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
    lfom.save(tmp_path / "again.safetensors", found)
    assert (tmp_path / "again.safetensors").read_bytes() == file.read_bytes()


def test_the_header_is_json_that_others_can_read(path: Path) -> None:
    with safetensors.safe_open(path, framework="numpy") as file:
        facts = json.loads(file.metadata()["lfom"])
        assert file.get_tensor("Checkpoint.state.vectors").shape == (2, 2, 8)
    assert facts["licence"] == "CC0-1.0"
    assert (facts["format"], facts["version"], facts["what"]) == ("lfom", archive.VERSION, "Checkpoint")
    assert set(facts["versions"]) == {"lfom", "jax", "numpy"}
    fields = facts["content"]["fields"]
    assert fields["seed"] == 11
    assert fields["optimiser"]["class"] == "LeastSquares"


def test_the_optimiser_is_chosen_by_the_number_of_parameters() -> None:
    assert isinstance(default_optimiser(unfinished().model, ("A",)), LeastSquares)
    wide = lfom.memformer(40, 2, memory="none", key=jax.random.key(0))
    assert isinstance(default_optimiser(wide, ("A",)), Adam)


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file(
    failure: BaseException, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def fail(descriptor: int) -> None:
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    expected = InputError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        lfom.save(path, replace(checkpoint(), seed=12), force=True)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def state(found: Checkpoint) -> State:
    assert found.state is not None
    return found.state


def test_resuming_from_a_file_gives_the_same_bits_and_models(tmp_path: Path) -> None:
    """Two stages, two levels: from a state with accumulated equations, and from the last of a phase."""
    first = unfinished(depths=(1,), train=(("A",), ("coefficients",)))
    files: list[Path] = []

    def watch(state: State, record: dict[str, Any]) -> None:
        files.append(tmp_path / f"{len(files)}.safetensors")
        lfom.save(files[-1], replace(first, state=state))

    def train(start: Checkpoint) -> Any:
        return fit(
            start.model,
            start.data,
            key=start.key("training"),
            depths=start.depths,
            train=start.train,
            optimiser=start.optimiser,
            watch=watch if start.state is None else None,
            resume=start.state,
        )

    whole = train(first)
    kept = [lfom.load(file) for file in files]
    assert {state(c).phase for c in kept} == {0, 1}
    with_sums = next(c for c in kept if state(c).extra)
    last_of_first = [c for c in kept if state(c).phase == 0][-1]
    for start in (with_sums, last_of_first):
        again = train(start)
        assert again.vectors.tobytes() == whole.vectors.tobytes()
        assert again.history == whole.history
    found = lfom.load(files[-1]).fit
    model, other = found.model(1, 1), found.model()
    np.testing.assert_array_equal(model.reader.A.scale, whole.model(1, 1).reader.A.scale)
    assert not np.array_equal(model.reader.A.scale, other.reader.A.scale)
    with pytest.raises(InputError, match="runs 0 to 1"):
        found.model(2)
    with pytest.raises(InputError, match="depth is 3"):
        found.model(depth=3)
    with pytest.raises(InputError, match="no pass is done"):
        _ = first.fit


@pytest.mark.parametrize("name", ["phase", "number", "level", "step", "log_loss"])
def test_a_signed_file_with_other_rows_of_history_is_refused(path: Path, name: str) -> None:
    good = checkpoint()
    assert good.state is not None
    row = {key: value for key, value in good.state.history[0].items() if key != name}
    lfom.save(path, replace(good, state=replace(good.state, history=(row,))), force=True)
    answer = CliRunner().invoke(app, ["train", "--resume", str(path)])
    assert isinstance(answer.exception, InputError)
    assert f"row 0 of its history has no '{name}'" in str(answer.exception)


def test_a_state_of_another_fit_is_refused() -> None:
    data, key, states = lfom.LinearRegression([1.0, 0.5], context=4), jax.random.key(0), list[State]()
    model = lfom.memformer(2, 2, memory="register", key=key)
    adam = lfom.Adam(steps=2, batch=8, resample=1)
    lfom.fit(model, data, key=key, optimiser=adam, watch=lambda state, record: states.append(state))
    state = states[-1]
    cases: list[tuple[State, dict[str, Any], str]] = [
        (
            state,
            {"depths": [1, 2]},
            r"resume holds numbers of shape \(1, 1, \d+\), and this fit has \(1, 2, ",
        ),
        (replace(state, phase=3), {}, "resume is in phase 3, and this fit has 1"),
        (replace(state, step=1, extra={"normal": np.ones(2)}), {}, "resume holds no 'adam_0' of shape"),
    ]
    for other, options, says in cases:
        with pytest.raises(InputError, match=says):
            lfom.fit(model, data, key=key, optimiser=adam, resume=other, **options)


def test_every_run_has_a_rotation_of_its_own() -> None:
    first, second = regressions([1.0, 0.5], 6, 2, seed=0).each()
    assert not np.allclose(first.rotation, second.rotation)
    again = regressions([1.0, 0.5], 6, 2, seed=0)[1]
    np.testing.assert_array_equal(again.rotation, second.rotation)
