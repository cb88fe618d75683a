"""lfom.save and lfom.load: models, checkpoints and learned methods in one format (see lfom.core.archive)."""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lfom.adaptation import PerPrompt
from lfom.core import (
    archive,
    checks,
    coefficients,
    kernels,
    links,
    memories,
    methods,
    preconditioners,
    readers,
)
from lfom.core.archive import LICENCE, Refused, damaged
from lfom.core.checks import InputError
from lfom.core.content import built, described, same_name
from lfom.core.files import write_whole
from lfom.core.methods import Algorithm
from lfom.core.parameters import check_layers
from lfom.core.runs import PerRun
from lfom.limits.optimum import Horner, Optimum
from lfom.limits.posterior import PosteriorMean
from lfom.methods import newton
from lfom.prompts import directions, distributions, functions, generalised, lengths, queries, shifts
from lfom.solving.certificate import Certificate
from lfom.solving.kinds import Kind
from lfom.solving.records import Accuracy, Bound, Record
from lfom.solving.structures import Structure
from lfom.training import Adam, Fit, LeastSquares, State
from lfom.training.checkpoints import Checkpoint

FIRST = 1 << 16  # bytes that are read before it is known that a file is one of ours
MOST_LAYERS = 100_000  # of a method none of whose arrays counts layers
MODULES = (
    coefficients,
    kernels,
    links,
    memories,
    methods,
    preconditioners,
    readers,
    newton,
    directions,
    distributions,
    functions,
    lengths,
    queries,
    generalised,
    shifts,
)
OTHERS = (PerRun, Optimum, Horner, PosteriorMean, PerPrompt, Adam, LeastSquares, State, Fit, Checkpoint, Certificate, Kind, Accuracy, Bound, Record, Structure)  # fmt: skip
LEARNED: dict[str, Any] = {
    "structure": Structure, "kind": Kind, "record": Record, "certificate": Certificate | None, "bound": Bound | None,
}  # fmt: skip  # the core, which declares the fields, does not know these classes
OWN = (x for m in MODULES for x in vars(m).values() if isinstance(x, type) and x.__module__ == m.__name__)
CLASSES: dict[str, type] = {x.__name__: x for x in (*OTHERS, *OWN) if dataclasses.is_dataclass(x)}


def save(path: str | Path, thing: Any, *, force: bool = False, licence: str = LICENCE) -> None:
    """Write a model, what `fit` or `learn` returned, or anything made of classes with fields, as one file.

    At any moment `path` holds the old file or the new one, whole; an existing file is replaced with
    force=True only. licence: of the file, as an SPDX name.

    >>> from pathlib import Path
    >>> import tempfile
    >>> import lfom
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "method.safetensors")
    ...     lfom.save(path, lfom.momentum(0.5, 0.9, steps=2))
    ...     lfom.load(path).depth
    2
    """
    path = checks.file_path("path", path)
    checks.flag("force", force)
    checks.instance("licence", licence, str, "the SPDX name of a licence, as a text")
    if path.exists() and not force:
        raise InputError(f"{path} exists. Pass force=True to replace it, or another name.")
    write_whole(path, as_bytes(thing, str(path), licence))


def as_bytes(thing: Any, name: str, licence: str = LICENCE) -> bytes:
    """What `save` writes. name: of where it goes, for errors."""
    tensors: dict[str, np.ndarray] = {}
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        raise InputError(
            f"what should go to {name} is a {type(thing).__name__}: pass a model, what fit or learn returned, or another "
            "object of a class with fields."
        )
    content = described(thing, type(thing).__name__, tensors, dict(CLASSES))
    facts = {"what": type(thing).__name__, "licence": licence, "versions": archive.versions()}
    wrong = _unsound(thing)
    if wrong is not None:
        raise InputError(f"{wrong}: {name} is not written. Repair it before it is saved.")
    try:
        return archive.packed({**facts, "content": content}, tensors)
    except Refused as error:
        raise InputError(f"what should go to {name} {error}") from None


def load(path: str | Path, *, types: Iterable[type] = (), dtype: Any = None) -> Any:
    """Read what `save`, `lfom train` or `lfom learn` wrote. Nothing in a file can run code.

    types: your own classes that are in it. dtype: convert a method to another precision; by default it stays as
    it was saved. Whatever is wrong with the file is an InputError.

    >>> import pathlib, tempfile
    >>> import lfom
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "method.safetensors")
    ...     lfom.save(path, lfom.gradient_descent(0.5, steps=2))
    ...     lfom.load(path).memory.eta.tolist()
    [0.5, 0.5]
    """
    return read(path, types, dtype)[0]


def read(path: str | Path, types: Iterable[type] = (), dtype: Any = None) -> tuple[Any, dict[str, Any]]:
    """What `load` returns, and the facts of the file: what, licence, versions."""
    path = checks.file_path("path", path)
    if dtype is not None:
        dtype = checks.precision("dtype", dtype)
    try:
        content = _bytes(path)
    except Refused as error:
        raise InputError(f"{path} {error}") from error
    return of_bytes(content, str(path), types, dtype)


def of_bytes(
    content: bytes, name: str, types: Iterable[type] = (), dtype: Any = None
) -> tuple[Any, dict[str, Any]]:
    """The same of a file that has been read. name: of where it was, for errors."""
    known = _with_types(types)
    exact = jax.config.jax_enable_x64 or (dtype is not None and jnp.dtype(dtype) != jnp.float64)  # type: ignore[attr-defined]
    try:
        facts, tensors = archive.unpacked(content)
        with jax.enable_x64(exact):
            thing = built(facts.pop("content"), tensors, known)
            wrong = f"arrays belong to nothing: {', '.join(tensors)[:200]}" if tensors else _unsound(thing)
            if wrong or type(thing).__name__ != facts["what"] or not dataclasses.is_dataclass(thing):
                raise damaged(wrong or f"it says that it is a {facts['what'][:80]}, and is none")
            if dtype is None:
                return thing, facts
            if not isinstance(thing, Algorithm):  # whatever a user saved
                raise Refused(
                    f"is a {facts['what']}, and dtype converts methods only: load it without dtype."
                )
            return thing.astype(dtype), facts
    except Refused as error:
        raise InputError(f"{name} {error}") from error


def _with_types(types: Iterable[type]) -> dict[str, type]:
    """Our classes and a user's, by name."""
    known = dict(CLASSES)
    wanted = "a class or a list of classes with fields, such as dataclasses"
    checks.instance("types", types, type | list | tuple | set | frozenset, wanted)
    for one in [types] if isinstance(types, type) else types:
        if not isinstance(one, type) or not dataclasses.is_dataclass(one):
            raise InputError(f"types holds {one!r}: pass classes with fields, such as dataclasses.")
        if known.setdefault(one.__name__, one) is not one:
            raise InputError(f"types: {same_name(one, known)}")
    return known


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            begin = file.read(FIRST)
            archive.begins_well(begin)
            return begin + file.read()
    except FileNotFoundError:
        raise Refused(
            "does not exist. Check the path; lfom.save, lfom train and lfom learn write files."
        ) from None
    except OSError as error:
        raise Refused(f"cannot be read ({error.strerror}). Pass a file that lfom wrote.") from error


def _unsound(thing: Any) -> str | None:
    """What is wrong with the methods in it: numbers that are none, or more layers than they have numbers for."""
    for method, arrays in _methods(thing):
        name = type(method).__name__
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(arrays) if eqx.is_array_like(leaf)):
            return f"an array of its {name} holds NaN or infinity"
        try:
            depth = checks.count("depth", method.depth)
            check_layers(method, depth)
            for field, kind in LEARNED.items() if (known := method.facts) is not None else ():
                checks.instance(field, getattr(known, field), kind, "what `lfom.learn` knows")
        except Exception as error:  # of a user's class, or of parts that do not fit together
            return f"its {name} makes no sense ({type(error).__name__}: {error})"
        if depth > MOST_LAYERS:
            return f"its {name} has {depth:,} layers, and at most {MOST_LAYERS:,} are saved"
    return None


def _methods(thing: Any) -> Iterator[tuple[Algorithm, Any]]:
    """Every method in it, and where its arrays are; of several runs the first, since all have the same shapes."""
    if isinstance(thing, Algorithm):  # what a user saves, or what was in a file
        yield thing, thing
    if isinstance(thing, PerRun):  # its arrays are those of all runs
        for method, _ in _methods(thing[0] if thing.runs else thing.stacked):
            yield method, thing
    elif dataclasses.is_dataclass(thing):
        for field in dataclasses.fields(thing):
            yield from _methods(getattr(thing, field.name))
    elif isinstance(thing, list | tuple):
        for one in thing:
            yield from _methods(one)
