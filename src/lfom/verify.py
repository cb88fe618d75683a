"""Every theorem as a number: constructions against plain NumPy, on fresh random prompts.

Each check returns the largest relative error it saw. Float64 throughout.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax import Array

from lfom import reference
from lfom.core.arrays import as_array
from lfom.core.checks import InputError
from lfom.core.coefficients import Hadamard, Pair, Scalar
from lfom.core.kernels import KERNELS
from lfom.core.links import LogisticLink, PoissonLink
from lfom.core.memories import Bank, Forget, Memory, Register
from lfom.core.methods import Algorithm, Method
from lfom.core.preconditioners import Full, Scaled, Shared
from lfom.core.problems import Quadratic
from lfom.core.readers import Attention, Gradient, Heads, KernelAttention, Normalised
from lfom.core.threads import in_threads
from lfom.core.unroll import WRITTEN_OUT, WRITTEN_OUT_COVARIATES, unroll
from lfom.limits.spectra import spectra
from lfom.limits.spectral import on_eigenvalues
from lfom.limits.worst_case import worst_case
from lfom.methods import classical as methods
from lfom.methods import optimal, theorems
from lfom.methods.memformer import GAMMAS, memformer, mixture
from lfom.prompts.prompt import Prompt, prompt_from_arrays
from lfom.prompts.run import Trajectory, run
from lfom.solving import LeastSquaresProblems, learn, statuses

TOLERANCE = 1e-10
PROGRAM = 1e-7  # of semidefinite programs

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """One theorem: the largest relative error seen, what is allowed, and the verdict."""

    name: str
    max_error: float
    tolerance: float
    ok: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def verify(seed: int | None = None, rounds: int = 2, only: str = "") -> Iterator[Check]:
    """Run every check on fresh prompts, `rounds` problems each, yielding in their order. only: those whose statement
    has this text in it."""
    wanted = statements(only)
    seeds = np.random.SeedSequence(seed)
    sizes = int(seeds.generate_state(1)[0])
    own = dict(zip(CHECKS, seeds.spawn(len(CHECKS)), strict=True))

    def one(name: str) -> Check:
        check, rng = wanted[name], np.random.default_rng(own[name])
        error = np.max([check(OneSize(rng, sizes)) for _ in range(rounds)])  # type: ignore[arg-type]
        allowed = PROGRAM if check in WORST_CASES else TOLERANCE
        return Check(name, float(error), allowed, bool(error <= allowed))

    # Side by side, since most of the time goes into compiling; what shares programs, one after another.
    jobs = [list(names) for _, names in itertools.groupby(wanted, lambda name: name in MOMENTA or name)]
    jobs.sort(key=lambda names: _place(wanted[names[0]]))  # so that no core waits for them at the end
    left, found = list(wanted), dict[str, Check]()
    with jax.enable_x64(True):
        for done in in_threads(lambda names: [one(name) for name in names], jobs):
            found |= {check.name: check for check in done}
            while left and left[0] in found:
                yield found[left.pop(0)]


def _place(check: Callable) -> int:
    return LONGEST.index(check) if check in LONGEST else len(LONGEST)


def statements(only: str = "") -> dict[str, Callable[[np.random.Generator], float]]:
    """The checks whose statement has this text in it, whatever its case."""
    found = {name: check for name, check in CHECKS.items() if only.lower() in name.lower()}
    if not found:
        raise InputError(
            f"only is {only!r}, and no statement has that in it: pass a part of one of {list(CHECKS)}."
        )
    return found


class OneSize:
    """Random numbers, other ones in every round; but the same sizes in each round and, where they draw them
    alike, in each check, so that they share what is compiled."""

    def __init__(self, rng: np.random.Generator, sizes: int):
        self.normal, self.uniform = rng.normal, rng.uniform
        own = np.random.default_rng(sizes)
        self.integers, self.random = own.integers, own.random


def random_prompt(
    rng: np.random.Generator, *, d: int | None = None, n: int | None = None, correlated: bool = True
) -> Prompt:
    """d from 1 to 20, n from 1 to 50; a spread-out spectrum, or one between 1/4 and 1."""
    d = int(rng.integers(1, 21)) if d is None else d
    n = int(rng.integers(1, 51)) if n is None else n
    mix = rng.normal(size=(d, d)) / np.sqrt(d) if correlated else np.diag(rng.uniform(0.5, 1, d))
    X = rng.normal(size=(n, d)) @ mix
    w = rng.normal(size=d)
    query = rng.normal(size=d)
    return prompt_from_arrays(X, X @ w, query, query @ w, w)


def drawn(rng: np.random.Generator) -> tuple[Prompt, int]:
    """A prompt, and a depth from 1 to 10."""
    return random_prompt(rng), int(rng.integers(1, 11))


def examples(prompt: Prompt) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(prompt.X), np.asarray(prompt.y)


def lower_triangle(rng: np.random.Generator, depth: int) -> np.ndarray:
    """Coefficients of a bank: of every layer for the directions up to its own."""
    return np.tril(rng.normal(size=(depth, depth))) / depth


def safe_scale(prompt: Prompt) -> float:
    """A step size at which gradient descent does not grow: 1 / largest eigenvalue."""
    X = np.asarray(prompt.X)
    return 1.0 / max(float(np.linalg.norm(X, 2)) ** 2 / len(X), 1e-12)


def random_matrices(rng: np.random.Generator, prompt: Prompt, depth: int) -> np.ndarray:
    """Matrices A_l near a multiple of the identity, not symmetric, that keep the iteration tame."""
    d = prompt.X.shape[1]
    noise = rng.normal(size=(depth, d, d)) / np.sqrt(d)
    return 0.5 * safe_scale(prompt) * (np.eye(d) + 0.4 * noise)


def relative(found: Any, wanted: Any) -> float:
    """The largest error; infinite where one is no number, which Python's max may drop."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    error = float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-300))
    return np.inf if np.isnan(error) else error


def trajectories(
    algorithms: Sequence[Algorithm], prompt: Prompt, views: tuple[str, ...] = ("tokens", "iterates")
) -> list[dict[str, Trajectory]]:
    """Of every algorithm in those of the views that it has."""
    return _one_program(list(algorithms), prompt, views)


@eqx.filter_jit
def _one_program(
    algorithms: list[Algorithm], prompt: Prompt, views: tuple[str, ...]
) -> list[dict[str, Trajectory]]:
    """Many algorithms, since a program for each of them takes twice as long to compile."""
    return [
        {view: _in_view(view, algorithm, prompt) for view in views if view in algorithm.views}
        for algorithm in algorithms
    ]


def _in_view(view: str, algorithm: Algorithm, prompt: Prompt) -> Trajectory:
    """As people run it; but tokens, which others are compared with, layer by layer in a loop, which compiles faster."""
    if view != "tokens":
        return run(algorithm, prompt, view=view)
    return Trajectory(unroll(algorithm, prompt.problem(view), loop=True), None, view)


def _views_agree(algorithms: Sequence[Algorithm], prompt: Prompt, views: tuple[str, str]) -> float:
    """The predictions in both views, of all algorithms that have them."""
    both = [algorithm for algorithm in algorithms if set(views) <= set(algorithm.views)]
    found = trajectories(both, prompt, views)
    assert found
    return max(relative(*(of[view].predictions for view in views)) for of in found)


def _against_iterates(algorithms: Sequence[Algorithm], prompt: Prompt, w: list[np.ndarray]) -> float:
    """Tokens and, where they exist, iterates of algorithms against the iterates of the reference."""
    wanted, worst = np.stack(w) @ np.asarray(prompt.query), 0.0
    for found in trajectories(algorithms, prompt):
        worst = max(worst, relative(found["tokens"].predictions, wanted))
        if "iterates" in found:
            worst = max(worst, relative(found["iterates"].weights, np.stack(w)))
    return worst


def check_lemma_1(rng: np.random.Generator) -> float:
    prompt, depth = drawn(rng)
    A = random_matrices(rng, prompt, depth)
    w = reference.preconditioned_gradient_descent(*examples(prompt), list(A))
    return _against_iterates([theorems.gradient_descent_transformer(as_array(A))], prompt, w)


def conjugate_prompt(rng: np.random.Generator) -> Prompt:
    """n >= 2d or n <= d/2 and no tiny eigenvalues, where conjugate gradients keep their digits
    to the end: with strongly correlated covariates 3 prompts in 100 lose more than 1e-10."""
    d = int(rng.integers(1, 21))
    fewest, most = (2 * d, max(2 * d, 50)) if rng.random() < 0.5 or d < 2 else (1, d // 2)
    return random_prompt(rng, d=d, n=int(rng.integers(fewest, most + 1)), correlated=False)


def check_proposition_1(rng: np.random.Generator) -> float:
    prompt, depth, stop = conjugate_prompt(rng), int(rng.integers(1, 11)), 1e-9
    w = reference.conjugate_gradient(*examples(prompt), depth, stop=stop)
    per_prompt = eqx.filter_jit(theorems.conjugate_gradient_memformer)(prompt, depth, stop)
    return _against_iterates([per_prompt, theorems.conjugate_memformer(depth, stop)], prompt, w)


def check_preconditioned_cgd(rng: np.random.Generator) -> float:
    prompt, depth, stop = conjugate_prompt(rng), int(rng.integers(1, 11)), 1e-9
    d = prompt.X.shape[1]
    M = rng.normal(size=(d, d)) / np.sqrt(d)
    A = np.eye(d) + 0.3 * M @ M.T
    w = reference.conjugate_gradient(*examples(prompt), depth, A, stop)
    return _against_iterates([methods.conjugate_gradient(depth, A, stop=stop)], prompt, w)


def check_proposition_2_one_head(rng: np.random.Generator) -> float:
    prompt, depth = drawn(rng)
    A = random_matrices(rng, prompt, depth)
    gamma = lower_triangle(rng, depth)
    X, y = examples(prompt)
    w, gradients = [np.zeros(X.shape[1])], []
    for k in range(depth):
        gradients.append(A[k].T @ reference.gradient(X, y, w[k]))
        w.append(w[k] - sum(gamma[k, j] * gradients[j] for j in range(k + 1)))
    return _against_iterates([theorems.lfom_memformer(as_array(A), as_array(gamma))], prompt, w)


def random_coefficients(rng: np.random.Generator, prompt: Prompt, depth: int, d: int) -> np.ndarray:
    raw = -safe_scale(prompt) * rng.uniform(0, 1, size=(depth, depth, d)) / depth
    return np.tril(raw.transpose(2, 0, 1)).transpose(1, 2, 0)


def check_proposition_2_diagonal(rng: np.random.Generator) -> float:
    prompt, depth = random_prompt(rng, d=int(rng.integers(1, 9))), int(rng.integers(1, 7))
    gamma = random_coefficients(rng, prompt, depth, prompt.X.shape[1])
    w = reference.lfom(*examples(prompt), gamma)
    heads = theorems.diagonal_lfom(as_array(gamma))
    on_iterates = run(methods.lfom(as_array(gamma)), prompt, view="iterates").weights
    return max(_against_iterates([heads], prompt, w), relative(on_iterates, np.stack(w)))


def check_soft_gating(rng: np.random.Generator) -> float:
    prompt, depth, worst = random_prompt(rng, d=4), WRITTEN_OUT + 1, 0.0
    heads = []
    for _ in range(3):
        reader = Gradient(Full(as_array(random_matrices(rng, prompt, depth))))
        heads.append(Method(reader, methods.lfom(as_array(lower_triangle(rng, depth))).memory, depth))
    for chosen in range(3):
        alone, *gated = trajectories([heads[chosen], *corner_mixtures(tuple(heads), chosen)], prompt)
        for found, view in itertools.product(gated, ("tokens", "iterates")):
            worst = max(worst, relative(found[view].predictions, alone[view].predictions))
    return worst


def corner_mixtures(heads: tuple[Method, ...], chosen: int) -> Iterator[Algorithm]:
    """Every kind of gate at the corner of one head: free, per layer, softmax in the limit, hard."""
    corner = theorems.gate_to(heads, chosen)
    yield corner
    gates = np.asarray(corner.gates)
    yield mixture(heads, as_array(np.repeat(gates[:, None], corner.depth, axis=1)), per_layer=True)
    yield mixture(heads, as_array(1e3 * gates), gating="softmax")  # exp(-1000) is zero
    yield mixture(heads, corner.gates, gating="hard")


def _check_linear(build: Callable[..., Method], plain: Callable[..., list[np.ndarray]]) -> Callable:
    """A momentum method: as it is, and again from its coefficients as an LFOM."""

    def check(rng: np.random.Generator) -> float:
        prompt, depth = drawn(rng)
        eta, beta = 0.8 * safe_scale(prompt) * rng.uniform(0.2, 1), rng.uniform(0, 0.9)
        w = plain(*examples(prompt), eta, beta, depth)
        method = build(eta, beta, depth)
        coefficients = methods.lfom_coefficients(method)[..., 0]
        again = reference.lfom(*examples(prompt), np.asarray(coefficients))
        error = _against_iterates([method, methods.lfom(coefficients)], prompt, w)
        return max(error, relative(np.stack(again), np.stack(w)))

    return check


def check_chebyshev(rng: np.random.Generator) -> float:
    prompt, depth = drawn(rng)
    highest = 1 / safe_scale(prompt)
    lowest = highest * rng.uniform(0.02, 0.5)
    w = reference.chebyshev(*examples(prompt), lowest, highest, depth)
    method = methods.chebyshev(lowest, highest, depth)
    again = methods.lfom(methods.lfom_coefficients(method)[..., 0])
    return _against_iterates([method, again], prompt, w)


@functools.cache
def _gamma_shapes(d: int, depth: int, options: tuple[tuple[str, Any], ...]) -> Any:
    def build() -> Method:
        return memformer(d, depth, key=jax.random.key(0), **dict(options))

    return eqx.filter_eval_shape(build).memory.gamma  # type: ignore[attr-defined]


def in_turn(rng: np.random.Generator, two: Sequence[T], items: Iterable[Any]) -> Iterator[tuple[T, Any]]:
    """Every item with one of two things, a, b, b, a, ...: half as many programs as with both. Which of them begins is
    random, so that other seeds see the other half."""
    begin = int(rng.integers(2))
    for place, item in enumerate(items):
        yield two[(place + place // 2 + begin) % 2], item


def random_memories(rng: np.random.Generator, d: int, depth: int) -> Iterator[Memory]:
    """Every linear memory, with random coefficients."""
    yield Forget(as_array(rng.uniform(0.5, 1, depth)))
    yield Register(as_array(rng.uniform(0.5, 1, depth)), as_array(rng.uniform(-0.5, 0.5, depth)))
    for gamma, tied, own_is_one in itertools.product(GAMMAS, (True, False), (True, False)):
        options = {"gamma": gamma, "tied": tied, "own_is_one": own_is_one, "context": 7}
        shapes = _gamma_shapes(d, depth, tuple(options.items()))
        values = jax.tree.map(lambda x: as_array(rng.uniform(-0.5, 0.5, x.shape)), shapes)
        yield Bank(values, tied, own_is_one)


def check_views(rng: np.random.Generator) -> float:
    """Iterates against tokens for every memory; one head, and two of which one has B; layers as a loop."""
    d, depth = 3, WRITTEN_OUT + 1
    prompt = random_prompt(rng, d=d, n=7)
    matrices = [as_array(random_matrices(rng, prompt, depth)) for _ in range(2)]
    B = as_array(0.3 * random_matrices(rng, prompt, depth))
    plain = Gradient(Full(matrices[0]))
    two_heads = Heads((Gradient(Full(matrices[0]), Full(B)), Gradient(Full(matrices[1]))))
    memories = list(random_memories(rng, d, depth))
    every = in_turn(rng, (plain, two_heads), memories)
    algorithms: list[Algorithm] = [Method(reader, memory, depth) for reader, memory in every]
    pair = (Method(plain, memories[1], depth), Method(two_heads, memories[0], depth))
    algorithms.append(mixture(pair, as_array([0.6, 0.3])))
    return _views_agree(algorithms, prompt, ("iterates", "tokens"))


def check_joint(rng: np.random.Generator) -> float:
    """The joint Gram matrix against tokens for every memory: any P and Q in two heads, and GD++."""
    d, depth = 3, 3
    prompt = random_prompt(rng, d=d, n=7)
    size = 1.5 * min(1.0, safe_scale(prompt)) ** 0.5
    weights = [as_array(size * w / (d + 1)) for w in rng.normal(size=(4, depth, d + 1, d + 1))]
    any_weights = Heads((Attention(*weights[:2]), Normalised(Attention(*weights[2:]))))
    A, B = random_matrices(rng, prompt, depth), 0.3 * random_matrices(rng, prompt, depth)
    sparse = Gradient(Full(as_array(A)), Full(as_array(B)))
    every = in_turn(rng, (any_weights, sparse), random_memories(rng, d, depth))
    return _views_agree(
        [Method(reader, memory, depth) for reader, memory in every], prompt, ("joint", "tokens")
    )


def check_kernels(rng: np.random.Generator) -> float:
    """Attention with every kernel: on one number per example, on tokens, and as descent on functions in NumPy."""
    d, n, depth = 4, 7, 4
    X, y, query = rng.normal(size=(n, d)) / 2, rng.normal(size=n), rng.normal(size=d) / 2
    prompt = prompt_from_arrays(X, y, query, 0.0)
    algorithms: list[Algorithm] = []
    wanted = []
    for name, kernel in KERNELS.items():
        table, a = lower_triangle(rng, depth), rng.uniform(0.5, 1, depth)
        numbers, reader = as_array(table), KernelAttention(Scaled(as_array(a)), kernel)  # type: ignore[call-arg,arg-type]
        bank = Method(reader, Bank(Scalar(numbers), False), depth)
        pairs = Method(reader, Bank(Pair(numbers, as_array(table**2)), False), depth)
        conjugate = memformer(d, depth, reader=kernel, memory="conjugate", key=jax.random.key(0))
        algorithms += [bank, pairs, conjugate]
        wanted.append(reference.functional_descent(X, y, query, reference.KERNELS[name], table * a))
    found = trajectories(algorithms, prompt, ("kernel", "tokens"))
    views = max(relative(of["kernel"].predictions, of["tokens"].predictions) for of in found)
    banks = found[::3]
    return max(views, *(relative(of["kernel"].predictions, w) for of, w in zip(banks, wanted, strict=True)))


def check_links(rng: np.random.Generator) -> float:
    """Iterates against tokens where labels follow through a link: every memory, two heads, one with B; layers as a
    loop."""
    d, depth, worst = 3, WRITTEN_OUT_COVARIATES + 1, 0.0
    plain = random_prompt(rng, d=d, n=7)
    A, B = random_matrices(rng, plain, depth), 0.3 * random_matrices(rng, plain, depth)
    rewriting = Normalised(Gradient(Full(as_array(0.3 * A)), Full(as_array(B))))
    reader = Heads((Gradient(Full(as_array(A))), rewriting))
    labels = {LogisticLink(): rng.uniform(size=7) < 0.5, PoissonLink(): np.floor(4 * rng.uniform(size=7))}
    memories = list(in_turn(rng, list(labels), random_memories(rng, d, depth)))
    for link, y in labels.items():
        prompt = prompt_from_arrays(plain.X, y.astype(float), plain.query, 0.5, link=link)
        own = [Method(reader, memory, depth) for its, memory in memories if its is link]
        worst = max(worst, _views_agree(own, prompt, ("iterates", "tokens")))
    return worst


def check_spectral(rng: np.random.Generator) -> float:
    """GD++ with A_l = a_l M, B_l = b_l I on each eigenvalue by itself, against tokens; any definite M."""
    d, depth, worst = 4, 3, 0.0
    prompt = random_prompt(rng, d=d, n=9)
    half = rng.normal(size=(d, d)) / np.sqrt(d)
    M = np.eye(d) + half @ half.T
    a = 0.5 * safe_scale(prompt) / np.linalg.norm(M, 2) * rng.uniform(0.5, 1.5, depth)
    reader = Gradient(Shared(as_array(a), as_array(M)), Scaled(as_array(rng.uniform(0.3, 1, depth))))
    alone = jax.tree.map(lambda x: as_array(np.asarray(x)[None]), prompt)
    decomposed = spectra(eqx.filter_jit(Quadratic.of)(alone), M)
    every = [Method(reader, memory, depth) for memory in random_memories(rng, d, depth)]
    spectral = [method for method in every if method.on_eigenvalues is not None]
    answers = _on_eigenvalues([method.on_eigenvalues for method in spectral], as_array(decomposed.t))
    for g, tokens in zip(answers, trajectories(spectral, prompt, ("tokens",)), strict=True):
        found = np.einsum("kdn,dn->kn", decomposed.seen, np.asarray(g))[0, 0]
        worst = max(worst, relative(found, tokens["tokens"].predictions[-1]))
    return worst


@eqx.filter_jit
def _on_eigenvalues(plain: list[Any], t: Array) -> list[Array]:
    return [on_eigenvalues(one, t) for one in plain]


def check_tokens(rng: np.random.Generator) -> float:
    """The token view itself against attention written token by token."""
    d, depth = 3, 3
    prompt = random_prompt(rng, d=d, n=7)
    A, B = random_matrices(rng, prompt, depth), 0.3 * random_matrices(rng, prompt, depth)
    weights = [reference.sparse_weights(A[layer], B[layer]) for layer in range(depth)]
    directions = [lambda Z, P=P, Q=Q: reference.attention(Z, P, Q) for P, Q in weights]
    Z = reference.tokens(*examples(prompt), np.asarray(prompt.query))
    wanted, algorithms = [], []
    for tied, own_is_one in itertools.product((True, False), (True, False)):
        gamma = rng.uniform(-0.5, 0.5, (depth, depth, d + 1, 8))

        def combine(
            layer: int, stored: list, gamma: Any = gamma, tied: bool = tied, own: bool = own_is_one
        ) -> np.ndarray:
            used = [gamma[0, j] if tied else gamma[layer, j] for j in range(layer + 1)]
            if own:
                used[layer] = np.ones_like(used[layer])
            return sum(g * R for g, R in zip(used, stored, strict=True))

        wanted.append(reference.memformer(Z, directions, combine))
        bank = Bank(Hadamard(as_array(gamma[0] if tied else gamma)), tied, own_is_one)
        algorithms.append(Method(Gradient(Full(as_array(A)), Full(as_array(B))), bank, depth))
    found = _written_out(algorithms, prompt)
    return max(relative(of.predictions, w) for of, w in zip(found, wanted, strict=True))


@eqx.filter_jit
def _written_out(algorithms: list[Method], prompt: Prompt) -> list[Trajectory]:
    return [run(algorithm, prompt, view="tokens") for algorithm in algorithms]


def check_heads_collapse(rng: np.random.Generator) -> float:
    """With B = 0 and one memory, any heads equal one head with the summed A (docs/mathematics.md 2.7)."""
    prompt, depth, worst = random_prompt(rng), int(rng.integers(1, 6)), 0.0
    A = np.stack([random_matrices(rng, prompt, depth) / 3 for _ in range(3)])
    several = Heads(tuple(Gradient(Full(as_array(a))) for a in A))
    one = Gradient(Full(as_array(A.sum(0))))
    bank = methods.lfom(as_array(lower_triangle(rng, depth))).memory
    register = Register(as_array(np.ones(depth)), as_array(np.full(depth, 0.3)))
    for memory in (register, bank):
        algorithms = [Method(reader, memory, depth) for reader in (one, several)]
        wanted, found = trajectories(algorithms, prompt)
        for view in ("tokens", "iterates"):
            worst = max(worst, relative(found[view].predictions, wanted["tokens"].predictions))
    return worst


def check_learned(rng: np.random.Generator) -> float:
    """A method learned from regressions against the Transformer that runs it: the predictions x.w of
    method.solve and those on tokens. Problems that were rescaled, which a Transformer does not do, are left
    out."""
    own = np.random.default_rng(int(rng.uniform(0, 2**31)))
    X = own.normal(size=(80, 12, 3)) * [1.5, 1.0, 0.5]
    w, queries = own.normal(size=(2, 80, 3))
    y = np.einsum("pni,pi->pn", X, w)
    method = learn(LeastSquaresProblems(X[:60], y[:60]), 3, "preconditioned:full", iterations=0)
    parts = (X[60:], y[60:], queries[60:], np.sum(queries * w, axis=1)[60:])
    prompts = Prompt(*(as_array(part) for part in parts))
    solution = method.solve(LeastSquaresProblems(prompts.X, prompts.y))
    wanted = np.sum(np.asarray(solution.value) * np.asarray(prompts.query), axis=1)
    found = np.asarray(run(theorems.memformer_of(method), prompts, view="tokens").predictions)[-1]
    kept = np.isin(solution.status, (statuses.CERTIFIED, statuses.CHECKED))
    assert kept.any()
    return relative(found[kept], wanted[kept])


def check_stationarity(rng: np.random.Generator) -> float:
    """Appendix D (Theorem 3 of Ahn et al.): among A_i = a_i S^-1, where the loss is stationary
    in the numbers a_i, it is stationary in every entry of every A_i.

    The expectation is taken exactly over signed permutations of the whitened coordinates, a
    finite group under which Gaussian prompts are invariant and which averages any matrix to a
    multiple of the identity. No sampling error is left.
    """
    d, n, depth, samples = 3, 8, 2, 6
    F = np.diag(rng.uniform(0.5, 1.5, d)) @ np.linalg.qr(rng.normal(size=(d, d)))[0]
    inverse = np.linalg.inv(F.T @ F)
    grams, errors = [], []
    for _ in range(samples):
        Z, z = rng.normal(size=(n, d)), rng.normal(size=d)
        for order in itertools.permutations(range(d)):
            for signs in itertools.product((-1, 1), repeat=d):
                change = np.eye(d)[list(order)] * np.array(signs)
                X = Z @ change @ F
                grams.append(X.T @ X / n)
                errors.append(np.linalg.inv(F) @ change.T @ z)
    G, e = np.stack(grams), np.stack(errors)
    metric = F.T @ F

    def gradients(A: np.ndarray) -> np.ndarray:
        """d loss / d A_l = -2 mean of (G e_l)(e_L^T S D_l), D_l the product of later layers."""
        trail = [e]
        for A_l in A:
            trail.append(trail[-1] - np.einsum("ji,pjk,pk->pi", A_l, G, trail[-1]))
        back, found = trail[-1] @ metric, []
        for layer in reversed(range(depth)):
            read = np.einsum("pij,pj->pi", G, trail[layer])
            found.append(-2 * np.einsum("pi,pj->ij", read, back) / len(e))
            back = back - np.einsum("pij,jk,pk->pi", G, A[layer], back)
        return np.stack(found[::-1])

    # The best a_i: p(t) = (1 - a_0 t)(1 - a_1 t) has the coefficients that minimise sum p_i p_j m_{i+j}.
    def moment(k: int) -> float:
        v = e
        for _ in range(k):
            v = np.einsum("ij,pjk,pk->pi", inverse, G, v)
        return float(np.mean(np.einsum("pi,ij,pj->p", e, metric, v)))

    m = [moment(k) for k in range(2 * depth + 1)]
    p = np.linalg.solve([[m[2], m[3]], [m[3], m[4]]], [-m[1], -m[2]])
    a = 1 / np.roots([p[1], p[0], 1.0])
    if np.iscomplexobj(a) and np.abs(a.imag).max() > 0:
        return check_stationarity(rng)  # no real step sizes on this small sample: draw another
    at_optimum = gradients(a.real[:, None, None] * inverse)
    size = np.abs(gradients(0.5 * a.real[:, None, None] * inverse)).max()
    return float(np.abs(at_optimum).max() / size)


def check_worst_gradient_descent(rng: np.random.Generator) -> float:
    """Any constant step, with strong convexity and without; and unit steps, 1 / (4 N + 2)."""
    steps, h, q = int(rng.integers(1, 9)), rng.uniform(0.1, 1.9), rng.uniform(0.01, 0.1)
    cases = [(h, q), (h, 0.0)]
    found = [worst_case(methods.gradient_descent(h, steps), 1.0, q) for h, q in cases]
    wanted = [max(optimal.constant_step_bounds(h, steps, q)) for h, q in cases]
    plain = abs(worst_case(methods.gradient_descent(1.0, steps)) * (4 * steps + 2) - 1)
    return max(relative(found, wanted), plain)


def check_worst_ogm(rng: np.random.Generator) -> float:
    steps, L = int(rng.integers(1, 9)), rng.uniform(0.1, 10)
    theta = optimal.thetas(steps)[-1]
    value = worst_case(optimal.ogm(steps, L), L)
    gradient = worst_case(optimal.ogm_g(steps, L), L, measure="gradient", start="value")
    return max(relative(value, L / (2 * theta**2)), relative(gradient, 2 * L / theta**2))


def check_worst_item(rng: np.random.Generator) -> float:
    steps, q = int(rng.integers(1, 9)), rng.uniform(0.001, 0.05)
    found = worst_case(optimal.item(steps, 1.0, q), 1.0, q, measure="distance")
    return relative(found, 1 / (1 + q * optimal.item_growth(steps, q)[-1]))


def check_worst_silver(rng: np.random.Generator) -> float:
    """1 / (2 (2 rho^n - 1)) after 2^n - 1 steps."""
    n = int(rng.integers(1, 4))
    return relative(worst_case(optimal.silver(2**n - 1)), 1 / (2 * (2 * optimal.RHO**n - 1)))


MOMENTA: dict[str, Callable[[np.random.Generator], float]] = {
    "Momentum as LFOM coefficients": _check_linear(methods.momentum, reference.momentum),
    "Heavy ball as LFOM coefficients": _check_linear(methods.heavy_ball, reference.heavy_ball),
    "NAG as LFOM coefficients": _check_linear(methods.nesterov, reference.nesterov),
    "Chebyshev as LFOM coefficients": check_chebyshev,
}
CHECKS: dict[str, Callable[[np.random.Generator], float]] = {
    "Lemma 1: Linear Transformer = preconditioned GD": check_lemma_1,
    "Proposition 1: Memformer = CGD, per prompt": check_proposition_1,
    "Conjugate register = preconditioned CGD": check_preconditioned_cgd,
    "Proposition 2: LFOM, one head": check_proposition_2_one_head,
    "Proposition 2: all diagonal LFOMs, d heads": check_proposition_2_diagonal,
    "thm:multihead_moe_refined: gates at a corner": check_soft_gating,
    **MOMENTA,
    "A learned method = the Transformer that runs it": check_learned,
    "Token view = attention token by token": check_tokens,
    "Iterate view = token view": check_views,
    "Joint view = token view, any P and Q": check_joint,
    "Kernel view = token view = descent on functions": check_kernels,
    "Iterate view = token view, classes and counts": check_links,
    "GD++ on eigenvalues = token view": check_spectral,
    "Heads collapse (B = 0, one memory)": check_heads_collapse,
    "Appendix D: stationary at a multiple of S^-1": check_stationarity,
    "Worst case of gradient descent": check_worst_gradient_descent,
    "Worst cases of OGM and OGM-G": check_worst_ogm,
    "Worst case of ITEM": check_worst_item,
    "Worst case of silver steps": check_worst_silver,
}
LONGEST = (  # the longest first
    check_learned,
    check_links,
    check_views,
    check_joint,
    check_kernels,
    check_soft_gating,
    check_spectral,
    check_proposition_1,
    check_heads_collapse,
    check_proposition_2_diagonal,
    check_preconditioned_cgd,
)
WORST_CASES = (check_worst_gradient_descent, check_worst_ogm, check_worst_item, check_worst_silver)
