"""What a user's operator or loss closes over.

A program is compiled for a function once. Values that the function reads from outside are part of what it is: where they
change, it is compiled anew. Values that JAX is tracing may be read, and derivatives in them are refused, since `solve` would not
see them: data is where they belong.
"""

import functools
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax
import numpy as np

from lfom.core.checks import InputError

SMALL = 10_000  # numbers of an array that are compared; larger ones by identity


class Same:
    """An object as itself, whatever it holds."""

    def __init__(self, what: Any):
        self.what = what

    def __hash__(self) -> int:
        return id(self.what)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Same) and self.what is other.what  # == is asked of anything


def read_outside(function: Callable[..., Any]) -> Hashable:
    """All that a function reads which is no argument, in a form that is equal where nothing has changed."""
    return tuple(_read(function, set()))


def _read(value: Any, seen: set[int]) -> Iterator[Hashable]:
    if id(value) in seen:
        return
    if isinstance(value, int | float | complex | str | bytes | None):
        yield type(value), repr(value)
    elif isinstance(value, jax.core.Tracer):
        yield Same(value)
    elif isinstance(value, np.ndarray | jax.Array) and value.size <= SMALL and value.dtype != object:
        yield value.shape, str(value.dtype), np.asarray(value).tobytes()
    else:
        seen.add(id(value))
        parts = _parts(value)
        if parts is None:
            yield Same(value)
        for part in parts or ():
            yield from _read(part, seen)


def _parts(value: Any) -> list[Any] | None:
    """What it is made of, where that may change."""
    if isinstance(value, list | tuple):
        return [len(value), *value]
    if isinstance(value, dict):
        return [len(value), *value, *value.values()]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        named = [value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__]
        own = [one for one in named if not _from_elsewhere(one, value)]
        return [value.__code__, value.__defaults__, value.__kwdefaults__, *cells, *own]
    return None


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@functools.lru_cache(1_000)
def _names(code: types.CodeType) -> tuple[str, ...]:
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return (*code.co_names, *(name for one in inner for name in _names(one)))


def _from_elsewhere(value: Any, function: types.FunctionType) -> bool:
    """Modules, and functions and classes of other modules: libraries do not change."""
    if isinstance(value, types.ModuleType):
        return True
    return callable(value) and getattr(value, "__module__", None) != function.__module__


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _without_derivative(name: str, value: Any) -> Any:
    return value


@_without_derivative.defjvp
def _refuse(name: str, primals: Any, tangents: Any) -> Any:
    raise InputError(
        f"{name} closes over a value that is differentiated, and solve would take it for a constant. Pass it in data, with a "
        "leading axis of problems (jnp.broadcast_to for one that all share)."
    )


class Closed:
    """A function of arguments of one shape, with the values that it closes over held: nobody differentiates them."""

    def __init__(self, name: str, closed: Any, structure: Any):
        self.jaxpr, self.structure = closed.jaxpr, structure
        self.held = [
            _without_derivative(name, one) if isinstance(one, jax.core.Tracer) else one
            for one in closed.consts
        ]

    def __call__(self, *arguments: Any) -> Any:
        found = jax.core.eval_jaxpr(self.jaxpr, self.held, *jax.tree.leaves(arguments))
        return jax.tree.unflatten(self.structure, found)


def shape_of(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
    """What it does, as JAX writes it, and the shape of what it returns."""
    found: Any = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return found


def guarded(name: str, function: Callable[..., Any], closed: Any, shape: Any) -> Callable[..., Any]:
    """The function itself, unless it closes over values that JAX is tracing."""
    if not any(isinstance(one, jax.core.Tracer) for one in closed.consts):
        return function
    return Closed(name, closed, jax.tree.structure(shape))
