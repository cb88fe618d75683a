"""Where a fit takes its prompts from: distributions, or fixed sets; one per run; as what the model's view reads."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core.arrays import as_array
from lfom.core.checks import InputError, count, has, instance, real_array
from lfom.core.kernels import Kernel
from lfom.core.link_problems import LinkExamples, LinkTokens
from lfom.core.parameters import check_dimension
from lfom.core.problems import JointGram, KernelMatrix, Problem, Quadratic, Tokens
from lfom.core.runs import PerRun, by_run, each_run, stack
from lfom.prompts.distributions import Distribution
from lfom.prompts.prompt import Prompt, checked, problem_of


class Fresh(eqx.Module):
    """Prompts drawn from distributions (one per run, on a leading axis), as many as are asked for."""

    is_fixed = False

    distributions: Any
    runs: int = eqx.field(static=True)
    chunk: int = eqx.field(static=True)
    view: str = eqx.field(static=True, default="iterates")
    kernel: Kernel | None = eqx.field(static=True, default=None)

    @property
    def arrays(self) -> Any:
        return eqx.filter(self.distributions, eqx.is_array)

    def _whole(self, arrays: Any) -> Any:
        """One run's distribution: its arrays, and what all runs have in common."""
        return eqx.combine(arrays, eqx.filter(self.distributions, eqx.is_array, inverse=True))

    @property
    def dimension(self) -> int:
        return self.distributions.dimension

    @property
    def is_quadratic(self) -> bool:
        return self.distributions.is_quadratic

    def ranges(self, prompts: int) -> tuple[range, range, int]:
        """Chunks to train on, chunks to judge on, and how many prompts these last hold."""
        chunks = -(-prompts // self.chunk)
        judges = -(-chunks // 2)
        return range(chunks), range(chunks, chunks + judges), judges * self.chunk

    def draw(self, arrays: Any, key: Array, chunk: Array) -> Problem:
        key = jax.random.fold_in(key, chunk)
        return self._whole(arrays).problems(key, self.chunk, self.view, self.kernel)

    def batch(self, arrays: Any, key: Array, size: int, averaged: bool = False) -> Problem:
        """A batch with one sampled query per prompt, as in the paper's training, or with the query averaged out."""
        if averaged:
            return self._whole(arrays).problems(key, size, self.view, self.kernel)
        return self._whole(arrays).prompts(key, size).problem(self.view, self.kernel)


class Fixed(eqx.Module):
    """A set of prompts per run, cut into chunks: arrays (runs, chunks, ..., chunk). The last
    chunk is filled up with empty prompts, whose residuals are zero."""

    is_fixed = True

    arrays: Quadratic | JointGram | LinkExamples
    prompts: int = eqx.field(static=True)
    chunk: int = eqx.field(static=True)
    training: int = eqx.field(static=True)  # chunks that are trained on; the others judge steps
    held: int = eqx.field(static=True)  # prompts in those others; 0: steps are judged on all

    @property
    def runs(self) -> int:
        return int(self.arrays.target.shape[0])

    @property
    def dimension(self) -> int:
        return int(self.arrays.probe.shape[3])

    @property
    def is_quadratic(self) -> bool:
        return self.arrays.is_quadratic

    def ranges(self, prompts: int) -> tuple[range, range, int]:
        """The whole set, whatever number was asked for."""
        training, judging = range(self.training), range(self.training, self.arrays.target.shape[1])
        return (training, judging, self.held) if self.held else (training, training, self.prompts)

    def draw(self, chunks: Any, key: Array, chunk: Array) -> Problem:
        return jax.tree.map(lambda a: a[chunk], chunks)

    def batch(self, chunks: Any, key: Array, size: int, averaged: bool = False) -> Problem:
        """A random subset of the set, or all of it."""
        whole = jax.tree.map(lambda a: jnp.moveaxis(a, 0, -2).reshape(*a.shape[1:-1], -1), chunks)
        if size >= self.prompts:
            return jax.tree.map(lambda a: a[..., : self.prompts], whole)
        pick = jax.random.choice(key, self.prompts, (size,), replace=False)
        return jax.tree.map(lambda a: a[..., pick], whole)


class FixedTokens(eqx.Module):
    """A set of prompts per run for what reads tokens: arrays (runs, prompts, ...)."""

    is_fixed = True

    arrays: Tokens | LinkTokens
    chunk: int = eqx.field(static=True)

    @property
    def runs(self) -> int:
        return int(self.arrays.Z_0.shape[0])

    @property
    def dimension(self) -> int:
        return self.arrays.unknowns()

    def batch(self, tokens: Any, key: Array, size: int, averaged: bool = False) -> Problem:
        """A random subset of the set, or all of it."""
        prompts = tokens.Z_0.shape[0]
        if size >= prompts:
            return tokens
        pick = jax.random.choice(key, prompts, (size,), replace=False)
        return jax.tree.map(lambda a: a[pick], tokens)


def sources(
    data: Any, *, chunk: int, hold_out: float, view: str = "iterates", kernel: Kernel | None = None
) -> Any:
    """The source of a fit from whatever the user handed over: one, a list, or PerRun."""
    if isinstance(data, list | tuple) and not data:
        raise InputError("data is an empty list: pass one distribution or set of prompts per run.")
    runs = by_run(data)
    first = data if runs is None else runs[0]
    if isinstance(first, Distribution):  # what a user hands over: a distribution, or prompts
        several = PerRun([data]) if runs is None else runs
        return Fresh(several.stacked, several.runs or 1, chunk, view, kernel)
    items = each_run(data)
    if view == "tokens":
        return FixedTokens(stack([problem_of(_one_batch(item, view), view) for item in items]), chunk)
    return _fixed([_prompts_last(item, view, kernel) for item in items], chunk, hold_out)


def check_data(model: Any, data: Any) -> None:
    """Whether a model can be trained on these: what they are, their dimension, and that given numbers are finite."""
    runs = by_run(data)
    first = data if runs is None else runs[0]
    if has(first, "dimension", "prompt"):  # what a user hands over, which may be a class of their own
        check_dimension(model, first.dimension)
    elif has(first, "X", "query"):  # the same for prompts
        for one in [first] if runs is None else runs.each():
            check_dimension(model, checked(one).X.shape[-1])
    else:
        instance(
            "data", first, Problem, "a Distribution, prompts, a Quadratic, or a list of these, one per run"
        )
        for leaf in jax.tree.leaves(first):
            real_array("data", leaf)


def _one_batch(item: Any, view: str) -> Prompt:
    also = f" (or a {LAST[view].__name__} with prompts on its last axis)" if view in LAST else ""
    wanted = (
        f"a Distribution or prompts{also}, or a list of these, one per run, to train in the view {view!r}"
    )
    instance("data", item, Prompt, wanted)
    return item if item.batched else jax.tree.map(lambda a: a[None], item)


# problems with prompts on the last axis
LAST = {"iterates": Quadratic, "kernel": KernelMatrix, "joint": JointGram}


def _prompts_last(item: Any, view: str, kernel: Kernel | None) -> Any:
    # a user's data: a problem as it is, or prompts
    if isinstance(item, LAST[view]) and item.target is not None and item.target.ndim == 2:
        return item
    return problem_of(_one_batch(item, view), view, kernel)


def _fixed(sets: list[Any], chunk: int, hold_out: float) -> Fixed:
    sizes = {item.target.shape[-1] for item in sets}
    if len(sizes) > 1:
        raise InputError(f"the runs' sets hold {sorted(sizes)} prompts: give every run the same number.")
    prompts = count("number of prompts", sizes.pop())
    held = round(hold_out * prompts)
    # Two separate blocks of chunks, so that no chunk mixes training with judging.
    size = min(chunk, prompts - held, held or prompts)
    blocks = np.split(np.arange(prompts), [prompts - held])
    padded = [np.pad(own, (0, -len(own) % size), constant_values=-1).reshape(-1, size) for own in blocks]
    indices = np.concatenate(padded)

    def cut(array: Any) -> Array:
        """On the host: nothing is compiled for it."""
        values = np.asarray(array)
        taken = values[..., np.maximum(indices, 0)] * (indices >= 0)
        return as_array(np.moveaxis(taken, -2, 0).astype(values.dtype))  # with an axis of chunks in front

    def one(item: Any) -> Any:
        probe = np.asarray(item.probe)
        if probe.ndim == 2:
            probe = np.broadcast_to(probe[..., None], (*probe.shape, prompts))
        return jax.tree.map(cut, dataclasses.replace(item, probe=probe))

    return Fixed(stack([one(item) for item in sets]), prompts, size, len(padded[0]), held)
