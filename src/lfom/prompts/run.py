"""lfom.run: any method on one prompt or a batch, every step kept, in the cheapest view that it has."""

import weakref
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lfom.core import checks
from lfom.core.arrays import PROMPTS_LAST, as_it_is
from lfom.core.checks import is_concrete
from lfom.core.compiler import reads_back
from lfom.core.kernels import check_semidefinite
from lfom.core.methods import Algorithm, a_method
from lfom.core.parameters import check_dimension, check_layers, leaves, replaced
from lfom.core.problems import IterateProblem, JointGram, KernelMatrix, Problem, Unreadable
from lfom.core.states import VIEWS, NoSuchView, common
from lfom.core.unroll import is_loop, unroll, with_room
from lfom.core.words import brief
from lfom.prompts.prompt import Prompt, checked, problem_of, sound


class Trajectory(eqx.Module):
    """What `run` returns: predictions after 0, 1, ..., depth steps, and w where it exists.

    Steps lead: predictions (depth+1, *prompts), weights (depth+1, *prompts, d). On a Problem predictions
    are what it reads out: w, where its state is an iterate. On prompts with a link predictions are x.w of the query;
    link.mean of them is the label to expect.

    >>> import jax
    >>> import lfom
    >>> prompt = lfom.LinearRegression([1.0, 0.5], context=6).prompt(jax.random.key(0))
    >>> found = lfom.run(lfom.gradient_descent(0.5, steps=4), prompt)
    >>> found.predictions.shape, found.weights.shape, found.view
    ((5,), (5, 2), 'iterates')
    """

    __repr__ = brief

    predictions: Float[Array, "steps ..."]
    weights: Float[Array, "steps *prompts d"] | None
    view: str = eqx.field(static=True)


def run(algorithm: Algorithm, prompt: Prompt | Problem, *, view: str | None = None) -> Trajectory:
    """Run a method on one prompt, on a batch of them, or on a Problem, and keep every step.

    The view is the library's choice: iterates where they exist, else the kernel matrix, else the joint Gram matrix,
    else tokens. Pass view="iterates", "kernel", "joint" or "tokens" to insist. A Problem is its own view.

    >>> import jax
    >>> from lfom import LinearRegression, gradient_descent, run
    >>> prompts = LinearRegression([1.0, 0.5], context=6).prompts(jax.random.key(0), 3)
    >>> run(gradient_descent(0.5, steps=4), prompts).predictions.shape
    (5, 3)
    """
    a_method("algorithm", algorithm)
    checks.count("depth", algorithm.depth)
    if isinstance(prompt, Problem):  # a user's argument: a prompt, or a problem
        check_layers(algorithm, algorithm.depth)
        return _cut(_on_problem(*_roomy(algorithm, prompt), prompt), algorithm)
    begun = _begun_early(algorithm, prompt, view)
    prompt = checked(prompt, finite=False)
    check_layers(algorithm, algorithm.depth, 1, prompts := prompt.X.shape[:-2])
    view = _view(algorithm, prompt, view)
    if view == "kernel":
        return _on_kernel(algorithm, checked(prompt))
    try:
        found, finite = begun or _begun(algorithm, prompt, view)
    except Unreadable:
        check_dimension(algorithm, prompt.X.shape[-1], prompts=prompts)  # says it by d, where d is known
        raise
    except checks.InputError:
        raise
    except (TypeError, ValueError):
        check_dimension(algorithm, prompt.X.shape[-1], prompts=prompts)
        raise
    if is_concrete(finite) and not finite:
        checked(prompt)  # says which number is not
    if begun and finite is not True and is_concrete(finite):
        _found_sound[id(prompt)] = prompt
    return found


def _view(algorithm: Algorithm, prompt: Prompt, view: str | None) -> str:
    if view is not None:
        checks.known("view", view, VIEWS)
    else:
        view = next(iter(common(algorithm.views, prompt.views)), "iterates")  # says why not
    if view not in prompt.views:
        prompt.problem(view)  # says why not
    return view


def _begun(algorithm: Algorithm, prompt: Prompt, view: str) -> tuple[Trajectory, Array | bool]:
    """The trajectory, and whether all numbers of the prompt are finite. An accelerator is asked for that first: its answer
    is here when the trajectory is not, so that nobody waits for it."""
    plain = all(isinstance(leaf, Array | np.ndarray) for leaf in jax.tree.leaves(algorithm))
    if not reads_back():
        found, finite = (_of_arrays if plain else _of_anything)(*_roomy(algorithm, prompt), prompt, view)
        return _cut(found, algorithm), finite
    finite = True if _found_sound.get(id(prompt)) is prompt else _sound(prompt)
    if isinstance(finite, Array) and is_concrete(finite):
        finite.copy_to_host_async()
    return (_alone if plain else _alone_of_anything)(algorithm, None, prompt, view), finite


def _roomy(algorithm: Algorithm, prompt: Any) -> tuple[Algorithm, Any]:
    """With room for more layers, where they are a loop and nobody differentiates it, and how many it has."""
    known = is_loop(algorithm) and all(map(is_concrete, jax.tree.leaves(prompt)))
    return with_room(algorithm) if known else (algorithm, None)


def _cut(found: Trajectory, algorithm: Algorithm) -> Trajectory:
    """Without the layers that there was only room for; by NumPy, since every length would be a program of JAX's."""
    steps = algorithm.depth + 1
    if len(found.predictions) <= steps:
        return found
    return jax.tree.map(lambda a: as_it_is(np.asarray(a)[:steps]), found)


def _begun_early(
    algorithm: Algorithm, prompt: Any, view: str | None
) -> tuple[Trajectory, Array | bool] | None:
    """An accelerator computes while the host looks whether it should: what it found is thrown away if not."""
    if not reads_back() or not all(isinstance(a, Array) for a in jax.tree.leaves(prompt)):
        return None
    try:
        chosen = _view(algorithm, prompt, view)
        return None if chosen == "kernel" else _begun(algorithm, prompt, chosen)
    except Exception:  # the checks that follow say what is wrong
        return None


def iterate_problem(prompt: Prompt, algorithm: Algorithm) -> IterateProblem:
    """The cheaper of the Gram matrix (n d^2 once) and the examples (2 n d per step)."""
    d = prompt.X.shape[-1]
    if algorithm.moves_covariates or 2 * algorithm.depth >= d:
        return prompt.problem("iterates")  # type: ignore[return-value]
    return prompt.examples()


def _each(one: Callable[[Algorithm, Prompt], Array], algorithm: Algorithm, prompt: Prompt) -> Array:
    """one(algorithm, prompt) for a prompt or each of a batch; steps lead. Values that every prompt has of
    its own, such as gates, go with their prompt."""
    if not prompt.batched:
        return one(algorithm, prompt)
    known = leaves(algorithm, grid=1)
    axes = [-1 if leaf.per_prompt else None for leaf in known]

    def single(arrays: list[Any], prompt: Prompt) -> Array:
        return one(replaced(algorithm, arrays), prompt)

    return jax.vmap(single, in_axes=(axes, 0), out_axes=1)([leaf.array for leaf in known], prompt)


def _run(algorithm: Algorithm, turns: Any, prompt: Prompt, view: str) -> tuple[Trajectory, Array]:
    """And whether the prompt's numbers are finite: one program, and one flag that comes back."""
    return RUNNERS[view](algorithm, turns, prompt), sound(prompt)


def _only(algorithm: Algorithm, turns: Any, prompt: Prompt, view: str) -> Trajectory:
    return RUNNERS[view](algorithm, turns, prompt)


# The first start in half the time, the others run also where a leaf is no array.
_of_arrays, _alone = (jax.jit(work, static_argnames="view") for work in (_run, _only))
_of_anything, _alone_of_anything = eqx.filter_jit(_run), eqx.filter_jit(_only)
_sound = jax.jit(sound)
# Prompts of JAX's arrays, which nobody can change, in which an accelerator has found no wrong number.
_found_sound: weakref.WeakValueDictionary[int, Prompt] = weakref.WeakValueDictionary()


def _on_tokens(algorithm: Algorithm, turns: Any, prompt: Prompt) -> Trajectory:
    def one(algorithm: Algorithm, single: Prompt) -> Array:
        return unroll(algorithm, single.problem("tokens"), turns=turns)

    return Trajectory(_each(one, algorithm, prompt), None, "tokens")


def _on_iterates(algorithm: Algorithm, turns: Any, prompt: Prompt) -> Trajectory:
    if prompt.batched and prompt.X.shape[-1] <= PROMPTS_LAST:  # prompts last: see lfom.core.arrays
        w = jnp.moveaxis(unroll(algorithm, prompt.problem("iterates"), turns=turns), 1, -1)
    else:

        def one(algorithm: Algorithm, single: Prompt) -> Array:
            return unroll(algorithm, iterate_problem(single, algorithm), turns=turns)

        w = _each(one, algorithm, prompt)
    return Trajectory(jnp.sum(w * prompt.query, axis=-1), w, "iterates")


def _on_joint(algorithm: Algorithm, turns: Any, prompt: Prompt) -> Trajectory:
    return Trajectory(unroll(algorithm, JointGram.of(prompt), turns=turns)[:, 0], None, "joint")


def _on_kernel(algorithm: Algorithm, prompt: Prompt) -> Trajectory:
    if algorithm.kernel is None:
        raise NoSuchView("the view 'kernel' is that of attention with one kernel, and this method has none.")
    problem: Any = problem_of(prompt, "kernel", algorithm.kernel)
    check_semidefinite(algorithm.kernel, problem.gram * problem.unknowns())
    return _cut(_on_kernel_matrix(*_roomy(algorithm.without_kernel(), problem), problem), algorithm)


@eqx.filter_jit
def _on_kernel_matrix(algorithm: Algorithm, turns: Any, problem: KernelMatrix) -> Trajectory:
    answers = unroll(algorithm, problem, turns=turns)
    return Trajectory(jnp.sum(problem.probe[0] * answers, axis=1), None, "kernel")


@eqx.filter_jit
def _on_problem(algorithm: Algorithm, turns: Any, problem: Problem) -> Trajectory:
    return Trajectory(unroll(algorithm, problem, turns=turns), None, type(problem).__name__)


RUNNERS = {"tokens": _on_tokens, "joint": _on_joint, "iterates": _on_iterates}
