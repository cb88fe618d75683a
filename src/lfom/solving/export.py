"""A learned method without a framework: a dictionary of plain numbers, ready for json.dumps.

How to run it, with z_j = s M (s r_j), r_j = b - A w_j (or minus the gradient) and w_0 = 0:

    bank       w_{l+1} = w_l + sum over j <= l of bank[l][j] z_j    (entrywise where it is diagonal)
    conjugate  conjugate gradients with M as the preconditioner

s = 1 / sqrt(diagonal of A) where "jacobi" is true, else 1. M by "preconditioner": identity; diagonal
(d numbers); low-rank (S (I + V V^T) S with S = diag(sqrt(diagonal))); transform (T^T diag(modes) T);
full (matrix).
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from lfom.solving.method import LearnedMethod
from lfom.solving.preconditioners import Diagonal, Full, LowRank, Shared, Transformed
from lfom.solving.steps import Bank, Register, as_bank


def exported(method: LearnedMethod) -> dict[str, Any]:
    """The contents of the JSON export."""
    coefficients = method.plan.coefficients
    content: dict[str, Any] = {
        "format": "lfom method, coefficients",
        "version": 1,
        "kind": method.kind,
        "shape": list(method.shape),
        "steps": method.steps,
        "structure": method.structure.name,
        "dtype": str(method.dtype),
        "jacobi": method.structure.jacobi,
        "run": "bank",
        "preconditioner": _matrix(method.plan.shared),
        "promise": method.promise,
    }
    if isinstance(coefficients, Register):
        content["register"] = {"alpha": _plain(coefficients.alpha), "gamma": _plain(coefficients.gamma)}
        content["bank"] = _plain(as_bank(coefficients).gamma)
    elif isinstance(coefficients, Bank):
        mask = np.tril(np.ones((method.steps, method.steps)))
        table = np.asarray(coefficients.gamma, float)
        content["bank"] = (table * mask.reshape(mask.shape + (1,) * (table.ndim - 2))).tolist()
    else:
        content["run"] = "conjugate"
    if method.certificate is not None:
        content["interval"] = [0.0, method.certificate.reach[-1]]
    return content


def _matrix(shared: Shared) -> dict[str, Any]:
    content: dict[str, Any] = {"kind": shared.kind}
    if isinstance(shared, Diagonal):
        content["diagonal"] = _plain(jnp.exp(shared.logs))
    elif isinstance(shared, LowRank):
        content |= {"diagonal": _plain(jnp.exp(shared.logs)), "V": _plain(shared.V)}
    elif isinstance(shared, Transformed):
        content |= {"transform": shared.transform, "modes": _plain(jnp.exp(shared.logs))}
    elif isinstance(shared, Full):
        content["matrix"] = _plain(shared.matrix)
    return content


def _plain(values: Any) -> Any:
    return np.asarray(values, float).tolist()
