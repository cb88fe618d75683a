"""Input checks: each error names the argument, its value, the rule it breaks and a remedy."""

import difflib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core.arrays import as_array, default_dtype


class InputError(ValueError):
    """An argument breaks a rule; the message says which, why and what to do.

    >>> import lfom
    >>> try:
    ...     lfom.gradient_descent(0.5, steps=0)
    ... except lfom.InputError as error:
    ...     "steps" in str(error), isinstance(error, ValueError)
    (True, True)
    """


class SelfChecked:
    """A dataclass whose __check_init__ looks at its fields when one is made, as it does at one that comes from a file."""

    def __post_init__(self: Any) -> None:
        self.__check_init__()


def is_concrete(value: object) -> bool:
    """Whether values can be inspected (false for arrays inside jit, vmap or grad)."""
    return not isinstance(value, jax.core.Tracer)


def _floating_array(value: object) -> bool:
    """Whether it is one of JAX already, which stays where it lies."""
    return isinstance(value, Array) and bool(jnp.issubdtype(value.dtype, jnp.floating))


def _readable(name: str, value: object) -> np.ndarray:
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} cannot be read as one array ({error}): pass an array or a list of "
            "equally long lists of numbers."
        ) from None


def shown(value: object) -> str:
    """A value in a sentence: itself where that is short, else what it is.

    >>> shown(-1), shown("adam"), shown([0.0] * 100)
    ('-1', "'adam'", 'a list')
    """
    short = isinstance(value, int | float | complex | str | bytes | None) or (
        isinstance(value, list | tuple | dict) and len(value) < 6
    )
    text = repr(value) if short else ""
    kind = type(value).__name__ if not isinstance(value, type) else f"class {value.__name__}"
    return text if text and len(text) <= 80 else f"a{'n' * (kind[0] in 'aeiouAEIOU')} {kind}"


def instance(name: str, value: Any, kinds: Any, wanted: str) -> Any:
    """`value` if it is one of these kinds; else an error. wanted: what to pass, as the end of a sentence."""
    if isinstance(value, kinds):
        return value
    raise InputError(f"{name} is {shown(value)}: it must be {wanted}.")


def has(value: Any, *names: str) -> bool:
    """Whether it is no class, and has all of these."""
    return not isinstance(value, type) and all(hasattr(value, name) for name in names)


def random_key(name: str, value: Any) -> Any:
    """A random key of JAX, or one as it was written before (two numbers of uint32)."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if isinstance(value, Array) and ((typed and shape == ()) or (dtype == jnp.uint32 and shape == (2,))):
        return value
    seed = value if type(value) is int and 0 <= value < 2**32 else 0
    raise InputError(f"{name} is {shown(value)}: it must be one random key. Pass jax.random.key({seed}).")


def seed(name: str, value: object) -> int:
    """A whole number of at least 0 that fits in 32 bits."""
    if count(name, value, 0) >= 2**32:
        raise InputError(f"{name} is {value}: it must be below 2^32 = {2**32}. Pass a smaller number.")
    return int(value)  # type: ignore[call-overload]


def number(name: str, value: object) -> float:
    """One finite number, as a float."""
    if type(value) in (int, float) and math.isfinite(value):  # type: ignore[arg-type]
        return float(value)  # type: ignore[arg-type]
    return float(real_array(name, value, ()))


def flag(name: str, value: object) -> bool:
    """True or False."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise InputError(f"{name} is {shown(value)}: it must be True or False. Pass one of them.")


def function(name: str, value: Any, wanted: str) -> Any:
    """Something that can be called, or None. wanted: of what, as the end of a sentence."""
    if value is None or (callable(value) and not isinstance(value, type)):
        return value
    raise InputError(f"{name} is {shown(value)}: it must be {wanted}, or None.")


def precision(name: str, value: Any) -> Any:
    """A floating-point dtype that is computed in."""
    try:
        found = jnp.dtype(value)
    except TypeError:
        found = None
    if value is not None and found in (np.float32, np.float64):
        return found
    raise InputError(f"{name} is {shown(value)}: it must be float32 or float64. Pass 'float32', for example.")


def file_path(name: str, value: Any) -> Path:
    """The path of a file."""
    if isinstance(value, str | Path) and str(value) and "\0" not in str(value):
        return Path(value)
    raise InputError(
        f"{name} is {shown(value)}: it must be the path of a file. Pass a text or a pathlib.Path."
    )


def axes(name: str, value: object) -> int:
    """The number of axes of an array, or of lists in lists."""
    return value.ndim if isinstance(value, Array) else _readable(name, value).ndim


def real_array(
    name: str,
    value: object,
    shape: tuple[int | None, ...] | None = None,
    *,
    item: str | None = None,
    finite: bool = True,
) -> Array:
    """`value` as a floating-point array of the given shape, and finite unless told otherwise.

    Entries of `shape` that are None match any size of one or more. With `item`, the
    leading axis counts items of that name, and a bad one is named by its index.
    """
    if is_concrete(value) and not _floating_array(value):
        given_dtype = getattr(value, "dtype", None)
        if given_dtype is not None and not jnp.issubdtype(given_dtype, jnp.floating):
            raise InputError(
                f"{name} has dtype {given_dtype}: the computation needs real floating-point "
                f"numbers. Convert it first, for example with {name}.astype(float)."
            )
        values = _readable(name, value)
        if values.dtype.kind not in "fiu" and not jnp.issubdtype(values.dtype, jnp.floating):
            raise InputError(
                f"{name} has dtype {values.dtype}: the computation needs real floating-point numbers. "
                "Pass real numbers."
            )
        value = values if jnp.issubdtype(values.dtype, jnp.floating) else values.astype(float)
    array = as_array(value)  # from NumPy's array: nothing is compiled for it
    if not jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(float)
    if shape is not None:
        fits = array.ndim == len(shape) and all(
            size >= 1 if want is None else size == want for size, want in zip(array.shape, shape, strict=True)
        )
        if not fits:
            wanted = "(" + ", ".join("any" if s is None else str(s) for s in shape) + ")"
            raise InputError(
                f"{name} has shape {array.shape}, expected {wanted} with no empty axis. "
                "Check the order of the axes and that every axis has at least one entry."
            )
    if finite and is_concrete(array):
        good = np.isfinite(np.asarray(array))
        if not good.all():
            where = np.argwhere(~good)[0].tolist()
            which = f"{item} {where[0]}, entry {where[1:]}" if item else f"entry {where}"
            raise InputError(
                f"{name} holds {np.asarray(array)[tuple(where)]} at {which}: every value must be "
                "finite. Remove or repair it before solving."
            )
    return array


def as_brought(name: str, value: object, shape: tuple[int | None, ...] | None = None) -> Array:
    """A floating-point array in the precision in which it was brought; numbers of Python take JAX's. Entries may be NaN:
    solve gives such problems a status."""
    keeps_precision(name, value)
    return real_array(name, value, shape, finite=False)


def keeps_precision(name: str, value: object) -> None:
    """Refuse an array, or arrays in a list, that JAX would round without a word, or that has too few digits."""
    for one in value if isinstance(value, list | tuple) else [value]:
        dtype = getattr(one, "dtype", None)
        if dtype is None or getattr(one, "ndim", 0) == 0 or not jnp.issubdtype(dtype, jnp.floating):
            continue
        if dtype == np.float64 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            raise InputError(
                f"{name} is float64, and JAX computes in float32 here. Convert it with {name}.astype(numpy.float32), or "
                'enable float64 first with jax.config.update("jax_enable_x64", True).'
            )
        if dtype not in (np.float32, np.float64):
            raise InputError(
                f"{name} has dtype {dtype}: its digits are too few to solve anything with, and what is not float32 or "
                f"float64 is not rounded without a word. Convert it with {name}.astype(numpy.float32)."
            )


def arrays_in(name: str, value: Iterable[object]) -> list[Any]:
    """What a list holds, each as an array as it is; lists of numbers in it take JAX's precision."""
    found = list(value)
    keeps_precision(name, found)
    return [one if hasattr(one, "dtype") else _readable(name, one).astype(default_dtype()) for one in found]


def shape_of(size: object) -> tuple[Any, ...] | None:
    """The shape that a whole number or several stand for; None for anything else."""
    entries = tuple(size) if isinstance(size, tuple | list) else (size,)
    return entries if entries and all(isinstance(entry, int | np.integer) for entry in entries) else None


def are_groups(value: object) -> bool:
    """Whether it is a list of arrays with two axes, or of lists in lists."""
    listed = isinstance(value, list | tuple) and len(value) > 0
    return listed and all(axes("X", one) == 2 for one in value)  # type: ignore[attr-defined]


def positive(name: str, value: object, shape: tuple[int | None, ...] = ()) -> Array:
    """A finite array of the given shape with every entry above zero."""
    array = real_array(name, value, shape)
    if is_concrete(array) and not (np.asarray(array) > 0).all():
        raise InputError(
            f"{name} is {np.asarray(array).tolist()}: every entry must be greater than 0. "
            "Pass positive numbers; a direction without variance is left out of the problem."
        )
    return array


def above_zero(name: str, value: object) -> None:
    """The same of an option, without an array: JAX's backend sleeps until something is computed, also while lfom is imported."""
    if not (isinstance(value, int | float) and 0 < value < math.inf):
        positive(name, value)


def non_negative(name: str, value: object) -> Array:
    array = real_array(name, value, ())
    if is_concrete(array) and float(array) < 0:
        raise InputError(f"{name} is {float(array)}: it must be 0 or greater. Pass 0 for none.")
    return array


def count(name: str, value: object, minimum: int = 1) -> int:
    """A whole number, at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputError(
            f"{name} is {shown(value)}: it must be a whole number of at least {minimum}. Pass an int."
        )
    if value < minimum:
        raise InputError(f"{name} is {value}: it must be at least {minimum}. Pass {minimum} or more.")
    if value >= 2**63:
        raise InputError(f"{name} is beyond 64 bits: it must be below 2^63. Pass a smaller number.")
    return int(value)


def rotation(name: str, value: object, d: int) -> Array:
    """An orthogonal d x d matrix."""
    matrix = real_array(name, value, (d, d))
    if is_concrete(matrix):
        known = np.asarray(matrix)
        off = float(np.abs(known.T @ known - np.eye(d)).max())
        bound = 1e-10 if matrix.dtype == jnp.float64 else 1e-4
        if off > bound:
            raise InputError(
                f"{name} is not orthogonal: its transpose times itself differs from the identity "
                f"by {off:.2g} (allowed {bound:.0e}). Draw one with lfom.haar_rotation(key, d), or "
                "orthogonalise yours with numpy.linalg.qr."
            )
    return matrix


def symmetric(name: str, value: object) -> Array:
    """A square symmetric matrix."""
    matrix = real_array(name, value, (None, None))
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{name} has shape {matrix.shape}: it must be square. Pass a (d, d) matrix.")
    if is_concrete(matrix):
        known = np.asarray(matrix)
        off = float(np.abs(known - known.T).max())
        if off > 1e-5 * float(np.abs(known).max()):
            raise InputError(
                f"{name} is not symmetric: it differs from its transpose by {off:.2g}. "
                f"Pass ({name} + {name}.T) / 2 if that is what you mean."
            )
    return matrix


def definite(name: str, value: object) -> Array:
    """A symmetric matrix without negative eigenvalues, rounding aside."""
    matrix = symmetric(name, value)
    if is_concrete(matrix):
        ends = np.linalg.eigvalsh(np.asarray(matrix, np.float64))[[0, -1]]
        if ends[0] < -1e-5 * np.abs(ends).max():
            raise InputError(
                f"{name} is indefinite: its smallest eigenvalue is {ends[0]:.3g}. Pass a positive definite matrix; check its sign and "
                "how it was built."
            )
    return matrix


def size(name: str, array: Array, axis: int, wanted: int, of: str) -> None:
    """An axis of a method's parameter against the prompt it meets (the sizes are static)."""
    if array.shape[axis] != wanted:
        raise InputError(
            f"{name} has {array.shape[axis]} entries on axis {axis} of {array.shape}, but the prompt has "
            f"{of} = {wanted}. Build the method for that size, or pass prompts that fit it."
        )


def probabilities(name: str, value: object) -> Array:
    array = real_array(name, value, (None,))
    if is_concrete(array):
        values = np.asarray(array, dtype=float)
        if (values < 0).any() or abs(values.sum() - 1) > 1e-5:
            raise InputError(
                f"{name} is {values.tolist()} with sum {values.sum():.6g}: the entries must be 0 "
                "or greater and sum to 1. Divide them by their sum."
            )
    return array


FEW = 6  # names that are all told, beside the nearest


def known(name: str, value: Any, choices: Iterable[str]) -> str:
    """`value` if it is one of `choices`; otherwise an error with the nearest names."""
    options = list(choices)
    if isinstance(value, str) and value in options:
        return value
    if not isinstance(value, str):
        raise InputError(f"{name} is {shown(value)}: it must be a text. Pass one of {', '.join(options)}.")
    near = difflib.get_close_matches(str(value), options, n=3, cutoff=0.4)
    meant, every = f"Did you mean {' or '.join(near)}?", f"Known: {', '.join(options)}."
    hint = every if not near else meant if len(options) > FEW else f"{meant} {every}"
    raise InputError(f"unknown {name} {value!r}. {hint}")
