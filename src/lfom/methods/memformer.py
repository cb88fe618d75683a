"""Trainable models: Linear Transformers and Memformers with their initial parameters."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jaxtyping import PRNGKeyArray

from lfom.core import checks, room
from lfom.core.arrays import as_array, default_dtype, on_host, ones
from lfom.core.checks import InputError
from lfom.core.coefficients import Coefficient, CoordinateWise, Hadamard, Pair, Rows, Scalar, TokenWise
from lfom.core.compiler import jit_draws
from lfom.core.kernels import KERNELS, Kernel, as_kernel
from lfom.core.memories import Bank, Conjugate, ConjugateBank, Forget, Memory, Register
from lfom.core.methods import GATINGS, Algorithm, Method, Mixture
from lfom.core.parameters import declared_kinds
from lfom.core.preconditioners import Full, Identity, One, Preconditioner, Scaled, Shared
from lfom.core.readers import (
    ActivatedAttention,
    Attention,
    Gradient,
    Heads,
    KernelAttention,
    Normalised,
    Reader,
    SoftmaxAttention,
)

CONJUGATE: dict[str, Any] = {"conjugate": Conjugate, "conjugate-bank": ConjugateBank}
MEMORIES = ("none", "register", "bank", *CONJUGATE)
PRECONDITIONERS = ("full", "shared", "scalar")
PER_HEAD = 1e12  # operations: every head of a method is a part of each of its programs, which take seconds to compile
PER_TOKEN = ("tokens", "hadamard")
READERS = ("sparse", "linear", "softmax", "relu", "exp", *KERNELS)
KINDS = declared_kinds(Gradient, Attention, SoftmaxAttention, Method)  # of what such a model trains
GAMMAS = ("scalar", "pair", "diagonal", "rows", "tokens", "hadamard")


def memformer(
    d: int,
    depth: int,
    *,
    reader: str | Kernel = "sparse",
    memory: str = "bank",
    preconditioner: str = "full",
    covariates: bool = False,
    gamma: str = "scalar",
    tied: bool = False,
    own_is_one: bool = False,
    heads: int = 1,
    context: int | None = None,
    normalised: bool = False,
    scale: float | None = None,
    key: PRNGKeyArray,
) -> Method:
    """A model of `depth` layers, initialised as in docs/mathematics.md 2.14: A (and B) normal with standard
    deviation `scale` (1e-4), alpha = 1, gamma = 0, own coefficients 1, older ones 0.

    reader: sparse (A and B of equation params_Thm3), linear attention with any P and Q, or softmax, relu or exp
    attention; their matrices are normal with standard deviation `scale` (0.15). Or a kernel, by its name (linear-kernel,
    exponential, gaussian, arc-cosine) or as one: attention whose weights are k(x, x'), with a number a_l.
    memory: none (Linear Transformer), register (CGD-like), bank (LFOM), conjugate (a register whose numbers are computed
    from each prompt) or conjugate-bank (the same, kept exact by a memory of all registers).
    preconditioner: A_l full, shared (a_l M) or scalar (a_l I); conjugate learns one
    symmetric matrix, and takes no other. covariates: also learn B (GD++). gamma, tied, own_is_one: the structure of
    the bank. heads: readers summed into one memory. context: n, where gamma is per token.
    normalised: read every prompt divided by a scale of its own covariates (see `Normalised`).

    >>> import jax
    >>> from lfom import memformer
    >>> model = memformer(5, 4, memory="register", key=jax.random.key(0))
    >>> model.depth
    4
    """
    d, depth, heads = checks.count("d", d), checks.count("depth", depth), checks.count("heads", heads)
    checks.random_key("key", key)
    flags = {"covariates": covariates, "tied": tied, "own_is_one": own_is_one, "normalised": normalised}
    for name, value in flags.items():
        checks.flag(name, value)
    checks.known("memory", memory, MEMORIES)
    checks.known("preconditioner", preconditioner, PRECONDITIONERS)
    checks.known("gamma", gamma, GAMMAS)
    if isinstance(reader, str):
        checks.known("reader", reader, READERS)
    else:
        checks.instance("reader", reader, Kernel, f"a kernel, or one of the names {', '.join(READERS)}")
    kernel = None if isinstance(reader, str) and reader not in KERNELS else as_kernel(reader)
    tokens = 1 if context is None else checks.count("context", context) + 1
    _fits(d, depth, heads, preconditioner, memory, gamma, tied, tokens)
    if scale is not None:
        checks.number("scale", scale)
    else:
        scale = 1e-4 if reader == "sparse" or kernel is not None else 0.15
    of_sparse = {
        "preconditioner": preconditioner not in ("full", "scalar" if kernel is not None else "full"),
        "covariates": covariates,
        "conjugate": memory in CONJUGATE and kernel is None,
    }
    if reader != "sparse" and any(of_sparse.values()):
        names = " and ".join(name for name, given in of_sparse.items() if given)
        raise InputError(
            f"reader is {reader!r}, and only the sparse form (A, B) has {names}: leave that out."
        )
    if kernel is not None and normalised:
        raise InputError(
            "normalised divides directions by the scale of covariates, which a kernel does not share: leave it out."
        )
    of_bank = {"gamma": gamma != "scalar", "tied": tied, "own_is_one": own_is_one}
    if memory != "bank" and any(of_bank.values()):
        names = " and ".join(name for name, given in of_bank.items() if given)
        raise InputError(
            f"{names} shape the coefficients of a bank, and memory is {memory!r}: leave them out."
        )
    if gamma == "diagonal" and covariates:
        raise InputError(
            "gamma is 'diagonal', one number per coordinate of w, and covariates=True rewrites coordinates (B): no view has "
            "both. Leave covariates out, or pass gamma='rows'."
        )
    conjugate = memory in CONJUGATE
    if conjugate and preconditioner != "full":
        raise InputError(
            f"preconditioner is {preconditioner!r}: conjugate directions need one symmetric matrix for all layers, and "
            "learn it (with a kernel they learn nothing). Leave preconditioner out."
        )
    if conjugate and (covariates or heads > 1):
        raise InputError("the conjugate register needs B = 0 and one head: leave covariates and heads out.")

    def one_head(branch: _Branch) -> Reader:
        if kernel is not None:
            numbers = Identity() if conjugate else _preconditioner(branch, "scalar", d, depth, scale)
            return KernelAttention(numbers, kernel)
        if conjugate:
            return Gradient(_preconditioner(branch, "one", d, depth, scale))
        if reader != "sparse":
            return _attention(branch, str(reader), d, depth, scale)
        a, b = branch.split(2)
        A = _preconditioner(a, preconditioner, d, depth, scale)
        return Gradient(A, _preconditioner(b, preconditioner, d, depth, scale) if covariates else None)

    whole = _Branch(key)
    readers = [one_head(branch) for branch in ([whole] if conjugate else whole.split(heads))]
    read: Reader = readers[0] if heads == 1 else Heads(tuple(readers))
    kept = _memory(memory, gamma, d, depth, tied, own_is_one, context)
    return Method(Normalised(read) if normalised else read, kept, depth)


def _fits(
    d: int, depth: int, heads: int, preconditioner: str, memory: str, gamma: str, tied: bool, tokens: int
) -> None:
    """Refuse a model whose numbers alone are larger than the memory of this machine."""
    readers = 4.0 * heads * depth * (1 if preconditioner == "scalar" else d * d)
    room.fits(f"d is {d}, depth {depth} and heads {heads}", readers, "Pass smaller numbers.")
    room.in_time(f"heads is {heads}", heads * PER_HEAD, "Pass fewer heads.")
    inside = {"diagonal": d, "rows": d + 1, "tokens": tokens, "hadamard": (d + 1) * tokens}.get(gamma, 1)
    if memory == "bank":
        said = f"depth is {depth} and gamma {gamma!r}"
        room.fits(
            said, 4.0 * depth * (1 if tied else depth) * inside, "Pass fewer layers, or memory='register'."
        )


def linear_transformer(d: int, depth: int, *, key: PRNGKeyArray, **options: object) -> Method:
    """A Memformer without memory.

    >>> import jax
    >>> import lfom
    >>> lfom.linear_transformer(5, 3, key=jax.random.key(0)).depth
    3
    """
    return memformer(d, depth, memory="none", key=key, **options)  # type: ignore[arg-type]


def mixture(
    heads: Sequence[Algorithm],
    gates: Array | None = None,
    *,
    per_layer: bool = False,
    gating: str = "free",
) -> Mixture:
    """Heads with memories of their own, each times a gate; gates start equal, at 1 / heads.

    gates: (heads,), or with per_layer (heads, depth); a last axis holds one value per prompt.
    gating: free (the paper), softmax or hard (see `Mixture`).

    >>> import jax
    >>> from lfom import memformer, mixture
    >>> expert = memformer(5, 4, key=jax.random.key(0))
    >>> mixture([expert, expert], gating="softmax").weights.tolist()
    [0.5, 0.5]
    """
    heads = checks.instance("heads", heads, list | tuple, "a list of methods")
    if not heads:
        raise InputError("heads is empty: a mixture needs at least one head.")
    for head in heads:
        checks.instance("heads", head, Algorithm, "a list of methods, such as lfom.memformer(...)")
    checks.known("gating", gating, GATINGS)
    checks.flag("per_layer", per_layer)
    depths = {head.depth for head in heads}
    if len(depths) > 1:
        raise InputError(f"heads have depths {sorted(depths)}: a mixture needs heads of one depth.")
    shape = (len(heads), depths.pop()) if per_layer else (len(heads),)
    if gates is None:
        gates = as_array(np.ones(shape, default_dtype()) / len(heads))
    gates = checks.real_array("gates", gates)
    if gates.shape[: len(shape)] != shape or gates.ndim > len(shape) + 1:
        raise InputError(
            f"gates has shape {gates.shape}, expected {shape} (and a last axis of prompts, if any)."
        )
    return Mixture(tuple(heads), gates, per_layer, gating)


WAYS, NORMALS = 16, 1_024  # keys and numbers that are drawn at least


class _Branch(NamedTuple):
    """A key that is split where it is drawn with: splits and the draw are one program, where each would be one of its own."""

    key: PRNGKeyArray
    counts: tuple[int, ...] = ()  # of keys, split by split
    places: tuple[int, ...] = ()  # which of them

    def split(self, count: int) -> "list[_Branch]":
        most = _rounded(count, WAYS)
        return [_Branch(self.key, (*self.counts, most), (*self.places, place)) for place in range(count)]

    def normal(self, shape: tuple[int, ...]) -> Any:
        """Standard normals; on the host where that is possible, so that what follows compiles nothing."""
        # inside somebody's jit: part of it
        draw = _normal if isinstance(self.key, jax.core.Tracer) else _normal_quickly
        size = math.prod(shape)
        found = draw(self.key, np.asarray(self.places, np.int32), self.counts, _rounded(size, NORMALS))
        return on_host(found)[:size].reshape(shape)


def _rounded(count: int, least: int) -> int:
    """A power of two. The first of many keys or numbers are those of fewer, so that few programs draw for all shapes."""
    return max(least, 1 << (count - 1).bit_length())


def _normal(key: PRNGKeyArray, places: Any, counts: tuple[int, ...], size: int) -> Array:
    for number, count in enumerate(counts):
        key = jax.random.split(key, count)[places[number]]
    return jax.random.normal(key, (size,))


_normal_quickly = jit_draws(_normal)


def _preconditioner(branch: _Branch, kind: str, d: int, depth: int, scale: float) -> Preconditioner:
    if kind == "scalar":
        return Scaled(as_array(scale * branch.normal((depth,))))
    if kind == "shared":
        return Shared(as_array(scale * branch.normal((depth,))), as_array(np.eye(d, dtype=default_dtype())))
    if kind == "one":
        return One(as_array(np.eye(d, dtype=default_dtype()) + scale * branch.normal((d, d))))
    return Full(as_array(scale * branch.normal((depth, d, d))))


def _attention(branch: _Branch, kind: str, d: int, depth: int, scale: float) -> Reader:
    """Attention whose matrices are (d+1, d+1), whole."""
    names = {"softmax": 3}.get(kind, 2)
    matrices = [as_array(scale * own.normal((depth, d + 1, d + 1))) for own in branch.split(names)]
    if kind == "softmax":
        return SoftmaxAttention(*matrices)
    return Attention(*matrices) if kind == "linear" else ActivatedAttention(*matrices, kind)  # type: ignore[call-arg,arg-type]


def _memory(
    kind: str, gamma: str, d: int, depth: int, tied: bool, own_is_one: bool, context: int | None
) -> Memory:
    if kind in CONJUGATE:
        return CONJUGATE[kind]()
    if kind == "none":
        return Forget(ones(depth))
    if kind == "register":
        return Register(ones(depth), as_array(np.zeros(depth, default_dtype())))
    dtype = default_dtype()
    own = np.ones(depth, dtype) if tied else np.eye(depth, dtype=dtype)
    return Bank(_coefficient(gamma, 0 * own if own_is_one else own, d, context), tied, own_is_one)


def _coefficient(kind: str, start: np.ndarray, d: int, context: int | None) -> Coefficient:
    if kind in PER_TOKEN and context is None:
        raise InputError(f"gamma={kind!r} holds a number per token: pass context=n.")
    tokens = 0 if context is None else checks.count("context", context) + 1
    structure, shape = {
        "scalar": (Scalar, ()),
        "pair": (Pair, ()),
        "diagonal": (CoordinateWise, (d,)),
        "rows": (Rows, (d + 1,)),
        "tokens": (TokenWise, (tokens,)),
        "hadamard": (Hadamard, (d + 1, tokens)),
    }[kind]
    value = start.reshape(start.shape + (1,) * len(shape)) * np.ones(shape, start.dtype)
    fields = 2 if structure is Pair else 1
    return structure(*[as_array(value)] * fields)
