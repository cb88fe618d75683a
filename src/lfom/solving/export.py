"""A method without a framework: a dictionary of plain numbers, ready for json.dumps.

How to run it, with z_j = s M (s r_j), r_j = b - A w_j (or minus the gradient) and w_0 = 0:

    bank       w_{l+1} = w_l + sum over j <= l of bank[l][j] z_j    (entrywise where it is diagonal)
    conjugate  conjugate gradients with M as the preconditioner, until r.z has fallen to stop^2 of its first value

s = 1 / sqrt(diagonal of A) where "jacobi" is true, else 1. M by "preconditioner": identity; diagonal
(d numbers); low-rank (S (I + V V^T) S with S = diag(sqrt(diagonal))); transform (T^T diag(modes) T);
full (matrix); layers (matrices: matrices[j] makes z_j). Where there is an "answer", another table, the
answer is not where the gradients are read (Nesterov): it moves by answer[l][j] z_j.
"""

from typing import Any

import jax
import numpy as np

from lfom.core.memories import Memory
from lfom.core.methods import Algorithm
from lfom.core.parameters import check_layers
from lfom.core.readers import Reader


def exported(method: Algorithm) -> dict[str, Any]:
    """The contents of the JSON export."""
    check_layers(method, method.depth, None if method.shape is None else len(method.shape), ())
    reader, memory = method.parts()
    reader = reader.merged(method.depth, None if method.shape is None else method.shape[0])
    reads = reader.plain()
    content: dict[str, Any] = {
        "format": "lfom method, coefficients",
        "version": 1,
        "kind": method.kind,
        "shape": None if method.shape is None else list(method.shape),
        "steps": method.steps,
        "structure": None if method.structure is None else method.structure.name,
        "dtype": None if method.dtype is None else str(method.dtype),
        "jacobi": reads["jacobi"],
        "run": "conjugate" if method.is_conjugate else "bank",
        "preconditioner": jax.tree.map(_plain, reads["preconditioner"]),
        "promise": method.promise,
    }
    content |= {"stop": memory.stop} if method.is_conjugate else _tables(reader, memory, method.depth)  # type: ignore[attr-defined]
    if method.certificate is not None:
        content["interval"] = [0.0, method.certificate.reach[-1]]
    return content


def _tables(reader: Reader, memory: Memory, depth: int) -> dict[str, Any]:
    """What every step adds of every direction, the step sizes of the reader in it."""
    single = reader.on_eigenvectors
    sizes = np.ones(depth) if single is None else single.sizes(depth)
    tables = dict(zip(("bank", "answer") if memory.splits else ("bank",), memory.table(depth), strict=False))
    return {name: _plain(t * sizes.reshape(-1, *(1,) * (t.ndim - 2))) for name, t in tables.items()}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else np.asarray(value, float).tolist()  # its name, or its numbers
