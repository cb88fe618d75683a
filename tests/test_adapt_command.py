"""lfom adapt as a user runs it: experts from files, shifted prompts or one's own, and bad input."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import lfom
from lfom.cli import app
from lfom.commands.adapt import read_prompts
from lfom.core.checks import InputError
from lfom.training import LeastSquares, State
from lfom.training.checkpoints import Checkpoint, regressions


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two experts, steps of 0.2 and 0.8 along the gradient, as `lfom train` would write them."""
    files = []
    model = lfom.memformer(2, 1, memory="none", preconditioner="shared", key=jax.random.key(0))
    data = regressions((1.0, 0.5), 8, 1, 0)
    for size in (0.2, 0.8):
        sizes = [np.ravel(leaf) for leaf in jax.tree.leaves(model)]
        vector = np.concatenate(
            [[size] if part.size == 1 and i == 0 else part for i, part in enumerate(sizes)]
        )
        row = {"phase": "A", "number": 0, "level": 0, "step": 1, "log_loss": [[0.0]]}
        state = State(0, 0, 1, vector[None, None].astype(np.float32), {}, (row,))
        path = tmp_path_factory.mktemp("experts") / f"{size}.safetensors"
        lfom.save(path, Checkpoint(model, data, (1,), (("A",),), LeastSquares(), 0, state=state))
        files.append(str(path))
    return files


def call(*arguments: str, status: int = 0) -> str:
    found = CliRunner().invoke(app, ["adapt", *arguments])
    if isinstance(found.exception, InputError):
        raise found.exception
    assert found.exit_code == status, found.output
    return found.stdout


SMALL = ["--prompts", "60", "--fresh", "500"]


def test_label_free_as_json(experts: list[str]) -> None:
    result = json.loads(call(*experts, *SMALL, "--variance", "0.5", "--json"))
    assert {"setting", "steps", "seconds", "context_error", "kept", "note", "gates", "scores"} <= set(result)
    assert result["context_error"]["after"] < result["context_error"]["before"]
    losses = {row["model"]: row["relative_log_loss"] for row in result["scores"]}
    assert list(losses) == ["unadapted", "adapted", "expert 1 alone", "expert 2 alone", "CGD"]
    assert losses["adapted"] < losses["unadapted"] - 0.2
    assert len(result["gates"]) == 2


def test_per_prompt_as_a_table(experts: list[str]) -> None:
    text = call(*experts, *SMALL, "--setting", "per prompt", "--context", "5", "--noise", "0.1")
    assert "adapted" in text
    assert "Held-out context error" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_ones_own_prompts(experts: list[str], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(30, 6, 2)), rng.normal(size=(30, 2))
    arrays = {"X": X, "y": np.einsum("pnd,pd->pn", X, w), "query": X[:, 0], "target": np.zeros(30)}
    path = tmp_path / "prompts.npz"
    np.savez(path, **arrays)
    result = json.loads(call(*experts, "--data", str(path), "--json"))
    assert result["prompts"] == 30
    assert result["scores"] == []
    assert result["context_error"]["after"] < result["context_error"]["before"]
    with pytest.raises(InputError, match="--variance shift the prompts that are drawn"):
        call(*experts, "--data", str(path), "--variance", "2")


def test_a_model_without_gates_says_what_to_do(experts: list[str]) -> None:
    with pytest.raises(InputError, match="has no gates to adapt"):
        call(experts[0], *SMALL)
    with pytest.raises(InputError, match="depth is 3"):
        call(*experts, "--depth", "3")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b"nothing", "cannot be read as .npz"),
        ({"X": np.zeros((2, 3, 2))}, "lacks y, query, target"),
        ({"X": np.array([{}], dtype=object)}, "cannot be read as .npz"),
    ],
)
def test_files_that_are_no_prompts(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.savez(path, **content)
    with pytest.raises(InputError, match=message):
        read_prompts(path)
