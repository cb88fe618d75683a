"""lfom reproduce: what is kept, what is made again, what is refused. The experiments here are tiny."""

import ast
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import lfom
import lfom.reproduction
from lfom import experiments as experiments_folder
from lfom.cli import app
from lfom.core.checks import InputError
from lfom.experiments import EXPERIMENTS, experiment_named
from lfom.experiments.experiment import Experiment
from lfom.experiments.statistics import below, near, verdict
from lfom.experiments.workbench import Outcome, Workbench
from lfom.report.results import Claim, Row
from lfom.reproduction import MARK, reproduce
from lfom.training import Score
from tests.test_files import full_disk

DOCS = Path(__file__).parent.parent / "docs"


def outcome(value: float = -1.0) -> Outcome:
    rows = [Row("CGD", "none", x, value * x, run, prompts=10) for x in (1.0, 2.0) for run in (0, 1)]
    claim = Claim("falls", "The loss falls.", "1", "value below 0", verdict(value < 0), f"{value:.1f}")
    return Outcome(rows, [claim], ["CGD|none"])


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[Any], Outcome]]:
    """Experiments "first" and "second" in place of ours, whose run() a test may replace."""
    runs: dict[str, Callable[[Any], Outcome]] = {
        name: lambda bench: outcome() for name in ("first", "second")
    }

    class Replaced(Experiment):
        def __init__(self, name: str):
            self.name, self.title = name, name

        def run(self, bench: Any) -> Outcome:
            return runs[self.name](bench)

    monkeypatch.setattr(lfom.reproduction, "EXPERIMENTS", {name: name for name in runs})
    monkeypatch.setattr(lfom.reproduction, "experiment_named", Replaced)
    return runs


def statuses(found: list[Any]) -> dict[str, str]:
    return {item.name: item.status for item in found}


def test_results_are_written_and_kept(experiments: Any, tmp_path: Path) -> None:
    out = tmp_path / "results"
    assert statuses(reproduce(out=out)) == {"first": "made", "second": "made"}
    folder = out / "first"
    assert {p.name for p in folder.iterdir()} >= {
        "curves.csv", "claims.json", "meta.json", "figure.png", "figure.svg",
    }  # fmt: skip
    header = (folder / "curves.csv").read_text().splitlines()[0]
    assert header == "experiment,curve,training,x,run,measure,value,stderr,prompts,scored_on"
    assert json.loads((folder / "claims.json").read_text())[0]["verdict"] == "holds"
    assert "first" in (out / "report.html").read_text()
    assert statuses(reproduce(out=out)) == {"first": "kept", "second": "kept"}
    assert statuses(reproduce(["second"], out, force=True)) == {"second": "made"}


def test_other_results_than_those_asked_for_are_kept_and_named(experiments: Any, tmp_path: Path) -> None:
    reproduce(["first"], tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "first").iterdir()}
    experiments["first"] = lambda bench: pytest.fail("it was run")
    for change in ({"seed": 1}, {"preset": "full"}, {"training": "paper"}):
        (done,) = reproduce(["first"], tmp_path, **change)  # type: ignore[arg-type]
        assert done.status == "refused"
        for part in ("seed 0", *(f"{key} {value}" for key, value in change.items()), "--force", "--out"):
            assert part in done.message
    answer = CliRunner().invoke(app, ["reproduce", "first", "--seed", "1", "--out", str(tmp_path)])
    assert answer.exit_code == 1
    assert "first refused" in " ".join(answer.output.split()) or "first (seed 1) refused" in answer.output
    assert {path: path.read_bytes() for path in (tmp_path / "first").iterdir()} == before
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "notes.txt").write_text("mine")
    assert statuses(reproduce(["second"], tmp_path)) == {"second": "refused"}
    assert (tmp_path / "second" / "notes.txt").read_text() == "mine"
    experiments["first"] = lambda bench: outcome(-2.0)
    assert statuses(reproduce(["first"], tmp_path, seed=1, force=True)) == {"first": "made"}


def test_results_that_cannot_be_written_leave_the_old_ones(experiments: Any, tmp_path: Path) -> None:
    reproduce(out=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for room in (8, 300, 30_000):  # claims.json, curves.csv or the figure do not fit
        experiments["first"] = lambda bench: outcome(-2.0)
        with full_disk(room):
            done = reproduce(["first"], tmp_path, force=True)
        assert statuses(done)["first"] == "failed"
        for part in (str(tmp_path / "first"), "nothing has changed", "File too large", "Free some space"):
            assert part in done[0].message
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("moment", ["writing", "between the renames", "removing the old"])
def test_what_a_killed_program_left_is_repaired_at_the_next_start(
    moment: str, experiments: Any, tmp_path: Path
) -> None:
    reproduce(["first"], tmp_path)
    results, new, old = tmp_path / "first", tmp_path / ".first.new", tmp_path / ".first.old"
    whole = (results / "curves.csv").read_bytes()
    if moment == "between the renames":
        results.rename(old)
        shutil.copytree(old, new)
    else:
        left = new if moment == "writing" else old
        left.mkdir()
        (left / "claims.json").write_text("[")
    experiments["first"] = lambda bench: pytest.fail("it was run")
    assert statuses(reproduce(["first"], tmp_path)) == {"first": "kept"}
    assert (results / "curves.csv").read_bytes() == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == [MARK, "first", "report.html"]


def test_kills_and_full_disks_lose_nothing(tmp_path: Path) -> None:
    """benchmarks/kills.py, shorter."""
    script = Path(__file__).parent.parent / "benchmarks" / "kills.py"
    answer = subprocess.run(
        [sys.executable, str(script), "--kills", "1", "--limits", "1", "--out", str(tmp_path / "results")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_a_failed_experiment_does_not_stop_the_others(experiments: Any, tmp_path: Path) -> None:
    def fails(bench: Any) -> Outcome:
        raise FloatingPointError("the loss is not finite")

    experiments["first"] = fails
    out = tmp_path / "results"
    found = reproduce(out=out)
    assert statuses(found) == {"first": "failed", "second": "made"}
    assert "the loss is not finite" in found[0].message
    assert "FloatingPointError" in (out / "first.error.txt").read_text()
    page = (out / "report.html").read_text()
    assert "<code>first</code> failed: FloatingPointError: the loss is not finite" in page
    reproduce(["second"], out)
    assert "<code>first</code> failed in an earlier run" in (out / "report.html").read_text()
    answer = CliRunner().invoke(app, ["reproduce", "--out", str(out)])
    assert answer.exit_code == 1
    assert "first failed" in answer.output


def test_an_interrupted_reproduction_goes_on(experiments: Any, tmp_path: Path) -> None:
    begun, plain = threading.Event(), experiments["second"]

    def begins(bench: Any) -> Outcome:
        begun.set()
        return outcome()

    def stops(bench: Any) -> Outcome:
        begun.wait(30)
        time.sleep(1)  # the other one has ended: what still runs is left at once, and its process with it
        raise KeyboardInterrupt

    out = tmp_path / "results"
    experiments["first"], experiments["second"] = begins, stops
    answer = CliRunner().invoke(app, ["reproduce", "--out", str(out)])
    assert answer.exit_code == 130
    experiments["second"] = plain
    assert statuses(reproduce(out=out)) == {"first": "kept", "second": "made"}


def test_experiments_run_side_by_side_and_share_what_they_train(experiments: Any, tmp_path: Path) -> None:
    made, both = [], threading.Barrier(2, timeout=30)

    def meets(bench: Any) -> Outcome:
        both.wait()  # breaks if they run one after the other
        bench.keep("model", lambda: made.append(1))
        return outcome()

    experiments["first"] = experiments["second"] = meets
    assert statuses(reproduce(out=tmp_path)) == {"first": "made", "second": "made"}
    assert made == [1]
    metas = [json.loads((tmp_path / name / "meta.json").read_text()) for name in ("first", "second")]
    assert all(meta["added_seconds"] >= 0 for meta in metas)


def test_what_measures_time_runs_alone(
    experiments: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[str] = []

    def watched(name: str) -> Callable[[Any], Outcome]:
        def run(bench: Any) -> Outcome:
            assert "first" not in running
            running.append(name)
            time.sleep(0.05)
            running.remove(name)
            return outcome()

        return run

    experiments |= {name: watched(name) for name in ("first", "second")}
    monkeypatch.setattr(Experiment, "alone", True)
    assert statuses(reproduce(out=tmp_path)) == {"first": "made", "second": "made"}


def test_an_experiment_with_nothing_to_show_is_no_failure(experiments: Any, tmp_path: Path) -> None:
    experiments["first"] = lambda bench: Outcome([], [])
    assert statuses(reproduce(out=tmp_path)) == {"first": "empty", "second": "made"}
    answer = CliRunner().invoke(app, ["reproduce", "--out", str(tmp_path)])
    assert answer.exit_code == 0
    assert "nothing to show" in answer.output


@pytest.mark.parametrize("file", ["curves.csv", "claims.json", "meta.json"])
def test_damaged_results_are_named_and_made_again_only_on_request(
    file: str, experiments: Any, tmp_path: Path
) -> None:
    out = tmp_path / "results"
    reproduce(out=out)
    damaged = out / "first" / file
    text = damaged.read_text()[:40]
    damaged.write_text(text)
    found = reproduce(out=out)
    assert statuses(found) == {"first": "damaged", "second": "kept"}
    assert 'id="first"' not in (out / "report.html").read_text()
    assert file in found[0].message
    assert "--force" in found[0].message
    assert damaged.read_text() == text  # left as it is
    assert statuses(reproduce(["first"], out, force=True)) == {"first": "made"}


def test_choices_are_told_before_any_work(tmp_path: Path) -> None:
    for option, known in (("--training", "both, paper, converged"), ("--preset", "quick, full")):
        answer = CliRunner().invoke(app, ["reproduce", option, "nope", "--out", str(tmp_path / "results")])
        assert f"unknown {option} 'nope'" in str(answer.exception)
        assert known in str(answer.exception)
        assert answer.output == ""


def test_an_unknown_experiment_gives_the_nearest_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lfom_nonisotropic"):
        reproduce(["lfom_nonisotropc"], tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_folders_that_cannot_be_used_are_refused_before_any_work(experiments: Any, tmp_path: Path) -> None:
    def never(bench: Any) -> Outcome:
        raise AssertionError("work was begun")

    experiments["first"] = never
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="holds something else"):
        reproduce(out=other)
    assert [p.name for p in other.iterdir()] == ["thesis.txt"]
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InputError, match="is a file"):
        reproduce(out=file)
    with pytest.raises(InputError, match="cannot be made"):
        reproduce(out=file / "below")


def test_empty_folders_and_own_folders_are_fine(experiments: Any, tmp_path: Path) -> None:
    reproduce(out=tmp_path)
    assert (tmp_path / MARK).exists()
    assert statuses(reproduce(out=tmp_path)) == {"first": "kept", "second": "kept"}


def test_every_name_of_the_paper_has_an_experiment() -> None:
    labels = [
        "cg_without_preconditioning", "cg_with_preconditioning", "lfom_nonisotropic", "lfom_gdpp_nonisotropic",
        "batch_size_1", "batch_size_10", "5head_attention_experiment", "mixture_of_experts_ood",
        "gaussian_mixture_model_ood_lt", "gaussian_mixture_model_ood_mem", "ExtractedLFOMvsCGD",
        "nag_vs_Memformer", "mgd_vs_Memformer", "layers5", "layers7", "sigma_convergence",
        "learnability", "batch_size_sweep", "efficiency",
    ]  # fmt: skip
    assert set(labels) <= set(EXPERIMENTS)
    for name in EXPERIMENTS:
        found = experiment_named(name)
        assert found.name == name
        assert all((found.title, found.section, found.shows, found.trained))


def test_streams_of_different_names_differ() -> None:
    bench = Workbench(runs=1)
    keys = [str(bench.stream(*names)) for names in [("ab", "c"), ("ba", "c"), ("a", "bc"), ("abc",)]]
    assert len(set(keys)) == 4


def test_verdicts_are_computed() -> None:
    assert verdict(True, True) == "holds"
    assert verdict(True, False) == "partly"
    assert verdict(False, False) == "fails"


def test_doubt_is_never_in_our_favour() -> None:
    """Differences of .1 and .3 from run to run: .2 on average, with a standard error of .1."""

    def score(*log_losses: float) -> Score:
        mean = np.exp(np.asarray(log_losses))[:, None]
        return Score.of("", mean, 0 * mean, mean)

    ours, theirs = score(0.1, 0.3), score(0.0, 0.0)
    assert near(ours, theirs, 0.2001)
    assert not near(ours, theirs, 0.19)  # within two standard errors, but above on average
    assert not below(theirs, ours, 0.01)  # below on average, but within two standard errors
    assert below(theirs, score(0.2, 0.2), 0.01)
    assert not near(score(np.nan, 0.0), theirs, 1.0)


def named_claims() -> dict[str, set[str]]:
    """Patterns of the names that experiments give to what they test ("add", "test") and measure ("measure")."""
    found: dict[str, set[str]] = {"add": set(), "test": set(), "measure": set()}
    for path in sorted(Path(experiments_folder.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            if node.func.attr in found and isinstance(node.args[0], ast.Constant | ast.JoinedStr):
                parts = getattr(node.args[0], "values", [node.args[0]])
                pattern = "".join(
                    re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in parts
                )
                found[node.func.attr].add(pattern)
    return found


def test_the_page_on_verdicts_names_claims_of_today() -> None:
    claims, page = named_claims(), (DOCS / "verdicts.md").read_text("utf8")
    tables = re.findall(r"^\| .*? \|$", page, re.MULTILINE)
    told = {name for row in tables for name in re.findall(r"`([\w-]+)`", row)} - set(EXPERIMENTS)
    assert len(told) > 15
    for name in told:
        kinds = ("measure",) if "distance-to-optimum" in name else ("add", "test")
        assert any(re.fullmatch(one, name) for kind in kinds for one in claims[kind]), name


def test_how_far_training_ends_from_the_optimum_is_no_claim() -> None:
    claims = named_claims()
    assert sum("distance-to-optimum" in one.replace("\\", "") for one in claims["measure"]) == 5
    judged = [one.replace("\\", "") for one in claims["add"] | claims["test"]]
    assert not [
        one for one in judged if re.search("distance-to-optimum|reaches-optimum|gdpp-at-optimum", one)
    ]
