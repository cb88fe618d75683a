"""The file format: everything comes back, anything damaged is refused, and nothing in a file is believed."""

import dataclasses
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from typer.testing import CliRunner

import lfom
from lfom.cli import app
from lfom.core import archive, coefficients, memories, preconditioners, readers
from lfom.core.checks import InputError
from lfom.core.content import described
from lfom.core.kernels import KERNELS
from lfom.core.methods import Learned
from lfom.core.user_code import classes_of, module_of
from lfom.core.vectors import vector_of
from lfom.files import CLASSES, MOST_LAYERS, read
from lfom.limits.optimum import exact_optimum, with_preconditioner
from lfom.prompts.generalised import NormalLinkRegression
from lfom.solving.certificate import Certificate
from lfom.solving.kinds import SYSTEMS
from lfom.solving.records import Accuracy, Bound, Record
from lfom.solving.structures import Structure
from lfom.training import State
from tests.test_checkpoints import checkpoint, unfinished

damage = module_of(Path(__file__).parents[1] / "benchmarks" / "damage.py")


def steps(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def things() -> Iterator[Any]:
    """Something of every class that can be saved."""
    key = jax.random.key(0)
    for gamma in ("scalar", "pair", "diagonal", "rows", "tokens", "hadamard"):
        yield lfom.memformer(2, 2, gamma=gamma, context=3, key=key)
    yield lfom.memformer(2, 2, memory="register", preconditioner="shared", heads=2, normalised=True, key=key)
    experts = [lfom.memformer(2, 2, memory="none", preconditioner=p, key=key) for p in ("full", "scalar")]
    yield lfom.mixture(experts, gating="softmax", per_layer=True)
    yield lfom.PerPrompt(lfom.mixture(experts))
    yield lfom.PerRun(experts[:1] * 3)
    yield lfom.memformer(2, 40, memory="conjugate", key=key)
    for name in KERNELS:
        yield lfom.memformer(2, 2, reader=name, memory="conjugate-bank", key=key)
    numbers = preconditioners.Scaled(steps(2))
    yield lfom.Method(readers.LabelAttention(numbers, steps(2), "relu"), memories.Forget(steps(2)), 2)  # type: ignore[call-arg,arg-type]
    yield lfom.PosteriorMean(lfom.GaussianKernel(0.5), 0.1)
    two, grid = steps(2, 2), steps(2, 2)
    for A in (
        preconditioners.Identity(),
        preconditioners.Diagonal(grid),
        preconditioners.LowRank(steps(2), two),
        preconditioners.Deflated(steps(2), two),
        preconditioners.Reduced(steps(2), two),
        preconditioners.Transformed(grid, "sine"),
        preconditioners.Factored(two, two),
        preconditioners.Dense(two),
    ):
        yield lfom.Method(readers.Jacobi(A), memories.Forget(steps(3)), 3)
    plain = readers.Gradient(preconditioners.One(two))
    yield readers.Either(jnp.asarray(True), readers.Multiplied(plain, steps()), plain)
    yield lfom.Method(readers.Attention(steps(2, 3, 3), steps(2, 3, 3)), memories.Forget(steps(2)), 2)
    yield lfom.Method(readers.SoftmaxAttention(*[steps(2, 3, 3)] * 3), memories.Forget(steps(2)), 2)
    yield readers.ActivatedAttention(steps(2, 3, 3), steps(2, 3, 3), "relu")  # type: ignore[call-arg,arg-type]
    best = with_preconditioner(exact_optimum(2, 8, 3), two)
    yield best
    yield best.as_algorithm()
    base = lfom.LinearRegression([1.0, 0.5], 8)
    yield lfom.AnyOf([lfom.HeavyTailed(base, 5), lfom.RandomScale(base, 0.5, 2.0)])
    yield lfom.AnyOf([lfom.OnSphere([1.0, 0.5], 8), lfom.GammaLengths([1.0, 0.5], 8)])
    yield lfom.AnyOf([lfom.OneOrthant(base, "same"), lfom.RepeatedQuery(base)])
    yield lfom.AnyLength(base, (1, 8)).prompt(jax.random.key(0))
    yield lfom.AnyLength(lfom.OrthogonalQuery(lfom.LinearRegression([1.0, 0.5], 1)), (1, 1))
    yield lfom.GaussianMixture([[0.0, 1.0]], [1.0], [1.0], 8)
    yield lfom.GaussianProcess(2, 8, lfom.GaussianKernel(0.5))
    yield lfom.LinkRegression(base, lfom.links.LogisticLink())
    yield NormalLinkRegression(base, lfom.links.LogisticLink())
    yield lfom.LogisticRegression([1.0, 0.5], 8)
    yield lfom.PoissonRegression([1.0, 0.5], 8)
    yield lfom.newton(3, 0.1)
    yield checkpoint()
    yield dataclasses.replace(unfinished(), optimiser=lfom.Adam(steps=7))
    vectors = np.stack([[vector_of(experts[0])] * 2] * 3)
    row = {"phase": "all", "number": 0, "level": 0, "step": 1, "log_loss": [[-1.0, -2.0]]}
    yield lfom.Fit(experts[0], (1, 2), vectors, (row,), 0.5)
    yield State(
        0, 0, 0, np.zeros((0, 0, 0)), {"inf": np.array([np.inf])}, ({"nan": float("nan"), "list": [1]},)
    )
    record = Record(60, 0, Accuracy((1.0,), (0.5,), (2.0,), 12, "held out"), (("scalar", -1.5),), ("few",))
    certificate, bound = Certificate((1.0,), (0.1, 0.9)), Bound(0.1, 0.09, 1e-9, 2.0)
    learned = Learned(steps(3), Structure("scalar"), SYSTEMS, (2,), 1e-6, record, certificate, bound)
    yield dataclasses.replace(experts[0], learned=learned)


def content(thing: Any) -> Any:
    """All of it, as the file has it; NaN equals NaN."""
    tensors: dict[str, np.ndarray] = {}
    tree = described(thing, "it", tensors, {})
    return tree, {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in tensors.items()}


def test_everything_comes_back(tmp_path: Path) -> None:
    seen: set[str] = set()
    for number, thing in enumerate(things()):
        path, again = tmp_path / f"{number}", tmp_path / f"{number} again"
        lfom.save(path, thing)
        found, facts = read(path)
        assert type(found) is type(thing)
        assert content(found) == content(thing)
        assert facts["what"] == type(thing).__name__
        assert str(jax.tree.structure(found)) == str(jax.tree.structure(thing))
        lfom.save(again, found)
        assert again.read_bytes() == path.read_bytes()
        assert len(safetensors.numpy.load_file(path)) == len(content(thing)[1])  # others read it too
        seen |= set(re.findall(r'"class": "(\w+)"', json.dumps(content(thing)[0])))
    wanted = {name for name, kind in CLASSES.items() if not inspect.isabstract(kind)}
    assert sorted(wanted - seen) == []


def test_an_existing_file_is_replaced_with_force_only(tmp_path: Path) -> None:
    path, first = tmp_path / "m", lfom.gradient_descent(0.5, steps=2)
    lfom.save(path, first)
    before = path.read_bytes()
    with pytest.raises(InputError, match="Pass force=True"):
        lfom.save(path, lfom.gradient_descent(0.1, steps=2))
    assert path.read_bytes() == before
    lfom.save(path, lfom.gradient_descent(0.1, steps=2), force=True, licence="MIT")
    assert read(path)[1]["licence"] == "MIT"
    with pytest.raises(InputError, match="NaN"):
        lfom.save(path, eqx.tree_at(lambda m: m.memory.eta, first, jnp.full(2, jnp.nan)), force=True)
    assert read(path)[1]["licence"] == "MIT"


@dataclasses.dataclass(frozen=True)
class Told:
    """A class of a user that is no module."""

    words: tuple[str, ...]
    sizes: dict[str, int]


class Slow(memories.Forget):
    """A memory of a user."""

    told: Told = eqx.field(static=True, default_factory=lambda: Told(("a",), {"b": 1}))  # type: ignore[assignment]


def slow() -> lfom.Method:
    return lfom.Method(readers.Gradient(preconditioners.Identity()), Slow(steps(2)), 2)


def test_classes_of_a_user(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    lfom.save(path, slow())
    with pytest.raises(InputError, match=r"holds a (Slow|Told), which .* types=\[...\].* --with"):
        lfom.load(path)
    found = lfom.load(path, types=[Slow, Told])
    assert content(found) == content(slow())
    assert found.memory.told == Told(("a",), {"b": 1})

    class Bank(memories.Forget):
        pass

    named = type("Told", (), {"__annotations__": {"a": int}, "a": 1})
    cases: list[tuple[list[Any], str]] = [
        ([Bank], "another class Bank of lfom.core.memories"),
        ([Told, dataclasses.dataclass(named)], "another class Told"),
        ([int], "classes with fields"),
    ]
    for types, message in cases:
        with pytest.raises(InputError, match=message):
            lfom.load(path, types=types)
    with pytest.raises(InputError, match="another class Bank"):
        lfom.save(
            tmp_path / "bank", lfom.Method(readers.Gradient(preconditioners.Identity()), Bank(steps(2)), 2)
        )
    told = Told(("a",), {"b": 1})
    for words, message in ((1, "words of a Told"), ((print,), "words of a Told"), (["a"], "words of a Told")):
        with pytest.raises(InputError, match=message):
            lfom.save(tmp_path / "told", dataclasses.replace(told, words=words))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"function.*no file can hold"):
        lfom.save(tmp_path / "told", State(0, 0, 0, np.zeros(1), {}, ({"f": content},)))


MINE = """
    import dataclasses
    import equinox as eqx
    from lfom.core.memories import Forget

    @dataclasses.dataclass(frozen=True)
    class Told:
        words: tuple[str, ...]
        sizes: dict[str, int]

    class Slow(Forget):
        told: Told = eqx.field(static=True, default=None)
"""


def test_commands_take_classes_of_a_user(tmp_path: Path) -> None:
    path, mine, fits = tmp_path / "mine.safetensors", tmp_path / "mine.py", tmp_path / "fit.safetensors"
    mine.write_text(textwrap.dedent(MINE))
    model = slow()
    vectors = np.stack([[vector_of(model)] * 2] * 2)
    state = State(
        0, 0, 1, vectors, {}, ({"phase": "all", "number": 0, "level": 0, "step": 0, "log_loss": [[0.0]]},)
    )
    row = {
        "depth": 1,
        "log_loss": 0.0,
        "stderr": 0.1,
        "spread": 0.1,
        "reference": None,
        "prompts": 1,
        "runs": [0.0],
    }
    known = unfinished(model=model, train=(("coefficients",),), state=state, finished=True, metrics=(row,))
    lfom.save(path, known)
    lfom.save(fits, lfom.Fit(model, (1, 2), vectors, (), 0.0))
    runner = CliRunner(env={"COLUMNS": "80"})
    for command in (
        ["inspect", str(path), "--no-plot", "--json"],
        ["inspect", str(fits), "--no-plot"],
        ["train", "--resume", str(path)],
        ["evaluate", str(path), "--prompts", "1000", "--json"],
    ):
        assert "--with" in str(runner.invoke(app, command).exception)
        result = runner.invoke(app, [*command, "--with", str(mine)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
    refused = runner.invoke(app, ["inspect", str(path), "--with", str(mine), "--plot", str(mine), "--force"])
    assert "is an input" in str(refused.exception)
    assert mine.read_text() == textwrap.dedent(MINE)
    assert {kind.__name__ for kind in classes_of(sys.modules["lfom_user_mine"])} == {"Told", "Slow"}


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return list(damage.tried(60, 200, 1, tmp_path_factory.mktemp("damage")))


def test_damage_of_every_kind_is_refused_or_changes_nothing(tried: list[Any]) -> None:
    assert len(tried) == 18
    assert [row for row in tried if not damage.accepted(*row)] == []


def sealed(path: Path, facts: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    path.write_bytes(archive.packed(facts, tensors))
    return path


def deep(levels: int) -> Any:
    tree: Any = 1
    for _ in range(levels):
        tree = {"tuple": [tree]}
    return tree


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (["layers"], 10**12, "10{12} layers|entries for 2"),
        (["layers"], 3, "entries for 2"),
        (["layers"], 0, "depth is 0"),
        (["layers"], 2.0, "layers of a Method is a float"),
        (["layers"], True, "layers of a Method is a bool"),
        (["layers"], 10**30, "none that is ever written"),
        (["layers"], "2", "layers of a Method is a str"),
        (["layers"], None, "layers of a Method is a NoneType"),
        (["layers"], deep(100), "more than 64 deep"),
        (["memory", "fields"], {}, "these differ: alpha, gamma"),
        (["memory", "fields", "more"], 1, "these differ: more"),
        (["memory", "fields", "alpha"], 1.0, "alpha of a Register is a float"),
        (["memory", "fields", "alpha"], {"array": "none"}, "none that is ever written"),
        (["memory", "fields", "alpha"], {"array": "Method.memory.alpha", "more": 1}, "none that is ever"),
        (["memory", "class"], "system", "holds a system"),
        (["memory", "class"], "Memory", "holds a Memory"),
        (["memory", "class"], "Scalar", "these differ"),
        (["memory"], None, "memory of a Method is a NoneType"),
        (["memory"], {"class": "Identity", "fields": {}}, "memory of a Method is a Identity"),
    ],
)
def test_a_right_checksum_makes_no_value_true(
    where: list[str], value: Any, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    lfom.save(path, lfom.memformer(2, 2, memory="register", key=jax.random.key(0)))
    facts, tensors = archive.unpacked(path.read_bytes())
    inner = facts["content"]["fields"]
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    with pytest.raises(InputError, match=message):
        lfom.load(sealed(path, facts, tensors))


def test_layers_are_limited_where_no_array_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "m"
    model = lfom.memformer(2, 2, memory="conjugate", key=jax.random.key(0))
    lfom.save(path, model)
    facts, tensors = archive.unpacked(path.read_bytes())
    facts["content"]["fields"]["layers"] = MOST_LAYERS + 1
    with pytest.raises(InputError, match="100,001 layers"):
        lfom.load(sealed(path, facts, tensors))
    tensors["Method.reader.A.half"][0, 0] = np.inf
    facts["content"]["fields"]["layers"] = 2
    with pytest.raises(InputError, match="NaN or infinity"):
        lfom.load(sealed(path, facts, tensors))


def test_parts_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    good = checkpoint()
    assert good.state is not None
    for change, message in (
        ({"state": dataclasses.replace(good.state, phase=9)}, "phase 9 does not exist"),
        ({"state": dataclasses.replace(good.state, vectors=np.zeros((2, 2, 7)))}, "shape"),
        ({"state": dataclasses.replace(good.state, vectors=np.zeros((3, 2, 8)))}, "3 runs"),
        ({"depths": (1, 9)}, "depth 9"),
        ({"seed": -1}, "seed is -1"),
        ({"finished": True}, "without scores"),
    ):
        lfom.save(path, dataclasses.replace(good, **change), force=True)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=message):
            lfom.load(path)


def test_files_of_other_versions_and_of_others(tmp_path: Path) -> None:
    path = tmp_path / "m"
    lfom.save(path, lfom.gradient_descent(0.5, steps=2))
    facts, tensors = archive.unpacked(path.read_bytes())
    with pytest.raises(InputError, match="newer lfom, as version 4"):
        lfom.load(sealed(path, {**facts, "version": 4}, tensors))
    for changed in ({"version": 2}, {"version": "3"}, {"format": "other"}):
        with pytest.raises(InputError, match="damaged: its header says not"):
            lfom.load(sealed(path, {**facts, **changed}, tensors))
    strange: list[dict[str, Any]] = [{"what": "Fit"}, {"licence": 1}, {"versions": []}]
    for other in strange:
        with pytest.raises(InputError, match="damaged: it"):
            lfom.load(sealed(path, {**facts, **other}, tensors))
    for old in ("lfom method", "lfom checkpoint"):
        text = json.dumps({"dtype": "float32", "format": old, "version": 2})
        path.write_bytes(safetensors.numpy.save({"vectors": np.zeros(3)}, {"lfom": text}))
        with pytest.raises(InputError, match=r"written by lfom 0.1, .* train or learn it again"):
            lfom.load(path)
    for foreign in (safetensors.numpy.save({"weight": np.ones(3)}, {"format": "pt"}), b"PK\x03\x04", b""):
        path.write_bytes(foreign)
        with pytest.raises(InputError, match="damaged, truncated or not a file of lfom"):
            lfom.load(path)


def test_a_header_that_grows_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    with pytest.raises(archive.Refused, match="values are written and read"):
        archive.packed({"content": [[]] * archive.MOST_VALUES}, {})
    text = archive.BEGIN + b"0" * 64 + b'","lfom":"[' + b"[]," * archive.MOST_VALUES + b'[]]"}}'
    made = len(text).to_bytes(8, "little") + text
    path = tmp_path / "m"
    path.write_bytes(made.replace(b"0" * 64, archive.checksum(made), 1))
    with pytest.raises(InputError, match="values are written and read"):
        lfom.load(path)


def test_coefficients_stay_exact() -> None:
    """What JSON would round or forget."""
    assert content(coefficients.Scalar(steps(2)))[0]["fields"]["value"] == {"array": "it.value"}
    assert described((1, [2.5], float("-inf")), "it", {}, {}) == {"tuple": [1, [2.5], {"float": "-inf"}]}


def test_no_array_is_there_twice_or_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m"
    lfom.save(path, lfom.memformer(2, 2, memory="register", key=jax.random.key(0)))
    facts, tensors = archive.unpacked(path.read_bytes())
    with pytest.raises(InputError, match="belong to nothing: more"):
        lfom.load(sealed(path, facts, {**tensors, "more": np.zeros(2)}))
    fields = facts["content"]["fields"]["memory"]["fields"]
    fields["gamma"] = fields["alpha"]
    with pytest.raises(InputError, match="none that is ever written"):
        lfom.load(sealed(path, facts, tensors))


def test_only_methods_change_their_precision(tmp_path: Path) -> None:
    path = tmp_path / "c"
    lfom.save(path, checkpoint())
    with pytest.raises(InputError, match="load it without dtype"):
        lfom.load(path, dtype="float32")


def test_a_folder_for_results_is_checked_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "curves.csv").write_text("mine")
    for out, message in ((tmp_path, "--force"), (tmp_path / "curves.csv", "name a folder")):
        result = CliRunner().invoke(app, ["bench", "solve", "--out", str(out)])
        assert message in str(result.exception)
