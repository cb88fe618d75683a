"""Checkpoints: one safetensors file with everything a fit needs to go on, and no pickle.

Tensors: `vectors` (runs, depths, numbers of the model), `rotations` (runs, d, d), and what the
optimiser keeps, as `extra.NAME`. The header's metadata has one entry, `lfom`, a JSON object:
format, version, licence, versions of the libraries, configuration, random state, position,
history, metrics, and the dtype and shape of every tensor. Nothing in it depends on the clock, so
the same training writes the same bytes.
"""

import importlib.metadata
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy

from lfom.core.checks import InputError
from lfom.core.files import write_whole
from lfom.core.methods import Method
from lfom.training.configuration import Configuration
from lfom.training.fitting import Fit
from lfom.training.state import State

FORMAT = "lfom checkpoint"
VERSION = 2
LICENCE = "CC0-1.0"
LARGEST_HEADER = 100_000_000  # bytes: safetensors' own limit
ANOTHER = "Pass a file that `lfom train` wrote."


@dataclass(frozen=True)
class Checkpoint:
    """A fit, finished or not. metrics: one row per depth, once it is finished."""

    configuration: Configuration
    state: State
    rotations: np.ndarray  # (runs, d, d)
    finished: bool = False
    metrics: tuple[dict[str, Any], ...] = ()
    licence: str = LICENCE
    versions: dict[str, str] = field(default_factory=lambda: versions())

    @property
    def fit(self) -> Fit:
        """The models as they stand, also in the middle of training."""
        data = self.configuration.distributions(self.rotations)
        phase = self.configuration.phases(data)[self.state.phase]
        return Fit(
            phase.parameters.template, self.configuration.depths, self.state.vectors, self.state.history, 0.0
        )


def versions() -> dict[str, str]:
    """The versions that decide whether a resumed fit gives the same bits."""
    try:
        own = importlib.metadata.version("lfom")
    except importlib.metadata.PackageNotFoundError:  # run from a source folder
        own = "source"
    return {"lfom": own, "jax": jax.__version__, "numpy": np.__version__}


def save(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint so that at any moment `path` holds the old file or the new one, whole."""
    write_whole(Path(path), _content(checkpoint))


def load(path: str | Path) -> Checkpoint:
    """Read a checkpoint. Whatever is wrong with the file is an InputError; the file is only read."""
    path = Path(path)
    content = _read(path)
    facts = _facts(path, _header(path, content))
    try:
        tensors = safetensors.numpy.load(content)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise InputError(f"{path} cannot be read as safetensors ({error}). {ANOTHER}") from error
    try:
        _match(path, tensors, facts["tensors"])
        position = facts["state"]
        state = State(
            position["phase"],
            position["level"],
            position["step"],
            tensors["vectors"],
            {name.removeprefix("extra."): v for name, v in tensors.items() if name.startswith("extra.")},
            tuple(facts["history"]),
        )
        return Checkpoint(
            Configuration.from_json(facts["configuration"]),
            state,
            tensors["rotations"],
            facts["finished"],
            tuple(facts["metrics"]),
            facts["licence"],
            facts["versions"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is a checkpoint of version {VERSION}, but a part of its header is missing or of the "
            f"wrong kind ({type(error).__name__}: {error}): it was changed after it was written. {ANOTHER}"
        ) from error


def load_model(path: str | Path, run: int = 0, depth: int | None = None) -> Method:
    """The trained model of one run and depth (by default the largest) in a checkpoint."""
    checkpoint = load(path)
    runs = len(checkpoint.state.vectors)
    if not 0 <= run < runs:
        raise InputError(f"run is {run}: {path} has the runs 0 to {runs - 1}.")
    return checkpoint.fit.model(run, depth)


def _content(checkpoint: Checkpoint) -> bytes:
    state = checkpoint.state
    tensors = {"vectors": state.vectors, "rotations": checkpoint.rotations}
    tensors |= {f"extra.{name}": values for name, values in state.extra.items()}
    tensors = {name: np.array(values, order="C") for name, values in tensors.items()}
    key = jax.random.key(checkpoint.configuration.seed)
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "licence": checkpoint.licence,
        "versions": checkpoint.versions,
        "configuration": checkpoint.configuration.to_json(),
        # Every pass's key is a function of the seed, the phase and the step: there is no other state.
        "random": {"seed": checkpoint.configuration.seed, "generator": str(jax.random.key_impl(key))},
        "dtype": str(state.vectors.dtype),
        "state": {"phase": state.phase, "level": int(state.level), "step": state.step},
        "history": list(state.history),
        "finished": checkpoint.finished,
        "metrics": list(checkpoint.metrics),
        "tensors": {name: [str(values.dtype), list(values.shape)] for name, values in tensors.items()},
    }
    return safetensors.numpy.save(tensors, {"lfom": json.dumps(facts, sort_keys=True, allow_nan=False)})


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist. Check the path; `lfom train --out FILE` writes one."
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}). {ANOTHER}") from error


def _header(path: Path, content: bytes) -> dict[str, Any]:
    """The JSON header of a safetensors file: 8 bytes of length, little endian, then the text;
    after it the tensors, at the offsets that it states."""
    if len(content) < 8:
        raise InputError(
            f"{path} has {len(content)} bytes, too few for a checkpoint: it is empty or truncated. "
            "Copy it again from where it came from, or train again."
        )
    size = int.from_bytes(content[:8], "little")
    if content[8:9] not in (b"{", b"") or size > LARGEST_HEADER:
        raise InputError(f"{path} is not a safetensors file: it does not begin with a header. {ANOTHER}")
    _long_enough(path, content, 8 + size)
    try:
        header = json.loads(content[8 : 8 + size])
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    except (ValueError, TypeError, AttributeError, LookupError):
        raise InputError(f"{path} is not a safetensors file: its header makes no sense. {ANOTHER}") from None
    _long_enough(path, content, 8 + size + max(ends, default=0))
    return header


def _long_enough(path: Path, content: bytes, needed: int) -> None:
    if len(content) < needed:
        raise InputError(
            f"{path} is truncated: it has {len(content):,} bytes and its header asks for {needed:,} or more. "
            "Copy it again from where it came from, or train again."
        )


def _facts(path: Path, header: dict[str, Any]) -> dict[str, Any]:
    """The JSON object of the metadata, if it is one of ours and not newer than this code."""
    try:
        facts = json.loads(header["__metadata__"]["lfom"])
        found, version = facts["format"], facts["version"]
    except (LookupError, TypeError, ValueError):
        raise InputError(
            f"{path} is a safetensors file of something else: its header has no lfom configuration. {ANOTHER}"
        ) from None
    if found != FORMAT or not isinstance(version, int):
        raise InputError(
            f"{path} says that it is {found!r} of version {version!r}, not {FORMAT!r}. {ANOTHER}"
        )
    if version > VERSION:
        writer = facts.get("versions", {}).get("lfom", "unknown version")
        raise InputError(
            f"{path} is a checkpoint of version {version}, and this lfom reads versions up to {VERSION}: it "
            f"was written by a newer lfom ({writer}). Install that one."
        )
    if version < VERSION:
        raise InputError(
            f"{path} is a checkpoint of version {version}, from before the first release, and this lfom reads "
            f"version {VERSION}. Train the model again with `lfom train`."
        )
    return facts


def _match(path: Path, tensors: dict[str, np.ndarray], wanted: dict[str, list[Any]]) -> None:
    """Every tensor that the header announces is there, with its dtype and shape."""
    missing = sorted(({"vectors", "rotations"} | set(wanted)) - set(tensors))
    if missing:
        raise InputError(
            f"{path} lacks the tensors {', '.join(missing)}: it was changed after it was written. {ANOTHER}"
        )
    for name, (dtype, shape) in wanted.items():
        found = tensors[name]
        if str(found.dtype) != dtype or list(found.shape) != shape:
            raise InputError(
                f"{path}: the tensor {name} is {found.dtype} of shape {list(found.shape)}, and the header "
                f"says {dtype} of shape {shape}: it was changed after it was written. {ANOTHER}"
            )
