"""A model as one flat vector of real numbers, and which of them are trained. Whole numbers stay with the model.

What is free follows from what the model's classes declare (lfom.core.parameters): the kinds that are asked
for, without entries that no layer reads, and without those that only repeat a scale which another trained
array sets.
"""

import functools
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core import checks
from lfom.core.arrays import as_array, pad_axes, parts
from lfom.core.methods import Algorithm
from lfom.core.parameters import COUNTED, LAYERS, Leaf, kinds, outline
from lfom.core.parameters import leaves as declared_leaves


def real(leaf: Any) -> bool:
    """Whether it is an array of numbers that can be trained."""
    return eqx.is_array(leaf) and eqx.is_inexact_array(leaf)


class Parameters:
    """The structure of a model, the order of its numbers, and which of them are trained."""

    def __init__(self, template: Algorithm, trained: np.ndarray, groups: np.ndarray, take_prompts: bool):
        arrays, self._structure = jax.tree.flatten(eqx.filter(template, real))
        self._shapes = [array.shape for array in arrays]
        self._static = eqx.filter(template, real, inverse=True)
        self.template, self.take_prompts = template, take_prompts
        self.index = np.flatnonzero(trained)  # of the trained numbers in the vector
        ends = np.cumsum([int(np.prod(shape, dtype=int)) for shape in self._shapes])
        self._trained = np.split(trained, ends[:-1])  # of each array
        self.groups = np.unique(groups[self.index], return_inverse=True)[1]  # which matrix each is of

    @functools.cached_property
    def _program(self) -> Any:
        """What a program that trains it depends on: all but its real numbers."""
        whole = [np.asarray(a).tobytes() for a in jax.tree.leaves(eqx.filter(self._static, eqx.is_array))]
        return outline(self.template), *whole, self.index.tobytes(), self.groups.tobytes()

    def __eq__(self, other: object) -> bool:
        return self._program == getattr(other, "_program", None)

    def __hash__(self) -> int:
        return hash(self._program)

    @property
    def size(self) -> int:
        """How many numbers are trained."""
        return len(self.index)

    def vector(self, model: Algorithm) -> Float[Array, " all"]:
        """All numbers of a model of this structure."""
        arrays = jax.tree.leaves(eqx.filter(model, real))
        return jnp.concatenate([array.reshape(-1) for array in arrays])

    def build(self, vector: Float[Array, "all *prompts"]) -> Any:
        """The model with these numbers; trailing axes make them parameters per prompt."""
        arrays, position = [], 0
        for shape in self._shapes:
            size = int(np.prod(shape, dtype=int))
            part = vector[position : position + size]
            arrays.append(part.reshape(*shape, *vector.shape[1:]))
            position += size
        return eqx.combine(jax.tree.unflatten(self._structure, arrays), self._static)

    def assemble(self, vector: Float[Array, " all"], trained: Float[Array, "p *prompts"]) -> Any:
        """The model of `vector` with its trained numbers replaced. Only arrays that hold trained
        numbers get the prompt axes of `trained`; the frozen ones stay shared by all prompts."""
        arrays, trail = [], trained.shape[1:]
        whole = parts(vector, [len(mask) for mask in self._trained])
        given = parts(trained, [int(mask.sum()) for mask in self._trained])
        for shape, mask, frozen, own in zip(self._shapes, self._trained, whole, given, strict=True):
            if not mask.any():
                arrays.append(frozen.reshape(shape))
                continue
            if not mask.all():
                own = _among(frozen, own, mask)
            arrays.append(own.reshape(*shape, *trail))
        return eqx.combine(jax.tree.unflatten(self._structure, arrays), self._static)


def _among(frozen: Float[Array, " n"], trained: Float[Array, "p *prompts"], mask: np.ndarray) -> Array:
    """`frozen`, with `trained` where the mask says so: piece by piece."""
    edges = [0, *(np.flatnonzero(np.diff(mask)) + 1), len(mask)]
    sizes, is_trained = np.diff(edges), mask[edges[:-1]]
    known, given = (parts(a, sizes[on].tolist()) for a, on in ((frozen, slice(None)), (trained, is_trained)))
    new = iter(given)
    trail = trained.shape[1:]
    pieces = [
        next(new) if on else jnp.broadcast_to(pad_axes(old, trained.ndim), (*old.shape, *trail))
        for old, on in zip(known, is_trained, strict=True)
    ]
    return jnp.concatenate(pieces)


def parameters(model: Algorithm, train: Iterable[str] | None = None) -> Parameters:
    """The parameters of `model`, those of the kinds in `train` free (by default all that it has), entries
    that repeat a scale fixed.

    >>> from lfom import memformer
    >>> parameters(memformer(5, 4, memory="register", key=jax.random.key(0))).size
    103
    """
    declared, free = _masks(model, wanted := known_kinds(model, train))
    for leaf in declared_leaves(model):
        if leaf.kind in wanted and not real(leaf.array):
            raise checks.InputError(
                f"{leaf.name[1:]} is of {leaf.array.dtype}, and train={sorted(wanted)} frees it: only real numbers are "
                "trained. Make it of floats, or declare no parameter."
            )
    trained = np.concatenate([mask.reshape(-1) for mask in free]) if free else np.zeros(0, bool)
    if not trained.any():
        has = ", ".join(kinds(model))
        if not has:
            raise checks.InputError(
                "this model has nothing to train: its numbers are fixed, or computed from each prompt. Run or evaluate it "
                "as it is."
            )
        raise checks.InputError(
            f"train={sorted(wanted)} frees nothing of this model: name at least one kind of "
            f"parameter that it has ({has})."
        )
    take_prompts = all(leaf.takes_prompts for leaf, mask in zip(declared, free, strict=True) if mask.any())
    return Parameters(model, trained, _groups(declared), take_prompts)


def check_constants(models: Sequence[Algorithm]) -> None:
    """Runs differ in their vectors only, so whole numbers must be the same in all."""
    for run, one in enumerate(models[1:], 1):
        whole = [
            eqx.filter(each, lambda leaf: eqx.is_array(leaf) and not real(leaf)) for each in (models[0], one)
        ]
        if not eqx.tree_equal(*whole):
            raise checks.InputError(
                f"run {run} of model differs from run 0 in an array of whole numbers, and all runs share these. Call once for "
                "each, or make it an array of floats."
            )


def frees(model: Algorithm, train: Iterable[str] | None = None) -> bool:
    """Whether these kinds free anything of the model."""
    return any(mask.any() for mask in _masks(model, known_kinds(model, train))[1])


def _masks(model: Algorithm, wanted: set[str]) -> tuple[list[Leaf], list[np.ndarray]]:
    """Every array of a model, and which of its entries are trained."""
    declared = [leaf for leaf in declared_leaves(model) if real(leaf.array)]
    free = [_free(leaf, wanted) for leaf in declared]
    scaled = {
        leaf.scope
        for leaf, mask in zip(declared, free, strict=True)
        if leaf.sets_scale and LAYERS in leaf.axes and leaf.kind in wanted and mask.any()
    }
    for leaf, mask in zip(declared, free, strict=True):
        if leaf.scales is not None and leaf.scope in scaled:
            mask[leaf.scales] = False
    return declared, free


def vector_of(model: Any) -> np.ndarray:
    """All numbers of a model, in the order of `Parameters`, on the host."""
    arrays = jax.tree.leaves(eqx.filter(model, real))
    return np.concatenate([np.ravel(np.asarray(array)) for array in arrays])


def from_vector(model: Any, vector: np.ndarray, *, on_device: bool = True) -> Any:
    """The model with these numbers, put together on the host; it may stay there. Further axes of `vector`
    become last axes of every array."""
    leaves, structure = jax.tree.flatten(model)
    places = [place for place, leaf in enumerate(leaves) if real(leaf)]
    parts = np.split(np.asarray(vector), np.cumsum([leaves[place].size for place in places])[:-1])
    last = np.shape(vector)[1:]
    for place, part in zip(places, parts, strict=True):
        shaped = part.reshape((*leaves[place].shape, *last))
        leaves[place] = as_array(shaped) if on_device else shaped
    return jax.tree.unflatten(structure, leaves)


KINDS = ("A", "B", "coefficients", "gates")  # those of the paper's models; a class may have one of its own


def known_kinds(model: Algorithm, train: Iterable[str] | None) -> set[str]:
    """The kinds to train, each of the paper's or of this model's own."""
    own = kinds(model)
    if train is None:
        return set(own)
    wanted = {train} if isinstance(train, str) else set(train)
    for kind in wanted:
        checks.known("parameter kind", kind, dict.fromkeys((*KINDS, *own)))
    return wanted


def _free(leaf: Leaf, wanted: set[str]) -> np.ndarray:
    mask = np.full(leaf.array.shape, leaf.kind in wanted)
    if leaf.unread is not None:
        mask[leaf.unread] = False
    return mask


def _groups(declared: list[Leaf]) -> np.ndarray:
    """For every number, which matrix, coefficient or gate it belongs to: what is clipped together."""
    labels, offset = [], 0
    for leaf in declared:
        named = zip_longest(leaf.axes, leaf.array.shape)
        counted = [size if axis in COUNTED else 1 for axis, size in named]
        blocks = int(np.prod(counted, dtype=int))
        of_each = np.arange(blocks).reshape(counted) + offset
        labels.append(np.broadcast_to(of_each, leaf.array.shape).reshape(-1))
        offset += blocks
    return np.concatenate(labels)
