"""One of something per run: models, distributions and prompts alike.

`PerRun([one, another])`, or a plain list wherever runs are expected. All are of one class with arrays of the
same shapes, so that they are one tree with runs on the leading axis of every array (and their number beside it, where
there is none). Stacking and taking apart
is done on the host: nothing is compiled for it.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from lfom.core import checks
from lfom.core.arrays import as_array
from lfom.core.checks import InputError, has, shown
from lfom.core.parameters import outline, shapes


def _on_arrays(work: Callable[..., np.ndarray], items: Sequence[Any]) -> Any:
    def one(*leaves: Any) -> Any:
        if not eqx.is_array(leaves[0]):
            return leaves[0]
        found = as_array(work(*map(_plain, leaves)))
        return (
            jax.random.wrap_key_data(found, impl=jax.random.key_impl(leaves[0]))
            if _is_key(leaves[0])
            else found
        )

    return jax.tree.map(one, *items)


def _is_key(array: Any) -> bool:
    """Whether it holds random keys of JAX."""
    return bool(jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key))


def _plain(array: Any) -> np.ndarray:
    """On the host; random keys as the numbers that they are made of."""
    return np.asarray(jax.random.key_data(array) if _is_key(array) else array)


def stack(items: Sequence[Any], axis: int = 0) -> Any:
    """One tree with a new axis."""
    return _on_arrays(lambda *arrays: np.stack(arrays, axis), items)


def concatenate(items: Sequence[Any]) -> Any:
    """One tree with all runs of these."""
    return _on_arrays(lambda *arrays: np.concatenate(arrays), items)


def take(tree: Any, index: Any) -> Any:
    """Some entries of the leading axis; with ... all of them, and arrays of NumPy become JAX's."""
    return _on_arrays(lambda array: array[index], [tree])


def fingerprint(tree: Any) -> Hashable:
    """What differs wherever the class, the options or the numbers of something differ. Two classes of one name are two:
    that of a notebook's cell that was run again, for one."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(map(_known_by, leaves))


def _known_by(leaf: Any) -> Hashable:
    """What tells it from others: of an array a checksum. A function, or whatever else is no number, is itself."""
    if eqx.is_array(leaf) or isinstance(leaf, np.ndarray | np.generic):
        known = _plain(leaf)
        return known.shape, str(leaf.dtype), hashlib.sha256(known.tobytes()).digest()
    if isinstance(leaf, Hashable) and not isinstance(leaf, int | float | complex):
        return leaf
    return type(leaf), repr(leaf)  # 1, 1.0 and True are equal


class PerRun(eqx.Module):
    """One model, distribution or set of prompts per run.

    >>> from lfom import PerRun, gradient_descent
    >>> sizes = PerRun([gradient_descent(eta, steps=2) for eta in (0.1, 0.2, 0.3)])
    >>> sizes.runs, sizes[1].memory.eta.tolist() == sizes.stacked.memory.eta[1].tolist()
    (3, True)
    """

    def __repr__(self) -> str:
        runs = "any number of runs" if self.runs is None else f"{self.runs} run{'s' * (self.runs > 1)}"
        return f"PerRun({runs} of {type(self.stacked).__name__})"

    stacked: Any
    count: int | None = eqx.field(static=True, default=None)  # of runs, where no array tells it

    def __init__(self, items: Any, count: int | None = None):
        if not isinstance(items, list | tuple | eqx.Module) and not _numbers(items):
            raise InputError(
                f"items is {shown(items)}: it must be a list with one model, distribution or batch per run."
            )
        if count is not None:
            checks.count("count", count)
        listed = isinstance(items, list | tuple)
        if listed and count not in (None, len(items)):
            raise InputError(f"count is {count}, and the list has {len(items)} runs: leave count out.")
        if not listed:
            _check_stacked(items)
        self.stacked = stack(_alike(items)) if listed else items
        self.count = None if _arrays(self.stacked) else len(items) if listed else count

    @property
    def runs(self) -> int | None:
        """How many; None for something without arrays that was not handed over as a list."""
        arrays = _arrays(self.stacked)
        return int(arrays[0].shape[0]) if arrays else self.count

    def __getitem__(self, run: Any) -> Any:
        """One run's; or, for a slice, those runs'."""
        some = range(self.runs or 1)[run]  # refuses a run that is not there
        found = take(self.stacked, run)
        return PerRun(found, len(some)) if isinstance(some, range) else found

    def each(self) -> list[Any]:
        return [self[run] for run in range(self.runs or 1)]

    def map(self, work: Callable[[Any], Any]) -> "PerRun":
        """work(one) of every run, in one vmapped call."""
        return PerRun(jax.vmap(work, axis_size=self.runs)(self.stacked), self.runs)


def _arrays(tree: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree) if eqx.is_array(leaf)]


def _numbers(tree: Any) -> bool:
    """Whether it is made of arrays."""
    leaves = jax.tree.leaves(tree)
    return bool(leaves) and all(np.dtype(getattr(leaf, "dtype", "U1")).kind not in "USO" for leaf in leaves)


def joined(groups: Sequence[PerRun]) -> PerRun:
    """All runs of these, one group after the other."""
    return PerRun(concatenate([group.stacked for group in groups]), sum(group.runs or 0 for group in groups))


def _check_stacked(tree: Any) -> None:
    """What is no list has runs on the leading axis of every array."""
    sizes = {array.shape[:1] for array in _arrays(tree)}
    alone = any(leaf.kind is not None and leaf.array.ndim == len(leaf.axes) for leaf in shapes(tree))
    if alone or len(sizes) > 1 or () in sizes:
        raise InputError(
            f"items is {shown(tree)}, a single one: pass a list with one model, distribution or batch per run. What "
            "is shared by all runs needs no PerRun."
        )


def _alike(items: Sequence[Any]) -> list[Any]:
    if not items:
        raise InputError("the list of runs is empty: pass at least one.")
    if not all(
        _arrays(item) or not jax.tree_util.treedef_is_leaf(jax.tree.structure(item)) for item in items
    ):
        return list(items)  # no model, distribution or batch: who asked for these says so
    # What is only known of each may differ: they are run without it.
    if any(outline(item) != outline(items[0]) for item in items):
        # methods and optima share no class, and data have no algorithm
        items = [item.as_algorithm() if has(item, "as_algorithm") else item for item in items]
    for run, item in enumerate(items):
        if outline(item) != outline(items[0]):
            raise InputError(
                f"run {run} differs from run 0 {_difference(item, items[0]) or 'in its class'}: all runs must "
                "be alike, since they are computed together. Call once for each kind."
            )
    return list(items)


def _difference(item: Any, first: Any, name: str = "") -> str | None:
    """In what they differ, as the end of a sentence; None where they do not."""
    if eqx.is_array(item) and eqx.is_array(first):
        if item.shape != first.shape:
            return f"in the shape of {name}, {item.shape} instead of {first.shape}"
        return None if item.dtype == first.dtype else f"in {name}, {item.dtype} instead of {first.dtype}"
    if type(item) is not type(first):
        return f"in {name or 'its class'}, {type(item).__name__} instead of {type(first).__name__}"
    if dataclasses.is_dataclass(item):
        inner = {
            field.name: (getattr(item, field.name), getattr(first, field.name))
            for field in dataclasses.fields(item)
        }
    elif isinstance(item, list | tuple) and len(item) == len(first):
        inner = {str(place): pair for place, pair in enumerate(zip(item, first, strict=True))}
    else:
        return (
            None if item is first or item == first else f"in {name}, {shown(item)} instead of {shown(first)}"
        )
    each = (_difference(*pair, f"{name}.{part}".lstrip(".")) for part, pair in inner.items())
    return next((found for found in each if found), None)


def by_run(thing: Any) -> PerRun | None:
    """PerRun of a PerRun or a list; None for a single thing, which all runs share."""
    if isinstance(thing, list | tuple):
        return PerRun(thing)
    return thing if isinstance(thing, PerRun) else None  # whatever a user hands over, arrays included


def each_run(thing: Any, runs: int = 1) -> list[Any]:
    """What every run has; a single thing is that of all."""
    several = by_run(thing)
    return [thing] * runs if several is None else several.each()


def common_runs(**things: Any) -> int:
    """The number of runs of several arguments, by name; what is not PerRun is shared by all. At least 1."""
    counts = {
        name: found.runs
        for name, thing in things.items()
        if (found := by_run(thing)) is not None and found.runs
    }
    if len(set(counts.values())) > 1:
        told = " and ".join(f"{name} {count}" for name, count in counts.items())
        raise InputError(f"{told} runs: give one of each for every run, or a single one for all.")
    return next(iter(counts.values()), 1)
