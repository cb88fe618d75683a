"""Method files: one safetensors file with the tensors of a method and a JSON header; no pickle.

The header's metadata has one entry, `lfom`: format, version, licence, versions of the libraries, dtype,
kind and shape of the problems, structure, steps, record, certificate, and the shape of every tensor.
Nothing in it depends on the clock: the same learning writes the same bytes.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from lfom.core.checks import InputError
from lfom.report.files import write_whole
from lfom.solving.certificate import Certificate
from lfom.solving.method import Accuracy, LearnedMethod, Record
from lfom.solving.preconditioners import Diagonal, Full, Identity, LowRank, Shared, Transformed
from lfom.solving.solving import Plan
from lfom.solving.steps import Bank, Coefficients, Conjugate, Register
from lfom.solving.structures import Structure
from lfom.training.checkpoints import LICENCE, versions

FORMAT = "lfom method"
VERSION = 1
ANOTHER = "Pass a file that `lfom learn` or method.save wrote."


def save_method(path: str | Path, method: LearnedMethod) -> None:
    """Write a method so that at any moment `path` holds the old file or the new one, whole."""
    path = Path(path)
    try:
        write_whole(path, _content(method))
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); a file that was there before is unchanged. "
            "Free some space or choose another place."
        ) from error


def load_method(path: str | Path, dtype: Any = None) -> LearnedMethod:
    """Read a method. dtype: convert it to another precision; by default it stays as it was learned.

    Whatever is wrong with the file is an InputError; the file is only read.
    """
    path = Path(path)
    facts, tensors = _read(path)
    try:
        return _method(path, facts, tensors, dtype)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} is a method of version {VERSION}, but a part of it is missing or of the wrong kind "
            f"({type(error).__name__}: {error}): it was changed after it was written. {ANOTHER}"
        ) from error


def _content(method: LearnedMethod) -> bytes:
    plan = method.plan
    tensors = {"gauge": plan.gauge}
    tensors |= {f"coefficients.{n}": v for n, v in vars(plan.coefficients).items()}
    shared = {n: v for n, v in vars(plan.shared).items() if not isinstance(v, str)}
    if isinstance(plan.shared, Full):
        shared = {"base": plan.shared.base}  # the change is zero once learned
    tensors |= {f"preconditioner.{n}": v for n, v in shared.items()}
    arrays = {name: np.array(value, order="C") for name, value in tensors.items()}
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "licence": LICENCE,
        "versions": versions(),
        "dtype": str(method.dtype),
        "kind": method.kind,
        "shape": list(method.shape),
        "steps": method.steps,
        "structure": asdict(method.structure),
        "coefficients": type(plan.coefficients).__name__,
        "preconditioner": type(plan.shared).__name__,
        "certificate": None if method.certificate is None else asdict(method.certificate),
        "floor": method.floor,
        "record": asdict(method.record),
        "tensors": {name: [str(v.dtype), list(v.shape)] for name, v in arrays.items()},
    }
    return safetensors.numpy.save(arrays, {"lfom": json.dumps(facts, sort_keys=True, allow_nan=False)})


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


def _method(path: Path, facts: dict[str, Any], tensors: dict[str, np.ndarray], dtype: Any) -> LearnedMethod:
    for name, (kind, shape) in facts["tensors"].items():
        if name not in tensors or str(tensors[name].dtype) != kind or list(tensors[name].shape) != shape:
            raise InputError(f"{path}: the tensor {name} is missing or changed. {ANOTHER}")
        if not np.isfinite(tensors[name]).all():
            raise InputError(f"{path}: the tensor {name} holds NaN or infinity. {ANOTHER}")
    target = jnp.dtype(facts["dtype"] if dtype is None else dtype)
    if target == jnp.float64 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise InputError(
            f"{path} is a method of {facts['dtype']}, and JAX computes in float32 here. Enable float64 with "
            'jax.config.update("jax_enable_x64", True), or load it with dtype="float32".'
        )
    record: dict[str, Any] = dict(facts["record"])
    accuracy: Any = Accuracy(**_tuples(record["accuracy"]))
    record |= {"accuracy": accuracy, "warnings": tuple(record["warnings"])}
    certificate = facts["certificate"]
    if certificate is not None:
        certificate = Certificate(
            tuple(certificate["reach"]),
            tuple(certificate["seen"]),
            certificate["exact"],
            certificate["contraction"],
        )
    given = {name: jnp.asarray(value, target) for name, value in tensors.items()}
    structure = Structure(**facts["structure"])
    plan = Plan(
        _coefficients(facts["coefficients"], given),
        _shared(facts["preconditioner"], structure, given),
        given["gauge"],
        None if certificate is None else jnp.asarray(certificate.reach, target),
        structure.jacobi,
    )
    floor = facts["floor"] * float(jnp.finfo(target).eps / jnp.finfo(facts["dtype"]).eps)
    return LearnedMethod(
        structure,
        facts["kind"],
        tuple(facts["shape"]),
        facts["steps"],
        plan,
        certificate,
        floor,
        Record(**record),
    )


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _coefficients(name: str, tensors: dict[str, Any]) -> Coefficients:
    if name == "Register":
        return Register(tensors["coefficients.alpha"], tensors["coefficients.gamma"])
    if name == "Bank":
        return Bank(tensors["coefficients.gamma"])
    if name == "Conjugate":
        return Conjugate()
    raise KeyError(f"coefficients {name!r}")


def _shared(name: str, structure: Structure, tensors: dict[str, Any]) -> Shared:
    own = {
        n.removeprefix("preconditioner."): v for n, v in tensors.items() if n.startswith("preconditioner.")
    }
    if name == "Identity":
        return Identity()
    if name == "Diagonal":
        return Diagonal(**own)
    if name == "LowRank":
        return LowRank(**own)
    if name == "Transformed":
        return Transformed(own["logs"], structure.preconditioner)
    if name == "Full":
        return Full(own["base"], jnp.zeros_like(own["base"]))
    raise KeyError(f"preconditioner {name!r}")
