"""The rivals: the best implementations of the standard methods that we know, batched where they can be.

JAX and Lineax solve the batch in one compiled program, whole or in pieces, whichever is faster; SciPy solves one problem after the
other, on one thread where its problems are too small to share. `steps` is exact: tolerances are
zero, so that nobody spends time on stopping tests that its rivals do not have.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.optimize
import lineax as lx
import numpy as np
import optax
import scipy.optimize
import scipy.sparse.linalg as sparse
from threadpoolctl import threadpool_limits

from lfom.bench.loops import chebyshev, conjugate_gradients, newton
from lfom.bench.rival import Rival
from lfom.bench.timing import side_by_side
from lfom.bench.views import View, view
from lfom.families import digits
from lfom.solving.convex_losses import ConvexLosses
from lfom.solving.pieces import in_pieces, piece

MEMORY = 10  # pairs that L-BFGS keeps: the default of SciPy, JAX and Optax; not tuned
TRIAL_STEPS = 10  # to find out whether a batch is faster in pieces

Solve = Callable[..., Any]  # (A v, b, 1 / diagonal or None, steps, more) of one problem


def rivals(problems: Any) -> list[Rival]:
    """Every rival that applies to a batch of one of the four families."""
    if not problems.kind.quadratic:
        return _for_losses(problems)
    seen = view(problems)
    return [*_in_jax(seen), *_in_scipy(seen)]


def _batched(
    problems: Any, solve: Solve, jacobi: bool, extra: tuple[Any, ...] = (), tune: bool = True
) -> Callable[[int], Any]:
    """One compiled program over the batch; the Gram matrices of least squares are formed in it."""

    def some(problems: Any, extra: tuple[Any, ...], steps: Any) -> Any:
        def one(problem: Any, *more: Any) -> Any:
            b, inverse = -problem.initial()[1], 1 / problem.diagonal() if jacobi else None
            return solve(problem.hessian_times, b, inverse, steps, *more)

        return jax.vmap(one)(problems.each(), *extra)

    return _compiled(some, problems, extra, tune)


def _compiled(
    solve: Callable[[Any, Any, Any], Any], problems: Any, extra: Any = (), tune: bool = True
) -> Callable[[int], Any]:
    """solve(problems, extra, steps), compiled: the whole batch at once, or in the pieces that the learned
    method takes it in, whichever is faster here."""
    size, whole = piece(problems), jax.jit(solve)

    @jax.jit
    def pieces(problems: Any, extra: Any, steps: Any) -> Any:
        return in_pieces(lambda some: solve(some[0], some[1], steps), (problems, extra), size)

    runs = {"whole": partial(whole, problems, extra)}
    if tune and size < len(problems):
        runs["pieces"] = partial(pieces, problems, extra)
        seconds = side_by_side({name: partial(run, TRIAL_STEPS) for name, run in runs.items()}, 3)
        return runs[min(seconds, key=lambda name: seconds[name])]
    return runs["whole"]


def _jax_cg(times: Any, b: Any, inverse: Any, steps: Any) -> Any:
    scale = None if inverse is None else lambda v: inverse * v
    return jax.scipy.sparse.linalg.cg(times, b, tol=0.0, atol=0.0, maxiter=steps, M=scale)[0]


def _lineax_cg(times: Any, b: Any, inverse: Any, steps: Any) -> Any:
    operator = lx.FunctionLinearOperator(times, b, lx.positive_semidefinite_tag)
    solver = lx.CG(rtol=0.0, atol=0.0, stabilise_every=None, max_steps=steps)
    options = {}
    if inverse is not None:
        # Its guard against a vanishing curvature takes steps longer than 1 / (100 size eps) for failures.
        # Conjugate gradients do not depend on the scale of the preconditioner, so a large one avoids it.
        scale = lx.FunctionLinearOperator(lambda v: 1e4 * inverse * v, b, lx.positive_semidefinite_tag)
        options = {"preconditioner": scale}
    return lx.linear_solve(operator, b, solver, options=options, throw=False).value


def _in_jax(seen: View) -> list[Rival]:
    problems, found = seen.problems, []
    libraries = {"plain loop": conjugate_gradients, "JAX": _jax_cg, "Lineax": _lineax_cg}
    for jacobi, coordinates in ((False, ""), (True, "Jacobi ")):
        for library, solve in libraries.items():
            found.append(Rival(f"{coordinates}CG", library, _batched(problems, solve, jacobi), len(problems)))
        run = _batched(problems, chebyshev, jacobi, seen.extremes(jacobi))
        found.append(Rival(f"{coordinates}Chebyshev", "plain loop", run, len(problems)))
    if problems.kind.matrix:
        found.append(_direct("JAX", problems, lambda A, b: jax.scipy.linalg.solve(A, b, assume_a="pos")))
        found.append(_direct("Lineax", problems, _lineax_direct))
    return found


def _lineax_direct(A: Any, b: Any) -> Any:
    return lx.linear_solve(lx.MatrixLinearOperator(A, lx.positive_semidefinite_tag), b, lx.Cholesky()).value


def _direct(library: str, problems: Any, solve: Callable[[Any, Any], Any]) -> Rival:
    def some(problems: Any, extra: Any, steps: Any) -> Any:
        each = problems.each()
        return jax.vmap(solve)(each.gram, each.moment)

    return Rival("direct", library, _compiled(some, problems), len(problems), iterative=False)


def _in_scipy(seen: View) -> list[Rival]:
    shape = seen.b.shape[1:]

    def each(one: Callable[[int, int], np.ndarray], problems: int) -> Callable[[int], np.ndarray]:
        def run(steps: int) -> np.ndarray:
            with threadpool_limits(1 if seen.problems.kind.matrix else None):
                return np.stack([one(i, steps).reshape(shape) for i in range(problems)])

        return run

    def cg(i: int, steps: int, jacobi: bool) -> np.ndarray:
        scale = None
        if jacobi:
            inverse = 1 / seen.diagonal[i].ravel()
            scale = sparse.LinearOperator((inverse.size,) * 2, lambda v: inverse * v, dtype=inverse.dtype)
        return sparse.cg(seen.system(i), seen.b[i].ravel(), rtol=0.0, atol=0.0, maxiter=steps, M=scale)[0]

    def lsqr(i: int, steps: int) -> np.ndarray:
        K, y, damping = seen.rectangular(i)
        return sparse.lsqr(K, y, damp=damping, atol=0.0, btol=0.0, conlim=0.0, iter_lim=steps)[0]

    count = len(seen.problems)
    return [
        Rival("CG", "SciPy", each(partial(cg, jacobi=False), count), count),
        Rival("Jacobi CG", "SciPy", each(partial(cg, jacobi=True), count), count),
        Rival("LSQR", "SciPy", each(lsqr, count), count),
        Rival("direct", "SciPy", each(lambda i, _: seen.direct(i), seen.few), seen.few, iterative=False),
    ]


def baseline(problems: Any) -> Rival:
    """What a learned method is measured against step by step: Jacobi CG, or L-BFGS for losses. It is
    there for its errors; its speed is not tuned."""
    if not problems.kind.quadratic:
        run = _batched_losses(problems, _optax_lbfgs, tune=False)
        return Rival("L-BFGS", "Optax", run, len(problems))
    run = _batched(problems, conjugate_gradients, jacobi=True, tune=False)
    return Rival("Jacobi CG", "plain loop", run, len(problems))


def _batched_losses(
    problems: ConvexLosses, solve: Callable[[Any, Any, Any], Any], tune: bool = True
) -> Callable[[int], Any]:
    """solve(loss, start, steps) of one problem, for the batch in one compiled program."""
    start = jnp.zeros(problems.shape, problems.dtype)

    def some(problems: ConvexLosses, extra: Any, steps: Any) -> Any:
        return jax.vmap(lambda data: solve(lambda w: problems.loss(w, data), start, steps))(problems.data)

    return _compiled(some, problems, tune=tune)


def _jax_lbfgs(loss: Any, start: Any, steps: Any) -> Any:
    options = {"maxiter": steps - 1, "maxcor": MEMORY, "gtol": 0.0, "ftol": 0.0}  # it counts from 0
    method = "l-bfgs-experimental-do-not-rely-on-this"
    return jax.scipy.optimize.minimize(loss, start, method=method, options=options).x


def _optax_lbfgs(loss: Any, start: Any, steps: Any) -> Any:
    lbfgs = optax.lbfgs(memory_size=MEMORY)
    both = optax.value_and_grad_from_state(loss)

    def step(_: Any, carry: Any) -> Any:
        w, state = carry
        value, gradient = both(w, state=state)
        move, state = lbfgs.update(gradient, state, w, value=value, grad=gradient, value_fn=loss)
        return optax.apply_updates(w, move), state

    return jax.lax.fori_loop(0, steps, step, (start, lbfgs.init(start)))[0]


def _for_losses(problems: ConvexLosses) -> list[Rival]:
    count = len(problems)
    return [
        Rival("L-BFGS", "Optax", _batched_losses(problems, _optax_lbfgs), count),
        Rival("L-BFGS", "JAX", _batched_losses(problems, _jax_lbfgs), count),
        Rival("L-BFGS", "SciPy", _scipy_lbfgs(problems), count),
        Rival("Newton", "plain loop", _batched_losses(problems, newton), count, iterative=False),
    ]


def _scipy_lbfgs(problems: ConvexLosses) -> Callable[[int], np.ndarray]:
    """SciPy computes in float64 whatever it is given; the loss is NumPy's, as a user would write it."""
    X, y = (np.asarray(problems.data[name], np.float64) for name in ("X", "y"))
    ridge = digits.RIDGE

    def both(w: np.ndarray, X: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
        margins = y * (X @ w)
        pull = y / (1 + np.exp(margins))
        value = np.logaddexp(0, -margins).mean() + ridge / 2 * w @ w
        return value, ridge * w - X.T @ pull / len(y)

    def run(steps: int) -> np.ndarray:
        options = {"maxiter": steps, "maxcor": MEMORY, "gtol": 0.0, "ftol": 0.0}
        minimise = partial(scipy.optimize.minimize, both, np.zeros(X.shape[-1]), jac=True, method="L-BFGS-B")
        with threadpool_limits(1):
            return np.stack([minimise(args=one, options=options).x for one in zip(X, y, strict=True)])

    return run
