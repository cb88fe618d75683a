"""An experiment of a user's own, in one file outside the package: with its own curves, trainings and claims it
stands in the report beside ours."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import lfom
from lfom.cli import app
from lfom.core.checks import InputError
from lfom.experiments.experiment import Experiment
from lfom.experiments.workbench import MODELS, PRESETS, CurveModel, Preset, Workbench
from lfom.report import read_experiment, verdicts_markdown
from lfom.reproduction import reproduce, wanted
from tests.test_report import CLAIMS, small_meta, small_rows, write_folder

MINE = """
import lfom
from lfom.experiments.rows import curve_rows
from lfom.experiments.statistics import lower

class Mine(lfom.Experiment):
    name = "mine"
    title = "My own"
    section = "My thesis"
    trainings = {"short": lfom.Adam(steps=3), "long": lfom.Adam(steps=6)}

    def run(self, bench):
        models = {"bank": lfom.memformer(2, 1, memory="bank", key=bench.key)}
        data = bench.data((1.0, 0.5), context=6)
        found = bench.curves(bench.pairs("bank"), data, (1,), "mine", models, baselines=False)
        claims = lfom.Claims("2")
        claims.add("longer", "Longer is better.", lower(found["bank", "long"], found["bank", "short"]))
        return lfom.Outcome(curve_rows(found), claims)

class Base(lfom.Experiment):  # without a name: no experiment yet
    def run(self, bench):
        return lfom.Outcome([lfom.Row("c", "by hand", 1.0, self.value, scored_on="my prompts")], [])

class Sized(Base):
    name = "sized"  # but needs a value: no experiment without one
    def __init__(self, value):
        self.value, self.name = value, f"sized-{value}"

class Larger(Sized):
    pass

seven = Sized(7)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(PRESETS, "quick", Preset("quick", prompts=200, adam_steps=3, least_squares=0.01))
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def test_a_file_of_ones_own_works_by_the_command_and_by_the_function(mine: Path, tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["reproduce", str(mine), "--out", str(tmp_path / "a"), "--json"])
    assert answer.exit_code == 0, answer.output
    assert {one["name"]: one["status"] for one in json.loads(answer.stdout)["experiments"]} == {
        "mine": "made",
        "sized-7": "made",
    }
    found = read_experiment(tmp_path / "a" / "mine")
    assert {row.curve for row in found.rows} == {"bank"}
    assert {row.training for row in found.rows} == {"short", "long"}
    assert [claim.id for claim in found.claims] == ["longer"]
    assert found.meta.command == f"lfom reproduce {mine} --preset quick --force"
    page = (tmp_path / "a" / "report.html").read_text()
    for part in ("My own", "My thesis", "Longer is better.", "bank", "by hand", "my prompts"):
        assert part in page
    # Trainings are told apart: short (and "by hand"), long.
    assert (page.count('"shape":"circle"'), page.count('"shape":"square"')) == (2, 1)
    done = lfom.reproduce([str(mine)], tmp_path / "b", training="paper")  # its own trainings all the same
    assert [one.status for one in done] == ["made", "made"]
    for name in ("mine", "sized-7"):
        one, other = (read_experiment(tmp_path / folder / name) for folder in ("a", "b"))
        assert (one.rows, one.claims) == (other.rows, other.claims)
    assert [one.status for one in lfom.reproduce(mine, tmp_path / "b", training="paper")] == ["kept", "kept"]


class Plain(lfom.Experiment):
    name = "plain"

    def run(self, bench: Any) -> Any:
        return lfom.Outcome([lfom.Row("c", "none", 1.0, float(bench.stream("x")[()].size))], [])


def test_objects_and_classes_stand_beside_ours(tmp_path: Path) -> None:
    assert list(wanted(["how_many_experts", Plain(), "layers5"])) == ["layers5", "how_many_experts", "plain"]
    (done,) = reproduce(Plain, tmp_path)
    assert (done.name, done.status) == ("plain", "made")
    assert read_experiment(tmp_path / "plain").meta.title == "plain"  # has none of its own


def test_names_that_cannot_be_used_are_refused_in_a_sentence(tmp_path: Path) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1")
    nameless = tmp_path / "nameless.py"
    nameless.write_text(MINE + "\nclass Forgotten(lfom.Experiment):\n    pass\n")
    cases: list[tuple[Any, str]] = [
        (type("A", (Plain,), {"name": "layers5"}), "name of one of our experiments"),
        (type("B", (Plain,), {"name": "../b"}), "a folder of that name"),
        (type("C", (Plain,), {"name": "seeds"}), "a folder of that name"),
        (type("D", (Plain,), {"name": ""}), "a folder of that name"),
        ([Plain, Plain], "two experiments have the name 'plain'"),
        ([3], "an experiment is 3"),
        (empty, "has no experiment"),
        (nameless, r"Forgotten in .*nameless\.py has no name: .*name = 'forgotten'"),
        (tmp_path / "absent.py", "does not exist"),
        ("layer5", "layers5"),
    ]
    for asked, words in cases:
        with pytest.raises(InputError, match=words):
            reproduce(asked, tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_what_cannot_be_shown_is_not_written(tmp_path: Path) -> None:
    class Wrong(Plain):
        def run(self, bench: Any) -> Any:
            return lfom.Outcome([lfom.Row("c", "none", 1.0, float("nan"))], [])

    (done,) = reproduce(Wrong(), tmp_path)
    assert done.status == "failed"
    assert "value on line 2 is 'nan'" in done.message
    assert "run() of Wrong" in done.message
    assert not (tmp_path / "plain").exists()
    (done,) = reproduce(type("Nothing", (lfom.Experiment,), {"name": "nothing"}), tmp_path)
    assert "has no run(self, bench)" in done.message


def test_a_training_is_said_by_its_name_or_by_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Workbench()
    few = CurveModel({"memory": "none"}, lambda preset, d: lfom.LeastSquares(first=100 * d))
    monkeypatch.setitem(MODELS, "few", few)
    assert bench.optimiser("paper") == lfom.Adam(steps=PRESETS["quick"].adam_steps)
    plain, own_way = (bench.optimiser("converged", name) for name in ("Memformer", "few"))
    assert own_way == lfom.LeastSquares(first=500) != plain
    assert bench.optimiser("converged", lfom.linear_transformer(5, 2, key=bench.key)) == plain
    own = bench.with_trainings({"short": lfom.Adam(steps=3)})
    assert own.optimiser("short", "Memformer, GD++") == lfom.Adam(steps=3)
    for unknown in (lambda: own.optimiser("paper"), lambda: bench.optimiser("converged", "Memformr")):
        with pytest.raises(InputError, match="unknown"):
            unknown()
    assert own.keep("x", lambda: 1) == bench.keep("x", lambda: 2)  # they share what they keep


class Lucky(Experiment):
    """Its second claim holds with even seeds."""

    name = "lucky"

    def run(self, bench: Any) -> Any:
        import jax

        seed = int(jax.random.key_data(bench.key)[-1])
        verdicts = ("holds", "fails" if seed % 2 else "holds")
        claims = [lfom.Claim(f"c{k}", f"Claim | {k}.", "", "", v, "") for k, v in enumerate(verdicts)]
        return lfom.Outcome([lfom.Row("c", "none", 1.0, float(seed))], claims)


def test_verdicts_are_counted_over_seeds(tmp_path: Path) -> None:
    assert [one.status for one in reproduce(Lucky(), tmp_path, seed=[0, 1])] == ["made", "made"]
    done = reproduce(Lucky(), tmp_path, seed=[0, 1, 2])
    assert [(one.seed, one.status) for one in done] == [(0, "kept"), (1, "kept"), (2, "made")]
    assert read_experiment(tmp_path / "lucky").rows[0].value == 0
    assert read_experiment(tmp_path / "seeds" / "2" / "lucky").rows[0].value == 2
    counted = json.loads((tmp_path / "verdicts.json").read_text())
    assert [one["counts"] for one in counted] == [{"holds": 3}, {"holds": 2, "fails": 1}]
    assert counted[1]["seeds"] == {"0": "holds", "1": "fails", "2": "holds"}
    page = (tmp_path / "report.html").read_text()
    assert page.count("holds in 3 of 3 seeds") == 2  # in the table of all claims, and beside its own
    assert page.count("holds in 2, fails in 1 of 3 seeds") == 2
    text = verdicts_markdown(tmp_path)
    assert "Of 2 claims, 1 have the same verdict with each of the seeds 0, 1, 2" in text
    assert r"| Claim \| 1. | lucky | holds | fails | holds |" in text
    assert "Claim \\| 0" not in text
    (refused,) = reproduce(Lucky(), tmp_path, seed=5)
    assert refused.status == "refused"
    (tmp_path / "seeds" / "1" / "lucky" / "claims.json").write_text("[")
    assert [one.status for one in reproduce(Lucky(), tmp_path, seed=[0, 1])] == ["kept", "damaged"]
    assert "holds in 2 of 2 seeds" in (tmp_path / "report.html").read_text()
    done = reproduce(Lucky(), tmp_path)  # the damaged one was not asked for, and is named
    assert [one.status for one in done] == ["kept", "failed"]
    assert "claims.json is damaged" in done[1].message


def test_verdicts_of_other_settings_are_not_counted(tmp_path: Path) -> None:
    write_folder(tmp_path / "small", small_rows(), small_meta(), CLAIMS)
    for seed, preset in ((1, "full"), (2, "quick")):
        folder = tmp_path / "seeds" / str(seed) / "small"
        write_folder(folder, small_rows(), small_meta(seed=seed, preset=preset), CLAIMS)
    assert "with each of the seeds 0, 2." in verdicts_markdown(tmp_path)


def test_seeds_of_the_command_are_numbers(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["reproduce", "--seeds", "0,x", "--out", str(tmp_path / "results")])
    assert "--seeds '0,x' are not whole numbers" in str(answer.exception)


def test_the_library_is_imported_without_what_draws() -> None:
    code = "import lfom, sys; print([m for m in ('matplotlib', 'rich', 'lfom.report') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
    assert np.all([hasattr(lfom, name) for name in lfom.__all__])
    with pytest.raises(AttributeError, match="nothing"):
        lfom.nothing  # noqa: B018


def test_results_of_an_edited_file_are_not_taken_for_those_of_the_new_one(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    simple = mine.with_name("simple.py")
    text = (
        "import lfom\n\nclass One(lfom.Experiment):\n    name = 'one'\n\n    def run(self, bench):\n"
        "        return lfom.Outcome([lfom.Row('c', 'by hand', 1.0, 2.0)], [])\n"
    )
    simple.write_text(text)
    assert [item.status for item in reproduce([simple], out)] == ["made"]
    assert [item.status for item in reproduce([simple], out)] == ["kept"]
    simple.write_text(text.replace("2.0", "3.0"))
    (refused,) = reproduce([simple], out)
    assert refused.status == "refused"
    assert "earlier version" in refused.message
    assert read_experiment(out / "one").rows[0].value == 2.0
    assert [item.status for item in reproduce([simple], out, force=True)] == ["made"]
    assert read_experiment(out / "one").rows[0].value == 3.0


def test_damaged_results_name_the_file_and_the_folder_they_come_from(tmp_path: Path) -> None:
    path, out = tmp_path / "my own.py", tmp_path / "results"
    path.write_text(
        "import lfom\nclass Mine(lfom.Experiment):\n    name = 'mine'\n    def run(self, bench):\n"
        "        return lfom.Outcome([lfom.Row('c', 'none', 1.0, 2.0)], [])\n"
    )
    assert reproduce(path, out)[0].status == "made"
    again = f"lfom reproduce '{path}' --preset quick --force --out {out}"
    for file in ("curves.csv", "meta.json"):  # with the second one it says nothing of itself
        (out / "mine" / file).write_text("junk")
        (done,) = reproduce(path, out)
        assert done.status == "damaged"
        assert done.message.endswith(again)
        if file == "curves.csv":
            with pytest.raises(InputError, match=re.escape(again)):
                read_experiment(out / "mine")
    with pytest.raises(InputError, match=r"reproduce mine --force --out .* your own by its Python file"):
        read_experiment(out / "mine")
