"""Matrices A_l (and B_l) of a layer: which of them exist, and how they act.

A acts transposed on the gradient (NOTES 2.2): attention with Q = -A steps along
-A^T grad R. Each class is one way to parametrise the matrices of all layers.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from lfom.core import checks
from lfom.core.arrays import matvec, pad_axes, transpose


class Preconditioner(eqx.Module):
    """The matrices of all layers; `layer` selects one."""

    @abc.abstractmethod
    def matrix(self, layer: int, d: int) -> Array:
        """The matrix of a layer, (d, d)."""

    @abc.abstractmethod
    def transposed_times(self, layer: int, vector: Array) -> Array:
        """A_l^T times a vector (d, *prompts)."""


class Identity(Preconditioner):
    """A_l = I."""

    def matrix(self, layer: int, d: int) -> Array:
        return jnp.eye(d)

    def transposed_times(self, layer: int, vector: Array) -> Array:
        return vector


class Scaled(Preconditioner):
    """A_l = a_l I."""

    scale: Float[Array, "depth ..."]

    def matrix(self, layer: int, d: int) -> Array:
        scale = self.scale[layer]
        return pad_axes(jnp.eye(d, dtype=scale.dtype), 2 + scale.ndim) * scale

    def transposed_times(self, layer: int, vector: Array) -> Array:
        return self.scale[layer] * vector


class Shared(Preconditioner):
    """A_l = a_l M: one symmetric matrix M = (S + S^T) / 2 for all layers, one scale per layer."""

    scale: Float[Array, "depth ..."]
    half: Float[Array, "d d ..."]

    def matrix(self, layer: int, d: int) -> Array:
        checks.size("half", self.half, 0, d, "d")
        return self.scale[layer] * (self.half + transpose(self.half)) / 2

    def transposed_times(self, layer: int, vector: Array) -> Array:
        checks.size("half", self.half, 0, vector.shape[0], "d")
        return self.scale[layer] * matvec((self.half + transpose(self.half)) / 2, vector)


class One(Preconditioner):
    """A_l = (S + S^T) / 2: one symmetric matrix for every layer, as conjugate directions need."""

    half: Float[Array, "d d ..."]

    def matrix(self, layer: int, d: int) -> Array:
        checks.size("preconditioner", self.half, 0, d, "d")
        return (self.half + transpose(self.half)) / 2

    def transposed_times(self, layer: int, vector: Array) -> Array:
        return matvec(self.matrix(layer, vector.shape[0]), vector)


class Full(Preconditioner):
    """A_l full and free in every layer."""

    matrices: Float[Array, "depth d d ..."]

    def matrix(self, layer: int, d: int) -> Array:
        checks.size("A", self.matrices, 1, d, "d")
        return self.matrices[layer]

    def transposed_times(self, layer: int, vector: Array) -> Array:
        return matvec(transpose(self.matrix(layer, vector.shape[0])), vector)
