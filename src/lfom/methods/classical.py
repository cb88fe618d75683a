"""Classical methods as a reader and a memory, and any linear one as an LFOM (equation 1.1).

Step sizes act on the gradient of R(w) = |Xw - y|^2 / 2n. Those of Appendix B act on the
gradient without 1/n: multiply them by n (docs/mathematics.md 2.10).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core import checks, room
from lfom.core.arrays import as_array, numpy_or_jax, on_host, ones
from lfom.core.checks import InputError
from lfom.core.coefficients import CoordinateWise, Pair, Scalar
from lfom.core.memories import Bank, Conjugate, Forget, Register
from lfom.core.methods import Method
from lfom.core.parameters import dimension
from lfom.core.preconditioners import Full, Identity, One, Preconditioner
from lfom.core.problems import gram_of
from lfom.core.readers import Gradient
from lfom.prompts.prompt import Prompt, checked

LISTED = 16.0  # numbers of a step in a list of Python take so much more
APPENDIX_B = {"Nesterov": (0.03, 0.9), "momentum": (0.005, 0.9)}  # (eta, beta), eta without 1/n


def _constant(name: str, value: Any, steps: int) -> Any:
    """A number for every step, from one number or from one per step. Tables of numbers are made by NumPy:
    each operation of JAX outside a compiled program would be compiled."""
    room.layers("steps", steps)
    array = checks.real_array(name, value)
    if array.shape not in ((), (steps,)):
        raise InputError(f"{name} has shape {array.shape}: pass one number, or one per step ({steps}).")
    known = on_host(array)
    return known if known.shape else numpy_or_jax(known).broadcast_to(known, (steps,))


def gradient_descent(eta: Any, steps: int) -> Method:
    """w <- w - eta grad R(w).

    >>> import lfom
    >>> lfom.gradient_descent([1.0, 0.5], steps=2).memory.eta.tolist()  # one size for each step, or one for all
    [1.0, 0.5]
    """
    steps = checks.count("steps", steps)
    return Method(Gradient(Identity()), Forget(as_array(_constant("eta", eta, steps))), steps)


def preconditioned_gradient_descent(A: Any, eta: Any, steps: int) -> Method:
    """w <- w - eta A^T grad R(w), with one A (d, d), or one per step (steps, d, d).

    >>> import jax
    >>> import lfom
    >>> prompts = lfom.LinearRegression([1.0, 0.5], context=6).prompts(jax.random.key(0), 3)
    >>> A = [[1.0, 0.0], [0.0, 2.0]]  # the inverse covariance
    >>> lfom.run(lfom.preconditioned_gradient_descent(A, 0.5, steps=4), prompts).predictions.shape
    (5, 3)
    """
    steps = checks.count("steps", steps)
    sizes = as_array(_constant("eta", eta, steps))
    return Method(Gradient(_matrices("A", A, steps)), Forget(sizes), steps)


def gd_plus_plus(A: Any, B: Any, steps: int) -> Method:
    """GD++ with given matrices, each (d, d) or (steps, d, d).

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import lfom
    >>> prompts = lfom.LinearRegression([1.0, 0.5], context=6).prompts(jax.random.key(0), 3)
    >>> lfom.run(lfom.gd_plus_plus(jnp.eye(2), 0.3 * jnp.eye(2), steps=3), prompts).predictions.shape
    (4, 3)
    """
    steps = checks.count("steps", steps)
    reader = Gradient(_matrices("A", A, steps), _matrices("B", B, steps))
    return Method(reader, Forget(ones(steps)), steps)


def momentum(eta: Any, beta: Any, steps: int) -> Method:
    """v <- beta v - eta grad R(w); w <- w + v (Appendix B).

    With v = -eta R this is the register R <- grad + beta R when eta is constant; with a varying
    eta, R carries v / eta.

    >>> import lfom
    >>> lfom.momentum(0.5, [0.0, 0.25], steps=2).memory.gamma.tolist()
    [0.0, 0.25]
    """
    steps = checks.count("steps", steps)
    eta, beta = _constant("eta", eta, steps), _constant("beta", beta, steps)
    if checks.is_concrete(eta) and steps > 1 and not bool((eta[1:] != 0).all()):
        raise InputError(
            f"eta is {np.asarray(eta).tolist()}: the register carries v / eta, so no step size may be "
            "0. To stand still, run fewer steps."
        )
    xp = numpy_or_jax(eta, beta)
    gamma = xp.concatenate([beta[:1], beta[1:] * (eta[:-1] / eta[1:])])
    return Method(Gradient(Identity()), Register(as_array(eta), as_array(gamma)), steps)


def heavy_ball(eta: Any, beta: Any, steps: int) -> Method:
    """w_{k+1} = w_k - eta grad R(w_k) + beta (w_k - w_{k-1}): momentum in one line (Polyak).

    >>> import lfom
    >>> lfom.heavy_ball(0.5, 0.25, steps=2).memory.gamma.tolist()
    [0.25, 0.25]
    """
    return momentum(eta, beta, steps)


def heavy_ball_for(lowest: float, highest: float, steps: int) -> Method:
    """Heavy ball with the best constants for eigenvalues between `lowest` and `highest`."""
    _check_interval(lowest, highest)
    a, b = np.sqrt(lowest), np.sqrt(highest)
    return heavy_ball(4 / (a + b) ** 2, ((b - a) / (b + a)) ** 2, steps)


def nesterov(eta: Any, beta: Any, steps: int) -> Method:
    """v = w_k + beta_k (w_k - w_{k-1}); w_{k+1} = v - eta_k grad R(v) (Appendix B).

    Its gradients sit at v and its answer is w, so it is a bank with one value for the context,
    which runs v, and one for the query, which reads w (docs/mathematics.md 2.5).

    >>> import jax
    >>> import lfom
    >>> prompts = lfom.LinearRegression([1.0, 0.5], context=6).prompts(jax.random.key(0), 3)
    >>> lfom.run(lfom.nesterov(0.5, 0.9, steps=4), prompts).predictions.shape
    (5, 3)
    """
    steps = checks.count("steps", steps)
    eta, beta = _constant("eta", eta, steps), _constant("beta", beta, steps)
    # Rows of coefficients over the directions d_j = -grad R(v_j): w after k steps, and v_k.
    room.table("steps", steps, 4.0)
    xp = numpy_or_jax(eta, beta)
    units = np.eye(steps, dtype=eta.dtype)
    w, v = [0 * units[0]], []
    for k in range(steps):
        v.append(w[k] + beta[k] * (w[k] - w[k - 1] if k else 0 * units[0]))
        w.append(v[k] + eta[k] * units[k])
    v.append(w[steps])  # the context's last move is never read
    context = as_array(xp.stack([v[k + 1] - v[k] for k in range(steps)]))
    query = as_array(xp.stack([w[k + 1] - w[k] for k in range(steps)]))
    return Method(Gradient(Identity()), Bank(Pair(context, query), tied=False), steps)


def chebyshev(lowest: float, highest: float, steps: int) -> Method:
    """Chebyshev iteration for eigenvalues in [lowest, highest]: the register whose residual
    polynomial is the smallest possible on that interval.

    >>> import lfom
    >>> lfom.chebyshev(1.0, 3.0, steps=1).memory.alpha.tolist()  # one step: to the middle
    [0.5]
    """
    steps = room.layers("steps", checks.count("steps", steps), LISTED)
    _check_interval(lowest, highest)
    centre, radius = (highest + lowest) / 2, (highest - lowest) / 2
    alpha, gamma = [1 / centre], [0.0]
    for k in range(1, steps):
        gamma.append((0.5 if k == 1 else 0.25) * (radius * alpha[-1]) ** 2)
        alpha.append(1 / (centre - gamma[-1] / alpha[-1]))
    # Register: step alpha_k R_k, R_k = direction + (gamma_k as above) R_{k-1}
    register = Register(as_array(np.asarray(alpha)), as_array(np.asarray(gamma)))
    return Method(Gradient(Identity()), register, steps)


def _check_interval(lowest: float, highest: float) -> None:
    checks.positive("lowest", lowest)
    checks.positive("highest", highest)
    if not highest > lowest:
        raise InputError(
            f"highest is {highest}: it must be greater than lowest ({lowest}). For one eigenvalue, "
            "gradient_descent(1 / lowest, steps=1) is exact."
        )


def conjugate_gradient(steps: int, preconditioner: Any = None, *, stop: float = 0.0) -> Method:
    """Conjugate gradients (CGD), optionally with a symmetric positive definite preconditioner.

    >>> import jax
    >>> import lfom
    >>> prompts = lfom.LinearRegression([1.0, 0.5], context=6).prompts(jax.random.key(0), 3)
    >>> found = lfom.run(lfom.conjugate_gradient(steps=2), prompts).predictions
    >>> bool(abs(found[-1] - prompts.target).max() < 1e-3)  # exact after d steps
    True
    """
    steps = room.layers("steps", checks.count("steps", steps))
    checks.non_negative("stop", stop)
    A: Preconditioner = Identity()
    if preconditioner is not None:
        A = One(checks.definite("preconditioner", preconditioner))
    return Method(Gradient(A), Conjugate(stop), steps)


def lfom(coefficients: Any) -> Method:
    """The method w^{k+1} = w^0 + sum_i Gamma_i^k grad R(w^i) of equation 1.1.

    coefficients: Gamma indexed [k, i], (steps, steps) for numbers or (steps, steps, d) for
    diagonal matrices; entries with i > k are not read. The bank adds increments with the
    opposite sign (docs/mathematics.md 2.5): c[k] = -(Gamma[k] - Gamma[k-1]).

    >>> import lfom
    >>> method = lfom.lfom([[-0.5, 0.0], [-0.5, -0.5]])  # gradient descent with steps of 0.5
    >>> lfom.lfom_coefficients(method)[1, :, 0].tolist()
    [-0.5, -0.5]
    """
    gamma = checks.real_array("coefficients", coefficients)
    if gamma.ndim not in (2, 3) or gamma.shape[0] != gamma.shape[1]:
        raise InputError(f"coefficients has shape {gamma.shape}: pass (steps, steps) or (steps, steps, d).")
    gamma, steps = on_host(gamma), gamma.shape[0]
    xp = numpy_or_jax(gamma)
    lower = np.tril(np.ones((steps, steps), gamma.dtype))
    gamma = gamma * (lower if gamma.ndim == 2 else lower[..., None])
    increments = as_array(-(gamma - xp.concatenate([0 * gamma[:1], gamma[:-1]])))
    structure = Scalar(increments) if gamma.ndim == 2 else CoordinateWise(increments)
    return Method(Gradient(Identity()), Bank(structure, tied=False), steps)


def lfom_coefficients(method: Method) -> Float[Array, "steps steps d"]:
    """Gamma[k, i] of equation 1.1 for a linear method: one column if it is a number.

    Exact for every loss where the method reads its answer where its gradients sit. For
    Nesterov, whose gradients sit at v, exact where the gradient is affine in w (quadratics):
    grad(v) is then the same combination of gradients as v is of iterates.

    >>> import lfom
    >>> lfom.lfom_coefficients(lfom.momentum(0.5, 0.5, steps=2))[1, :, 0].tolist()
    [-0.75, -0.5]
    """
    checks.instance("method", method, Method, "a method such as lfom.nesterov(0.3, 0.9, steps=4)")
    scale = method.reader.sizes(method.depth)
    if scale is None or dimension(method.reader) is not None:
        raise InputError(
            "equation 1.1 has diagonal coefficients: they exist for methods that read the plain "
            "gradient (A_l = a_l I, B = 0). Multiply a full A into the gradient yourself."
        )
    tables = method.memory.table(method.depth)
    xp = numpy_or_jax(*tables)
    # Where the iterate is after every step, in directions d_j: context C, query Q.
    C, Q = (xp.cumsum(table, axis=0) for table in tables)
    if not method.splits:
        gamma = -C * scale.reshape(-1, *(1,) * (C.ndim - 2))
        return jnp.asarray(gamma[..., None] if gamma.ndim == 2 else gamma)
    # v_k = sum_i M[k, i] w_i with rows summing to 1, from v = C d and w = Q d (Q triangular).
    steps = method.depth
    before = xp.concatenate([0 * C[:1], C[:-1]])
    on_later = xp.linalg.solve(Q.T, before.T).T  # weights on w_1 ... w_steps
    M = xp.concatenate([1 - on_later.sum(1, keepdims=True), on_later], axis=1)[:, :steps]
    return jnp.asarray(-(Q * scale @ M)[..., None])


def _matrices(name: str, value: Any, steps: int) -> Preconditioner:
    array = checks.real_array(name, value)
    if array.ndim not in (2, 3) or array.shape[-1] != array.shape[-2]:
        raise InputError(f"{name} has shape {array.shape}: pass (d, d), or one per step ({steps}, d, d).")
    if array.ndim == 3 and array.shape[0] != steps:
        raise InputError(f"{name} holds {array.shape[0]} matrices for {steps} steps: give one per step.")
    room.layers("steps", steps, array.shape[-1] ** 2)
    known = on_host(array)
    return Full(as_array(numpy_or_jax(known).broadcast_to(known, (steps, *array.shape[-2:]))))


def least_squares(prompt: Prompt) -> Array:
    """The exact least-squares solution of each prompt, of smallest norm if there are many.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import lfom
    >>> prompts = lfom.LinearRegression([1.0, 0.5], context=6).prompts(jax.random.key(0), 3)
    >>> bool(jnp.allclose(lfom.least_squares(prompts), prompts.weights, atol=1e-3))  # labels have no noise
    True
    """
    prompt = checked(prompt).linear()
    solve = lambda X, y: jnp.linalg.lstsq(X, y)[0]  # noqa: E731
    return jax.vmap(solve)(prompt.X, prompt.y) if prompt.batched else solve(prompt.X, prompt.y)


def ridge(prompt: Prompt, penalty: Any) -> Array:
    """argmin |Xw - y|^2 / 2n + penalty |w|^2 / 2 for each prompt.

    >>> import jax
    >>> import lfom
    >>> prompts = lfom.LinearRegression([1.0, 0.5], context=6).prompts(jax.random.key(0), 3)
    >>> lfom.ridge(prompts, 0.1).shape
    (3, 2)
    """
    prompt, penalty = checked(prompt).linear(), checks.positive("penalty", penalty)

    def solve(X: Array, y: Array) -> Array:
        gram, moment = gram_of(X, y)
        return jnp.linalg.solve(gram + penalty * jnp.eye(len(gram), dtype=X.dtype), moment)

    return jax.vmap(solve)(prompt.X, prompt.y) if prompt.batched else solve(prompt.X, prompt.y)
