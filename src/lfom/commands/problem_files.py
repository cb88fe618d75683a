"""Problems and solutions as .npz files: plain arrays, nothing that could run code."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from lfom.core.checks import InputError
from lfom.core.files import write_whole
from lfom.solving import LeastSquaresProblems, LinearSystems, Solution

CONTENTS = "X (problems, n, d) and y (problems, n), with ridge if there is one; or A (problems, d, d) and b (problems, d)"


def read_problems(path: Path) -> LeastSquaresProblems | LinearSystems:
    """The problems of an .npz file, in the precision of its arrays."""
    again = f"with numpy.savez: {CONTENTS}."
    arrays = _as_floats(path, load_arrays(path, f"Write it {again}", f". Write it again {again}"))
    names = set(arrays)
    if {"X", "y"} <= names and not names & {"A", "b"}:
        return LeastSquaresProblems(arrays["X"], arrays["y"], arrays.get("ridge", 0.0))
    if {"A", "b"} <= names and not names & {"X", "y", "ridge"}:
        return LinearSystems(arrays["A"], arrays["b"])
    raise InputError(f"{path} holds {', '.join(sorted(names)) or 'nothing'}: it must hold {CONTENTS}.")


def load_arrays(path: Path, missing: str, damaged: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file. missing, damaged: what an error adds."""
    try:
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in content.files}
    except FileNotFoundError:
        raise InputError(f"{path} does not exist. {missing}") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} cannot be read as .npz ({error}){damaged}") from error


def _as_floats(path: Path, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for name, array in arrays.items():
        if array.dtype.kind in "iu":
            arrays[name] = array.astype(np.float64)
        elif array.dtype not in (np.float32, np.float64):
            raise InputError(
                f"{name} in {path} has dtype {array.dtype}: pass float32 or float64, the precision to work in."
            )
    return arrays


def write_solutions(path: Path, solution: Solution) -> None:
    """w, status, steps and residuals, and what each status means: the text meaning[i] belongs to the
    status meaning_of[i]."""
    meaning = solution.meaning
    content = io.BytesIO()
    np.savez(
        content,
        w=np.asarray(solution.value),
        status=solution.status.astype(np.int64),
        steps=solution.steps.astype(np.int64),
        residuals=solution.residuals,
        meaning_of=np.array(list(meaning), np.int64),
        meaning=np.array(list(meaning.values())),
    )
    write_whole(path, content.getvalue())


def check_out(path: Path, force: bool, example: str, instead: str = "") -> None:
    """Refuse before any work what would fail after it. instead: what else to do where the file exists."""
    if path.is_dir():
        raise InputError(f"--out {path} is a folder: name a file in it, such as {path / example}.")
    if not path.parent.is_dir():
        raise InputError(f"--out {path}: the folder {path.parent} does not exist. Create it first.")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"--out {path}: the folder {path.parent} cannot be written to. Choose another one.")
    if path.exists() and not force:
        raise InputError(f"--out {path} exists. Pass --force to replace it, {instead}or another name.")


def accuracy_rows(accuracy: Any) -> list[dict[str, Any]]:
    """Expected accuracy, one row per step."""
    columns = zip(accuracy.median, accuracy.lower, accuracy.upper, strict=True)
    return [
        {"step": step, "median": m, "lower_quartile": lo, "upper_quartile": up}
        for step, (m, lo, up) in enumerate(columns)
    ]
