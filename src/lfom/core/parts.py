"""What methods, their readers and their preconditioners say alike: each is as it is unless its class says otherwise."""

from typing import Any

import equinox as eqx
from jax import Array
from jaxtyping import Float

from lfom.core.kernels import Kernel


class Trained(eqx.Module):
    """What training begins and ends with."""

    def begin(self, scales: Float[Array, " depth"]) -> Any:
        """Where training begins, with these step sizes."""
        return self

    def write(self, found: Any) -> Any:
        """What training that began as `begin` says has found, in this one's parameters."""
        return found

    def ready(self) -> Any:
        """The same, with what every layer needs computed once."""
        return self

    @property
    def on_eigenvectors(self) -> Any:
        """What it is on a problem of one unknown, an eigenvalue of M H, where it acts on that by polynomials in M H, or by
        multiples a_l of M, with one symmetric M; else None."""
        return None


class Reading(Trained):
    """What reads a problem: a method, or its reader."""

    @property
    def kernel(self) -> Kernel | None:
        """That of its attention, where it has a kernel view."""
        return None

    def without_kernel(self) -> Any:
        """The same for problems that hold the matrices of its kernel, so that kernels share what is compiled."""
        return self

    @property
    def from_gradient(self) -> bool:
        """Whether it needs nothing of a problem but its gradients."""
        return False

    @property
    def on_eigenvalues(self) -> Any:
        """The same as `on_eigenvectors` where every layer acts on each eigenvalue by itself, GD++ included; else None."""
        return self.on_eigenvectors

    def look(self, problem: Any) -> Any:
        """What it needs of a problem and every layer would otherwise compute again."""
        return None

    def bind(self, seen: Any) -> Any:
        """The same for the problem that it looked at."""
        return self
