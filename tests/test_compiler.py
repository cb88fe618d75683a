"""Which flags the command line sets, and when."""

import jax
import pytest

from lfom.core import compiler


@pytest.mark.parametrize(
    ("version", "before", "after"),
    [
        ((0, 10, 1), "", ""),
        ((0, 11, 2), "", compiler.PRODUCTS_ALONE),
        ((0, 11, 2), "--xla_dump_to=here", f"--xla_dump_to=here {compiler.PRODUCTS_ALONE}"),
        ((0, 11, 2), f"{compiler.FLAG}=", f"{compiler.FLAG}="),  # the user's own choice
        ((0, 12, 0, 1), "", compiler.PRODUCTS_ALONE),
        ((0, 12, 1), "", ""),
    ],
)
def test_the_flag_is_set_where_it_is_known_and_needed(
    monkeypatch: pytest.MonkeyPatch, version: tuple, before: str, after: str
) -> None:
    monkeypatch.setattr(jax, "__version_info__", version)
    monkeypatch.setenv("XLA_FLAGS", before)
    compiler.keep_sums()
    assert compiler.os.environ["XLA_FLAGS"] == after


def test_sums_of_an_unknown_version_are_taken_to_be_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(jax, "__version_info__", (0, 12, 1))
    assert compiler.sums_are_handed_over()
    monkeypatch.setattr(jax, "__version_info__", (0, 10, 1))
    assert not compiler.sums_are_handed_over()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", f"{compiler.EXTRA}={compiler.LOOPS}={compiler.SMALL_LOOP}"),
        ("--xla_dump_to=here", f"--xla_dump_to=here {compiler.EXTRA}={compiler.LOOPS}={compiler.SMALL_LOOP}"),
        (
            f"{compiler.EXTRA}={compiler.LOOPS}=0",
            f"{compiler.EXTRA}={compiler.LOOPS}=0",
        ),  # the user's own choice
        (f"{compiler.EXTRA}=another=1", f"{compiler.EXTRA}=another=1"),
    ],
)
def test_small_loops_are_functions_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    monkeypatch.setenv("XLA_FLAGS", before)
    compiler.keep_loops()
    assert compiler.os.environ["XLA_FLAGS"] == after
    on_cpu = jax.default_backend() == "cpu"
    assert compiler.loops_are_functions() == (on_cpu and compiler.LOOPS in after)
