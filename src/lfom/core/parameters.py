"""Declared parameters: what every array of a method is, said where its field stands.

    alpha: Float[Array, "*layers"] = parameter("coefficients", axes="layers", scales="all")

From that alone follow what `fit` frees and freezes, what is clipped together, how a method is cut to a
depth or read layer by layer, what is checked and what is saved. A field without `parameter` or `part` is
a constant: it is never trained.
"""

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lfom.core.arrays import as_array, as_it_is, on_host
from lfom.core.checks import InputError, count, shown

LAYERS = "layers"  # the axis that counts layers: a layer sees its own entry only
PAST = "past"  # the axis that counts stored directions: a layer sees all of it
HEADS = "heads"  # the axis that counts heads of a mixture
COUNTED = (LAYERS, PAST, HEADS)  # one matrix or coefficient for each; all other axes belong together
Mask = Callable[[Any, tuple[int, ...]], np.ndarray]  # (the object, sizes of its axes) -> entries


@dataclass(frozen=True)
class Declaration:
    """What a field says of the arrays in it; see `parameter` and `part`."""

    kind: str | None = None
    axes: str | Callable[[Any], str] = ""
    unread: Mask | None = None
    scales: str | Mask | None = None
    sets_scale: bool = False
    is_part: bool = False
    per_prompt: bool = True


def parameter(
    kind: str | None = None,
    *,
    axes: str | Callable[[Any], str] = "",
    unread: Mask | None = None,
    scales: str | None = None,
    per_prompt: bool = True,
    **options: Any,
) -> Any:
    """A field that holds a trainable array.

    kind: what `fit(train=...)` frees it by: A, B, coefficients, gates or a name of your own; by default
    that of the part it belongs to. axes: the names of its axes, such as "layers d d"; "layers" counts
    layers, "past" stored directions, "heads" heads, and the others belong together (they are clipped together). "*d"
    stands for all axes of the unknowns, which may be a grid. It may depend on the object. unread: entries that no layer reads. scales: entries that only scale the
    direction as a whole, which the reader's own parameters do as well: "all", or the "last" of those that
    belong together. They are fixed where the reader's are trained. per_prompt: whether it may have one more axis, the
    last, with a value for every prompt; without it derivatives are taken prompt by prompt, which is slower.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import lfom
    >>> class Fixed(lfom.Memory):
    ...     eta: jax.Array = lfom.parameter(axes="layers")
    ...     def __call__(self, direction, past, state, problem, layer):
    ...         return self.eta * direction, past
    >>> Fixed(jnp.ones(3)).eta.shape
    (3,)
    """
    return _declared(Declaration(kind, axes, unread, scales, per_prompt=per_prompt), options)


def part(
    kind: str | None = None,
    *,
    axes: str | Callable[[Any], str] = "",
    unread: Mask | None = None,
    scales: Mask | None = None,
    sets_scale: bool = False,
    per_prompt: bool = True,
    **options: Any,
) -> Any:
    """A field that holds an object with parameters of its own.

    kind: of all parameters in it that do not say their own. axes: what stands before their own axes, with
    `unread` and `scales` over these. sets_scale: its trained parameters scale the direction. per_prompt: as of `parameter`.

    >>> import jax.numpy as jnp
    >>> import lfom
    >>> class Twice(lfom.Memory):
    ...     one: lfom.Memory = lfom.part()
    ...     def __call__(self, direction, past, state, problem, layer):
    ...         step, past = self.one(direction, past, state, problem, layer)
    ...         return 2 * step, past
    >>> Twice(lfom.memories.Forget(jnp.ones(3))).one.eta.shape
    (3,)
    """
    return _declared(Declaration(kind, axes, unread, scales, sets_scale, True, per_prompt), options)


def _declared(declaration: Declaration, options: dict[str, Any]) -> Any:
    return eqx.field(metadata={"lfom": declaration}, **options)


@dataclass(frozen=True)
class Leaf:
    """One array of a method, and what is declared of it. `name` is the path to it, `scope` that to the
    method whose step it shapes; `unread` and `scales` are entries, None for none."""

    name: str
    scope: str
    array: Any
    kind: str | None
    axes: tuple[str, ...]
    unread: np.ndarray | None
    scales: np.ndarray | None
    sets_scale: bool
    takes_prompts: bool = True

    @property
    def per_prompt(self) -> bool:
        """Whether every prompt has a value of its own, on a last axis that is not declared."""
        return self.array.ndim > len(self.axes) and self.kind is not None

    def axis(self, name: str) -> int | None:
        return self.axes.index(name) if name in self.axes else None

    @property
    def inside(self) -> int:
        """The number of last axes that belong together: one matrix, one coefficient."""
        return sum(axis not in COUNTED for axis in self.axes)


def leaves(tree: Any, grid: int | None = None) -> list[Leaf]:
    """Every array of a method, in the order of jax.tree.leaves(eqx.filter(tree, eqx.is_array)). grid: the number of axes
    of the unknowns, 1 on prompts; where it is not known, there are no values per prompt in what has such axes."""
    arrays = [array for array in jax.tree.leaves(tree) if eqx.is_array(array)]
    said = shapes(tree, grid)
    return [dataclasses.replace(leaf, array=array) for leaf, array in zip(said, arrays, strict=True)]


def shapes(tree: Any, grid: int | None = None) -> list[Leaf]:
    """The same with shapes in the place of arrays, which takes a third of the time."""
    name = (outline(tree), grid)
    try:
        said = _KNOWN.get(name)
    except TypeError:  # an option that has no hash
        return _all_leaves(tree, grid)
    if said is None:
        said = [
            dataclasses.replace(leaf, array=jax.ShapeDtypeStruct(leaf.array.shape, leaf.array.dtype))
            for leaf in _all_leaves(tree, grid)
        ]
        if len(_KNOWN) >= MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[name] = said
    return said


# What is said does not depend on numbers, and is asked for at every call: adapting to one prompt took twice as long.
_KNOWN: dict[Any, list[Leaf]] = {}
MOST_KNOWN = 512


def _all_leaves(tree: Any, grid: int | None) -> list[Leaf]:
    every = jax.tree_util.tree_leaves_with_path(tree)
    return [_leaf(tree, path, array, grid) for path, array in every if eqx.is_array(array)]


def _leaf(node: Any, path: Any, array: Any, grid: int | None) -> Leaf:
    """Walk from the method to the array; every field on the way adds what it says."""
    found = Leaf("", "", array, None, (), None, None, False)
    of_part: np.ndarray | None = None  # entries that scale, over the axes of the part
    constant = False  # whether a field on the way says nothing
    for key in path:
        if getattr(node, "is_scope", False):
            found = dataclasses.replace(found, scope=found.name)
        said = _said(node, key)
        if said is None and key is path[-1]:  # an array of which nothing is said: a constant
            return Leaf(found.name + str(key), found.scope, array, None, (), None, None, False)
        constant, said = constant or said is None, said or Declaration()
        before = len(found.axes)
        own = said.axes(node) if callable(said.axes) else said.axes
        axes = (*found.axes, *_named(own, array.ndim - before, grid))
        shape = tuple(array.shape[: len(axes)])
        scales = found.scales
        if callable(said.scales):
            of_part = said.scales(node, shape)
        elif said.scales is not None:
            scales = np.zeros(shape, bool)
            last = said.scales == "last"
            place = [
                -1 if last and axis not in COUNTED else slice(None) for axis in axes[before : len(shape)]
            ]
            scales[(..., *place)] = True
        found = Leaf(
            found.name + str(key),
            found.scope,
            array,
            said.kind or found.kind,
            axes,
            found.unread if said.unread is None else said.unread(node, shape),
            scales,
            found.sets_scale or said.sets_scale,
            found.takes_prompts and said.per_prompt,
        )
        node = _inner(node, key)
    shape = tuple(array.shape[: len(found.axes)])
    scales = found.scales
    if scales is not None and of_part is not None:
        scales = scales & _over(of_part, shape)
    unread = None if found.unread is None else _over(found.unread, shape)
    kind = None if constant else found.kind
    return dataclasses.replace(found, kind=kind, unread=unread, scales=scales)


def _said(node: Any, key: Any) -> Declaration | None:
    """What the field says that this key leads through, None if nothing; other keys are of a tuple, which may have names,
    or of a dictionary, and add nothing."""
    name = getattr(key, "name", None)
    if name is None or not dataclasses.is_dataclass(node):
        return Declaration()
    said = [field.metadata.get("lfom") for field in dataclasses.fields(node) if field.name == name]
    return said[0] if said else None


def _over(mask: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A mask of the leading axes, over all of them."""
    return np.broadcast_to(mask.reshape(mask.shape + (1,) * (len(shape) - mask.ndim)), shape)


def _named(axes: str, ndim: int, grid: int | None) -> tuple[str, ...]:
    """The names of the axes; "*d" stands for those of the unknowns, or for as many as there are."""
    names: list[str] = []
    for name in axes.split():
        free = (ndim - len(axes.split()) + 1) if grid is None else grid
        several = [f"{name[1:]}_{k}" for k in range(free)] if free != 1 else [name[1:]]
        names += several if name.startswith("*") else [name]
    return tuple(names)


def _inner(node: Any, key: Any) -> Any:
    name = getattr(key, "name", None)
    return node[getattr(key, "idx", getattr(key, "key", None))] if name is None else getattr(node, name)


def kinds(tree: Any) -> tuple[str, ...]:
    """The kinds of parameters that a method has, in its own order."""
    return tuple(dict.fromkeys(leaf.kind for leaf in shapes(tree) if leaf.kind is not None))


def declared_kinds(*classes: type) -> tuple[str, ...]:
    """The kinds that fields of these classes name."""
    fields = (field for one in classes for field in dataclasses.fields(one) if "lfom" in field.metadata)
    return tuple(dict.fromkeys(kind for field in fields if (kind := field.metadata["lfom"].kind)))


def sizes(tree: Any, grid: int | None = None) -> dict[str, int]:
    """The size of every named axis but that of layers, such as {"d": 5}. grid: see `leaves`."""
    found: dict[str, int] = {}
    for leaf in shapes(tree, grid):
        for axis, size in zip(leaf.axes, leaf.array.shape, strict=False):
            if axis not in (LAYERS, PAST):
                found.setdefault(axis, size)
    return found


def dimension(tree: Any, grid: int | None = None) -> int | None:
    """d of a method; None if it works for every d (its matrices are multiples of the identity). grid: see `leaves`."""
    known = sizes(tree, grid)
    if "rows" in known:
        known.setdefault("d", known["rows"] - 1)
    return known.get("d", known.get("size"))


def check_arrays(node: Any) -> None:
    """What is declared as a parameter must be an array of JAX: anything else would be a constant without a word, or end
    somewhere inside a layer."""
    for field in dataclasses.fields(node):
        said, value = field.metadata.get("lfom"), getattr(node, field.name)
        if said is None:
            continue
        if said.is_part:
            for one in value if isinstance(value, list | tuple) else (value,):
                if dataclasses.is_dataclass(one):
                    check_arrays(one)
        elif not eqx.is_array(value):
            raise InputError(
                f"{field.name} of {type(node).__name__} is {shown(value)}: it is declared as a parameter, which must be an "
                "array of JAX. Pass jax.numpy.asarray(...) of numbers."
            )


def check_dimension(
    tree: Any, d: int, name: str = "the model", stacked: bool = False, prompts: tuple[int, ...] = ()
) -> None:
    """A method for another number of covariates than the prompts have, or whose arrays do not have the axes that they
    need (see `check_layers`). stacked: it is one of several runs, with their
    axis in front, and is looked at by its shapes where it is run."""
    depth = None if stacked else getattr(tree, "depth", None)
    if depth is not None:
        check_layers(tree, depth, 1, prompts)
    found = None if stacked else dimension(tree, 1)
    if found is not None and found != d:
        raise InputError(
            f"the prompts have d = {d} covariates and {name} d = {found}: pass prompts of that dimension, or build a "
            "model for this one."
        )


def check_numbers(name: str, tree: Any) -> None:
    """All numbers that can be trained must be finite."""
    for leaf in leaves(tree):
        if leaf.kind is not None and not np.isfinite(np.asarray(leaf.array)).all():
            raise InputError(
                f"{name} holds NaN or infinity in {leaf.name.lstrip('.')}: all numbers of a method must be finite. Take the last one "
                "that was, or make it again."
            )


def check_layers(
    tree: Any, depth: int, grid: int | None = None, prompts: tuple[int, ...] | None = None
) -> None:
    """Every array that has an entry per layer must have enough of them, and no axis that is not declared, unless it
    counts prompts. grid: see `leaves`. prompts: how many there are, () for one or where they are drawn, None if not known."""
    count("depth", depth)
    facts = getattr(tree, "facts", None)
    if grid == 1 and facts is not None and any(axis.startswith("d_") for axis in sizes(tree)):
        raise InputError(
            f"this method was learned for unknowns of shape {facts.shape}, and a prompt has d of them in a row. Solve "
            "problems of that shape with it, or learn one from regressions."
        )
    for leaf in shapes(tree, grid):
        name = leaf.name.rpartition(".")[2]
        more = leaf.array.shape[len(leaf.axes) :]
        if leaf.per_prompt and (not leaf.axes or (prompts is not None and more != prompts)):
            raise InputError(
                f"{name} has shape {leaf.array.shape}, and its axes are declared as {' '.join(leaf.axes)!r}: declare all "
                "of them, such as parameter(axes='layers d'). A further last axis holds one value for each prompt of a "
                "batch, which only lfom.run takes, on that batch."
            )
        if leaf.array.ndim < len(leaf.axes):
            raise InputError(
                f"{name} has shape {leaf.array.shape}, and its axes are declared as {' '.join(leaf.axes)!r}: give it all "
                "of them."
            )
        for axis, size in zip(leaf.axes, leaf.array.shape, strict=False):
            if axis in (LAYERS, PAST) and size < depth:
                raise InputError(
                    f"the method has {depth} layers, but {name} has entries for {size}: give one entry per "
                    "layer, or fewer layers."
                )


def cut(tree: Any, depth: int) -> Any:
    """The arrays of the first `depth` layers."""

    def one(leaf: Leaf) -> Any:
        index = tuple(slice(depth) if axis in (LAYERS, PAST) else slice(None) for axis in leaf.axes)
        longer = [
            n > depth for axis, n in zip(leaf.axes, leaf.array.shape, strict=False) if axis in (LAYERS, PAST)
        ]
        return leaf.array[index] if any(longer) else leaf.array

    return replaced(tree, [one(leaf) for leaf in leaves(tree)])


def widened(tree: Any, depth: int) -> Any:
    """The arrays with room for `depth` layers, filled up with zeros: for layers that are switched off."""

    def one(leaf: Leaf) -> Any:
        missing = [
            max(depth - size, 0) if axis in (LAYERS, PAST) else 0
            for axis, size in itertools.zip_longest(leaf.axes, leaf.array.shape)
        ]
        if not any(missing):
            return leaf.array
        return as_it_is(np.pad(np.asarray(leaf.array), [(0, more) for more in missing]))

    return replaced(tree, [one(leaf) for leaf in leaves(tree)])


def outline(tree: Any) -> Any:
    """Its class, options and shapes: what differs from another's only in numbers has the same."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf for leaf in leaves)


def replaced(tree: Any, arrays: list[Any]) -> Any:
    """The same tree with other arrays."""
    flat, structure = jax.tree.flatten(tree)
    given = iter(arrays)
    return jax.tree.unflatten(structure, [next(given) if eqx.is_array(leaf) else leaf for leaf in flat])


def rebuilt(structure: Any, arrays: list[Any]) -> Any:
    """A method from its structure (the definition of its tree, and its leaves with None for arrays) and its arrays."""
    treedef, rest = structure
    given = iter(arrays)
    return jax.tree.unflatten(treedef, [next(given) if leaf is None else leaf for leaf in rest])


def by_layer(tree: Any, depth: int) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """What differs from layer to layer, with layers on the leading axis; and the way back: from one
    layer's arrays to the method as that layer sees it."""
    known = leaves(tree)
    places = [leaf.axis(LAYERS) for leaf in known]
    stacked = [
        jnp.moveaxis(leaf.array, at, 0)[:depth]
        for leaf, at in zip(known, places, strict=True)
        if at is not None
    ]

    def here(arrays: list[Any]) -> Any:
        own = iter(arrays)
        return replaced(
            tree, [leaf.array if at is None else next(own) for leaf, at in zip(known, places, strict=True)]
        )

    return stacked, here


def at_layer(tree: Any, layer: int) -> Any:
    """The method, or a part of it, as one layer sees it."""
    arrays = []
    for leaf in leaves(tree):
        at = leaf.axis(LAYERS)
        arrays.append(
            leaf.array if at is None else as_array(on_host(leaf.array)[(slice(None),) * at + (layer,)])
        )
    return replaced(tree, arrays)
