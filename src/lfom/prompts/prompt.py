"""A prompt: examples in context, a query, and the label that is asked for (Section 2.1)."""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from lfom.core import checks
from lfom.core.checks import InputError
from lfom.core.kernels import Kernel
from lfom.core.link_problems import LinkExamples, LinkTokens
from lfom.core.links import Link
from lfom.core.problems import Examples, IterateProblem, JointGram, KernelMatrix, Problem, Quadratic, Tokens
from lfom.core.states import VIEWS, NoSuchView
from lfom.core.words import brief

OF_VIEW: dict[str, Any] = {"iterates": Quadratic.of, "joint": JointGram.of, "tokens": Tokens.of}
OF_LINK: dict[str, Any] = {"iterates": LinkExamples.of, "tokens": LinkTokens.of}


class Prompt(eqx.Module):
    """Examples in context, a query, and what the query's label should be.

    Rows are examples. A batch of prompts has one leading axis on every field. is_quadratic: whether the loss of its
    context is that of least squares, which Gram matrices tell. has_prefixes: whether its first k examples are a prompt of
    k examples. views: those that it can be read in.

    >>> import jax.numpy as jnp
    >>> import lfom
    >>> X, w = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), jnp.array([2.0, 1.0])
    >>> prompt = lfom.Prompt(X, X @ w, query=X[2], target=X[2] @ w)
    >>> lfom.least_squares(prompt).round(4).tolist(), prompt.batched
    ([2.0, 1.0], False)
    """

    __repr__ = brief

    is_quadratic: ClassVar[bool] = True
    has_prefixes: ClassVar[bool] = True
    views: ClassVar[tuple[str, ...]] = VIEWS
    given: ClassVar[bool] = True  # they are there, and not drawn

    X: Float[Array, "*prompts n d"]
    y: Float[Array, "*prompts n"]
    query: Float[Array, "*prompts d"]
    target: Float[Array, "*prompts"]
    weights: Float[Array, "*prompts d"] | None = None

    @property
    def batched(self) -> bool:
        return self.X.ndim == 3

    @property
    def dimension(self) -> int:
        return self.X.shape[-1]

    def problem(self, view: str, kernel: Kernel | None = None) -> Problem:
        """The prompt, or the batch, as what is read in a view; in "kernel" with this kernel."""
        return OF_VIEW[view](self) if kernel is None or view != "kernel" else KernelMatrix.of(self, kernel)

    def examples(self) -> IterateProblem:
        """In the view of iterates without its Gram matrix."""
        return Examples(self.X, self.y)

    def check_labels(self) -> None:
        """Labels may be any number."""

    def linear(self) -> "Prompt":
        """The prompt, where labels are x.w and noise."""
        return self


class LinkPrompt(Prompt):
    """A prompt of a generalised linear model: labels have the mean link.mean(x.w), and the target is a label too, or
    its mean, where that is known. What a method predicts is x.w; link.mean of it is the label to expect.

    >>> import lfom
    >>> prompt = lfom.prompt_from_arrays([[1.0], [2.0]], [0, 1], [1.0], 1, link=lfom.links.LogisticLink())
    >>> isinstance(prompt, lfom.LinkPrompt), float(prompt.link.mean(prompt.target * 0))
    (True, 0.5)
    """

    is_quadratic = False
    views = tuple(OF_LINK)

    link: Link = eqx.field(static=True, kw_only=True)

    def problem(self, view: str, kernel: Kernel | None = None) -> Problem:
        if view not in OF_LINK:
            raise NoSuchView(
                f"prompts with a {type(self.link).__name__} have no view {view!r}: run it with view='tokens'."
            )
        return OF_LINK[view](self)

    def examples(self) -> IterateProblem:
        return LinkExamples.of(self)

    def check_labels(self) -> None:
        self.link.check(self.y, self.target)

    def linear(self) -> Prompt:
        raise InputError(
            f"the labels of these prompts are not x.w: they follow from it through a {type(self.link).__name__}. This "
            "needs labels of linear regression."
        )


@eqx.filter_jit
def problem_of(prompt: Prompt, view: str, kernel: Kernel | None = None) -> Problem:
    """`prompt.problem` as one compiled program, for prompts that were handed over."""
    return prompt.problem(view, kernel)


def prompt_from_arrays(
    X: Any, y: Any, query: Any, target: Any, weights: Any = None, *, link: Link | None = None
) -> Prompt:
    """One prompt, or a batch of them, from a user's own arrays, checked.

    X: (n, d) or (prompts, n, d); y: (n,) or (prompts, n); query: (d,) or (prompts, d);
    target: a number or (prompts,); weights: the true w (d,) or (prompts, d) where known. link: of a generalised linear
    model, such as lfom.links.LogisticLink() for classes 0 and 1; the target may be a label or its mean then.

    >>> from lfom import prompt_from_arrays
    >>> prompt_from_arrays([[1.0, 0.0]], [2.0], query=[0.5, 1.0], target=1.0).X.shape
    (1, 2)
    """
    plain = _prompt(X, y, query, target, weights)
    if link is None:
        return plain
    checks.instance("link", link, Link, "a link such as lfom.links.LogisticLink(), or None")
    linked = LinkPrompt(*_arrays(plain), link=link)
    linked.check_labels()
    return linked


def _prompt(X: Any, y: Any, query: Any, target: Any, weights: Any, *, finite: bool = True) -> Prompt:
    """finite: whether numbers are looked at as well as shapes."""
    rank = checks.axes("X", X)
    if rank not in (2, 3):
        raise InputError(f"X has {rank} axes: pass (n, d) for one prompt or (prompts, n, d) for a batch.")
    lead: tuple[int | None, ...] = () if rank == 2 else (None,)
    item = None if rank == 2 else "prompt"

    def read(name: str, value: Any, *shape: int | None) -> Array:
        return checks.real_array(name, value, (*lead, *shape), finite=finite, item=item)

    X = read("X", X, None, None)
    n, d = X.shape[-2:]
    lead = X.shape[:-2]
    w = None if weights is None else read("weights", weights, d)
    return Prompt(X, read("y", y, n), read("query", query, d), read("target", target), w)


def checked(prompt: Prompt, finite: bool = True) -> Prompt:
    """The same prompt, or an error that says what is wrong with it. finite: whether its numbers are looked at, which copies
    them from the device."""
    wanted = "prompts, such as lfom.LinearRegression(...).prompts(key, 100) or lfom.prompt_from_arrays(...)"
    checks.instance("prompt", prompt, Prompt, wanted)
    if not finite and _as_it_should_be(prompt):
        prompt.check_labels()
        return prompt
    plain = _prompt(*_arrays(prompt), finite=finite)
    prompt.check_labels()
    return dataclasses.replace(prompt, **vars(plain))


def _as_it_should_be(prompt: Prompt) -> bool:
    """Whether it holds JAX's arrays of real numbers, in shapes that go together."""
    arrays = _arrays(prompt)
    if not all(
        isinstance(a, Array) and jnp.issubdtype(a.dtype, jnp.floating) for a in arrays if a is not None
    ):
        return False
    batch, (n, d) = prompt.X.shape[:-2], (*prompt.X.shape, 0, 0)[-4:-2]
    shapes = [(*batch, n, d), (*batch, n), (*batch, d), batch, (*batch, d)]
    known = [a is None or a.shape == shape for a, shape in zip(arrays, shapes, strict=True)]
    return prompt.X.ndim in (2, 3) and prompt.X.size > 0 and all(known)


def sound(prompt: Prompt) -> Array:
    """Whether all numbers are finite, where the prompt is."""
    return jnp.stack([jnp.isfinite(a).all() for a in _arrays(prompt) if a is not None]).all()


def _arrays(prompt: Prompt) -> tuple[Any, ...]:
    return prompt.X, prompt.y, prompt.query, prompt.target, prompt.weights
