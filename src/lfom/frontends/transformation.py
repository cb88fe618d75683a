"""An Optax gradient transformation: the steps of a method, from gradients alone."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

from lfom.core.checks import InputError
from lfom.core.methods import Algorithm, a_method
from lfom.core.parameters import by_layer, check_layers
from lfom.core.problems import Objective
from lfom.core.states import Iterate, Track


class LearnedState(NamedTuple):
    """done: steps since the last restart. past: what the method's memory remembers of them."""

    done: Array
    past: Any


def learned_transformation(method: Algorithm) -> optax.GradientTransformation:
    """The steps of a method with fixed coefficients, w_{l+1} = w_l + sum over j <= l of gamma[l, j] z_j with
    z_j = -M gradient_j; whether it was learned, trained or built.

    Parameters may be any tree with as many numbers as the method has unknowns, taken in the order of
    `jax.flatten_util.ravel_pytree`; a method without matrices takes any number. After the last
    step the past is forgotten and the steps start again from where they are: on quadratics the error
    after m rounds is p(M A)^m e_0, so what the certificate promises of one round holds of each.

    A transformation sees gradients only. It cannot check, rescale or fall back as `method.solve` does.
    An example stands in docs/frontends.md.
    """
    _check(a_method("method", method))
    steps, bare = method.depth, method.as_algorithm()

    def layer(index: Any, gradient: Array) -> Algorithm:
        stacked, here = by_layer(jax.tree.map(lambda leaf: leaf.astype(gradient.dtype), bare), steps)
        return here([jax.lax.dynamic_index_in_dim(a, index, 0, False) for a in stacked])

    def empty(gradient: Array) -> Any:
        return layer(0, gradient).start(_state(gradient), _nowhere(gradient), steps)

    def init(params: optax.Params) -> LearnedState:
        return LearnedState(jnp.zeros((), jnp.int32), empty(_vector(method, params)[0]))

    def update(
        gradients: optax.Updates, state: LearnedState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, LearnedState]:
        del params
        gradient, unravel = _vector(method, gradients)
        done, past = state
        past = jax.tree.map(lambda kept, empty: jnp.where(done > 0, kept, empty), past, empty(gradient))
        step, past = layer(done, gradient).ready().step(_state(gradient), past, _nowhere(gradient), done)
        return unravel(step.context.w.ravel()), LearnedState((done + 1) % steps, past)

    return optax.GradientTransformation(init, update)


def _state(gradient: Array) -> Iterate:
    return Iterate(Track(jnp.zeros_like(gradient)), gradient)


def _nowhere(gradient: Array) -> Objective:
    """A problem of which nothing is known but the gradients that somebody hands over."""
    return Objective(jnp.sum, jnp.zeros_like(gradient))


def _check(method: Algorithm) -> None:
    """Gradients must be enough to run it."""
    check_layers(method, method.depth, None if method.shape is None else len(method.shape), ())
    name = "" if method.structure is None else f" ({method.structure.name})"
    if "iterates" not in method.views:
        raise InputError(
            "this method acts on tokens, and an Optax transformation sees gradients only. Use lfom.run, or a method with an "
            "iterate view (method.views)."
        )
    if method.is_conjugate:
        raise InputError(
            f"this method{name} computes its coefficients from A, and an Optax transformation sees "
            'gradients only. Learn one with structure="preconditioned:full", for example.'
        )
    if not method.from_gradient:
        raise InputError(
            f"this method{name} reads more of a problem than its gradient, such as the diagonal of A, and an Optax "
            "transformation sees gradients only. Learn one without, such as preconditioned:full."
        )
    if method.splits:
        raise InputError(
            "this method reads its answer elsewhere than its gradients, as Nesterov's does, and an Optax "
            "transformation moves one set of parameters. Use lfom.momentum, or learn a method."
        )


def _vector(method: Algorithm, tree: Any) -> tuple[Array, Any]:
    """The tree's numbers in the shape of the method's unknowns, and the way back."""
    flat, unravel = ravel_pytree(tree)
    shape = method.shape
    if shape is not None and flat.size == math.prod(shape):
        return flat.reshape(shape), unravel
    if method.as_algorithm().shape is None:  # numbers, whatever they were learned for
        return flat, unravel
    raise InputError(
        f"this method was learned for unknowns of shape {shape}, and these parameters are "
        f"{flat.size} numbers. Learn one of this size, or one with scalar coefficients, which fit any."
    )
