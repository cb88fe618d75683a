"""A batch of problems in one compiled call, in pieces that fit the processor's cache.

Problems that lie on several devices are solved where they lie: none waits for another device's.
"""

from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from lfom.core.checks import is_concrete
from lfom.solving.pieces import in_pieces, in_window, piece
from lfom.solving.problems import Problems
from lfom.solving.program import Plan, Prepared, Raw, Rest
from lfom.solving.sizes import solve_in_sizes


def solve_batch(method: Prepared, problems: Problems, plan: Plan, start: Array | None) -> Raw:
    batch, leaves = (problems, start), jax.tree.leaves(problems)
    lies, known = placement(leaves), all(map(is_concrete, (*leaves, start)))
    own, steps, tolerance, _, counts, rooms = plan
    by_rows = problems.by_rows(method.ranged and own > 0, steps, tolerance)
    if lies is not None or not known:
        counts = None  # loops of a known length
    if counts is not None:
        own, steps = rooms
    shared: Any = method.arrays, tolerance, counts
    if lies is not None:
        shared = _put(shared, NamedSharding(lies.mesh, PartitionSpec()))
        batch = _put(batch, lies)

    outside = problems.reads_outside

    def solve(some: Any, window: Any = None) -> Raw:
        return compiled(
            shared,
            some,
            window,
            rest=method.rest,
            own=own,
            steps=steps,
            by_rows=by_rows,
            lies=lies,
            outside=outside,
        )

    if lies is not None or not known:
        return solve(batch)
    return solve_in_sizes(solve, batch, len(leaves[0]))


@partial(jax.jit, static_argnames=("rest", "own", "steps", "by_rows", "lies", "outside"))
def compiled(
    shared: Any,
    batch: Any,
    window: Any = None,
    *,
    rest: Rest,
    own: int,
    steps: int,
    by_rows: bool,
    lies: NamedSharding | None,
    outside: Hashable = (),
) -> Raw:
    """own, steps: numbers of steps, or room for so many where the numbers are data. window: of which problems solutions are
    wanted, see `in_window`; by default of all. outside: see
    `Problems.reads_outside`; it names what was compiled."""

    def here(shared: Any, batch: Any) -> Raw:
        arrays, tolerance, counts = shared
        # once, not in every piece
        program = replace(rest.whole(arrays).ready(), counts=counts, by_rows=by_rows)

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
