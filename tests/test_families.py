"""The four families: symmetric positive definite, reproducible, and held-out data stay held out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lfom.core.checks import InputError
from lfom.families import FAMILIES, deblurring, diffusion, digits, table
from lfom.families.family import PARTS, split

SYSTEMS = ("table", "diffusion", "deblurring")


def leaves(problems: object) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(problems)]


@pytest.mark.parametrize("name", FAMILIES)
def test_same_seed_same_problems_and_parts_differ(name: str) -> None:
    family = FAMILIES[name]
    first, again = leaves(family.learning(3, seed=4)), leaves(family.learning(3, seed=4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    for other in (leaves(family.held_out(3, seed=4)), leaves(family.learning(3, seed=5))):
        assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_counts_are_checked(name: str) -> None:
    assert len(FAMILIES[name].held_out(2)) == 2
    with pytest.raises(InputError, match="problems is 0"):
        FAMILIES[name].learning(0)
    with pytest.raises(InputError, match="seed is -1"):
        FAMILIES[name].learning(1, seed=-1)


def test_learning_and_held_out_rows_are_disjoint() -> None:
    halves = split(569)
    assert not set(halves["learning"]) & set(halves["held out"])
    assert len(halves["learning"]) + len(halves["held out"]) == 569
    # What the generators return is made of those rows and no others.
    random = np.random.default_rng(0)
    pixels = {part: digits.samples(part, 20, random)["X"].reshape(-1, 65) for part in PARTS}
    images = {part: {row.tobytes() for row in rows} for part, rows in pixels.items()}
    assert not images["learning"] & images["held out"]


def test_both_halves_of_a_table_come_from_all_of_it() -> None:
    """Tables are often sorted: the mean place of a half is that of the whole, to five standard deviations."""
    for half in split(1_000).values():
        assert abs(half.mean() - 499.5) < 5 * 1_000 / np.sqrt(12 * 2 * 500)


def test_the_two_parts_come_from_different_photographs() -> None:
    shots = deblurring._photographs()
    assert shots["learning"].shape == shots["held out"].shape
    assert np.abs(shots["learning"] - shots["held out"]).mean() > 0.1


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", SYSTEMS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_systems_are_symmetric_positive_definite(name: str, seed: int) -> None:
    problems = FAMILIES[name].held_out(2, seed=seed)
    u, v = jax.random.normal(jax.random.key(seed), (2, 2, *problems.shape))
    Au, Av = problems.times(u), problems.times(v)
    axes = tuple(range(1, u.ndim))
    assert jnp.allclose(jnp.sum(u * Av, axes), jnp.sum(v * Au, axes), rtol=1e-9, atol=1e-9)
    assert bool((jnp.sum(u * Au, axes) > 0).all())
    assert bool((jax.vmap(lambda one: one.diagonal())(problems.each()) > 0).all())


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", SYSTEMS)
def test_diagonals_are_those_of_the_operator(name: str) -> None:
    problems = FAMILIES[name].held_out(1)
    diagonal = np.asarray(jax.vmap(lambda one: one.diagonal())(problems.each()))[0]
    for place in [
        (0,) * diagonal.ndim,
        tuple(n // 3 for n in diagonal.shape),
        tuple(n - 1 for n in diagonal.shape),
    ]:
        unit = np.zeros_like(diagonal)
        unit[place] = 1
        assert np.asarray(problems.times(jnp.asarray(unit[None])))[0][place] == pytest.approx(
            diagonal[place], rel=1e-9
        )


@pytest.mark.usefixtures("x64")
def test_blur_is_the_convolution_with_dark_surroundings() -> None:
    from scipy.signal import convolve2d

    random = np.random.default_rng(0)
    kernel = deblurring.kernels(random, 1)
    image = random.uniform(size=(64, 64))
    blurred = deblurring.blur(jnp.asarray(deblurring.spectrum_of(kernel)[0]), jnp.asarray(image))
    assert kernel.sum() == pytest.approx(1)
    np.testing.assert_allclose(blurred, convolve2d(image, kernel[0], mode="same"), atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_diffusion_with_constant_coefficient_is_the_five_point_laplacian() -> None:
    data = diffusion.conductances(np.full((1, 66, 66), 3.0))
    one = {name: jnp.asarray(values[0]) for name, values in data.items()}
    j = np.arange(1, 65)
    mode = np.outer(np.sin(np.pi * 2 * j / 65), np.sin(np.pi * 5 * j / 65))
    eigenvalue = 3 * (4 - 2 * np.cos(2 * np.pi / 65) - 2 * np.cos(5 * np.pi / 65))
    np.testing.assert_allclose(diffusion.apply(one, jnp.asarray(mode)), eigenvalue * mode, atol=1e-12)


def test_groups_are_centred_and_correlated() -> None:
    X, y = table.groups("held out", 5, np.random.default_rng(0))
    assert np.abs(X.mean(axis=1)).max() < 1e-12
    assert np.abs(y.mean(axis=1)).max() < 1e-12
    assert np.linalg.cond(X).min() > 20  # which is what makes the family worth learning


@pytest.mark.usefixtures("x64")
def test_logistic_loss_is_convex_with_its_known_value_at_zero() -> None:
    problems = FAMILIES["digits"].held_out(3)
    np.testing.assert_allclose(problems.values(jnp.zeros((3, 65))), np.log(2))
    curvature = jax.vmap(jax.hessian(problems.loss))(jnp.ones((3, 65)), problems.data)
    assert np.linalg.eigvalsh(np.asarray(curvature)).min() >= digits.RIDGE - 1e-12
