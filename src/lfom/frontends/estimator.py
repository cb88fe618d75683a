"""A scikit-learn estimator: one regression, solved by a learned method."""

import warnings
from numbers import Real
from typing import Any, Self

import jax
import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from lfom.core.checks import InputError
from lfom.core.memories import Conjugate
from lfom.core.methods import Method
from lfom.core.preconditioners import Identity
from lfom.core.readers import Jacobi
from lfom.solving import statuses
from lfom.solving.linear_systems import LinearSystems
from lfom.solving.records import Solution

TOLERANCE = 1e-8  # of the method that is built in
STEPS_PER_UNKNOWN = 10  # rounding makes conjugate gradients need more than one


class InContextRegressor(RegressorMixin, BaseEstimator):
    """Linear regression in a fixed number of learned steps: min |X w - y|^2 / 2n + ridge |w|^2 / 2.

    method: what `lfom.learn` returned for regressions with as many features, or any other method; None for
    conjugate gradients preconditioned by the diagonal, which fit any X and y. ridge: scikit-learn's
    Ridge(alpha) is ridge = alpha / n. steps, tolerance: as in `method.solve`; without a method, up to
    ten steps per feature and 1e-8. X and y are converted to the method's precision, to float64 without one. fit_intercept: centre X and y first; learn from centred problems
    then.

    After fit: coef_, intercept_, n_iter_ (steps taken), residuals_ (one per step, relative to the first), status_ and
    message_. A fit that failed says so with a ConvergenceWarning and is no worse than coef_ = 0.

    >>> X = np.random.default_rng(0).normal(size=(30, 3))
    >>> InContextRegressor().fit(X, X @ [1.0, 2.0, 3.0] + 4).coef_.round(6)
    array([1., 2., 3.])
    """

    coef_: np.ndarray
    intercept_: float
    n_iter_: int
    status_: int
    residuals_: np.ndarray
    message_: str

    def __init__(
        self,
        method: Method | None = None,
        *,
        ridge: float = 0.0,
        steps: int | None = None,
        tolerance: float | None = None,
        fit_intercept: bool = True,
    ):
        self.method = method
        self.ridge = ridge
        self.steps = steps
        self.tolerance = tolerance
        self.fit_intercept = fit_intercept

    def fit(self, X: Any, y: Any) -> Self:
        X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
        y = y.astype(np.float64)
        if not isinstance(self.ridge, Real) or not 0 <= self.ridge < np.inf:
            raise InputError(f"ridge is {self.ridge!r}: it must be one number, 0 or greater.")
        centre_X, centre_y = (X.mean(axis=0), y.mean()) if self.fit_intercept else (0 * X[0], 0.0)
        solution = self._solve(X - centre_X, y - centre_y)
        self.coef_ = np.asarray(solution.value[0], np.float64)
        self.intercept_ = float(centre_y - centre_X @ self.coef_)
        self.n_iter_, self.status_ = int(solution.steps[0]), int(solution.status[0])
        self.residuals_ = np.asarray(solution.residuals)[0, : self.n_iter_ + 1]
        self.message_ = solution.meaning[self.status_]
        if statuses.failed(self.status_):
            text = f"{self.message_}. Allow more steps, a larger tolerance or a larger ridge."
            warnings.warn(text, ConvergenceWarning, stacklevel=2)
        return self

    def _solve(self, X: np.ndarray, y: np.ndarray) -> Solution:
        """Through the Gram matrix, whose shape does not depend on n: one compiled program serves
        every number of samples."""
        n, d = X.shape
        # By NumPy: core's gram_of would be compiled for every n.
        A, b = X.T @ X / n + self.ridge * np.eye(d), X.T @ y / n
        with jax.enable_x64(True):  # scikit-learn computes in float64 whatever JAX's setting is
            method, steps, tolerance = self.method, self.steps, self.tolerance
            if method is None:  # conjugate gradients, preconditioned by the diagonal
                method = Method(Jacobi(Identity()), Conjugate(), d)
                tolerance = TOLERANCE if steps is None and tolerance is None else tolerance
                steps = STEPS_PER_UNKNOWN * d if steps is None else steps
            dtype = method.dtype or np.float64
            return method.solve(LinearSystems(A[None].astype(dtype), b[None].astype(dtype)), steps, tolerance)

    def predict(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return validate_data(self, X, reset=False, dtype=np.float64) @ self.coef_ + self.intercept_
