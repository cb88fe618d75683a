"""Where a fit takes its prompts from: distributions, or fixed sets; one per run."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lfom.core.checks import InputError, count
from lfom.core.problems import Quadratic
from lfom.core.trees import stack, take
from lfom.prompts.distributions import Distribution
from lfom.prompts.prompt import Prompt


def number_of_runs(data: Distribution) -> int:
    """How many distributions are stacked in `data`; 0 if it is a single one."""
    spectrum = data.spectrum  # type: ignore[attr-defined]
    return int(spectrum.shape[0]) if spectrum.ndim == 2 else 0


class Fresh(eqx.Module):
    """Prompts drawn from distributions (one per run, on a leading axis), as many as are asked for."""

    distributions: Any
    chunk: int = eqx.field(static=True)

    @property
    def arrays(self) -> Any:
        return self.distributions

    @property
    def runs(self) -> int:
        return number_of_runs(self.distributions)

    def ranges(self, prompts: int) -> tuple[range, range, int]:
        """Chunks to train on, chunks to judge on, and how many prompts these last hold."""
        chunks = -(-prompts // self.chunk)
        judges = -(-chunks // 2)
        return range(chunks), range(chunks, chunks + judges), judges * self.chunk

    def draw(self, distribution: Any, key: Array, chunk: Array) -> Quadratic:
        return distribution.quadratics(jax.random.fold_in(key, chunk), self.chunk)

    def batch(self, distribution: Any, key: Array, size: int) -> Quadratic:
        """A batch with one sampled query per prompt, as in the paper's training."""
        return jax.vmap(Quadratic.of, out_axes=-1)(distribution.prompts(key, size))


class Fixed(eqx.Module):
    """A set of prompts per run, cut into chunks: arrays (runs, chunks, ..., chunk). The last
    chunk is filled up with empty prompts, whose residuals are zero."""

    chunks: Quadratic
    prompts: int = eqx.field(static=True)
    chunk: int = eqx.field(static=True)
    training: int = eqx.field(static=True)  # chunks that are trained on; the others judge steps
    held: int = eqx.field(static=True)  # prompts in those others; 0: steps are judged on all

    @property
    def arrays(self) -> Any:
        return self.chunks

    @property
    def runs(self) -> int:
        return int(self.chunks.moment.shape[0])

    def ranges(self, prompts: int) -> tuple[range, range, int]:
        """The whole set, whatever number was asked for."""
        training = range(self.training)
        total = self.chunks.moment.shape[1]
        return (
            (training, range(self.training, total), self.held)
            if self.held
            else (training, training, self.prompts)
        )

    def draw(self, chunks: Any, key: Array, chunk: Array) -> Quadratic:
        return jax.tree.map(lambda a: a[chunk], chunks)

    def batch(self, chunks: Any, key: Array, size: int) -> Quadratic:
        """A random subset of the set, or all of it."""
        whole = jax.tree.map(lambda a: jnp.moveaxis(a, 0, -2).reshape(*a.shape[1:-1], -1), chunks)
        if size >= self.prompts:
            return jax.tree.map(lambda a: a[..., : self.prompts], whole)
        pick = jax.random.choice(key, self.prompts, (size,), replace=False)
        return jax.tree.map(lambda a: a[..., pick], whole)


def sources(data: Any, *, chunk: int, hold_out: float) -> Fresh | Fixed:
    """The source of a fit from whatever the user handed over."""
    items = data if isinstance(data, list | tuple) else None
    if items is not None and not items:
        raise InputError("data is an empty list: pass one distribution or set of prompts per run.")
    first = data if items is None else items[0]
    if isinstance(first, Distribution):
        if items is not None:
            return Fresh(stack(list(items)), chunk)
        return Fresh(data if number_of_runs(data) else take(data, None), chunk)
    sets = [_as_quadratics(item) for item in (items if items is not None else [data])]
    return _fixed(sets, chunk, hold_out)


def _as_quadratics(item: Any) -> Quadratic:
    if isinstance(item, Prompt):
        if not item.batched:
            item = jax.tree.map(lambda a: a[None], item)
        return jax.vmap(Quadratic.of, out_axes=-1)(item)
    if isinstance(item, Quadratic) and item.moment.ndim == 2:
        return item
    raise InputError(
        f"data is a {type(item).__name__}: pass a Distribution, a batch of prompts, a Quadratic with "
        "prompts on its last axis, or a list of these, one per run."
    )


def _fixed(sets: list[Quadratic], chunk: int, hold_out: float) -> Fixed:
    sizes = {item.moment.shape[-1] for item in sets}
    if len(sizes) > 1:
        raise InputError(f"the runs' sets hold {sorted(sizes)} prompts: give every run the same number.")
    prompts = count("number of prompts", sizes.pop())
    held = round(hold_out * prompts)
    # Two separate blocks of chunks, so that no chunk mixes training with judging.
    size = min(chunk, prompts - held, held or prompts)
    blocks = [range(prompts - held)] + ([range(prompts - held, prompts)] if held else [])
    order: list[np.ndarray] = []
    counts = []
    for block in blocks:
        index = np.asarray(block)
        pad = -len(index) % size
        padded = np.concatenate([index, np.full(pad, -1)]).reshape(-1, size)
        order.extend(padded)
        counts.append(len(padded))
    indices = np.stack(order)

    def cut(values: Array) -> Array:
        taken = values[..., np.maximum(indices, 0)] * (indices >= 0)
        return jnp.moveaxis(taken, -2, 0)

    def one(item: Quadratic) -> Quadratic:
        probe = item.probe
        if probe.ndim == 2:
            probe = jnp.broadcast_to(probe[..., None], (*probe.shape, prompts))
        return jax.tree.map(cut, Quadratic(item.gram, item.moment, probe, item.target))

    return Fixed(stack([one(item) for item in sets]), prompts, size, counts[0], held)
