"""`verify`: every statement holds, and a broken equation is reported as broken."""

import dataclasses
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

from lfom import reference, verify
from lfom.core import threads
from lfom.core.problems import JointGram

SLOW = "Iterate view = token view"  # the same agreement is tested in test_unroll, size by size


@pytest.mark.parametrize("name", [name for name in verify.CHECKS if name != SLOW])
def test_every_statement_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "CHECKS", {name: verify.CHECKS[name]})
    (check,) = verify.verify(seed=0, rounds=1)
    assert check.ok
    assert check.max_error <= check.tolerance == (1e-7 if name.startswith("Worst case") else 1e-10)
    assert check.as_dict() == {
        "name": name,
        "max_error": check.max_error,
        "tolerance": check.tolerance,
        "ok": True,
    }


def test_both_views_are_compared_for_some_of_the_memories(monkeypatch: pytest.MonkeyPatch, x64: None) -> None:
    every = verify.random_memories
    monkeypatch.setattr(verify, "random_memories", lambda *sizes: itertools.islice(every(*sizes), 2))
    assert verify.check_views(np.random.default_rng(0)) < 1e-10


def test_a_broken_equation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    name, gradient = "Lemma 1: Linear Transformer = preconditioned GD", reference.gradient
    # 1/n twice, as in the paper's proof (docs/mathematics.md 2.2)
    monkeypatch.setattr(reference, "gradient", lambda X, y, w: gradient(X, y, w) / len(y))
    monkeypatch.setattr(verify, "CHECKS", {name: verify.CHECKS[name]})
    (check,) = verify.verify(seed=1, rounds=1)  # of more than one example
    assert not check.ok
    assert check.max_error > 1e-3


@pytest.mark.parametrize("name", ["Joint view = token view, any P and Q", "GD++ on eigenvalues = token view"])
def test_a_prompt_that_is_written_wrongly_is_reported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jax.clear_caches()  # programs of other tests read prompts as they should be
    every, joint, decomposed = verify.random_memories, JointGram.of, verify.spectra
    monkeypatch.setattr(verify, "random_memories", lambda *sizes: itertools.islice(every(*sizes), 1))
    monkeypatch.setattr(
        JointGram, "of", lambda p: dataclasses.replace(joint(p), context=1.1 * joint(p).context)
    )
    monkeypatch.setattr(verify, "spectra", lambda q, M: decomposed(q, 1.1 * M))
    monkeypatch.setattr(verify, "CHECKS", {name: verify.CHECKS[name]})
    (check,) = verify.verify(seed=0, rounds=1)
    jax.clear_caches()
    assert not check.ok
    assert check.max_error > 1e-3


def test_the_worst_round_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter([1e-16, 1e-3, 1e-15])
    monkeypatch.setattr(verify, "CHECKS", {"sometimes": lambda rng: next(errors)})
    (check,) = verify.verify(seed=0, rounds=3)
    assert check.max_error == 1e-3
    assert not check.ok


def test_an_error_that_is_not_a_number_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter([1e-16, float("nan")])  # the second time
    monkeypatch.setattr(verify, "CHECKS", {"nan": lambda rng: next(errors)})
    (check,) = verify.verify(seed=0, rounds=2)
    assert not check.ok
    assert max(0.0, verify.relative([1.0, np.nan], [1.0, 1.0])) == np.inf


def test_statements_come_in_order_and_alone_see_the_same_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = threading.Event()

    def first(rng: np.random.Generator) -> float:
        assert slow.wait(timeout=60)
        return float(rng.uniform())

    def second(rng: np.random.Generator) -> float:
        slow.set()
        return float(rng.uniform())

    monkeypatch.setattr(threads, "cores", lambda: 2)
    monkeypatch.setattr(verify, "CHECKS", {"first": first, "second": second})
    every = list(verify.verify(seed=3))
    assert [check.name for check in every] == ["first", "second"]
    assert list(verify.verify(seed=3, only="second")) == every[1:]
    assert every[0].max_error != every[1].max_error


def test_conjugate_prompts_keep_their_digits() -> None:
    # n >= 2d or n <= d/2, over the sizes that the specification names
    rng = np.random.default_rng(0)
    sizes = {verify.conjugate_prompt(rng).X.shape for _ in range(60)}
    assert all(n >= 2 * d or n <= d / 2 for n, d in sizes)
    assert max(d for _, d in sizes) == 20


def test_every_item_comes_once_with_one_of_two() -> None:
    seen = set()
    for seed in range(20):
        pairs = list(verify.in_turn(np.random.default_rng(seed), "ab", range(10)))
        assert [item for _, item in pairs] == list(range(10))
        # of the four kinds of a bank, two by two: neither ties nor own coefficients are always with the same
        assert ["".join(one for one, _ in pairs[first : first + 4]) for first in (2, 6)] in (
            ["abba"] * 2,
            ["baab"] * 2,
        )
        seen.add("".join(one for one, _ in pairs))
    assert len(seen) == 2


def test_every_memory_is_compared_for_classes_or_counts(monkeypatch: pytest.MonkeyPatch, x64: None) -> None:
    met: list[int] = []

    def agree(methods: Sequence[Any], prompt: Any, views: Any) -> float:
        met.append(len(methods))
        return 0.0

    monkeypatch.setattr(verify, "_views_agree", agree)
    verify.check_links(np.random.default_rng(0))
    assert met == [13, 13]  # of 26
    verify.check_views(np.random.default_rng(0))
    assert met[2:] == [27]
    verify.check_joint(np.random.default_rng(0))
    assert met[3:] == [26]
