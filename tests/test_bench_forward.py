"""The benchmark's rows have the right shape; how long anything takes is not tested."""

import json

import numpy as np
import pytest

from lfom.bench import BENCHMARKS, Ratio, train
from lfom.bench.forward import bench_forward


def test_rows_compare_programs_that_agree() -> None:
    rows = bench_forward(prompts=3, n=5, d=3, depth=2)  # raises if the programs differ
    assert BENCHMARKS["forward"] is bench_forward
    assert [row.name for row in rows][:2] == ["tokens", "tokens, Z M Z^T first"]
    for row in json.loads(json.dumps([row.as_dict() for row in rows])):
        assert set(row) == {"name", "ours", "rival", "unit", "ratio"}
        assert row["unit"] == "s"
        assert row["ours"] > 0
        assert row["rival"] > 0


def test_the_ratio_says_how_many_times_faster_ours_is() -> None:
    assert Ratio("tokens", 0.5, 2.0, "s").ratio == pytest.approx(4.0)


def test_both_programs_of_adam_take_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in {"RUNS": 2, "DEPTH": 1, "BATCH": 8, "CONTEXT": 6}.items():
        monkeypatch.setattr(train, name, small)
    programs, steps = train.adam_programs(3, 3)
    assert steps == {"iterates": 3 * 2, "tokens": 3}  # of all runs
    runs, one = programs["iterates"]()[0], programs["tokens"]()[0]
    np.testing.assert_allclose(runs[0, 0], one, rtol=1e-3, atol=1e-5)
    monkeypatch.setattr(train, "adam_programs", lambda reader: (dict.fromkeys(steps), steps))
    monkeypatch.setattr(train, "side_by_side", lambda programs: {"iterates": 0.3, "tokens": 6.0})
    row = train._adam_row("adam step", "sparse")
    assert (row.ours, row.rival) == (pytest.approx(50.0), pytest.approx(2_000.0))
