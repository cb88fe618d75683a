"""A batch of problems in one compiled call, in pieces that fit the processor's cache.

Problems that lie on several devices are solved where they lie: none waits for another device's.
"""

from collections.abc import Hashable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from lfom.core.checks import is_concrete
from lfom.solving.pieces import in_pieces, in_window, piece
from lfom.solving.problems import Problems
from lfom.solving.program import Prepared, Raw, Rest
from lfom.solving.sizes import solve_in_sizes


def solve_batch(
    method: Prepared,
    problems: Problems,
    own: int,
    steps: int,
    tolerance: np.ndarray | None,
    start: Array | None,
) -> Raw:
    shared, batch, leaves = (method.arrays, tolerance), (problems, start), jax.tree.leaves(problems)
    lies = placement(leaves)
    if lies is not None:
        shared = _put(shared, NamedSharding(lies.mesh, PartitionSpec()))
        batch = _put(batch, lies)

    outside = problems.reads_outside

    def solve(some: Any, window: Any = None) -> Raw:
        return compiled(
            shared, some, window, rest=method.rest, own=own, steps=steps, lies=lies, outside=outside
        )

    if lies is not None or not all(map(is_concrete, (*leaves, start))):
        return solve(batch)
    return solve_in_sizes(solve, batch, len(leaves[0]))


@partial(jax.jit, static_argnames=("rest", "own", "steps", "lies", "outside"))
def compiled(
    shared: Any,
    batch: Any,
    window: Any = None,
    *,
    rest: Rest,
    own: int,
    steps: int,
    lies: NamedSharding | None,
    outside: Hashable = (),
) -> Raw:
    """window: of which problems solutions are wanted, see `in_window`; by default of all. outside: see
    `Problems.reads_outside`; it names what was compiled."""

    def here(shared: Any, batch: Any) -> Raw:
        arrays, tolerance = shared
        program = rest.whole(arrays).ready()  # once, not in every piece

        def solve(some: Any) -> Raw:
            problems, start = some
            return problems.solved(program, own, steps, tolerance, start)

        if window is not None:
            return in_window(solve, batch, *window)
        return in_pieces(solve, batch, piece(batch[0]))

    if lies is None:
        return batch[0].shown(here(shared, batch))
    split = jax.shard_map(
        here, mesh=lies.mesh, in_specs=(PartitionSpec(), lies.spec), out_specs=lies.spec, check_vma=False
    )
    return batch[0].shown(split(shared, batch))


def placement(leaves: list[Array]) -> NamedSharding | None:
    """How problems are divided among devices, where that is known: of arrays with values, and inside jit of meshes with
    explicit axes."""
    for leaf in leaves:
        sharding = leaf.sharding if is_concrete(leaf) else jax.typeof(leaf).sharding
        if isinstance(sharding, NamedSharding) and sharding.spec and sharding.spec[0] is not None:
            return NamedSharding(sharding.mesh, PartitionSpec(sharding.spec[0]))
    return None


def _put(tree: Any, where: NamedSharding) -> Any:
    return jax.tree.map(lambda leaf: jax.device_put(leaf, where), tree)
