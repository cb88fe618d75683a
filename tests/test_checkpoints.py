"""Checkpoints: bit for bit, whole or not at all, and clear about files that are not ours."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from lfom.core.checks import InputError
from lfom.training import LeastSquares, State, checkpoints, fit
from lfom.training.adam import Adam
from lfom.training.checkpoints import Checkpoint, load, load_model, save
from lfom.training.configuration import Configuration
from lfom.training.fitting import default_optimiser


def configuration(**changes: Any) -> Configuration:
    base = Configuration(
        model={"d": 2, "memory": "none", "preconditioner": "shared"},
        data={"spectrum": (1.0, 0.3), "context": 6, "runs": 2, "noise": 0.1, "variance": 2.0},
        depths=(1, 2),
        train=(("A",), ("A", "coefficients")),
        optimiser=LeastSquares(first=500, passes=(4, 2)),
        seed=11,
    )
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
        {"phase": "A", "level": 0, "step": 0, "prompts": 500, "log_loss": [[0.1, 1 / 3], [-1e-17, 2.5]]},
    )
    settings = configuration()
    return Checkpoint(settings, State(1, 0, 3, vectors, extra, history), settings.rotations())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "model.safetensors"
    save(file, checkpoint())
    return file


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_everything_comes_back_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    saved, file = checkpoint(dtype), tmp_path / "model.safetensors"
    save(file, saved)
    found = load(file)
    assert found.configuration == saved.configuration
    assert found.versions == saved.versions
    assert (found.state.phase, found.state.level, found.state.step) == (1, 0, 3)
    assert found.state.history == saved.state.history
    pairs = [(found.state.vectors, saved.state.vectors), (found.rotations, saved.rotations)]
    pairs += [(found.state.extra[name], values) for name, values in saved.state.extra.items()]
    for a, b in pairs:
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == np.ascontiguousarray(b).tobytes()
    save(tmp_path / "again.safetensors", found)
    assert (tmp_path / "again.safetensors").read_bytes() == file.read_bytes()


def test_the_header_is_json_that_others_can_read(path: Path) -> None:
    with safetensors.safe_open(path, framework="numpy") as file:
        facts = json.loads(file.metadata()["lfom"])
    assert facts["licence"] == "CC0-1.0"
    assert facts["version"] == checkpoints.VERSION
    assert set(facts["versions"]) == {"lfom", "jax", "numpy"}
    assert facts["random"]["seed"] == 11
    assert facts["dtype"] == "float32"
    assert facts["configuration"]["optimiser"]["name"] == "least-squares"
    assert facts["configuration"]["data"]["noise"] == 0.1


@pytest.mark.parametrize("optimiser", [LeastSquares(last=7), Adam(steps=5, schedule="cosine")])
def test_a_configuration_goes_through_json(optimiser: Any) -> None:
    settings = configuration(optimiser=optimiser)
    assert Configuration.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_the_optimiser_is_chosen_by_the_number_of_parameters() -> None:
    assert isinstance(default_optimiser(configuration().template(), ("A",)), LeastSquares)
    wide = configuration(model={"d": 40, "memory": "none"})
    assert isinstance(default_optimiser(wide.template(), ("A",)), Adam)


def rewritten(path: Path, tensors: dict[str, np.ndarray] | None = None, **facts: Any) -> Path:
    """The same file with other tensors or facts."""
    with safetensors.safe_open(path, framework="numpy") as file:
        found = json.loads(file.metadata()["lfom"]) | facts
        tensors = {name: file.get_tensor(name) for name in file.keys()} | (tensors or {})  # noqa: SIM118
    path.write_bytes(safetensors.numpy.save(tensors, {"lfom": json.dumps(found)}))
    return path


def assert_refused(path: Path, *words: str) -> None:
    before = path.read_bytes()
    with pytest.raises(InputError) as error:
        load(path)
    for word in (str(path), *words):
        assert word in str(error.value)
    assert path.read_bytes() == before


def test_a_truncated_file_is_refused_wherever_it_ends(path: Path) -> None:
    content = path.read_bytes()
    for length in {0, 1, 7, 8, 9, 100, len(content) // 2, len(content) - 8, len(content) - 1}:
        path.write_bytes(content[:length])
        assert_refused(path, "truncated", "train again")


def test_foreign_files_are_refused(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"PK\x03\x04 a zip file, or a pickle, or anything else")
    assert_refused(other, "not a safetensors file", "lfom train")
    other.write_bytes((5).to_bytes(8, "little") + b"{oops and more")
    assert_refused(other, "not a safetensors file")
    other.write_bytes(safetensors.numpy.save({"weight": np.ones(3)}, {"format": "pt"}))
    assert_refused(other, "something else")
    other.write_bytes(safetensors.numpy.save({"weight": np.ones(3)}))
    assert_refused(other, "something else")
    other.write_bytes(safetensors.numpy.save({"weight": np.ones(3)}, {"lfom": json.dumps({"a": 1})}))
    assert_refused(other, "something else")


def test_newer_or_changed_files_are_refused(path: Path) -> None:
    good = path.read_bytes()
    assert_refused(rewritten(path, version=99), "version 99", "newer", "Install")
    path.write_bytes(good)
    assert_refused(rewritten(path, format="lfom results"), "lfom results")
    path.write_bytes(good)
    assert_refused(
        rewritten(path, {"vectors": np.zeros((2, 2, 8), np.float16)}), "vectors", "float16", "float32"
    )
    path.write_bytes(good)
    assert_refused(rewritten(path, {"rotations": np.zeros((2, 3, 3), np.float32)}), "rotations", "shape")
    path.write_bytes(good)
    assert_refused(rewritten(path, configuration={"model": {}}), "header", "changed")
    path.write_bytes(safetensors.numpy.save({"vectors": np.zeros(1)}, _metadata(good, path)))
    assert_refused(path, "lacks the tensors", "extra.normal", "rotations")


def _metadata(content: bytes, path: Path) -> dict[str, str]:
    path.write_bytes(content)
    with safetensors.safe_open(path, framework="numpy") as file:
        return file.metadata()


def test_a_missing_file_or_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load(tmp_path / "none.safetensors")
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path)


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
        save(path, replace(checkpoint(), finished=True))
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_resuming_from_a_file_gives_the_same_bits_and_models(tmp_path: Path) -> None:
    """Two stages, two levels: from a state with accumulated equations, and from the last of a phase."""
    settings = configuration(depths=(1,), train=(("A",), ("coefficients",)))
    rotations = settings.rotations()
    files: list[Path] = []

    def watch(state: State, record: dict[str, Any]) -> None:
        files.append(tmp_path / f"{len(files)}.safetensors")
        save(files[-1], Checkpoint(settings, state, rotations))

    def train(resume: State | None) -> Any:
        return fit(
            settings.template(),
            settings.distributions(rotations),
            key=settings.key("training"),
            depths=settings.depths,
            train=settings.train,
            optimiser=settings.optimiser,
            watch=watch if resume is None else None,
            resume=resume,
        )

    whole = train(None)
    states = [load(file) for file in files]
    assert {c.state.phase for c in states} == {0, 1}
    with_sums = next(c for c in states if c.state.extra)
    last_of_first = [c for c in states if c.state.phase == 0][-1]
    for start in (with_sums, last_of_first):
        again = train(start.state)
        assert again.vectors.tobytes() == whole.vectors.tobytes()
        assert again.history == whole.history
    model: Any = load_model(files[-1], run=1, depth=1)
    other: Any = load_model(files[-1], run=0)
    np.testing.assert_array_equal(model.reader.A.scale, whole.model(1, 1).reader.A.scale)
    assert not np.array_equal(model.reader.A.scale, other.reader.A.scale)
    with pytest.raises(InputError, match="runs 0 to 1"):
        load_model(files[-1], run=2)
    with pytest.raises(InputError, match="depth is 3"):
        load_model(files[-1], depth=3)
