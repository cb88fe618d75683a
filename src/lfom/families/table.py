"""Ridge regressions over groups of patients: the breast cancer table of scikit-learn.

A regression per group, as one would fit per hospital or per customer: 30 measurements of a tumour
predict whether it is benign. The patients of a group are drawn with odds that favour one random
direction of the table, so that groups differ in more than noise. The measurements are strongly
correlated in every group, which is what a method can learn.
"""

from functools import cache

import numpy as np

from lfom.core.extras import needed
from lfom.families.family import Family, rounded, split
from lfom.solving.regressions import LeastSquaresProblems

PATIENTS = 100  # in a group
RIDGE = 0.01


@cache
def _table() -> tuple[np.ndarray, np.ndarray]:
    table = needed("sklearn.datasets", "the family table").load_breast_cancer()
    X = (table.data - table.data.mean(axis=0)) / table.data.std(axis=0)
    return X, 2.0 * table.target - 1.0


def groups(
    part: str, problems: int, random: np.random.Generator, patients: int = PATIENTS
) -> tuple[np.ndarray, np.ndarray]:
    """X (problems, patients, 30) and y (problems, patients), both centred within their group."""
    X, y = _table()
    rows = split(len(X))[part]
    scores = X[rows] @ random.standard_normal((X.shape[1], problems))
    odds = np.exp((scores - scores.mean(axis=0)) / scores.std(axis=0))
    chosen = np.stack([random.choice(rows, patients, replace=False, p=p / p.sum()) for p in odds.T])
    X, y = X[chosen], y[chosen]
    return X - X.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)


def _draw(part: str, problems: int, random: np.random.Generator) -> LeastSquaresProblems:
    X, y = rounded(groups(part, problems, random))
    return LeastSquaresProblems(X, y, ridge=RIDGE)


TABLE = Family("table", _draw, batch=1_000)  # 30 weights
