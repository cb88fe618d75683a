"""A first-order method with diagonal coefficients, learned from a fixed set of prompts."""

import jax
import jax.numpy as jnp

from lfom.core.coefficients import CoordinateWise
from lfom.core.memories import Bank
from lfom.core.methods import Method
from lfom.core.preconditioners import Identity
from lfom.core.readers import Gradient
from lfom.experiments.fixed_batches import OnSets, train_on_sets
from lfom.experiments.workbench import CONTEXT, Workbench, kept
from lfom.limits.optimum import exact_optimum
from lfom.training import LeastSquares

ISOTROPIC = (1.0,) * 5


@kept
def learned_lfom(
    bench: Workbench,
    training: str,
    sizes: tuple[int, ...],
    depths: tuple[int, ...],
    passes: int = 15,
    prompts: int | None = None,
) -> OnSets:
    """w_{k+1} = w_k - sum over j <= k of Lambda_j^k grad R(w_j), every Lambda_j^k diagonal and free."""
    deepest = max(depths)
    if training == "paper":
        start = 1e-4 * jax.random.normal(jax.random.fold_in(bench.key, 13), (deepest, deepest, 5))
    else:  # gradient descent with steps that differ
        steps = 1 + 0.6 * jnp.cos(jnp.pi * (jnp.arange(deepest) + 0.5) / deepest)
        start = jnp.diag(steps)[..., None] * jnp.ones(5)
    model = Method(Gradient(Identity()), Bank(CoordinateWise(start), tied=False), deepest)
    data, label = bench.data(ISOTROPIC), f"isotropic {max(sizes)}"
    squares = LeastSquares(hold_out=0, passes=(passes, 1))
    optimum = {depth: exact_optimum(5, CONTEXT, depth) for depth in depths}
    return train_on_sets(bench, model, data, sizes, training, label, depths, squares, optimum, prompts)
