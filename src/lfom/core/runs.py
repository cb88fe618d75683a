"""One of something per run: models, distributions and prompts alike.

`PerRun([one, another])`, or a plain list wherever runs are expected. All are of one class with arrays of the
same shapes, so that they are one tree with runs on the leading axis of every array (and their number beside it, where
there is none). Stacking and taking apart
is done on the host: nothing is compiled for it.
"""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from lfom.core import checks
from lfom.core.arrays import as_array
from lfom.core.checks import InputError, has, shown
from lfom.core.parameters import outline


def _on_arrays(work: Callable[..., np.ndarray], items: Sequence[Any]) -> Any:
    def one(*leaves: Any) -> Any:
        if not eqx.is_array(leaves[0]):
            return leaves[0]
        return as_array(work(*(np.asarray(leaf) for leaf in leaves)))

    return jax.tree.map(one, *items)


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
    found = hashlib.sha256()
    for leaf in leaves:
        if eqx.is_array(leaf) or isinstance(leaf, np.ndarray | np.generic):
            known = np.asarray(leaf)
            found.update(f"{known.shape} {known.dtype}".encode() + known.tobytes())
        else:
            found.update(repr(leaf).encode())
    return structure, found.hexdigest()


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


def _alike(items: Sequence[Any]) -> list[Any]:
    if not items:
        raise InputError("the list of runs is empty: pass at least one.")
    # What is only known of each may differ: they are run without it.
    if any(outline(item) != outline(items[0]) for item in items):
        # methods and optima share no class, and data have no algorithm
        items = [item.as_algorithm() if has(item, "as_algorithm") else item for item in items]
    for run, item in enumerate(items):
        if outline(item) != outline(items[0]):
            raise InputError(
                f"run {run} differs from run 0 in its class, its options or the shapes of its arrays: all runs must "
                "be alike, since they are computed together. Call once for each kind."
            )
    return list(items)


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
