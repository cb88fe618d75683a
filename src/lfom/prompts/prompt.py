"""A prompt: examples in context, a query, and the label that is asked for (Section 2.1)."""

from typing import Any, ClassVar

import equinox as eqx
from jax import Array
from jaxtyping import Float

from lfom.core import checks
from lfom.core.checks import InputError
from lfom.core.kernels import Kernel
from lfom.core.problems import JointGram, KernelMatrix, Problem, Quadratic, Tokens

OF_VIEW: dict[str, Any] = {"iterates": Quadratic.of, "joint": JointGram.of, "tokens": Tokens.of}


class Prompt(eqx.Module):
    """Examples in context, a query, and what the query's label should be.

    Rows are examples. A batch of prompts has one leading axis on every field. has_gram: whether the loss of its
    context is that of least squares, which Gram matrices tell. has_prefixes: whether its first k examples are a prompt of
    k examples.
    """

    has_gram: ClassVar[bool] = True
    has_prefixes: ClassVar[bool] = True

    X: Float[Array, "*prompts n d"]
    y: Float[Array, "*prompts n"]
    query: Float[Array, "*prompts d"]
    target: Float[Array, "*prompts"]
    weights: Float[Array, "*prompts d"] | None = None

    @property
    def batched(self) -> bool:
        return self.X.ndim == 3

    def problem(self, view: str, kernel: Kernel | None = None) -> Problem:
        """The prompt, or the batch, as what is read in a view; in "kernel" with this kernel."""
        return OF_VIEW[view](self) if kernel is None or view != "kernel" else KernelMatrix.of(self, kernel)


def prompt_from_arrays(X: Any, y: Any, query: Any, target: Any, weights: Any = None) -> Prompt:
    """One prompt, or a batch of them, from a user's own arrays, checked.

    X: (n, d) or (prompts, n, d); y: (n,) or (prompts, n); query: (d,) or (prompts, d);
    target: a number or (prompts,); weights: the true w (d,) or (prompts, d) where known.

    >>> prompt_from_arrays([[1.0, 0.0]], [2.0], query=[0.5, 1.0], target=1.0).X.shape
    (1, 2)
    """
    rank = checks.axes("X", X)
    if rank not in (2, 3):
        raise InputError(f"X has {rank} axes: pass (n, d) for one prompt or (prompts, n, d) for a batch.")
    lead: tuple[int | None, ...] = () if rank == 2 else (None,)
    item = None if rank == 2 else "prompt"
    X = checks.real_array("X", X, (*lead, None, None), item=item)
    batch, (n, d) = X.shape[:-2], X.shape[-2:]
    return Prompt(
        X,
        checks.real_array("y", y, (*batch, n), item=item),
        checks.real_array("query", query, (*batch, d), item=item),
        checks.real_array("target", target, batch, item=item),
        None if weights is None else checks.real_array("weights", weights, (*batch, d), item=item),
    )


def checked(prompt: Prompt) -> Prompt:
    """The same prompt, or an error that says what is wrong with it."""
    return prompt_from_arrays(prompt.X, prompt.y, prompt.query, prompt.target, prompt.weights)
