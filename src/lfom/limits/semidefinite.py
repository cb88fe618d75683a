"""Semidefinite programs by Clarabel: symmetric matrices as vectors, and one call."""

import numpy as np

from lfom.core.checks import InputError

TOLERANCE = 1e-12  # asked of the solver, which stops earlier where rounding does not let it get there
CONES = {"zero": "ZeroConeT", "positive": "NonnegativeConeT", "semidefinite": "PSDTriangleConeT"}
Cones = list[tuple[str, int]]  # a name of these, and how many rows, or the size of the matrix


class Triangle:
    """Symmetric matrices of one size as the vectors that Clarabel takes: the upper triangle column by column, times
    sqrt(2) off the diagonal, so that inner products stay. lengths: units of rows and columns of the matrix."""

    def __init__(self, size: int, lengths: np.ndarray | float = 1.0):
        self.rows, self.columns = np.tril_indices(size)
        units = np.broadcast_to(lengths, size)
        self.units = units[self.rows] * units[self.columns]
        self.weights = np.where(self.rows == self.columns, 1.0, np.sqrt(2))
        self.size = size

    def __len__(self) -> int:
        return len(self.rows)

    def form(self, matrices: np.ndarray) -> np.ndarray:
        """What the inner product with a matrix, in the usual units, multiplies a vector with."""
        return matrices[..., self.rows, self.columns] * self.weights * self.units

    def matrix(self, vector: np.ndarray) -> np.ndarray:
        """The matrix of a vector, in the usual units."""
        found = np.zeros((self.size, self.size))
        found[self.rows, self.columns] = found[self.columns, self.rows] = vector * self.units / self.weights
        return found


def minimise(
    P: np.ndarray | None, q: np.ndarray, A: np.ndarray, b: np.ndarray, cones: Cones
) -> tuple[np.ndarray, np.ndarray]:
    """min x.Px / 2 + q.x with b - A x in the cones: x and the multipliers. Whether they are any good is for the caller
    to look at; the solver's word is not asked."""
    try:
        import clarabel  # here: `import lfom` need not wait for them
    except ImportError as error:
        raise InputError(
            "worst cases are semidefinite programs: install their solver, `clarabel`."
        ) from error
    from scipy.sparse import csc_matrix

    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = TOLERANCE
    quadratic = csc_matrix((len(q), len(q)) if P is None else np.triu(P))
    within = [getattr(clarabel, CONES[name])(count) for name, count in cones]
    solution = clarabel.DefaultSolver(quadratic, q, csc_matrix(A), b, within, settings).solve()
    return np.asarray(solution.x), np.asarray(solution.z)
