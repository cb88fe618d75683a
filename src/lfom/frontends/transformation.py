"""An Optax gradient transformation: the steps of a learned method, from gradients alone."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

from lfom.core.checks import InputError
from lfom.solving.method import LearnedMethod
from lfom.solving.preconditioners import Identity
from lfom.solving.quadratics import HIGHEST
from lfom.solving.steps import Bank, Conjugate, Register, lower


class LearnedState(NamedTuple):
    """done: steps since the last restart. past: the preconditioned gradients z_0, ..., z_{k-1} of a
    bank, (k, *shape), or the register, (1, *shape)."""

    done: Array
    past: Array


def learned_transformation(method: LearnedMethod) -> optax.GradientTransformation:
    """The learned steps w_{l+1} = w_l + sum over j <= l of gamma[l, j] z_j with z_j = -M gradient_j.

    Parameters may be any tree with as many numbers as the method has unknowns, taken in the order of
    `jax.flatten_util.ravel_pytree`; shared scalar coefficients take any number. After the last learned
    step the past is forgotten and the steps start again from where they are: on quadratics the error
    after m rounds is p(M A)^m e_0, so what the certificate promises of one round holds of each.

    A transformation sees gradients only. It cannot check, rescale or fall back as `method.solve` does.
    An example stands in docs/frontends.md.
    """
    coefficients, shared = _runnable(method)
    steps = method.steps
    slots = 1 if isinstance(coefficients, Register) else steps

    def init(params: optax.Params) -> LearnedState:
        vector, _ = _vector(method, params)
        return LearnedState(jnp.zeros((), jnp.int32), jnp.zeros((slots, *vector.shape), vector.dtype))

    def update(
        gradients: optax.Updates, state: LearnedState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, LearnedState]:
        del params
        vector, unravel = _vector(method, gradients)
        done, past = state
        numbers, matrix = jax.tree.map(lambda leaf: leaf.astype(vector.dtype), (coefficients, shared))
        z = matrix(-vector[None])[0]
        if isinstance(numbers, Register):
            past = (z + jnp.where(done > 0, numbers.gamma[done] * past[0], 0))[None]
            step = numbers.alpha[done] * past[0]
        else:
            past = jax.lax.dynamic_update_index_in_dim(past, z, done, 0)
            row = lower(numbers.gamma)[done]
            step = jnp.sum(row * past, 0) if row.ndim > 1 else jnp.tensordot(row, past, 1, precision=HIGHEST)
        return unravel(step.ravel()), LearnedState((done + 1) % steps, past)

    return optax.GradientTransformation(init, update)


def _runnable(method: LearnedMethod) -> tuple[Register | Bank, Any]:
    """The coefficients and the preconditioner, where gradients are enough to run them."""
    name, coefficients = method.structure.name, method.plan.coefficients
    if isinstance(coefficients, Conjugate):
        raise InputError(
            f"this method is {name}: it computes its coefficients from A, and an Optax transformation sees "
            'gradients only. Learn one with structure="preconditioned:full", for example.'
        )
    if method.structure.jacobi:
        raise InputError(
            f"this method is {name}: it works in coordinates set by the diagonal of A, and an Optax "
            "transformation sees gradients only. Learn one without, such as preconditioned:full."
        )
    return coefficients, method.plan.shared


def _vector(method: LearnedMethod, tree: Any) -> tuple[Array, Any]:
    """The tree's numbers in the shape of the method's unknowns, and the way back."""
    flat, unravel = ravel_pytree(tree)
    if flat.size == int(np.prod(method.shape)):
        return flat.reshape(method.shape), unravel
    scalar = isinstance(method.plan.shared, Identity) and method.structure.family != "diagonal"
    if scalar:
        return flat, unravel
    raise InputError(
        f"this method was learned for unknowns of shape {method.shape}, and these parameters are "
        f"{flat.size} numbers. Learn one of this size, or one with scalar coefficients, which fit any."
    )
