"""What is saved, as values of JSON and named arrays, and back.

An object is the name of its class and its fields; a list is a list, and everything else that JSON does not tell
apart is an object with one key: tuple, dict, array (of JAX), numpy, float (nan, inf, -inf). Going back, no
constructor runs: fields are checked against what the class declares, and set.
"""

import dataclasses
import functools
import inspect
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from lfom.core.archive import NAMES, Refused, damaged
from lfom.core.arrays import as_array
from lfom.core.checks import InputError

DEEPEST = 64  # objects in objects
LARGEST = 1 << 53  # whole numbers
PLAIN = (int, float, bool, str, types.NoneType)


def described(value: Any, name: str, tensors: dict[str, np.ndarray], classes: dict[str, type]) -> Any:
    """A value as JSON. Its arrays go into `tensors` by their place, its classes into `classes` by name."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, int) and abs(value) > LARGEST:
        raise InputError(f"{name} is {value}: whole numbers above 2^53 cannot be saved. Keep it in an array.")
    if isinstance(value, PLAIN):
        return value

    def inner(one: Any, key: Any) -> Any:
        return described(one, f"{name}.{key}", tensors, classes)

    if type(value) is list:
        return [inner(one, k) for k, one in enumerate(value)]
    if type(value) is tuple:
        return {"tuple": [inner(one, k) for k, one in enumerate(value)]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: inner(one, key) for key, one in value.items()}}
    if isinstance(value, jax.Array | np.ndarray) and str(value.dtype) in NAMES:
        tensors[name] = np.array(value, order="C")
        return {"array" if isinstance(value, jax.Array) else "numpy": name}
    kind = type(value)
    if not dataclasses.is_dataclass(kind):
        raise InputError(
            f"{name} is a {kind.__name__}, which no file can hold: only classes with fields (dataclasses and "
            "Equinox modules), arrays of numbers, and plain values can be saved."
        )
    if classes.setdefault(kind.__name__, kind) is not kind:
        raise InputError(f"{name}: {same_name(kind, classes)}")
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    wrong = _misfit(kind, fields)
    if wrong is not None:
        raise InputError(f"{name}: {wrong}. It could not be read back; set it to what its class declares.")
    return {"class": kind.__name__, "fields": {key: inner(one, key) for key, one in fields.items()}}


def same_name(kind: type, classes: Mapping[str, type]) -> str:
    other = f"there is another class {kind.__name__} of {classes[kind.__name__].__module__}"
    return f"{other} than that of {kind.__module__}, and files know classes by their names. Rename yours."


def built(tree: Any, tensors: dict[str, np.ndarray], classes: Mapping[str, type], depth: int = 0) -> Any:
    """The value that was described so. Every array is taken out of `tensors`: none is there twice."""
    if depth > DEEPEST:
        raise damaged(f"its content is nested more than {DEEPEST} deep")

    def inner(one: Any) -> Any:
        return built(one, tensors, classes, depth + 1)

    match tree:
        case None | bool() | str():
            return tree
        case int() if abs(tree) <= LARGEST:
            return tree
        case float() if math.isfinite(tree):
            return tree
        case list():
            return [inner(one) for one in tree]
        case {"tuple": list(items), **rest} if not rest:
            return tuple(inner(one) for one in items)
        case {"dict": dict(items), **rest} if not rest:
            return {key: inner(one) for key, one in items.items()}
        case {"float": "nan" | "inf" | "-inf" as number, **rest} if not rest:
            return float(number)
        case {"array": str(name), **rest} if not rest and name in tensors:
            return _for_jax(tensors.pop(name))
        case {"numpy": str(name), **rest} if not rest and name in tensors:
            return tensors.pop(name)
        case {"class": str(name), "fields": dict(fields), **rest} if not rest:
            return _object(name, {key: inner(one) for key, one in fields.items()}, classes)
    raise damaged("a value of its content is none that is ever written")


def _for_jax(array: np.ndarray) -> jax.Array:
    found = as_array(array)
    if found.dtype != array.dtype:
        raise Refused(
            f"holds numbers of {array.dtype}, and JAX computes in {found.dtype} here. Enable float64 with "
            'jax.config.update("jax_enable_x64", True), or load a method with dtype="float32".'
        )
    return found


def _object(name: str, fields: dict[str, Any], classes: Mapping[str, type]) -> Any:
    kind: Any = classes.get(name)
    if kind is None or inspect.isabstract(kind):
        what = f"holds a {name[:80]}, which is no class of this library that can be saved"
        raise Refused(f"{what}. If it is yours, pass types=[...], or --with mine.py on the command line.")
    declared = dataclasses.fields(kind)
    wanted = [field.name for field in declared]
    # a file may be older than a field, which then has its default
    fields = {f.name: f.default for f in declared if f.default is not dataclasses.MISSING} | fields
    if set(fields) != set(wanted):
        told = ", ".join(sorted(set(fields) ^ set(wanted)))[:200]
        raise damaged(f"a {name} has the fields {', '.join(wanted) or 'none'}, and here these differ: {told}")
    wrong = _misfit(kind, fields)
    if wrong is not None:
        raise damaged(wrong)
    made = object.__new__(kind)
    for key in wanted:
        object.__setattr__(made, key, fields[key])
    try:
        for check in [
            vars(base)["__check_init__"] for base in kind.__mro__ if "__check_init__" in vars(base)
        ]:
            check(made)
    except Exception as error:  # it was written for values that the constructor had seen
        raise damaged(f"a {name} is refused by its class ({type(error).__name__}: {error})") from error
    return made


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except Exception:  # a user's annotation may be anything; then nothing is known of its fields
        return {}


def _misfit(kind: type, fields: dict[str, Any]) -> str | None:
    """What is wrong with the first field that is not what its annotation says, where that is plain enough."""
    for key, value in fields.items():
        said = _hints(kind).get(key, Any)
        if not _fits(value, said):
            told = said.__name__ if isinstance(said, type) else said
            return f"{key} of a {kind.__name__} is a {type(value).__name__}, and not {told}"
    return None


def _fits(value: Any, said: Any) -> bool:
    if said is Any:
        return True
    outer, inside = typing.get_origin(said), typing.get_args(said)
    value = value.item() if isinstance(value, np.generic) else value
    if outer in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in inside)
    if outer in (tuple, list, dict):
        if type(value) is not outer:
            return False
        each = list(value.values() if outer is dict else value)
        wanted = (
            inside if outer is tuple and inside[-1] is not ... else inside[-(outer is dict) :][:1] * len(each)
        )
        return len(each) == len(wanted) and all(map(_fits, each, wanted))
    if said is None or said in PLAIN:
        return type(value) in {float: (float, int)}.get(said, (said or types.NoneType,))
    if said in (jax.Array, np.ndarray) or getattr(said, "array_type", None) is not None:
        return isinstance(value, jax.Array | np.ndarray)  # whatever its shape: runs may be a leading axis
    asks = isinstance(said, type) and not getattr(said, "_is_protocol", False)
    return not asks or isinstance(value, said)
