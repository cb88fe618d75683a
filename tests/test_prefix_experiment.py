"""The experiment on prefixes: what its rows and verdicts are made of."""

from dataclasses import replace

import numpy as np
import pytest

from lfom import PrefixScore
from lfom.experiments.prefixes import AT, OVER, SHIFTS, TRAINED, D, N, Scores, claims_of, rows_of

CONTEXTS = tuple(range(1, N + 1))


def made(name: str, mean: np.ndarray, zero: float = 20.0) -> PrefixScore:
    """Two runs, 10 % to both sides of the mean."""
    both = np.stack([0.9 * mean, 1.1 * mean]) * zero
    return PrefixScore(
        name, CONTEXTS, both, 0.01 * both, 0.95 * both, 1.05 * both, both[:, None], np.full(2, zero), 1_000
    )


def scores(over: np.ndarray, at: np.ndarray) -> Scores:
    bayes = made("Bayes", np.maximum(1 - np.arange(1, N + 1) / D, 1e-9))
    found: Scores = {("Bayes", "none"): bayes, ("CGD", "none"): bayes, ("GD, tuned", "none"): made("GD", at)}
    return (
        found
        | {(name, OVER): made(name, over) for name in TRAINED[OVER]}
        | {("Memformer", AT): made("Memformer", at)}
    )


FALLING = 0.9 * 0.95 ** np.arange(N)
WILD = np.where(np.arange(N) < 5, 1e6, 0.01)


@pytest.mark.parametrize(
    ("over", "at", "verdicts"),
    [
        (FALLING, WILD, ("holds", "holds", "holds", "holds", "holds")),
        (WILD, FALLING, ("fails", "fails", "fails", "fails", "fails")),
        (FALLING[::-1], WILD, ("holds", "holds", "holds", "fails", "holds")),
        (2 * FALLING, WILD, ("holds", "holds", "fails", "holds", "holds")),
    ],
)
def test_verdicts_are_those_of_the_numbers(
    over: np.ndarray, at: np.ndarray, verdicts: tuple[str, ...]
) -> None:
    found = scores(over, at)
    claims = claims_of(found, dict.fromkeys(SHIFTS, found))
    assert tuple(claim.verdict for claim in claims)[:5] == verdicts
    robust = [claim.verdict for claim in claims if "robust" in claim.id]
    assert robust == [verdicts[2]] * len(SHIFTS)
    assert len({claim.id for claim in claims}) == len(claims)


def test_rows_are_logs_of_errors_over_that_of_predicting_0() -> None:
    score = made("it", np.where(np.arange(N) < 20, 0.1, 1e-9))
    rows = rows_of(("it", OVER), score, ["log_loss"])
    assert len(rows) == 2 * N
    assert [row.value for row in rows if row.x == 1] == pytest.approx(np.log10([0.09, 0.11]), abs=1e-4)
    assert {row.value for row in rows if row.x > 20} == {-60.0}
    assert all(row.stderr == pytest.approx(0.01 / np.log(10)) for row in rows)
    other = rows_of(("it", OVER), replace(score, zero=score.zero / 10), ["log_loss"])
    assert other[0].value == pytest.approx(rows[0].value + 1, abs=1e-3)
