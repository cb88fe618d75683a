"""method.solve: any method on a batch of problems, its budget, and what it refuses."""

import math
from dataclasses import replace
from types import NoneType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lfom.core import checks
from lfom.core.checks import InputError
from lfom.core.methods import Algorithm
from lfom.core.parameters import check_layers, sizes
from lfom.core.unroll import as_turns, room_of
from lfom.core.vectors import real
from lfom.solving.batches import solve_batch
from lfom.solving.kinds import Kind
from lfom.solving.problems import Problems, some_problems
from lfom.solving.program import Plan, Prepared, prepared
from lfom.solving.records import Solution

MOST = 2**31 - 1  # steps
LONGEST = 1_000  # steps, where a tolerance is given and no number of steps


def solve(
    method: Algorithm, problems: Any, steps: int | None, tolerance: float | None, start: Any = None
) -> Solution:
    """See `Method.solve`."""
    ready = prepared(method)
    plan = _planned(ready, method, problems, steps, tolerance)
    if start is not None:
        start = problems.begun(start)
    found = solve_batch(ready, problems, plan, start)
    columns = plan.steps + 1
    return Solution(found, method, plan.fallback, None if found.residuals.shape[-1] == columns else columns)


def _planned(ready: Prepared, method: Algorithm, problems: Any, steps: Any, tolerance: Any) -> Plan:
    """What was checked and decided for such problems before, or is now."""
    some_problems(problems)
    kind, shape, dtype = problems.kind, problems.shape, problems.dtype
    plain = type(steps) in (int, NoneType) and type(tolerance) in (float, NoneType)  # True and 1.0 are not 1
    asked = (kind, shape, dtype, problems.knows_diagonal, steps, tolerance) if plain else None
    if plain and asked in ready.plans:
        return ready.plans[asked]
    _check(method, problems)
    own, most, limit = budget(method, steps, tolerance, shape, dtype)
    data, rooms = None, (own, most)
    if ready.room is not None:
        data, rooms = (as_turns(own), as_turns(most)), (ready.room if own else 0, room_of(most))
    plan = Plan(own, most, limit, kind.fallback, data, rooms)
    if plain:
        ready.plans[asked] = plan
    return plan


def budget(
    method: Algorithm, steps: int | None, tolerance: float | None, shape: tuple[int, ...], dtype: Any
) -> tuple[int, int, np.ndarray | None]:
    """What `solve` makes of its arguments: the method's own steps, steps in all, tolerance."""
    asked = steps is not None
    steps = checks.count("steps", steps if asked else method.depth)
    if steps > MOST:
        raise InputError(f"steps is {steps}: at most {MOST:,} are counted. Pass fewer, or a tolerance.")
    limit = None
    if tolerance is not None:
        with jax.ensure_compile_time_eval():  # a number also inside somebody's jit
            limit = np.asarray(_checked_tolerance(method, tolerance, dtype), dtype)
        if not asked:
            steps = min(LONGEST, method.depth + 2 * math.prod(shape))
    return 0 if method.is_conjugate else min(steps, method.depth), steps, limit


def check_shape(method: Algorithm, shape: tuple[int, ...]) -> None:
    # matrices over flattened unknowns are for all shapes of as many
    flat = method.facts is None and not {"d", "rows"} & sizes(method).keys()
    if method.shape not in (None, shape, (math.prod(shape),) if flat else None):
        how = "learned" if method.facts is not None else "made"
        raise InputError(
            f"this method was {how} for unknowns of shape {method.shape}, and these problems have "
            f"{shape}. Learn or build one for problems of this size."
        )


def check_dtype(method: Algorithm, dtype: Any, what: str) -> None:
    if method.dtype is not None and method.dtype != dtype:
        raise InputError(
            f"this method is of {method.dtype} and {what} of {dtype}. Convert it, "
            f'or the method with method.astype("{dtype}").'
        )


def check_kind(method: Algorithm, kind: Kind) -> None:
    """Methods that were learned are for problems like those; others run on iterates, and conjugate
    gradients on quadratics."""
    if method.facts is not None and method.facts.kind.alike != kind.alike:
        raise InputError(
            f"this method was learned from {method.kind}, and these are {kind}. Learn one from "
            "problems of this kind."
        )
    if "iterates" not in method.views:
        raise InputError(
            "this method reads or multiplies tokens, so that it answers a query and has no w to solve a problem "
            "with. Use lfom.run, or a method with an iterate view (method.views)."
        )
    if method.is_conjugate and not kind.quadratic:
        raise InputError(
            f"conjugate gradients compute their coefficients from a quadratic, and these are {kind}. Use a method "
            "with a register or a bank, or learn one."
        )


def _check(method: Algorithm, problems: Problems) -> None:
    check_kind(method, problems.kind)
    check_shape(method, problems.shape)
    check_layers(method, method.depth, len(problems.shape), ())
    if method.structure is not None and method.structure.jacobi and not problems.knows_diagonal:
        raise InputError(
            f"this method is {method.structure.name}: it works in coordinates set by the diagonal of A, which "
            "these operators do not tell. Pass LinearSystems(..., diagonal=...)."
        )
    check_dtype(method, problems.dtype, "these problems")


def _checked_tolerance(method: Algorithm, tolerance: Any, dtype: Any) -> float:
    value = float(checks.positive("tolerance", tolerance))
    floor = method.floor if method.dtype is not None else 10 * float(jnp.finfo(dtype).eps)
    if value < floor:
        raise InputError(
            f"tolerance is {value:.2g}: in {dtype} residuals of these problems are rounded off at "
            f"{floor:.2g} relative to the start. Pass {floor:.2g} or more"
            + ("." if dtype == jnp.float64 else ", or solve in float64.")
        )
    return value


def in_precision(method: Any, dtype: Any) -> Any:
    """The same method in another precision."""
    target = checks.precision("dtype", dtype)
    if target == jnp.float64 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise InputError(
            "dtype is float64, and JAX computes in float32 here: enable it first with "
            'jax.config.update("jax_enable_x64", True).'
        )
    facts, now = method.facts, method.dtype
    changed = jax.tree.map(lambda leaf: jnp.asarray(leaf, target) if real(leaf) else leaf, method)
    if facts is None:
        return changed
    factor = float(jnp.finfo(target).eps / jnp.finfo(now).eps)
    return replace(changed, learned=replace(changed.learned, floor=facts.floor * factor))
