"""Every reader with every memory and coefficient on every problem: the views agree, or the reason is told."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lfom import (
    GaussianKernel,
    InputError,
    LeastSquaresProblems,
    Method,
    Mixture,
    prompt_from_arrays,
    reference,
)
from lfom.core import preconditioners, unroll
from lfom.core.link_problems import LinkExamples, LinkTokens
from lfom.core.links import LogisticLink
from lfom.core.memories import Bank, Conjugate, ConjugateBank, Forget, Memory, Register, scalar_bank
from lfom.core.methods import GATINGS
from lfom.core.parameters import at_layer, cut, leaves, replaced, widened
from lfom.core.preconditioners import Preconditioner
from lfom.core.problems import (
    ByRows,
    Examples,
    JointGram,
    KernelMatrix,
    Objective,
    Operator,
    Problem,
    Quadratic,
    Regression,
    Tokens,
)
from lfom.core.readers import (
    ActivatedAttention,
    Attention,
    Gradient,
    Heads,
    Jacobi,
    KernelAttention,
    LabelAttention,
    Normalised,
    Reader,
    SoftmaxAttention,
)
from lfom.core.states import NoSuchView
from lfom.methods.memformer import mixture
from tests.helpers import linear_memories, make_prompt, relative, safe_step

D, N, DEPTH, DEEP = 3, 5, 3, 12
EXACT = 1e-10
COEFFICIENTS = ("scalar", "pair", "rows", "diagonal", "tokens", "hadamard")
ON_TOKENS_ONLY = ("tokens", "hadamard", "softmax", "relu", "exp")
NOT_ON_ITERATES = (*ON_TOKENS_ONLY, "attention", "kernel")
KERNEL = GaussianKernel(0.8)
with jax.enable_x64(True):
    PAIR = [make_prompt(seed, N, D, noise=0.5, correlated=False) for seed in (1, 2)]
    CLASSES = np.asarray(PAIR[0].y) > 0
    LABELLED = prompt_from_arrays(PAIR[0].X, CLASSES * 1.0, PAIR[0].query, 1.0, link=LogisticLink())
STEP = 0.5 * min(safe_step(prompt) for prompt in PAIR)


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def preconditioner(kind: str, depth: int) -> Preconditioner:
    """About STEP times the identity, and far from it in every way that the class has."""
    p = preconditioners
    one, scales = np.eye(D) + 0.4 * numbers(0, D, D), 1 + 0.3 * numbers(1, depth)
    logs = np.log(STEP) + 0.3 * numbers(2, D)
    made: dict[str, Callable[[], Preconditioner]] = {
        "identity": p.Identity,
        "scaled": lambda: p.Scaled(jnp.asarray(STEP * scales)),
        "shared": lambda: p.Shared(jnp.asarray(STEP * scales), jnp.asarray(one)),
        "one": lambda: p.One(jnp.asarray(STEP * one)),
        "full": lambda: p.Full(jnp.asarray(STEP * (np.eye(D) + 0.4 * numbers(3, depth, D, D)))),
        "definite diagonal": lambda: p.Diagonal(jnp.asarray(logs)),
        "low rank": lambda: p.LowRank(jnp.asarray(logs), jnp.asarray(0.5 * numbers(4, D, 2))),
        "deflated": lambda: p.Deflated(jnp.asarray(logs), jnp.asarray(0.5 * numbers(4, D, 2))),
        "transformed": lambda: p.Transformed(jnp.asarray(logs), "cosine"),
        "factored": lambda: p.Factored(jnp.asarray(STEP**0.5 * one), jnp.asarray(0.1 * numbers(5, D, D))),
        "dense": lambda: p.Dense(jnp.asarray(STEP * (one + one.T) / 2)),
    }
    return made[kind]()


KINDS = (
    "identity", "scaled", "shared", "one", "full", "definite diagonal", "low rank", "deflated", "transformed", "factored",
    "dense",
)  # fmt: skip


def readers(depth: int) -> dict[str, Reader]:
    def A(kind: str = "full") -> Preconditioner:
        return preconditioner(kind, depth)

    def weights(seed: int) -> jax.Array:
        return jnp.asarray(0.3 * numbers(seed, depth, D + 1, D + 1))

    sharpness = jnp.asarray(1 + 0.3 * numbers(19, depth))
    found: dict[str, Reader] = {f"gradient {kind}": Gradient(A(kind)) for kind in KINDS}
    found |= {f"gradient {kind} with B": Gradient(A(kind), A(kind)) for kind in KINDS}
    return found | {
        "jacobi": Jacobi(A()),
        "heads": Heads((Gradient(A()), Gradient(A("shared")), Jacobi(A("one")))),
        "heads, one with B": Heads((Gradient(A()), Gradient(A("shared"), A()))),
        "normalised": Normalised(Gradient(A())),
        "normalised with B": Normalised(Gradient(A("scaled"), A("scaled"))),
        "normalised jacobi": Normalised(Jacobi(A("definite diagonal"))),
        "attention": Attention(weights(6), weights(7)),
        "softmax": SoftmaxAttention(weights(8), weights(9), weights(10)),
        "relu": ActivatedAttention(weights(13), weights(14), "relu"),  # type: ignore[call-arg,arg-type]
        "exp": ActivatedAttention(weights(15), weights(16), "exp"),  # type: ignore[call-arg,arg-type]
        "kernel": KernelAttention(A("scaled"), KERNEL),  # type: ignore[call-arg,arg-type]
        "labels by softmax": LabelAttention(A("scaled"), sharpness, "softmax"),  # type: ignore[call-arg,arg-type]
        "labels by relu": LabelAttention(A("scaled"), sharpness, "relu"),  # type: ignore[call-arg,arg-type]
        "heads with attention": Heads((Gradient(A()), Attention(weights(11), weights(12)))),
        "normalised attention": Normalised(Attention(weights(17), weights(18))),
    }


def memories(depth: int) -> dict[str, Memory]:
    return linear_memories(3, D, N, depth, COEFFICIENTS) | {
        "conjugate": Conjugate(1e-6),
        "conjugate bank": ConjugateBank(),
    }


def product(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    return matrix @ vector


def squares(w: jax.Array, data: tuple[jax.Array, jax.Array]) -> jax.Array:
    X, y = data
    return jnp.mean((X @ w - y) ** 2) / 2


def problems() -> dict[str, Problem]:
    prompt = PAIR[0]
    gram, moment = prompt.X.T @ prompt.X / N, prompt.X.T @ prompt.y / N
    together, joint, kernel = (
        jax.tree.map(lambda *a: jnp.stack(a, axis=-1), *map(of, PAIR))
        for of in (Quadratic.of, JointGram.of, lambda one: KernelMatrix.of(one, KERNEL))
    )
    shares, zero = jnp.full(N, 1 / N), jnp.zeros(())
    return {
        "prompts last": together,
        "joint": joint,
        "kernel": kernel,
        "quadratic": Quadratic.of(prompt),
        "quadratic anew": Quadratic(gram, moment, anew=True),
        "quadratic of a regression": Regression(gram, moment),
        "examples": Examples(prompt.X, prompt.y),
        "by rows": ByRows(prompt.X, shares, zero, moment),
        "operator": Operator(product, gram, moment, jnp.diagonal(gram)),
        "operator without diagonal": Operator(product, gram, moment),
        "objective": Objective(squares, jnp.zeros(D), (prompt.X, prompt.y)),
    }


def refused(reader: str, memory: str, problem: str) -> bool:
    """Whether this problem cannot run this method, which has this problem's view."""
    if problem in ("joint", "kernel"):
        return False
    if "with B" in reader and "quadratic" not in problem and problem != "prompts last":
        return True  # no Gram matrix
    if "with B" in reader and "diagonal" in memory:
        return True  # Lambda acts on w alone
    scaled = "jacobi" in reader or "normalised" in reader or reader == "heads"
    if scaled and problem in ("operator without diagonal", "objective"):
        return True
    return memory.startswith("conjugate") and problem == "objective"


def says_why(error: InputError) -> None:
    """A sentence or two: no name of an exception, no traceback, no bare word."""
    text = str(error)
    assert re.fullmatch(r"\S.{40,}[.]", text), text
    assert len(text.split()) >= 8, text


class Known:
    """Everything that is combined, built once."""

    def __init__(self) -> None:
        self.readers, self.memories, self.problems = readers(DEPTH), memories(DEPTH), problems()
        self.tokens, self.other = Tokens.of(PAIR[0]), Quadratic.of(PAIR[1])

    def method(self, reader: str, memory: str) -> Method:
        return Method(self.readers[reader], self.memories[memory], DEPTH)


@pytest.fixture(scope="module")
def known() -> Known:
    with jax.enable_x64(True):
        return Known()


def views_of(reader: str, memory: str) -> list[str]:
    words = f"{reader} {memory}".replace("-", " ").split()
    views = {
        "iterates": not any(word in words for word in NOT_ON_ITERATES),
        "kernel": reader == "kernel" and not any(word in words for word in (*ON_TOKENS_ONLY, "diagonal")),
        "joint": not any(word in words for word in (*ON_TOKENS_ONLY, "kernel"))
        and not memory.startswith("bank-diagonal"),
        "tokens": not memory.startswith("bank-diagonal"),
    }
    return [view for view, has in views.items() if has]


def view_of(problem: str) -> str:
    return problem if problem in ("joint", "kernel") else "iterates"


def on_tokens(method: Method, memory: str, known: Known) -> np.ndarray | None:
    """The predictions of the definition; None where it does not exist, and says why not."""
    if not memory.startswith("bank-diagonal"):
        return np.asarray(unroll.unroll(method, known.tokens))
    with pytest.raises(NoSuchView) as refusal:
        unroll.unroll(method, known.tokens)
    says_why(refusal.value)
    return None


def agrees(method: Method, names: tuple[str, str], kind: str, wanted: np.ndarray | None, known: Known) -> Any:
    """The predictions on one problem, which are those wanted; None where it refuses, and says why."""
    problem = known.problems[kind]
    nowhere = view_of(kind) not in views_of(*names)
    if nowhere or refused(*names, kind):
        with pytest.raises(
            NoSuchView if nowhere and kind in ("prompts last", "joint") else InputError
        ) as refusal:
            unroll.unroll(method, problem)
        says_why(refusal.value)
        return None
    answers = np.asarray(unroll.unroll(method, problem))
    if kind == "joint":
        found = answers[:, 0, 0]
    elif kind == "kernel":
        found = answers[..., 0] @ np.asarray(problem.probe[0, :, 0])  # type: ignore[attr-defined]
    else:
        found = (answers[..., 0] if kind == "prompts last" else answers) @ np.asarray(PAIR[0].query)
    assert wanted is None or relative(found, wanted) < EXACT, kind
    return found


with jax.enable_x64(True):
    READERS, MEMORIES = list(readers(1)), list(memories(1))
WHOLE = ("gradient full", "gradient full with B", "heads", "normalised", "attention")
VARIANTS = ("", "-tied", "-own", "-tied-own")
EVERY = [
    (reader, memory)
    for (place, reader), memory in itertools.product(enumerate(READERS), MEMORIES)
    # Every coefficient with every reader; tied or not, own or not in turn, and all four with some readers.
    if reader in WHOLE
    or not memory.startswith("bank")
    or memory in [f"bank-{kind}{VARIANTS[(place + k) % 4]}" for k, kind in enumerate(COEFFICIENTS)]
]
SOME = [
    (reader, memory)
    for reader, memory in itertools.product(READERS, MEMORIES)
    if reader in WHOLE[:2] or memory in ("register", "bank-pair", "conjugate")
]


def name(pair: tuple[str, str]) -> str:
    return " / ".join(pair)


@pytest.mark.parametrize("pair", EVERY, ids=name)
def test_every_combination_agrees_across_its_views_or_says_why_not(
    pair: tuple[str, str], known: Known, x64: None
) -> None:
    method = known.method(*pair)
    views = views_of(*pair)
    assert list(method.views) == views
    wanted = on_tokens(method, pair[1], known)
    if views == ["tokens"]:
        alone(method, wanted)
    for kind in ("prompts last", "joint", *["kernel"] * (pair[0] == "kernel")):
        agrees(method, pair, kind, wanted, known)


@pytest.mark.parametrize("pair", SOME, ids=name)
def test_every_problem_agrees_with_the_tokens_or_says_why_not(
    pair: tuple[str, str], known: Known, x64: None
) -> None:
    method = known.method(*pair)
    wanted = on_tokens(method, pair[1], known)
    for kind in known.problems:
        found = agrees(method, pair, kind, wanted, known)
        wanted = found if wanted is None else wanted
    if "iterates" in method.views and not refused(*pair, "quadratic"):
        together = unroll.unroll(method, known.problems["prompts last"])
        assert relative(together[..., 1], unroll.unroll(method, known.other)) < EXACT
    if "joint" in method.views:
        together = unroll.unroll(method, known.problems["joint"])
        assert relative(together[:, 0, 1], unroll.unroll(method, Tokens.of(PAIR[1]))) < EXACT


@pytest.mark.parametrize("pair", SOME, ids=name)
def test_labels_through_a_link_agree_on_tokens_and_on_iterates_or_say_why_not(
    pair: tuple[str, str], known: Known, x64: None
) -> None:
    method, views = known.method(*pair), views_of(*pair)
    found = []
    for view, problem, refuses in (
        ("tokens", LinkTokens.of(LABELLED), False),
        ("iterates", LinkExamples.of(LABELLED), refused(*pair, "quadratic")),
    ):
        if view in views and not refuses and not pair[1].startswith("conjugate"):
            answers = np.asarray(unroll.unroll(method, problem))
            found.append(answers if view == "tokens" else answers @ np.asarray(LABELLED.query))
            continue
        with pytest.raises(InputError) as refusal:
            unroll.unroll(method, problem)
        says_why(refusal.value)
    assert len(found) < 2 or relative(*found) < EXACT


def test_a_head_that_rewrites_covariates_does_so_for_its_neighbours(known: Known, x64: None) -> None:
    A, memory = preconditioner("full", DEPTH), known.memories["register"]
    plain, rewriting = Method(Jacobi(A), memory, DEPTH), Method(Gradient(A, A), memory, DEPTH)
    for algorithm in (
        Method(Heads((Jacobi(A), Gradient(A, A))), memory, DEPTH),
        mixture([plain, rewriting]),
    ):
        wanted = unroll.unroll(algorithm, known.tokens)
        try:
            w = unroll.unroll(algorithm, known.problems["quadratic"])
        except NoSuchView as refusal:
            says_why(refusal)
            continue
        assert relative(w @ PAIR[0].query, wanted) < EXACT


# More layers than are written out


def by_hand(heads: list[Method], gates: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """A mixture of heads, token by token in NumPy: predictions after every step."""
    stored: list[list[np.ndarray]] = [[] for _ in heads]
    found = [-Z[-1, -1]]
    for layer in range(heads[0].depth):
        total = np.zeros_like(Z)
        for head, past, gate in zip(heads, stored, gates, strict=True):
            past.append(read_by_hand(head.reader, Z, layer))
            total = total + gate[layer] * step_by_hand(head.memory, past, layer)
        Z = Z + total
        found.append(-Z[-1, -1])
    return np.stack(found)


def read_by_hand(reader: Any, Z: np.ndarray, layer: int) -> np.ndarray:
    """What a layer reads, in NumPy: of the gradient with full A, and of attention that runs on tokens alone. Others are
    compared across views, and read for themselves here."""
    of, context, n = jax.tree.map(np.asarray, at_layer(reader, layer)), Z * (np.arange(N + 1) < N), N

    def softmax(inner: np.ndarray) -> np.ndarray:
        return np.exp(inner) / np.exp(inner).sum(axis=0)

    if isinstance(reader, Gradient) and isinstance(reader.A, preconditioners.Full) and reader.B is None:
        return reference.attention(Z, *reference.sparse_weights(of.A.matrices, None)) / n
    if isinstance(reader, SoftmaxAttention):
        return of.W_v @ context @ softmax(Z.T @ of.W_k.T @ of.W_q @ Z) / n
    if isinstance(reader, ActivatedAttention):
        inner = Z.T @ of.Q @ Z
        shares = np.maximum(inner, 0) if of.activation == "relu" else np.exp(np.minimum(inner, 5))
        return of.P @ context @ shares / n
    if isinstance(reader, KernelAttention | LabelAttention):
        inner = Z[:-1, :-1].T @ Z[:-1]
        squares = np.sum((Z[:-1, :-1, None] - Z[:-1, None]) ** 2, axis=0)
        form = getattr(of, "form", "kernel")
        shares = {
            "relu": lambda: np.maximum(of.sharpness * inner, 0) / n,
            "softmax": lambda: softmax(of.sharpness * inner),
            "kernel": lambda: np.exp(-squares / (2 * KERNEL.width**2)) / n,
        }[form]()
        return np.vstack([0 * Z[:-1], -of.A.scale * Z[-1, :-1] @ shares])
    return np.asarray(at_layer(reader, layer).on_tokens(jnp.asarray(Z), Tokens.of(PAIR[0])))


def alone(method: Method, found: np.ndarray | None) -> None:
    """What runs on tokens only has the answers of a loop by hand; those of conjugate directions are numbers."""
    assert found is not None
    if not method.memory.linear:
        assert np.isfinite(found).all()
        return
    Z = reference.tokens(*(np.asarray(a) for a in (PAIR[0].X, PAIR[0].y, PAIR[0].query)))
    assert relative(found, by_hand([method], np.ones((1, DEPTH)), Z)) < EXACT


def step_by_hand(memory: Any, past: list[np.ndarray], layer: int) -> np.ndarray:
    if hasattr(memory, "eta"):
        return float(memory.eta[layer]) * past[layer]
    if hasattr(memory, "alpha"):
        register = np.zeros_like(past[0])
        for j in range(layer + 1):
            register = past[j] + float(memory.gamma[j]) * register
        return float(memory.alpha[layer]) * register
    total = np.zeros_like(past[0])
    for j, direction in enumerate(past):
        one = jax.tree.map(lambda a, j=j: a[j] if memory.tied else a[layer, j], memory.gamma)
        own = memory.own_is_one and j == layer
        total = total + (direction if own else np.asarray(one.on_tokens(jnp.asarray(direction))))
    return total


def gated(heads: list[Method]) -> Any:
    gates = numbers(20, len(heads), heads[0].depth) / len(heads)
    return mixture(heads, jnp.asarray(gates), per_layer=True)


def test_twelve_layers_are_those_of_a_loop_by_hand(x64: None) -> None:
    kept = ("none", "register", "bank-scalar", "bank-pair-tied", "bank-rows-own", "bank-tokens-tied-own",
            "bank-hadamard")  # fmt: skip
    reader = Gradient(preconditioner("full", DEEP))
    heads = [Method(reader, memories(DEEP)[name], DEEP) for name in kept]
    algorithm = gated(heads)
    Z = reference.tokens(*(np.asarray(a) for a in (PAIR[0].X, PAIR[0].y, PAIR[0].query)))
    wanted = by_hand(heads, np.asarray(algorithm.gates), Z)
    assert relative(unroll.unroll(algorithm, Tokens.of(PAIR[0])), wanted) < EXACT


BOTH_LOOPS: dict[str, tuple[list[tuple[str, str]], str]] = {
    "iterates": (
        [("gradient low rank", "bank-scalar-tied-own"),
         ("jacobi", "bank-pair"), ("normalised", "bank-rows-tied"), ("gradient full", "bank-diagonal-own"),
         ("gradient one", "conjugate")],
        "prompts last",
    ),
    "GD++": (
        [("gradient full with B", "register"), ("heads, one with B", "bank-pair-tied"),
         ("gradient full", "bank-scalar")],
        "prompts last",
    ),
    "joint": (
        [("attention", "register"), ("normalised attention", "bank-pair-tied"), ("heads with attention", "bank-rows"),
         ("gradient full with B", "bank-scalar-own"), ("gradient one", "conjugate")],
        "joint",
    ),
    "tokens": (
        [("attention", "register"), ("softmax", "bank-tokens"), ("gradient full with B", "bank-hadamard-tied"),
         ("gradient one", "conjugate")],
        "tokens",
    ),
}  # fmt: skip


def both_loops(
    algorithm: Any, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[jax.Array, list[jax.Array]]]:
    """Answers and gradients in every array, of the scan and of layers written out."""

    def loss(arrays: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
        answers = unroll.unroll(replaced(algorithm, arrays), problem)
        return jnp.sum((answers - 1) ** 2), answers

    arrays, found = [leaf.array for leaf in leaves(algorithm)], []
    for written_out in (0, algorithm.depth):
        for limit in ("WRITTEN_OUT", "WRITTEN_OUT_COVARIATES"):
            monkeypatch.setattr(unroll, limit, written_out)
        (_, answers), slopes = jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays)
        found.append((answers, slopes))
    return found


@pytest.mark.parametrize("case", [*BOTH_LOOPS, "twelve layers"])
def test_a_scan_gives_the_answers_and_gradients_of_layers_written_out(
    case: str, x64: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, kind = BOTH_LOOPS.get(case, ([("gradient shared", "register")], "prompts last"))
    depth = 2 if case in BOTH_LOOPS else DEEP
    known_readers, known_memories = readers(depth), memories(depth)
    algorithm = gated([Method(known_readers[r], known_memories[m], depth) for r, m in names])
    problem: Problem = Tokens.of(PAIR[0]) if kind == "tokens" else problems()[kind]
    (scanned, slopes), (wanted, right) = both_loops(algorithm, problem, monkeypatch)
    assert relative(scanned, wanted) < EXACT
    for leaf, slope, other in zip(leaves(algorithm), slopes, right, strict=True):
        small = 1e-9 * float(jnp.abs(other).max())
        np.testing.assert_allclose(slope, other, rtol=1e-8, atol=small, err_msg=leaf.name)


@pytest.mark.parametrize(
    "names", [["bank-pair"], ["bank-scalar-tied"], ["bank-rows-own"], ["bank-pair", "bank-scalar"]]
)
def test_a_bank_that_is_given_room_bit_by_bit_is_the_same(
    names: list[str], x64: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven layers in loops of 2, 2, 2 and 1, whose banks have room for 2, 4, 6 and 7."""
    monkeypatch.setattr(unroll, "ROOM", 2)
    reader = Gradient(preconditioner("full", 7))
    algorithm = gated([Method(reader, memories(7)[name], 7) for name in names])
    assert unroll.loop_ends(algorithm, 7) == [2, 4, 6, 7]
    (scanned, slopes), (wanted, right) = both_loops(algorithm, problems()["prompts last"], monkeypatch)
    assert relative(scanned, wanted) < EXACT
    for leaf, slope, other in zip(leaves(algorithm), slopes, right, strict=True):
        np.testing.assert_allclose(
            slope, other, rtol=1e-8, atol=1e-9 * float(jnp.abs(other).max()), err_msg=leaf.name
        )


def test_what_is_not_said_to_fill_up_has_one_loop(x64: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory may do with its room what it likes: here the last directions of a circle of that size."""

    class Circle(Memory):
        def start(self, nothing: Any, state: Any, problem: Problem, room: int | None) -> Any:
            size = DEEP if room is None else room
            return jax.tree.map(lambda a: jnp.zeros((size, *a.shape), a.dtype), nothing)

        def __call__(self, direction: Any, past: Any, state: Any, problem: Problem, layer: Any) -> Any:
            oldest = jax.tree.map(lambda a: a[0], past)
            pushed = jax.tree.map(lambda a, new: jnp.concatenate([a[1:], new[None]]), past, direction)
            return 0.1 * direction + 0.05 * oldest, pushed

    one = Method(Gradient(preconditioner("full", DEEP)), Circle(), DEEP)
    mixed = gated([one, Method(one.reader, memories(DEEP)["bank-scalar"], DEEP)])
    monkeypatch.setattr(unroll, "ROOM", 2)
    for algorithm in (one, mixed):
        assert unroll.loop_ends(algorithm, DEEP) == [DEEP]
        (scanned, _), (wanted, _) = both_loops(algorithm, problems()["prompts last"], monkeypatch)
        assert relative(scanned, wanted) < EXACT


def test_layers_of_a_scan_are_switched_off(x64: None) -> None:
    method = Method(Gradient(preconditioner("full", DEEP)), memories(DEEP)["bank-scalar"], DEEP)
    problem, active = Quadratic.of(PAIR[0]), jnp.asarray([1.0] * 10 + [0.0] * 2)
    whole, shorter = unroll.unroll(method, problem), unroll.unroll(method, problem, active)
    np.testing.assert_allclose(shorter[:11], whole[:11], rtol=1e-12)
    np.testing.assert_allclose(shorter[11:], jnp.stack([whole[10]] * 2), rtol=1e-12)
    assert relative(whole[11:], shorter[11:]) > 1e-3


@pytest.mark.parametrize("memory", ["register", "bank-scalar", "bank-pair-tied", "bank-rows-own"])
@pytest.mark.parametrize("layers", [2, 9])
def test_a_truncated_method_takes_the_first_steps(memory: str, layers: int, x64: None) -> None:
    method = Method(Gradient(preconditioner("full", DEEP)), memories(DEEP)[memory], DEEP)
    problem = Quadratic.of(PAIR[0])
    wanted = unroll.unroll(method, problem)[: layers + 1]
    assert relative(unroll.unroll(method.truncated(layers), problem), wanted) < EXACT
    assert relative(unroll.unroll(cut(method, layers).truncated(layers), problem), wanted) < EXACT


@pytest.mark.parametrize("tied", [True, False])
def test_a_truncated_method_solves_with_its_first_steps(tied: bool) -> None:
    values = np.full(DEEP, 0.1) if tied else 0.2 * np.eye(DEEP) + 0.01 * np.tri(DEEP)
    method = Method(
        Gradient(preconditioners.Identity()), scalar_bank(jnp.asarray(values, float), tied=tied), DEEP
    )
    X, y = numbers(40, 2, 12, D).astype(np.float32), numbers(41, 2, 12).astype(np.float32)
    wanted = method.solve(LeastSquaresProblems(X, y), steps=4)
    found = method.truncated(4).solve(
        LeastSquaresProblems(X, y), tolerance=1e-3
    )  # goes on after its own steps
    np.testing.assert_allclose(found.residuals[:, :5], wanted.residuals, rtol=1e-4)
    assert (np.asarray(found.steps) > 4).all()


def test_a_scan_takes_numbers_that_every_prompt_has_of_its_own(x64: None) -> None:
    alpha, gamma = (jnp.asarray(0.3 * numbers(seed, DEEP, 2)) for seed in (30, 31))
    reader = Gradient(preconditioner("full", DEEP))
    together = unroll.unroll(Method(reader, Register(alpha, gamma), DEEP), problems()["prompts last"])
    for k, prompt in enumerate(PAIR):
        alone = unroll.unroll(Method(reader, Register(alpha[:, k], gamma[:, k]), DEEP), Quadratic.of(prompt))
        assert relative(together[..., k], alone) < EXACT


@pytest.mark.parametrize("depth", [DEPTH, 9])
def test_a_method_in_its_common_form_answers_as_before(depth: int, x64: None) -> None:
    """What scores share a program by: full matrices and a bank of numbers, with room for more layers."""
    problem = Quadratic.of(PAIR[0])
    cases = [("shared", "register"), ("one", "bank-scalar-tied-own"), ("low rank", "bank-pair-own")]
    cases += [("scaled", "none"), ("identity", "bank-pair-tied")] if depth == DEPTH else []
    for reader, memory in cases:
        method = Method(Gradient(preconditioner(reader, depth)), memories(depth)[memory], depth)
        common = method.canonical(D)
        assert isinstance(common.memory, Bank)
        wider = widened(common, depth + 2).truncated(depth)
        for one in (common, wider):
            assert relative(unroll.unroll(one, problem), unroll.unroll(method, problem)) < EXACT


@pytest.mark.parametrize("per_layer", [False, True], ids=["gates of heads", "gates of layers"])
@pytest.mark.parametrize("gating", GATINGS)
def test_a_mixture_in_its_common_form_answers_as_before(gating: str, per_layer: bool, x64: None) -> None:
    """Heads that forget are one head, whose program all such methods share; others stay, with gates as numbers."""
    problem = Quadratic.of(PAIR[0])
    gates = jnp.asarray(numbers(50, 2, DEPTH) if per_layer else numbers(50, 2))
    readers = [Gradient(preconditioner(name, DEPTH)) for name in ("full", "shared")]
    sizes = [jnp.asarray(0.3 + 0.1 * numbers(seed, DEPTH)) for seed in (51, 52)]
    for forgets in (True, False):
        of_heads: list[Any] = [Forget(eta) if forgets else Register(eta, eta / 2) for eta in sizes]
        heads = tuple(Method(*parts, DEPTH) for parts in zip(readers, of_heads, strict=True))
        method = Mixture(heads, gates, per_layer, gating)
        for depth in (DEPTH, DEPTH - 1):
            common = method.truncated(depth).canonical(D)
            assert len(getattr(common, "heads", (0,))) == (1 if forgets else 2)
            wanted = unroll.unroll(method.truncated(depth), problem)
            assert relative(unroll.unroll(common, problem), wanted) < EXACT


def test_heads_in_their_common_form_are_one(x64: None) -> None:
    reader = Heads(tuple(Gradient(preconditioner(name, DEPTH)) for name in ("full", "shared")))
    method = Method(reader, Forget(jnp.full(DEPTH, 0.3)), DEPTH)
    common: Any = method.canonical(D)
    assert isinstance(common.reader, Gradient)
    problem = Quadratic.of(PAIR[0])
    assert relative(unroll.unroll(common, problem), unroll.unroll(method, problem)) < EXACT
