"""The best that GD++ can do on a distribution: A_l = a_l M, B_l = b_l I, without memory or with a bank of numbers.

There is no closed form. The few numbers are fitted to the eigenvalues of sampled prompts (lfom.limits.spectral),
the loss is that of other prompts.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax import Array
from jaxtyping import PRNGKeyArray

from lfom.core import checks
from lfom.core.arrays import as_array, default_dtype
from lfom.core.coefficients import Pair, Scalar
from lfom.core.kept import Keep, anew
from lfom.core.memories import Bank, Forget, Memory
from lfom.core.methods import Method
from lfom.core.preconditioners import Scaled, Shared
from lfom.core.readers import Gradient
from lfom.core.runs import fingerprint
from lfom.core.vectors import vector_of
from lfom.core.words import brief
from lfom.limits.spectra import Spectra, sampled_spectra
from lfom.limits.spectral import FittedTo, NumberFit, fitted_depths, in_float64
from lfom.prompts.distributions import Distribution

MEMORIES = ("none", "scalar", "pair")


class FittedOptimum(eqx.Module):
    """The best numbers of one depth.

    method: the method itself. loss: its mean loss on prompts that it was not fitted to; stderr: the standard
    error of that; prompts: how many were drawn for it, of which some are used (`sampled_spectra`). They also chose
    among the few valleys that it might have ended in.
    """

    __repr__ = brief

    method: Method
    loss: float = eqx.field(static=True)
    stderr: float = eqx.field(static=True)
    prompts: int = eqx.field(static=True)

    @property
    def depth(self) -> int:
        return self.method.depth

    def as_algorithm(self) -> Method:
        """What is run to score it."""
        return self.method

    @property
    def log_loss(self) -> float:
        return math.log(self.loss)

    @property
    def log_stderr(self) -> float:
        return self.stderr / self.loss


def template(memory: str, depth: int) -> Method:
    """GD++ with A_l = a_l and B_l = b_l, as it acts on one eigenvalue, before anything is fitted."""
    own, eye = as_array(np.ones(depth)), as_array(np.eye(depth))
    memories: dict[str, Memory] = {
        "none": Forget(own),
        "scalar": Bank(Scalar(eye), False),
        "pair": Bank(Pair(eye, eye), False),
    }
    half = as_array(np.full(depth, 0.5))
    return in_float64(Method(Gradient(Scaled(own), Scaled(half)), memories[memory], depth))


def gdpp_optima(
    distribution: Distribution,
    depths: Sequence[int],
    key: PRNGKeyArray,
    *,
    preconditioner: Any = None,
    memory: str = "none",
    prompts: int = 5_000_000,
    chunk: int = 20_000,
    keep: Keep = anew,
) -> dict[int, FittedOptimum]:
    """The best of GD++ for several depths, from the same prompts: see lfom.sampled_optimum. keep: where calls with the same
    key, of other memories, find what they share."""
    checks.known("memory", memory, MEMORIES)
    depths = [checks.count("depth", depth) for depth in depths]
    M = _definite(preconditioner, distribution.dimension)
    chunk = min(checks.count("chunk", chunk), max(checks.count("prompts", prompts) // 2, 1))
    keys = jax.random.split(key, (2, max(prompts // (2 * chunk), 1)))
    draw = jax.jit(lambda one: distribution.quadratics(one, chunk))
    name = fingerprint((distribution, M, np.asarray(jax.random.key_data(keys)), chunk))
    halves = [partial(sampled_spectra, map(draw, half), M, len(half) * chunk) for half in keys]
    train = keep(("spectra", name, max(depths)), lambda: FittedTo.of(halves[0](), max(depths)))
    judge = keep(("spectra", name), halves[1])
    templates = [template(memory, depth) for depth in range(1, max(depths) + 1)]
    fitted = fitted_depths(templates, train, judge, keep, name)
    return {depth: _scored(fitted[depth - 1], judge, M, keys.shape[1] * chunk) for depth in depths}


def _definite(preconditioner: Any, d: int) -> np.ndarray:
    """M in float64; spectral coordinates need its root."""
    if preconditioner is None:
        return np.eye(d)
    checks.real_array("preconditioner", preconditioner, (d, d))
    M = np.asarray(checks.symmetric("preconditioner", preconditioner), np.float64)
    lowest, highest = np.linalg.eigvalsh(M)[[0, -1]]
    if lowest <= 1e-7 * highest:
        raise checks.InputError(
            f"preconditioner is not positive definite: its eigenvalues go from {lowest:.3g} to {highest:.3g}. Pass one that "
            "is, such as the inverse covariance."
        )
    return M


def _scored(found: Method, judge: Spectra, M: np.ndarray, prompts: int) -> FittedOptimum:
    losses = NumberFit(found).losses(vector_of(found), judge)
    stderr = float(losses.std() / math.sqrt(len(losses)))
    return FittedOptimum(
        with_matrix(found, as_array(M.astype(default_dtype()))), float(losses.mean()), stderr, prompts
    )


def with_matrix(found: Method, M: Array) -> Method:
    """The method for d unknowns: the same numbers, and M."""
    numbers: Any = jax.tree.map(lambda a: as_array(np.asarray(a, default_dtype())), found)
    reader = Gradient(Shared(numbers.reader.A.scale, M), numbers.reader.B)
    return Method(reader, numbers.memory, found.depth)
