"""A model as one flat vector of numbers, and which of them are trained.

A model's parameters are A, B, the coefficients of its memory and its gates; each kind is free
or frozen. `alpha` and A only ever appear as a product, and so do a bank's own coefficient and
A: where A is free, the other is fixed here, in `_fix_scale`, and nowhere else.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core import checks
from lfom.core.coefficients import Pair
from lfom.core.memories import Bank, Forget, Register
from lfom.core.preconditioners import Full, Identity, Scaled, Shared
from lfom.core.readers import Gradient, Heads, Normalised, Reader
from lfom.core.unroll import Algorithm, Method, Mixture

KINDS = ("A", "B", "coefficients", "gates")


class Parameters:
    """The structure of a model, the order of its numbers, and which of them are trained."""

    def __init__(self, template: Algorithm, trained: np.ndarray, groups: np.ndarray):
        arrays, self._structure = jax.tree.flatten(eqx.filter(template, eqx.is_array))
        self._shapes = [array.shape for array in arrays]
        self._static = eqx.filter(template, eqx.is_array, inverse=True)
        self.template = template
        self.index = np.flatnonzero(trained)  # of the trained numbers in the vector
        self.groups = np.unique(groups[self.index], return_inverse=True)[1]  # which matrix each is of

    @property
    def size(self) -> int:
        """How many numbers are trained."""
        return len(self.index)

    def vector(self, model: Algorithm) -> Float[Array, " all"]:
        """All numbers of a model of this structure."""
        arrays = jax.tree.leaves(eqx.filter(model, eqx.is_array))
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
        arrays, position, used, trail = [], 0, 0, trained.shape[1:]
        for shape in self._shapes:
            size = int(np.prod(shape, dtype=int))
            chosen = self.index[(self.index >= position) & (self.index < position + size)] - position
            frozen, part = vector[position : position + size], trained[used : used + len(chosen)]
            if not len(chosen):
                arrays.append(frozen.reshape(shape))
            elif len(chosen) == size:
                arrays.append(part.reshape(*shape, *trail))
            else:
                places = {int(place): row for row, place in enumerate(chosen)}
                rows = [
                    part[places[i]] if i in places else jnp.broadcast_to(frozen[i], trail)
                    for i in range(size)
                ]
                arrays.append(jnp.stack(rows).reshape(*shape, *trail))
            position, used = position + size, used + len(chosen)
        return eqx.combine(jax.tree.unflatten(self._structure, arrays), self._static)


def parameters(model: Algorithm, train: Iterable[str] = KINDS) -> Parameters:
    """The parameters of `model`, those of the kinds in `train` free, scale-sharing ones fixed.

    >>> from lfom import memformer
    >>> parameters(memformer(5, 4, memory="register", key=jax.random.key(0))).size
    103
    """
    kinds = set(train)
    for kind in kinds:
        checks.known("parameter kind", kind, KINDS)
    arrays = eqx.filter(model, eqx.is_array)
    marks = jax.tree.map(lambda a: np.zeros(a.shape, bool), arrays)
    heads = zip(model.heads, marks.heads, strict=True) if isinstance(model, Mixture) else [(model, marks)]
    for head, mark in heads:
        assert isinstance(head, Method)
        _mark(head, mark, kinds)
    if isinstance(model, Mixture) and "gates" in kinds and model.gating != "hard":
        marks.gates[...] = True  # a hard gate has no derivative: lfom.adapt chooses it
    trained = np.concatenate([mark.reshape(-1) for mark in jax.tree.leaves(marks)])
    if not trained.any():
        raise checks.InputError(
            f"train={sorted(kinds)} frees nothing of this model: name at least one kind of "
            f"parameter that it has ({', '.join(KINDS)})."
        )
    return Parameters(model, trained, _groups(arrays))


def _mark(method: Method, mark: Any, kinds: set[str]) -> None:
    for reader, reader_mark in readers_of(method.reader, mark.reader):
        if "A" in kinds:
            _fill(reader_mark.A)
        if "B" in kinds and reader.B is not None:
            _fill(reader_mark.B)
    memory, depth = method.memory, method.depth
    if "coefficients" not in kinds:
        return
    _fill(mark.memory)
    if isinstance(memory, Register):
        mark.memory.gamma[0] = False  # nothing is remembered before the first layer
    if isinstance(memory, Bank):
        for values in jax.tree.leaves(mark.memory.gamma):
            if not memory.tied:  # entries j > l are never read, and own ones not where they are 1
                values[np.triu_indices(depth, k=0 if memory.own_is_one else 1)] = False
            elif memory.own_is_one:
                values[-1] = False  # the last direction is never an older one
    if "A" in kinds and any(not isinstance(r.A, Identity) for r, _ in readers_of(method.reader, mark.reader)):
        _fix_scale(memory, mark.memory, depth)


def _fix_scale(memory: Any, mark: Any, depth: int) -> None:
    """Fix the coefficients that A already scales."""
    if isinstance(memory, Forget):
        mark.eta[...] = False
    elif isinstance(memory, Register):
        mark.alpha[...] = False
    elif isinstance(memory, Bank) and not memory.own_is_one:
        values = mark.gamma.context if isinstance(memory.gamma, Pair) else jax.tree.leaves(mark.gamma)[0]
        layers = np.arange(depth)
        own = (layers,) if memory.tied else (layers, layers)
        per_layer = values.reshape(*values.shape[: len(own)], -1)
        per_layer[(*own, -1)] = False  # one entry of a structured coefficient fixes its scale


def readers_of(reader: Reader, beside: Any) -> list[tuple[Gradient, Any]]:
    """Every Gradient in a reader, with the part of `beside` (of the same structure) at its place."""
    if isinstance(reader, Heads):
        pairs = zip(reader.readers, beside.readers, strict=True)
        return [found for inner, other in pairs for found in readers_of(inner, other)]
    if isinstance(reader, Normalised):
        return readers_of(reader.reader, beside.reader)
    if not isinstance(reader, Gradient):
        raise checks.InputError(
            f"{type(reader).__name__} cannot be trained: training runs in the iterate view, which "
            "needs the sparse parametrisation Gradient(A, B)."
        )
    return [(reader, beside)]


def _fill(mark: Any) -> None:
    for values in jax.tree.leaves(mark):
        values[...] = True


def _groups(arrays: Any) -> np.ndarray:
    """For every number, which matrix, coefficient or gate it belongs to: what is clipped together."""
    labels, offset = [], 0
    for path, array in jax.tree_util.tree_leaves_with_path(arrays):
        name = jax.tree_util.keystr(path)
        if name.endswith((".matrices", ".half")):
            inside = 2
        elif ".gamma." in name:
            inside = max(array.ndim - 2, 0)
        else:
            inside = 0
        blocks = int(np.prod(array.shape[: array.ndim - inside], dtype=int))
        labels.append(np.repeat(np.arange(blocks), array.size // max(blocks, 1)) + offset)
        offset += blocks
    return np.concatenate(labels)


def truncate(model: Any, depth: int) -> Any:
    """The first `depth` layers of a model."""
    if isinstance(model, Mixture):
        return dataclasses.replace(model, heads=tuple(truncate(head, depth) for head in model.heads))
    return dataclasses.replace(model, layers=depth)


def _change_readers(model: Any, change: Any) -> Any:
    is_reader = lambda node: isinstance(node, Gradient)  # noqa: E731
    return jax.tree.map(lambda node: change(node) if is_reader(node) else node, model, is_leaf=is_reader)


def has_full_matrices(model: Any) -> bool:
    leaves = jax.tree.leaves(model, is_leaf=lambda node: isinstance(node, Gradient))
    return any(isinstance(node, Gradient) and isinstance(node.A, Full) for node in leaves)


def from_scale(model: Any, scales: Float[Array, " depth"], covariates: float = 0.5) -> Any:
    """The model to start from: full A_l replaced by a_l M with M = I and the given a_l, scalar
    ones by a_l, full or scalar B_l by a small multiple of I, and the query's values of a tied pair
    by a small number (the context's stay at 1)."""

    def change(reader: Gradient) -> Gradient:
        A, B = reader.A, reader.B
        if isinstance(A, Full):
            A = Shared(scales, jnp.eye(A.matrices.shape[-1], dtype=scales.dtype))
        elif isinstance(A, Shared):
            A = Shared(scales, jnp.eye(A.half.shape[-1], dtype=scales.dtype))
        elif isinstance(A, Scaled):
            A = Scaled(scales)
        if isinstance(B, Full | Scaled):
            B = Scaled(jnp.full_like(scales, covariates))
        return Gradient(A, B)

    def calm(node: Any) -> Any:
        if accumulates(node) and isinstance(node.gamma, Pair):
            return eqx.tree_at(lambda bank: bank.gamma.query, node, jnp.full_like(node.gamma.query, 0.3))
        return node

    model = jax.tree.map(calm, model, is_leaf=lambda node: isinstance(node, Bank))
    return _change_readers(model, change)


def accumulates(node: Any) -> bool:
    """A tied bank adds each direction again in every later layer."""
    return isinstance(node, Bank) and node.tied and not node.own_is_one


def start_scales(model: Any, depth: int) -> np.ndarray:
    """Step sizes to start from, relative to one over the mean eigenvalue.

    Layers must differ, or training stays where all are equal. Those of a tied bank differ by
    what they accumulate. For a pair of values the context should not be timid there: equal
    steps of 1 make its gradients a well-conditioned basis (at depth 4 the condition number of
    the query's values is 8e1, with steps of 1/4 it is 3e6). GD++ shrinks its covariates layer by
    layer, so its steps grow; from falling ones it ends in a worse valley (-2.3 at depth 2, not -2.9).
    """
    if isinstance(model, Algorithm) and model.moves_covariates:
        return 0.5 + 0.7 * np.arange(depth)
    banks = [n for n in jax.tree.leaves(model, is_leaf=lambda n: isinstance(n, Bank)) if accumulates(n)]
    if any(isinstance(bank.gamma, Pair) for bank in banks):
        return np.ones(depth)
    spread = 1 + 0.6 * np.cos(np.pi * (np.arange(depth) + 0.5) / depth)
    return spread / depth if banks else spread


def as_full(model: Any, like: Any) -> Any:
    """The same model with a_l M and b_l I written as full matrices wherever `like` has them."""
    wanted = iter(
        node
        for node in jax.tree.leaves(like, is_leaf=lambda n: isinstance(n, Gradient))
        if isinstance(node, Gradient)
    )

    def change(reader: Gradient) -> Gradient:
        other, A, B = next(wanted), reader.A, reader.B
        if isinstance(other.A, Full) and isinstance(A, Shared):
            A = Full(A.scale[:, None, None] * (A.half + A.half.T) / 2)
        if isinstance(other.B, Full) and isinstance(B, Scaled):
            B = Full(B.scale[:, None, None] * jnp.eye(other.B.matrices.shape[-1], dtype=B.scale.dtype))
        return Gradient(A, B)

    return _change_readers(model, change)
