"""Method files: one safetensors file with the arrays of a method and a JSON header; no pickle.

The header's metadata has one entry, `lfom`: format, version, licence, versions of the libraries, the method
as a tree of the names of its classes and their fields, and the shape of every array. Only classes of this
library are written and read. Nothing in the file depends on the clock: the same learning writes the same
bytes.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from lfom.core import coefficients, memories, methods, preconditioners, readers
from lfom.core.checks import InputError
from lfom.core.files import write_whole
from lfom.core.methods import Algorithm
from lfom.solving.certificate import Certificate
from lfom.solving.kinds import Kind
from lfom.solving.records import Accuracy, Record
from lfom.solving.structures import Structure
from lfom.training.checkpoints import LICENCE, versions

FORMAT = "lfom method"
VERSION = 2
ANOTHER = "Pass a file that `lfom learn` or method.save wrote."
CLASSES: dict[str, Any] = {
    found.__name__: found
    for found in (
        *(x for m in (coefficients, memories, methods, preconditioners, readers) for x in vars(m).values()),
        *(Certificate, Kind, Accuracy, Record, Structure),
    )
    if isinstance(found, type) and found.__module__.startswith("lfom.") and dataclasses.is_dataclass(found)
}


def save_method(path: str | Path, method: Algorithm) -> None:
    """Write a method so that at any moment `path` holds the old file or the new one, whole."""
    arrays: dict[str, np.ndarray] = {}
    tree = _described(method, "method", arrays)
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "licence": LICENCE,
        "versions": versions(),
        "dtype": None if method.dtype is None else str(method.dtype),
        "method": tree,
        "tensors": {name: [str(v.dtype), list(v.shape)] for name, v in arrays.items()},
    }
    header = {"lfom": json.dumps(facts, sort_keys=True, allow_nan=False)}
    write_whole(Path(path), safetensors.numpy.save(arrays, header))


def _described(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """A value as JSON; its arrays go into `arrays` by their place in the tree."""
    if eqx.is_array(value):
        arrays[name] = np.array(value, order="C")
        return {"array": name}
    if dataclasses.is_dataclass(value) and CLASSES.get(type(value).__name__) is type(value):
        fields = {
            f.name: _described(getattr(value, f.name), f"{name}.{f.name}", arrays)
            for f in dataclasses.fields(value)
        }
        return {"class": type(value).__name__, "fields": fields}
    if isinstance(value, tuple):
        return [_described(one, f"{name}.{k}", arrays) for k, one in enumerate(value)]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise InputError(
        f"{name} is a {type(value).__name__}, which is not a class of this library: no file could be read back. "
        "Save its arrays yourself, for example with safetensors."
    )


def load_method(path: str | Path, dtype: Any = None) -> Any:
    """Read a method. dtype: convert it to another precision; by default it stays as it was saved.

    Whatever is wrong with the file is an InputError; the file is only read.
    """
    path = Path(path)
    facts, tensors = _read(path)
    try:
        return _method(path, facts, tensors, dtype)
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"{path} is a method of version {VERSION}, but a part of it is missing or of the wrong kind "
            f"({type(error).__name__}: {error}): it was changed after it was written. {ANOTHER}"
        ) from error


def _method(path: Path, facts: dict[str, Any], tensors: dict[str, np.ndarray], dtype: Any) -> Any:
    for name, (kind, shape) in facts["tensors"].items():
        if name not in tensors or str(tensors[name].dtype) != kind or list(tensors[name].shape) != shape:
            raise InputError(f"{path}: the tensor {name} is missing or changed. {ANOTHER}")
        if not np.isfinite(tensors[name]).all():
            raise InputError(f"{path}: the tensor {name} holds NaN or infinity. {ANOTHER}")
    double = facts["dtype"] == "float64" and not jax.config.jax_enable_x64  # type: ignore[attr-defined]
    if double and (dtype is None or jnp.dtype(dtype) == jnp.float64):
        raise InputError(
            f"{path} is a method of {facts['dtype']}, and JAX computes in float32 here. Enable float64 with "
            'jax.config.update("jax_enable_x64", True), or load it with dtype="float32".'
        )
    with jax.enable_x64(True):
        method = _built(facts["method"], tensors)
        if not isinstance(method, Algorithm):  # the file is a user's argument
            raise TypeError(f"a method is a {type(method).__name__}")
        return method if dtype is None else method.astype(dtype)


def _built(content: Any, tensors: dict[str, np.ndarray]) -> Any:
    if isinstance(content, list):
        return tuple(_built(one, tensors) for one in content)
    if not isinstance(content, dict):
        return content
    if "array" in content:
        return jnp.asarray(tensors[content["array"]])
    return CLASSES[content["class"]](**{n: _built(value, tensors) for n, value in content["fields"].items()})


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist. Check the path; `lfom learn --out FILE` writes one."
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}). {ANOTHER}") from error
    try:
        tensors = safetensors.numpy.load(content)
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
    except Exception as error:  # safetensors raises its own and those of NumPy
        raise InputError(
            f"{path} is damaged, truncated or not a safetensors file ({error}). {ANOTHER}"
        ) from error
    try:
        facts = json.loads(header["__metadata__"]["lfom"])
        found, version = facts["format"], facts["version"]
    except (LookupError, TypeError, ValueError):
        raise InputError(f"{path} is a safetensors file of something else. {ANOTHER}") from None
    if found != FORMAT:
        raise InputError(f"{path} is a {found!r}, not a {FORMAT!r}. {ANOTHER}")
    if version != VERSION:
        writer = facts.get("versions", {}).get("lfom", "unknown")
        raise InputError(
            f"{path} is a method of version {version!r}, written by lfom {writer}; this lfom reads version "
            f"{VERSION}. Learn it again, or use that lfom."
        )
    return facts, tensors
