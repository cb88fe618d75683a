"""The benchmark's rows have the right shape; how long anything takes is not tested."""

import json

import pytest

from lfom.bench import BENCHMARKS, Ratio
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
