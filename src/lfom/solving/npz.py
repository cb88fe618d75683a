"""Problems and solutions as .npz files; nothing in them can run code."""

import io
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic

from lfom.core.checks import InputError
from lfom.core.files import write_whole
from lfom.solving.linear_systems import LinearSystems
from lfom.solving.records import Solution
from lfom.solving.regressions import LeastSquaresProblems

CONTENTS = (
    "X (problems, n, d) and y (problems, n) or (problems, n, outputs), with ridge, weights (problems, n) and intercept (0 or 1) "
    "if there are any; or A (problems, d, d) and b (problems, d) or (problems, d, right-hand sides). Groups of different "
    "lengths follow one another in X (all rows, d), y and weights, and rows (problems,) says how many each has"
)
ROWS = ("X", "y", "weights")  # what has one entry per example

AGAIN = f"with numpy.savez: {CONTENTS}."

UNPACKED, RATIO = 100 << 20, 100  # compressed arrays: so many bytes, or so many times those of the file


def read_problems(path: Path) -> LeastSquaresProblems | LinearSystems:
    """The problems of an .npz file, in the precision of its arrays."""
    return problems_of(path, load_arrays(path, f"Write it {AGAIN}", f". Write it again {AGAIN}"))


def problems_in(path: Path, content: bytes) -> LeastSquaresProblems | LinearSystems:
    """The same of a file that has been read."""
    with _explained(path, "", f". Write it again {AGAIN}"):
        return problems_of(path, _arrays(io.BytesIO(content), len(content)))


def problems_of(name: Any, arrays: dict[str, np.ndarray]) -> LeastSquaresProblems | LinearSystems:
    """The problems that arrays with the names of such a file stand for. name: of what holds them."""
    arrays = _as_floats(name, arrays)
    names = set(arrays)
    if {"X", "y"} <= names <= {*ROWS, "ridge", "intercept", "rows"}:
        return _regressions(name, arrays)
    if names == {"A", "b"}:
        return LinearSystems(arrays["A"], arrays["b"])
    raise InputError(f"{name} holds {', '.join(sorted(names)) or 'nothing'}: it must hold {CONTENTS}.")


def _regressions(path: Any, arrays: dict[str, np.ndarray]) -> LeastSquaresProblems:
    given: dict[str, Any] = dict(arrays)
    lengths, intercept = given.pop("rows", None), given.pop("intercept", np.zeros(()))
    if intercept.shape != () or intercept not in (0, 1):
        raise InputError(f"intercept in {path} is {intercept}: pass 1 for one, 0 or nothing for none.")
    if lengths is not None:
        total = given["X"].shape[:1]
        whole = lengths.ndim == 1 and (lengths % 1 == 0).all() and (lengths > 0).all()
        if not whole or any((lengths.sum(),) != given[name].shape[:1] for name in ROWS if name in given):
            raise InputError(
                f"rows in {path} must be whole numbers above 0, one per problem, that add up to the rows of X, y and weights "
                f"(X has {total[0] if total else 0})."
            )
        ends = np.cumsum(lengths).astype(int)[:-1]
        given |= {name: np.split(given[name], ends) for name in ROWS if name in given}
    return LeastSquaresProblems(**given, intercept=bool(intercept))


def load_arrays(path: Path, missing: str, damaged: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file. missing, damaged: what an error adds."""
    with _explained(path, missing, damaged), path.open("rb") as file:
        return _arrays(file, path.stat().st_size)


@contextmanager
def _explained(path: Path, missing: str, damaged: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path} does not exist. {missing}") from None
    except Exception as error:  # zip, zlib and NumPy's parser raise a dozen kinds where a file is damaged
        why = f"{type(error).__name__}: {error}"
        raise InputError(f"{path} cannot be read as .npz ({why}){damaged}") from error


def _arrays(file: Any, size: int) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(file) as archive:
        return _members(archive, size)


def member(path: Path, name: str) -> np.ndarray:
    """One array of an .npz file, without the others."""
    with zipfile.ZipFile(path) as archive:
        return _array(archive, archive.getinfo(f"{name}.npy"))


def headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shapes and types of the arrays of an .npz file, which are not read."""
    with zipfile.ZipFile(path) as archive:
        found = {}
        for info in archive.infolist():
            with archive.open(info) as file:
                shape, _, dtype = _header(file)
            found[info.filename.removesuffix(".npy")] = shape, dtype
        return found


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether it lies by columns, and type."""
    return {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0}[read_magic(file)](file)


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, np.ndarray]:
    """Every member is an array, named once, and all together are no larger than the file can hold."""
    found: dict[str, np.ndarray] = {}
    most = max(UNPACKED, size * RATIO)
    if sum(info.file_size for info in archive.infolist()) > most:
        raise ValueError(f"unpacked it is larger than {most:,} bytes, the most for a file of {size:,}")
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name == info.filename or name in found:
            raise ValueError(f"the member {info.filename[:80]!r} is not an array, or is there twice")
        if info.comment:  # NumPy writes none: where its length is damaged, it swallows members that follow
            raise ValueError(f"the member {name[:80]!r} has a comment")
        try:
            found[name] = _array(archive, info)
        except Exception as error:
            raise ValueError(f"the member {name[:80]!r}: {type(error).__name__}: {error}") from error
    return found


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """One member. Its header says its size, which must be that of the member, before anything is unpacked."""
    with archive.open(info) as file:
        shape, by_columns, dtype = _header(file)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or any(n < 0 for n in shape) or size != info.file_size - file.tell():
            raise ValueError(f"{dtype} of shape {shape} does not fit its {info.file_size:,} bytes")
        content = file.read()  # to its end, where the checksum of the member is compared
    array = np.frombuffer(content, dtype) if content else np.zeros(0, dtype)
    return array.reshape(shape, order="F" if by_columns else "C").copy(order="K")


def _as_floats(path: Any, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for name, array in arrays.items():
        if array.dtype.kind in "iub":
            arrays[name] = array.astype(np.float64)
        elif array.dtype not in (np.float32, np.float64):
            raise InputError(
                f"{name} in {path} has dtype {array.dtype}: pass float32 or float64, the precision to work in."
            )
    return arrays


def write_solutions(path: Path, solution: Solution) -> None:
    """As one .npz file, with what `solution_arrays` names."""
    write_whole(path, as_npz(solution_arrays(solution)))


def solution_arrays(solution: Solution) -> dict[str, np.ndarray]:
    """w, status, steps and relative residuals, the intercept where there is one, and what each status means: the text meaning[i] belongs to the
    status meaning_of[i]."""
    if not jax.tree_util.treedef_is_leaf(jax.tree.structure(solution.value)):
        raise InputError(
            "these solutions are trees, and a file of solutions holds one array w. Have them in memory, or as a stream "
            "without a sink or with a function."
        )
    meaning = solution.meaning
    behind = {} if solution.intercept is None else {"intercept": np.asarray(solution.intercept)}
    return {
        "w": np.asarray(solution.value),
        "status": np.asarray(solution.status, np.int64),
        "steps": np.asarray(solution.steps, np.int64),
        "residuals": np.asarray(solution.residuals),
        **behind,
        "meaning_of": np.array(list(meaning), np.int64),
        "meaning": np.array(list(meaning.values())),
    }


def as_npz(arrays: dict[str, np.ndarray]) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    return content.getvalue()
