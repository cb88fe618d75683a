"""One of something per run: models, distributions and prompts alike.

`PerRun([one, another])`, or a plain list wherever runs are expected. All are of one class with arrays of the
same shapes, so that they are one tree with runs on the leading axis of every array. Stacking and taking apart
is done on the host: nothing is compiled for it.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from lfom.core.arrays import as_array
from lfom.core.checks import InputError, shown


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


def fingerprint(tree: Any) -> str:
    """A short text that differs wherever the class, the options or the numbers of something differ."""
    leaves, structure = jax.tree.flatten(tree)
    found = hashlib.sha256(str(structure).encode())
    for leaf in leaves:
        if eqx.is_array(leaf) or isinstance(leaf, np.ndarray | np.generic):
            known = np.asarray(leaf)
            found.update(f"{known.shape} {known.dtype}".encode() + known.tobytes())
        else:
            found.update(repr(leaf).encode())
    return found.hexdigest()[:32]


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

    def __init__(self, items: Any):
        if not isinstance(items, list | tuple | eqx.Module) and not _numbers(items):
            raise InputError(
                f"items is {shown(items)}: it must be a list with one model, distribution or batch per run."
            )
        self.stacked = stack(_alike(items)) if isinstance(items, list | tuple) else items

    @property
    def runs(self) -> int | None:
        """How many; None for something without arrays, which is the same in every run."""
        arrays = [leaf for leaf in jax.tree.leaves(self.stacked) if eqx.is_array(leaf)]
        return int(arrays[0].shape[0]) if arrays else None

    def __getitem__(self, run: Any) -> Any:
        """One run's; or, for a slice, those runs'."""
        found = take(self.stacked, run)
        return PerRun(found) if isinstance(run, slice) else found

    def each(self) -> list[Any]:
        return [self[run] for run in range(self.runs or 1)]

    def map(self, work: Callable[[Any], Any]) -> "PerRun":
        """work(one) of every run, in one vmapped call."""
        return PerRun(jax.vmap(work)(self.stacked))


def _numbers(tree: Any) -> bool:
    """Whether it is made of arrays."""
    leaves = jax.tree.leaves(tree)
    return bool(leaves) and all(np.dtype(getattr(leaf, "dtype", "U1")).kind not in "USO" for leaf in leaves)


def joined(groups: Sequence[PerRun]) -> PerRun:
    """All runs of these, one group after the other."""
    return PerRun(concatenate([group.stacked for group in groups]))


def _alike(items: Sequence[Any]) -> list[Any]:
    if not items:
        raise InputError("the list of runs is empty: pass at least one.")
    shapes = [_structure(item) for item in items]
    for run, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise InputError(
                f"run {run} differs from run 0 in its class, its options or the shapes of its arrays: all runs must "
                "be alike, since they are computed together. Call once for each kind."
            )
    return list(items)


def _structure(item: Any) -> Any:
    leaves, treedef = jax.tree.flatten(item)
    return treedef, tuple((leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf for leaf in leaves)


def by_run(thing: Any) -> PerRun | None:
    """PerRun of a PerRun or a list; None for a single thing, which all runs share."""
    if isinstance(thing, list | tuple):
        return PerRun(thing)
    return thing if isinstance(thing, PerRun) else None  # whatever a user hands over, arrays included


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
