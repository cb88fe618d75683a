"""Batches of any size by programs of a few sizes, what is kept of a method, and steps without round trips."""

import gc
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import lfom
from lfom.core import stopping
from lfom.core.checks import InputError
from lfom.solving import batches, pieces, program, sizes, systems
from lfom.solving.pieces import per_piece
from tests.learned_problems import classifications, grids, learned, learned_from_losses, learned_on_grids
from tests.learned_problems import systems as some_systems

pytestmark = pytest.mark.usefixtures("x64")


@given(st.integers(1, 100_000))
def test_parts_hold_the_batch_and_little_more(count: int) -> None:
    cut = sizes.parts(count)
    assert sum(cut) >= count
    assert sum(cut[:-1]) < count
    assert sum(cut) <= (1.07 * count + 1 if count > 64 else sizes.up(count))
    assert list(cut) == sorted(cut, reverse=True)
    windows = sizes.one_after_the_other(cut, count)
    assert [one.end - one.first for one in windows[:-1]] == list(cut[:-1])
    assert windows[-1].end == count


@given(st.integers(64, 5_000), st.integers(4, 10_000_000))
@example(113, 50_000)  # a window that is no wider than what it solves would have to begin inside a cache line
def test_windows_solve_every_problem_once(count: int, size: int) -> None:
    cut = sizes.windows(count, size)
    width = cut[0].right
    assert [one.first for one in cut] == [0, *(one.end for one in cut[:-1])]
    assert cut[-1].end == count
    for one in cut:
        assert 0 <= one.left <= one.first < one.end <= one.right <= count
        assert one.right - one.left == width
    assert all(one.left % 16 == 0 or one.right == count for one in cut)
    pieces = [-(-(one.end - one.first) // per_piece(width, size)) for one in cut]
    assert max(pieces) - min(pieces) <= 1


@pytest.mark.parametrize(("first", "end"), [(0, 40), (3, 38), (17, 18), (33, 40)])
def test_a_window_shows_what_alone_is_solved(first: int, end: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces do not divide what it shows, nor what is wanted of it."""
    x = jnp.arange(80.0).reshape(40, 2)
    asked = []

    def work(some: Any) -> Any:
        jax.debug.callback(lambda y: asked.append(len(y)), some)
        return {"sum": some.sum(axis=1), "same": some}

    for name, value in {"WHOLE": 0, "OWN": 7 * 2 * x.dtype.itemsize}.items():
        monkeypatch.setattr(pieces, name, value)
    found = jax.jit(lambda *window: pieces.in_window(work, x, *window))(first, end)
    jax.effects_barrier()
    np.testing.assert_array_equal(found["same"][first:end], x[first:end])
    np.testing.assert_array_equal(found["sum"][first:end], x[first:end].sum(axis=1))
    assert asked == [7] * -(-(end - first) // 7)


@given(st.integers(1, 1_000_000))
def test_round_sizes(count: int) -> None:
    size = sizes.up(count)
    assert count <= size <= max(1.25 * count, count + 1)
    assert sizes.up(size) == size
    for exact in (2 ** count.bit_length(), 10 ** len(str(count))):
        assert sizes.up(exact) == exact


def test_few_sizes_are_compiled() -> None:
    assert len(set().union(*(sizes.widths(count, 64 * 65 * 4) for count in range(500, 5_001)))) == 3
    assert len(set().union(*(sizes.widths(count, 100) for count in range(500, 5_001)))) <= 4
    if jax.default_backend() != "cpu":
        pytest.skip("an accelerator has a size for every round number")
    method, problems = learned("scalar"), some_systems(count=1_013, seed=3)
    compiled = []

    def count(event: str, duration_secs: float, **kwargs: str | int) -> None:
        compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(count)
    for number in (1_013, 1_009, 1_000, 997, 751, 613, 500):
        jax.block_until_ready(method.solve(_first(problems, number)).value)
    programs = [event for event in compiled if "backend_compile" in event]
    assert 1 <= len(programs) <= 4


def _first(problems: Any, number: int) -> Any:
    return lfom.LinearSystems(*(np.asarray(x)[:number] for x in (problems.A, problems.b)))


@pytest.fixture(params=["parts", "windows"])
def how_cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A small batch, or one that is taken for a large one, in windows of pieces of three problems of six unknowns."""
    if request.param == "windows":
        for module, name, value in [(sizes, "WORTH", 0), (pieces, "WHOLE", 0), (pieces, "OWN", 3 * 8 * 42)]:
            monkeypatch.setattr(module, name, value)
        sizes.windows.cache_clear()
        batches.compiled.clear_cache()  # type: ignore[attr-defined]
    yield request.param
    if request.param == "windows":
        sizes.windows.cache_clear()
        batches.compiled.clear_cache()  # type: ignore[attr-defined]


@pytest.mark.parametrize("options", [{"steps": 4}, {"tolerance": 1e-7}, {"steps": 9, "start": True}])
def test_a_problem_is_solved_as_it_is_alone(how_cut: str, options: dict[str, Any]) -> None:
    """Also the last one, whose copies fill the batch up, and beside problems that fail."""
    count = 70
    assert sizes.parts(count) == (64, 4, 4)
    if how_cut == "windows":
        assert len(sizes.windows(count, 8 * 42)) == 2
    A, b = (np.array(x) for x in (some_systems(count=count, seed=2).A, some_systems(count=count, seed=2).b))
    b[-1, 0], A[5] = np.nan, -A[5]
    problems = unseen(A, b)
    start = np.random.default_rng(0).normal(size=b.shape) if options.get("start") else None
    options = {**options, "start": start}
    found = learned("scalar").solve(problems, **options)
    with jax.enable_x64(False):  # what was solved in float64 is read in float64
        assert found.value.dtype == found.residuals.dtype == np.float64
    assert found.value.shape == b.shape
    assert found.residuals.shape[0] == found.status.shape[0] == count
    for i in (0, 5, 63, 64, 68, 69):
        own = {**options, "start": None if start is None else start[i : i + 1]}
        alone = learned("scalar").solve(problems[i], **own)
        np.testing.assert_allclose(found.value[i], alone.value[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_array_equal(found.status[i], alone.status[0])
        np.testing.assert_array_equal(found.steps[i], alone.steps[0])
    assert found.status[69] < 0
    assert not (np.asarray(found.status)[51:69] < 0).any()


def unseen(A: np.ndarray, b: np.ndarray) -> Any:
    """Systems that nobody looked at: matrices may be indefinite."""
    structure = jax.tree.structure(some_systems(count=len(b), seed=2))
    return jax.tree.unflatten(structure, [jnp.asarray(A), jnp.asarray(b)])


CASES: dict[str, Any] = {
    "register": (lambda: learned("scalar"), lambda: some_systems(count=11, seed=4)),
    "conjugate": (lambda: learned("conjugate:jacobi+diagonal"), lambda: some_systems(count=11, seed=4)),
    "grids": (lambda: learned_on_grids(), lambda: grids(count=11, seed=4)),
    "losses": (lambda: learned_from_losses(), lambda: classifications(count=11, seed=4)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("options", [{"steps": 6}, {"tolerance": 1e-5}])
def test_steps_without_round_trips_are_the_same(
    case: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs on an accelerator: steps written out, several per turn, the check always made, batches filled up."""
    make, problems = CASES[case][0](), CASES[case][1]()
    plain = make.solve(problems, **options)
    asked = []

    def reads_back() -> bool:
        asked.append(1)
        return True

    for module in (stopping, systems, sizes):
        monkeypatch.setattr(module, "reads_back", reads_back)
    batches.compiled.clear_cache()  # type: ignore[attr-defined]
    written = make.solve(problems, **options)
    batches.compiled.clear_cache()  # type: ignore[attr-defined]
    assert len(asked) > 1
    np.testing.assert_allclose(written.value, plain.value, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(written.status, plain.status)
    np.testing.assert_array_equal(written.steps, plain.steps)
    np.testing.assert_allclose(written.residuals, plain.residuals, rtol=1e-5, atol=1e-9)


def test_a_batch_of_hundreds_of_megabytes_is_cut_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = some_systems(count=23)
    method = lfom.conjugate_gradient(2)
    plain = method.solve(problems)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(problems)) // 23
    monkeypatch.setattr(sizes, "LARGEST", 9 * size)
    sizes.large_parts.cache_clear()
    assert sizes.large_parts(23, size) == (9, 9, 5)
    assert sizes.large_parts(27, size) == (9, 9, 9)
    assert sizes.large_parts(9, size) == (10,)  # filled up, not cut
    monkeypatch.setattr(sizes, "reads_back", lambda: True)
    cut = method.solve(problems)
    sizes.large_parts.cache_clear()
    np.testing.assert_allclose(cut.value, plain.value, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(cut.status, plain.status)


def test_what_is_kept_of_a_method_goes_with_it() -> None:
    method: Any = lfom.gradient_descent(0.1, steps=3)
    problems = some_systems(count=3)
    before = len(program.prepared.known)
    first = method.solve(problems)
    assert len(program.prepared.known) == before + 1
    np.testing.assert_array_equal(method.solve(problems).value, first.value)
    with pytest.raises(InputError, match="steps"):
        method.solve(problems, steps=True)  # 1 was never asked for, and True is no number of steps
    method.solve(problems, steps=1)
    for wrong in (True, 1.0):
        with pytest.raises((InputError, TypeError), match="steps"):  # in the tests, types are checked first
            method.solve(problems, steps=wrong)
    del method, first
    gc.collect()
    assert len(program.prepared.known) == before


def test_a_batch_of_none_is_solved_and_shown() -> None:
    found = learned("scalar").solve(some_systems(count=3)[0:0])
    assert found.value.shape == (0, 6)
    assert "0 answers" in repr(found)


@pytest.mark.parametrize("computes", [False, True], ids=["as they are", "with what is computed of them"])
def test_numbers_that_somebody_may_change_are_read_again(computes: bool) -> None:
    plain: Any = learned("preconditioned:full") if computes else lfom.gradient_descent(0.1, steps=3)
    reader, memory = jax.tree.map(np.array, (plain.reader, plain.memory))
    method = lfom.Method(reader, memory, plain.layers)
    problems = some_systems(count=3)
    first = np.array(method.solve(problems).value)
    for numbers in jax.tree.leaves((reader, memory)):
        numbers *= 1.5
    assert not np.allclose(method.solve(problems).value, first)
