"""A step of Levenberg and Marquardt on the host, and what its damping becomes: of one system, or of each of a batch."""

from typing import Any

import numpy as np
from jaxtyping import Float


def damped_step(
    normal: Float[np.ndarray, "*batch p p"], slope: Float[np.ndarray, "*batch p"], damping: Any
) -> Float[np.ndarray, "*batch p"]:
    """-(N + damping diag(N))^-1 slope, for N = J^T J and slope = J^T r, in units in which the diagonal of N is 1. damping:
    one number, or one for each system. A number that nothing depends on stays."""
    diagonal = np.einsum("...ii->...i", normal)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    unit = normal / scale[..., :, None] / scale[..., None, :]
    system = unit + np.asarray(damping)[..., None, None] * np.eye(slope.shape[-1])
    return -np.linalg.solve(system, (slope / scale)[..., None])[..., 0] / scale


def next_damping(damping: Any, better: Any) -> Any:
    """Less where the step was better, more where it was not."""
    return np.where(better, damping / 3, damping * 4)
