"""A method: a reader, a memory and a depth. Several of them, each times a gate, are a mixture."""

import abc
import dataclasses
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core.arrays import as_array, numpy_or_jax, on_host
from lfom.core.checks import InputError, instance, known
from lfom.core.kernels import Kernel
from lfom.core.memories import Forget, Memory
from lfom.core.parameters import check_arrays, dimension, outline, parameter, part, replaced, sizes
from lfom.core.parts import Reading
from lfom.core.preconditioners import Full
from lfom.core.problems import Problem, Quadratic
from lfom.core.readers import Gradient, Reader
from lfom.core.states import Direction, Track, common, common_views, one_kernel
from lfom.core.words import brief

GATINGS = ("free", "softmax", "hard")
LOGIT = 4.0  # where softmax gates start for a single expert: near the corner, and still movable


class Learned(eqx.Module):
    """What `lfom.learn` knows of a method beside its numbers.

    range: the smallest, the typical and the largest size of the problems that it was learned from (see
    lfom.solving.systems.gauge). structure, kind, record, certificate, bound: see lfom.solving. shape: of the
    unknowns. floor: the smallest tolerance that this precision reaches on this family.
    """

    __repr__ = brief

    range: Float[Array, "3"]
    structure: Any = eqx.field(static=True)
    kind: Any = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    floor: float = eqx.field(static=True)
    record: Any = eqx.field(static=True)
    certificate: Any = eqx.field(static=True, default=None)
    bound: Any = eqx.field(static=True, default=None)


class Door:
    """A method that is called often. Equinox makes a module of a method whenever it is named, which takes as long as
    all that `solve` does before the device begins."""

    def __init__(self, function: Any):
        self.function = function

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.function if instance is None else partial(self.function, instance)


class Algorithm(Reading):
    """A first-order method of fixed depth: its step, and what it needs of a state.

    >>> import lfom
    >>> method = lfom.gradient_descent(0.5, steps=3)
    >>> isinstance(method, lfom.Algorithm), method.depth, method.views[0]
    (True, 3, 'iterates')
    """

    has_gates: ClassVar[bool] = False  # whether every prompt may have gates of its own

    @property
    @abc.abstractmethod
    def depth(self) -> int: ...

    @property
    @abc.abstractmethod
    def views(self) -> tuple[str, ...]:
        """Where it can run, the cheapest first."""

    @property
    @abc.abstractmethod
    def splits(self) -> bool:
        """Whether context and query follow tracks of their own."""

    @property
    @abc.abstractmethod
    def moves_covariates(self) -> bool: ...

    @property
    def fills_up(self) -> bool:
        """Whether its loop may be given room bit by bit (see Memory)."""
        return False

    @property
    def takes_room(self) -> bool:
        """Whether it may be given entries for more layers, which are not taken (see Memory)."""
        return False

    @abc.abstractmethod
    def start(self, state: Any, problem: Problem, room: int | None) -> Any:
        """What is remembered before the first layer. room: for so many layers, which then all remember
        arrays of one size; None where layers are written out and a memory may grow."""

    @abc.abstractmethod
    def step(self, state: Any, past: Any, problem: Problem, layer: Array | int) -> tuple[Any, Any]:
        """The step of a layer, whose own parameters these are, and what is remembered after it."""

    @abc.abstractmethod
    def truncated(self, depth: int) -> "Algorithm":
        """The first `depth` layers; its arrays stay as they are."""

    def as_algorithm(self) -> "Algorithm":
        """What is run to score it: itself."""
        return self

    @property
    def is_polynomial(self) -> bool:
        """Whether its answers are polynomials in M H, M one symmetric matrix, with coefficients that are
        numbers and the same for all prompts."""
        return False

    def canonical(self, d: int) -> "Algorithm":
        """The same in the form that methods of several classes share, so that one compiled program runs them
        all. For arrays whose values are known."""
        return self

    def matrices(self, d: int) -> Any:
        """A_l of all layers, (depth, d, d), where a step is A_l^T times minus the gradient and nothing else; else None."""
        return None

    def prepared(self, problem: Problem) -> "Algorithm":
        """The algorithm to run on this problem, with what every layer needs computed once."""
        return self.ready().bind(self.look(problem))

    @property
    def is_conjugate(self) -> bool:
        """Whether it is conjugate gradients, and so can take more steps than it has."""
        return False

    @property
    def homogeneous(self) -> bool:
        """Whether its answer is multiplied by c where all labels are."""
        return True

    def parts(self) -> tuple[Reader, Memory]:
        """Its one reader and its one memory."""
        raise InputError(
            f"{type(self).__name__} is several methods, each with a reader and a memory: ask for one of its heads."
        )

    def stuck(self, past: Any) -> Array | bool:
        """Whether it can go no further, by what it remembers."""
        return False

    def marked(self, past: Any, going: Array) -> Any:
        """What is remembered, knowing whether the problem goes on: one that is done needs no work."""
        return past

    def first_steps(self, depth: int) -> np.ndarray:
        """Step sizes to begin with, relative to one over the mean eigenvalue."""
        return np.ones(depth)

    def starts(self) -> list["Algorithm"]:
        """Where a fit of its gates to new prompts may begin; the first is as it is."""
        return [self]

    # Doors to lfom.solving, for methods of every origin. The core imports nothing of it before one is opened.

    @property
    def facts(self) -> Learned | None:
        """What is known of a method that was learned; None for one that was built or trained."""
        return None

    @property
    def steps(self) -> int:
        return self.depth

    @property
    def structure(self) -> Any:
        return None if self.facts is None else self.facts.structure

    @property
    def kind(self) -> str | None:
        """What it was learned from, in words."""
        return None if self.facts is None else self.facts.kind.name

    @property
    def record(self) -> Any:
        return None if self.facts is None else self.facts.record

    @property
    def warnings(self) -> tuple[str, ...]:
        return () if self.facts is None else self.facts.record.warnings

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the unknowns that it is for; None if it is for any."""
        if self.facts is not None:
            return self.facts.shape
        d = dimension(self)
        grid = tuple(size for axis, size in sizes(self).items() if axis.startswith("d_"))
        return (grid or None) if d is None else (d,)

    @property
    def dtype(self) -> Any:
        """The precision of its numbers; None if it has none."""
        if self.facts is not None:
            return self.facts.range.dtype
        arrays = [leaf for leaf in jax.tree.leaves(self) if eqx.is_inexact_array(leaf)]
        return jnp.result_type(*arrays) if arrays else None

    @property
    def floor(self) -> float:
        """The smallest tolerance that `solve` accepts."""
        if self.facts is not None:
            return self.facts.floor
        return 10 * float(jnp.finfo(self.dtype or jnp.zeros(()).dtype).eps)

    @property
    def certificate(self) -> Any:
        """What its residual polynomial promises; None where there is none."""
        from lfom.solving.certificate import certificate_of

        return certificate_of(self)

    @property
    def promise(self) -> str:
        """What is known of every problem before it is solved."""
        from lfom.solving.certificate import promise_of

        return promise_of(self)

    @Door
    def solve(
        self, problems: Any, steps: int | None = None, tolerance: float | None = None, start: Any = None
    ) -> Any:
        """Solve one problem or a batch, in one compiled call: a `Solution`.

        steps: exactly as many; by default those it has. More are continued with conjugate gradients
        (quadratics) or gradient steps with a line search (losses). tolerance: stop once the residual is that
        small relative to the start's; without `steps`, as many as it takes up to 1,000. start: (problems, *shape), by
        default zeros; the answer is no worse than the start, and tolerance and residuals count from it. Works under jit,
        vmap, scan and grad: with a tolerance by the implicit function theorem, else through the steps.
        """
        from lfom.solving.solve import solve

        return solve(self, problems, steps, tolerance, start)

    def map_blocks(
        self,
        sides: Any,
        *,
        X: Any = None,
        A: Any = None,
        ridge: float = 0.0,
        steps: int | None = None,
        tolerance: float | None = None,
    ) -> Any:
        """Solve the problems of a Dask array, block by block: `value` (problems, d) and `status` (problems,), both Dask arrays.

        sides: y (problems, n) with X, or b (problems, d) with A, with blocks along the axis of problems. X (n, d) or A (d, d):
        one array that all problems share, or a Dask array with an axis of problems before it. ridge, steps, tolerance:
        as in LeastSquaresProblems and `solve`. The method travels as the bytes of its file.
        """
        from lfom.scale.blocks import map_blocks

        return map_blocks(self, sides, X, A, ridge, steps, tolerance)

    def astype(self, dtype: Any) -> "Algorithm":
        """The same method in another precision."""
        from lfom.solving.solve import in_precision

        return in_precision(self, dtype)

    def save(self, path: Any, force: bool = False) -> None:
        """Write the method as one file, which `lfom.load` reads. force: replace an existing one."""
        from lfom.files import save

        save(path, self, force=force)

    def to_json(self) -> dict[str, Any]:
        """The method without a framework: plain numbers and how to run them."""
        from lfom.solving.export import exported

        return exported(self)


def a_method(name: str, value: Any) -> Any:
    """`value` where it is a method."""
    return instance(name, value, Algorithm, "a method such as lfom.memformer(5, 4, key=jax.random.key(0))")


class MadeOf(Algorithm):
    """An algorithm made of others, which all step: it needs what one of them needs, and has the views that all have."""

    @property
    @abc.abstractmethod
    def members(self) -> tuple[Algorithm, ...]: ...

    @property
    def depth(self) -> int:
        return self.members[0].depth

    @property
    def views(self) -> tuple[str, ...]:
        return common_views(self.members)

    @property
    def kernel(self) -> Kernel | None:
        return one_kernel(self.members)

    @property
    def splits(self) -> bool:
        return any(member.splits for member in self.members)

    @property
    def moves_covariates(self) -> bool:
        return any(member.moves_covariates for member in self.members)

    @property
    def fills_up(self) -> bool:
        return all(member.fills_up for member in self.members)

    @property
    def takes_room(self) -> bool:
        return all(member.takes_room for member in self.members)

    @property
    def homogeneous(self) -> bool:
        return all(member.homogeneous for member in self.members)


class OneStep(Algorithm):
    """What answers at once, from all of a problem: optima and exact solutions, to be scored beside methods."""

    __repr__ = brief

    depth = 1
    splits, moves_covariates = False, False

    def start(self, state: Any, problem: Problem, room: int | None) -> None:
        return None

    @abc.abstractmethod
    def answer(self, quadratic: Quadratic) -> Array:
        """w."""

    def step(self, state: Any, past: None, problem: Problem, layer: Array | int) -> tuple[Direction, None]:
        return Direction(Track(self.answer(problem.as_quadratic()))), None

    def truncated(self, depth: int) -> "OneStep":
        return self

    def parts(self) -> tuple[Reader, Memory]:
        raise InputError(f"{type(self).__name__} answers in one step, and has neither a reader nor a memory.")


class Method(Algorithm):
    """A reader and a memory. Classical methods, trained Memformers and methods learned from problems are
    all of this kind.

    >>> import jax.numpy as jnp
    >>> import lfom
    >>> gradient = lfom.readers.Gradient(lfom.preconditioners.Identity())
    >>> method = lfom.Method(gradient, lfom.memories.Forget(jnp.full(3, 0.5)), 3)  # gradient descent
    >>> method
    Method(Gradient, Forget, 3 layers)
    """

    is_scope: ClassVar[bool] = True  # parameters of the memory share their scale with those of this reader
    reader: Reader = part()
    memory: Memory = part("coefficients")
    layers: int = eqx.field(static=True)  # type: ignore[misc]  # mypy takes `part` for a default
    learned: Learned | None = None

    def __check_init__(self) -> None:
        check_arrays(self)

    @property
    def depth(self) -> int:
        return self.layers

    @property
    def facts(self) -> Learned | None:
        return self.learned

    def as_algorithm(self) -> "Method":
        """What is run: the same without what is only known of it, so that methods share their programs."""
        return self if self.learned is None else Method(self.reader, self.memory, self.layers)

    @property
    def views(self) -> tuple[str, ...]:
        return common(self.reader.views, self.memory.views)

    @property
    def kernel(self) -> Kernel | None:
        return self.reader.kernel

    @property
    def splits(self) -> bool:
        return self.memory.splits

    @property
    def fills_up(self) -> bool:
        return self.memory.fills_up

    @property
    def takes_room(self) -> bool:
        return self.memory.takes_room

    @property
    def moves_covariates(self) -> bool:
        return self.reader.moves_covariates

    @property
    def is_polynomial(self) -> bool:
        return self.reader.one_matrix and self.memory.has_numbers

    def canonical(self, d: int) -> "Method":
        reader = self.reader.canonical(self.layers, d)
        return self._with(reader, self.memory.canonical(self.layers, not self.moves_covariates))

    def matrices(self, d: int) -> Any:
        A = self.reader.matrices(self.layers, d) if self.memory.forgets else None
        return None if A is None else np.einsum("ll,lij->lij", self.memory.table(self.layers)[0], A)

    def without_kernel(self) -> "Method":
        return dataclasses.replace(self, reader=self.reader.without_kernel())

    @property
    def on_eigenvectors(self) -> "Method | None":
        reader, memory = self.reader.on_eigenvectors, self.memory.on_eigenvectors
        return None if reader is None or memory is None else self._with(reader, memory)

    @property
    def on_eigenvalues(self) -> "Method | None":
        reader = self.reader.on_eigenvalues
        return None if reader is None or not self.memory.has_numbers else self._with(reader, self.memory)

    def ready(self) -> "Method":
        return dataclasses.replace(self, reader=self.reader.ready())

    def look(self, problem: Problem) -> Any:
        return self.reader.look(problem)

    def bind(self, seen: Any) -> "Method":
        return dataclasses.replace(self, reader=self.reader.bind(seen))

    @property
    def is_conjugate(self) -> bool:
        return self.memory.conjugate

    @property
    def homogeneous(self) -> bool:
        return self.memory.linear or self.memory.conjugate

    @property
    def from_gradient(self) -> bool:
        return self.reader.from_gradient and not self.memory.conjugate

    def parts(self) -> tuple[Reader, Memory]:
        return self.reader, self.memory

    def stuck(self, past: Any) -> Array | bool:
        return self.memory.stuck(past)

    def marked(self, past: Any, going: Array) -> Any:
        return self.memory.marked(past, going)

    def start(self, state: Any, problem: Problem, room: int | None) -> Any:
        shapes = jax.eval_shape(lambda: problem.read(self.reader, state))
        nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
        return self.memory.start(nothing, state, problem, room)

    def step(self, state: Any, past: Any, problem: Problem, layer: Array | int) -> tuple[Any, Any]:
        direction = problem.read(self.reader, state)
        found = self.memory(direction, past, state, problem, layer)
        if type(found) is not tuple or len(found) != 2:
            raise InputError(
                f"{type(self.memory).__name__} returns a {type(found).__name__}: a memory returns the step and what is "
                "remembered after it, `return step, past`."
            )
        return found

    def truncated(self, depth: int) -> "Method":
        """What was learned of all layers is not claimed of fewer."""
        return self if depth == self.layers else Method(self.reader, self.memory, depth)

    def __repr__(self) -> str:
        """In one line: what it is made of, or what it was learned from."""
        facts, layers = self.learned, f"{self.layers} layer{'s' * (self.layers != 1)}"
        if facts is None:
            return f"Method({type(self.reader).__name__}, {type(self.memory).__name__}, {layers})"
        return f"Method({facts.structure.name}, {layers}, learned from {facts.kind} of shape {facts.shape})"

    def begin(self, scales: Float[Array, " depth"]) -> "Method":
        return self._with(self.reader.begin(scales), self.memory.begin())

    def write(self, found: Any) -> "Method":
        return self._with(self.reader.write(found.reader), found.memory)

    def _with(self, reader: Reader, memory: Memory) -> "Method":
        """Other numbers, of which nothing is known."""
        return Method(reader, memory, self.layers)

    def first_steps(self, depth: int) -> np.ndarray:
        """GD++ shrinks its covariates layer by layer, so its steps grow; from falling ones it ends in a
        worse valley (-2.3 at depth 2, not -2.9)."""
        return 0.5 + 0.7 * np.arange(depth) if self.moves_covariates else self.memory.first_steps(depth)


def _no_derivative(mixture: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A hard gate has none: lfom.adapt chooses it."""
    return np.full(shape, mixture.gating == "hard")


def _weights(gates: Float[Array, "heads ..."], gating: str) -> Float[Array, "heads ..."]:
    if gating == "softmax":
        return jax.nn.softmax(gates, axis=0)
    if gating == "hard":
        return jax.nn.one_hot(jnp.argmax(gates, axis=0), len(gates), dtype=gates.dtype, axis=0)
    return gates


_known_weights = jax.jit(_weights, static_argnames="gating")  # one small program instead of several


class Mixture(MadeOf):
    """Heads with memories of their own; each one's step is multiplied by its gate and summed
    (soft gating, Section 4.2).

    gates: (heads,) for one number per head, (heads, depth) for one per head and layer; a
    trailing axis holds one value per prompt. gating: "free" uses the numbers as they are (the
    paper), "softmax" their softmax over heads, "hard" the head with the largest number alone.

    >>> import jax.numpy as jnp
    >>> import lfom
    >>> heads = (lfom.gradient_descent(0.5, steps=2), lfom.momentum(0.5, 0.5, steps=2))
    >>> lfom.Mixture(heads, jnp.array([0.25, 0.75])).weights.tolist()
    [0.25, 0.75]
    """

    has_gates = True
    heads: tuple[Algorithm, ...] = part()
    gates: Float[Array, "heads ..."] = parameter(
        "gates", axes=lambda m: "heads layers" if m.per_layer else "heads", unread=_no_derivative
    )
    per_layer: bool = eqx.field(static=True, default=False)
    gating: str = eqx.field(static=True, default="free")

    def __check_init__(self) -> None:
        known("gating", self.gating, GATINGS)
        check_arrays(self)

    @property
    def members(self) -> tuple[Algorithm, ...]:
        return self.heads

    @property
    def weights(self) -> Float[Array, "heads ..."]:
        """What the heads' steps are multiplied with."""
        return _weights(self.gates, self.gating)

    @property
    def per_prompt(self) -> bool:
        """Whether every prompt has gates of its own."""
        return self.gates.ndim > 1 + self.per_layer

    @property
    def from_gradient(self) -> bool:
        return all(head.from_gradient for head in self.heads)

    def __repr__(self) -> str:
        heads = ", ".join(dict.fromkeys(map(repr, self.heads)))
        return f"Mixture({len(self.heads)} heads, {self.gating} gates: {heads})"

    def as_algorithm(self) -> "Mixture":
        heads = tuple(head.as_algorithm() for head in self.heads)
        same = all(one is own for one, own in zip(heads, self.heads, strict=True))
        return self if same else self._with(heads)  # type: ignore[arg-type]

    def matrices(self, d: int) -> Any:
        each = [head.matrices(d) for head in self.heads]
        if self.per_prompt or any(A is None for A in each):
            return None
        gates = np.asarray(_known_weights(self.gates, self.gating)).reshape(len(each), -1, 1, 1)
        return sum(gate[: self.depth] * A for gate, A in zip(gates, each, strict=True))

    def canonical(self, d: int) -> Algorithm:
        """One head where the steps of all are matrices times the one gradient."""
        total = self.matrices(d)
        if total is None:
            gates = _known_weights(self.gates, self.gating)
            heads = tuple(head.canonical(d) for head in self.heads)
            return dataclasses.replace(self, heads=heads, gates=gates, gating="free")
        one = Forget(as_array(np.ones(self.depth, total.dtype)))
        return Method(Gradient(Full(as_array(total))), one, self.depth).canonical(d)

    def ready(self) -> "Mixture":
        return self._with(tuple(head.ready() for head in self.heads))

    def look(self, problem: Problem) -> tuple[Any, ...]:
        return tuple(head.look(problem) for head in self.heads)

    def bind(self, seen: tuple[Any, ...]) -> "Mixture":
        return self._with(tuple(head.bind(one) for head, one in zip(self.heads, seen, strict=True)))

    def _stacked(self) -> list[Array]:
        """The arrays of all heads, heads on a leading axis; none where heads differ in more than their numbers. All heads at
        once take half the time to run that three heads take one after the other, and a tenth of that of eight; eight
        compile in a third (gates per prompt)."""
        outlines = [outline(head) for head in self.heads]
        if len(outlines) == 1 or any(one != outlines[0] for one in outlines):
            return []
        each = [jax.tree.leaves(eqx.filter(head, eqx.is_array)) for head in self.heads]
        return [jnp.stack(rows) for rows in zip(*each, strict=True)]

    def start(self, state: Any, problem: Problem, room: int | None) -> Any:
        if arrays := self._stacked():
            return jax.vmap(lambda own: replaced(self.heads[0], own).start(state, problem, room))(arrays)
        return tuple(head.start(state, problem, room) for head in self.heads)

    def step(self, state: Any, past: Any, problem: Problem, layer: Array | int) -> tuple[Any, Any]:
        def gated(own: list[Array], memory: Any, gate: Array) -> tuple[Any, Any]:
            step, remembered = replaced(self.heads[0], own).step(state, memory, problem, layer)
            return gate * step, remembered

        if arrays := self._stacked():
            steps, all_kept = jax.vmap(gated)(arrays, past, self.weights)
            return jax.tree.map(lambda a: jnp.sum(a, axis=0), steps), all_kept
        total, kept, weights = None, [], self.weights
        for h, (head, memory) in enumerate(zip(self.heads, past, strict=True)):
            step, remembered = head.step(state, memory, problem, layer)
            total = weights[h] * step if total is None else total + weights[h] * step
            kept.append(remembered)
        return total, tuple(kept)

    def truncated(self, depth: int) -> "Mixture":
        return self._with(tuple(head.truncated(depth) for head in self.heads))

    def begin(self, scales: Float[Array, " depth"]) -> "Mixture":
        return self._with(tuple(head.begin(scales) for head in self.heads))

    def write(self, found: Any) -> "Mixture":
        heads = tuple(a.write(b) for a, b in zip(self.heads, found.heads, strict=True))
        return dataclasses.replace(self, heads=heads, gates=found.gates)

    def _with(self, heads: tuple[Algorithm, ...]) -> "Mixture":
        return dataclasses.replace(self, heads=heads)

    def first_steps(self, depth: int) -> np.ndarray:
        return self.heads[0].first_steps(depth)

    def gate_starts(self) -> Float[Array, "starts heads ..."]:
        """Its own gates, and every expert alone; free gates also with steps a quarter as long, since from
        where all experts diverge a few steps do not find back."""
        heads, shape, xp = len(self.heads), self.gates.shape, numpy_or_jax(on_host(self.gates))
        size = LOGIT if self.gating == "softmax" else 1.0
        units = (size * np.eye(heads, dtype=self.gates.dtype)).reshape(heads, heads, *(1,) * (len(shape) - 1))
        corners = np.broadcast_to(units, (heads, *shape))
        shorter = [corners / 4] if self.gating == "free" else []
        return as_array(xp.concatenate([on_host(self.gates)[None], corners, *shorter]))

    def starts(self) -> list[Algorithm]:
        return [dataclasses.replace(self, gates=as_array(gates)) for gates in np.asarray(self.gate_starts())]
