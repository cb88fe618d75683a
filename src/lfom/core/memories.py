"""What a method remembers of its directions, and the step it makes of them (Section 3).

A memory is linear in the directions, except for the conjugate register, whose two
coefficients are computed from each prompt. The same code acts on tokens (arrays) and on
iterates (Direction): both can be added and multiplied by a number.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from lfom.core.coefficients import Coefficient, Scalar
from lfom.core.problems import Problem
from lfom.core.states import Direction


class Memory(eqx.Module):
    """step, past = memory(direction, past, state, problem, layer)."""

    @property
    @abc.abstractmethod
    def splits(self) -> bool: ...

    @abc.abstractmethod
    def start(self) -> Any:
        """What is remembered before the first layer."""

    @abc.abstractmethod
    def __call__(
        self, direction: Any, past: Any, state: Any, problem: Problem, layer: int
    ) -> tuple[Any, Any]: ...


class Forget(Memory):
    """No memory: the step is the direction times a step size. Z += eta_l * direction."""

    eta: Float[Array, "depth ..."]

    @property
    def splits(self) -> bool:
        return False

    def start(self) -> None:
        return None

    def __call__(
        self, direction: Any, past: None, state: Any, problem: Problem, layer: int
    ) -> tuple[Any, None]:
        return self.eta[layer] * direction, None


class Register(Memory):
    """R_l = direction + gamma_l R_{l-1}; step alpha_l R_l (equation dynamic-mem)."""

    alpha: Float[Array, "depth ..."]
    gamma: Float[Array, "depth ..."]

    @property
    def splits(self) -> bool:
        return False

    def start(self) -> None:
        return None

    def __call__(
        self, direction: Any, past: Any, state: Any, problem: Problem, layer: int
    ) -> tuple[Any, Any]:
        register = direction if past is None else direction + self.gamma[layer] * past
        return self.alpha[layer] * register, register


class Bank(Memory):
    """step = sum over j <= l of Gamma_j^l * R_j (equation LFOM_memory), R_j the directions.

    gamma: a Coefficient with leading axes (depth,) if tied over layers (Gamma_j, the same for
    every l) or (depth, depth) if untied, indexed [l, j]. own_is_one: the current direction's
    own coefficient is 1 instead of Gamma_l^l (NOTES 2.3).
    """

    gamma: Coefficient
    tied: bool = eqx.field(static=True)
    own_is_one: bool = eqx.field(static=True, default=False)

    @property
    def splits(self) -> bool:
        return self.gamma.splits

    def start(self) -> tuple[()]:
        return ()

    def coefficient(self, layer: int, stored: int) -> Coefficient:
        """Gamma_j^l for l = layer, j = stored."""
        index = stored if self.tied else (layer, stored)
        return jax.tree.map(lambda values: values[index], self.gamma)

    def __call__(
        self, direction: Any, past: tuple[Any, ...], state: Any, problem: Problem, layer: int
    ) -> tuple[Any, tuple[Any, ...]]:
        bank = (*past, direction)
        step = None
        for j, stored in enumerate(bank):
            if j == layer and self.own_is_one:
                term = stored
            else:
                gamma = self.coefficient(layer, j)
                is_iterate = isinstance(stored, Direction)
                term = gamma.on_iterates(stored) if is_iterate else gamma.on_tokens(stored)
            step = term if step is None else step + term
        return step, bank


class Conjugate(Memory):
    """The conjugate register: R_l = direction + gamma_l R_{l-1}, step alpha_l R_l with

        gamma_l = r_l.A r_l / r_{l-1}.A r_{l-1}      alpha_l = r_l.A r_l / R_l.H R_l

    computed from each prompt, so that the loop is (preconditioned) conjugate gradients. Needs
    B = 0 and one symmetric A for all layers. The step is zero, never 0/0, where the curvature
    is zero or where r.Ar has fallen below stop^2 of its first value.
    """

    stop: float = eqx.field(static=True, default=0.0)

    @property
    def splits(self) -> bool:
        return False

    def start(self) -> None:
        return None

    def __call__(
        self, direction: Any, past: Any, state: Any, problem: Problem, layer: int
    ) -> tuple[Any, Any]:
        slope = problem.slope(state, direction)
        if past is None:
            register, first = direction, slope
        else:
            register, last, first = past
            goes_on = (last > 0) & (slope > self.stop**2 * first)
            gamma = jnp.where(goes_on, slope / jnp.where(goes_on, last, 1), 0)
            register = direction + gamma * register
        curvature, register = problem.curvature(register)
        goes_on = (curvature > 0) & (slope > self.stop**2 * first)
        alpha = jnp.where(goes_on, slope / jnp.where(goes_on, curvature, 1), 0)
        return alpha * register, (register, slope, first)


def scalar_bank(gamma: Array, *, tied: bool = False, own_is_one: bool = False) -> Bank:
    """A bank with one number per coefficient: (depth, depth) untied, (depth,) tied."""
    return Bank(Scalar(gamma), tied, own_is_one)
