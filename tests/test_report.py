"""Plots and report: files, numbers, escaping, and what is said of damaged results."""

import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import lfom
from lfom.core.checks import InputError
from lfom.report import is_finished, read_experiment, write_report
from lfom.report.methods import _polynomial
from lfom.report.plots import plot_experiment
from lfom.report.results import COLUMNS
from lfom.report.series import error_note, panels
from lfom.report.style import PALETTE, SHARED, colour, colour_slots

NASTY = "</script><script>window.broken = 1</script><img src=x> & \"quoted\" $x_1$ 'a'"
PNG = b"\x89PNG\r\n"


def curve(name: str, training: str, values: list[float], **given: Any) -> list[dict[str, Any]]:
    """Rows of a curve over layers 1, 2, ...; with `runs`, each value is spread by 0.1 around."""
    runs, measure = given.pop("runs", 0), given.pop("measure", "log_loss")
    rows = []
    for x, value in enumerate(values, 1):
        for run in range(runs) if runs else [""]:
            off = 0.1 * (int(run) - 1) if runs and value > -60 else 0.0
            row = {"experiment": "small", "curve": name, "training": training, "x": x, "run": run}
            row |= {
                "measure": measure,
                "value": value + off,
                "stderr": 0.01,
                "prompts": 1000,
                "scored_on": "fresh",
            }
            rows.append(row | given)
    return rows


def small_rows() -> list[dict[str, Any]]:
    return [
        *curve("Memformer", "converged", [0.2, -1.0, -2.0], runs=3),
        *curve("Memformer", "paper", [0.3, -0.8, -1.5], runs=3),
        *curve(
            "Memformer", "published", [0.1, -3.0, -5.0], scored_on="training prompts", stderr="", prompts=""
        ),
        *curve("CGD", "none", [0.6865, 0.1463, -60.0], runs=3),
        *curve(NASTY, "none", [0.5, 0.4, 0.3]),
        *curve("adapted", "none", [0.5, 0.4, 0.3], scored_on="adaptation prompts"),
    ]


def small_meta(**changes: Any) -> dict[str, Any]:
    meta = {
        "experiment": "small",
        "title": "Memory against conjugate gradients",
        "section": "Section 3",
        "shows": ["What it shows.", NASTY],
        "trained": "Levenberg-Marquardt.",
        "command": "lfom reproduce small",
        "x_label": "layers",
        "y_label": "log loss",
        "x_scale": "linear",
        "main": ["Memformer|converged", "Memformer|published", "CGD|none"],
        "seconds": 75.0,
        "preset": "quick",
        "version": "0.1.0",
        "machine": "two cores",
        "finished": "2025-11-15T10:00:00",
    }
    return meta | changes


CLAIMS = [
    {
        "id": "a",
        "claim": "It beats CGD.",
        "section": "3",
        "test": "t",
        "verdict": "holds",
        "evidence": "-2.0 < -1.6",
    },
    {"id": "b", "claim": NASTY, "section": NASTY, "test": NASTY, "verdict": "fails", "evidence": NASTY},
    {"id": "c", "claim": "Small batches suffice.", "verdict": "partly", "evidence": "at depth 1"},
]


def write_folder(folder: Path, rows: list[dict[str, Any]], meta: dict[str, Any], claims: list[Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "curves.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(row | {"experiment": meta["experiment"]} for row in rows)
    (folder / "claims.json").write_text(json.dumps(claims), encoding="utf-8")
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    return folder


def write_results(results: Path) -> Path:
    """Two experiments: layers with every kind of curve, and two measures on a logarithmic axis."""
    write_folder(results / "small", small_rows(), small_meta(), CLAIMS)
    wide = [
        row | {"x": 10.0 ** row["x"]}
        for measure in ("log_loss", "seconds_used")
        for row in curve("Memformer", "converged", [1.0 / k for k in range(1, 13)], runs=2, measure=measure)
    ]
    labels = {"log_loss": "prompts", "seconds_used": "operations"}
    meta = small_meta(
        experiment="wide", title="Many values", x_scale="log", x_label=labels, main=[], seconds=50
    )
    write_folder(results / "wide", wide, meta, [])
    return results


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return write_results(tmp_path / "results")


def test_runs_are_gathered(results: Path) -> None:
    (panel,) = panels(read_experiment(results / "small"))
    assert [one.label for one in panel.series if one.main] == [
        "Memformer · converged",
        "Memformer · published (training prompts)",
        "CGD",
    ]
    memformer, published, cgd = panel.series[:3]
    point = memformer.points[0]
    assert (point.runs, point.mean, point.spread) == (3, pytest.approx(0.2), pytest.approx(0.1))
    assert published.dashed
    assert published.points[0].error is None
    assert (cgd.points[2].mean, cgd.points[2].floored) == (None, 3)
    note = error_note(list(panel.series))
    for part in ("mean over 3 runs", "standard deviation over the runs", "Dashed", "lower edge"):
        assert part in note


def test_runs_at_the_floor_stay_out_of_the_mean(results: Path) -> None:
    rows = curve("CGD", "none", [-3.0], runs=3)
    rows[0]["value"] = -60
    folder = write_folder(results / "small", rows, small_meta(), [])
    (panel,) = panels(read_experiment(folder))
    point = panel.series[0].points[0]
    assert (point.mean, point.floored, point.runs) == (pytest.approx(-2.95), 1, 3)
    plot_experiment(folder)
    assert "1 of 3 0 to rounding" in write_report(results).read_text()


def test_figures_are_the_same_bytes_every_time(results: Path) -> None:
    for name in ("small", "wide"):
        folder = results / name
        plot_experiment(folder)
        first = [(folder / f"figure.{kind}").read_bytes() for kind in ("png", "svg")]
        plot_experiment(folder)
        assert first == [(folder / f"figure.{kind}").read_bytes() for kind in ("png", "svg")]
        assert first[0].startswith(PNG)
        assert len(first[0]) > 10_000
    drawn = (results / "small" / "figure.svg").read_text()
    assert "Memory against conjugate gradients" in drawn
    assert "(training" in drawn
    assert "adapted" not in drawn  # not a main curve
    assert sorted(file.name for file in (results / "small").iterdir() if file.name.startswith(".")) == []


def test_one_value_only_and_only_the_floor(results: Path) -> None:
    def drawn(rows: list[Any]) -> str:
        folder = write_folder(results / "small", rows, small_meta(), [])
        plot_experiment(folder)
        assert (folder / "figure.png").read_bytes().startswith(PNG)
        return (folder / "figure.svg").read_text()

    figures = [drawn(curve("CGD", "none", [value])) for value in (-60.0, 2.0)]
    figures.append(
        drawn([row for k in range(40) for row in curve(f"curve number {k}", "none", [0.1 * k, 0.2], runs=2)])
    )
    assert len(set(figures)) == 3
    assert all("Memory against conjugate gradients" in figure for figure in figures)


def test_report_holds_the_numbers_without_script(results: Path) -> None:
    page = write_report(results, ["wide"]).read_text(encoding="utf-8")
    assert page.index('id="wide"') < page.index('id="small"')
    text = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    for part in (
        "0.200 <small>± 0.100</small>",
        "-2.000",
        "0 to rounding",
        "training prompts",
        "1,000",
        "-5.000",
    ):
        assert part in text
    assert text.count("<noscript><img") == 2
    assert 'Of <a href="#claims">3 claims of the paper</a>' in text
    for verdict in ("holds", "fails", "partly"):
        assert f'<span class="verdict {verdict}">{verdict}</span>' in text
    assert "2 min 5 s" in text
    for part in (
        "two cores",
        "lfom reproduce small",
        "Levenberg-Marquardt",
        "-2.0 &lt; -1.6",
        'id="claim-small-a"',
    ):
        assert part in text
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)


def claim(id: str, text: str, section: str, verdict: str = "holds") -> dict[str, str]:
    return {"id": id, "claim": text, "section": section, "test": "t", "verdict": verdict, "evidence": "e"}


def test_figures_come_before_lists_and_claims_stand_by_whose_they_are(tmp_path: Path) -> None:
    paper = [
        claim("a", "B it says.", "Appendix B"),
        claim("b", "C it says.", "3.3, Figure x", "fails"),
        claim("c", "Ours: we say.", "3.3"),
        claim("d", "Ours: how far it ends.", "3.3", "measured"),
    ]
    write_folder(tmp_path / "deep", small_rows(), small_meta(experiment="deep", section="Appendix C"), paper)
    write_folder(tmp_path / "small", small_rows(), small_meta(section="3.3, Figure small"), [])
    own = small_meta(experiment="mine", title="My memory", section="", source="0123456789abcdef")
    write_folder(tmp_path / "mine", small_rows(), own, [claim("z", "I say.", "")])
    ours = small_meta(experiment="kernels", section="ours")
    write_folder(tmp_path / "kernels", small_rows(), ours, [])
    page = write_report(tmp_path, ["mine", "deep", "small"]).read_text(encoding="utf-8")
    marks = [
        'id="small"',
        'id="deep"',
        'id="kernels"',
        'id="mine"',
        'id="claims"',
        "Section 3.3",
        "<h4>Appendix B",
        "I say.",
    ]
    places = [page.index(mark) for mark in marks[:-1]] + [page.rindex(marks[-1])]
    assert places == sorted(places)
    counts = page[page.index('class="counts"') : page.index("</header>")]
    for said in ("2 claims of the paper", "1 claim of ours", "1 claim of your own"):
        assert said in counts
    assert '<span class="verdict measured">measured</span>' in page
    for owner in ("The paper", "Ours, beyond the paper", "Experiments of your own"):
        assert f'<h2 class="owner">{owner}</h2>' in page
    section = page[page.index('id="deep"') :]
    assert section.index("<figure") < section.index("What it settles") < section.index("<h3>Numbers")


def test_every_figure_says_how_to_get_it_again(tmp_path: Path) -> None:
    meta = small_meta(versions="jax 0.10.1, numpy 2.4.6", seed=3, training="paper")
    write_folder(tmp_path / "small", small_rows(), meta, [])
    page = write_report(tmp_path).read_text(encoding="utf-8")
    shown = page[page.index("<h3>Settings</h3>") :]
    for part in (
        "quick",
        "paper",
        "<dd>3</dd>",
        "lfom 0.1.0, jax 0.10.1, numpy 2.4.6",
        "two cores",
        "lfom reproduce small",
    ):
        assert part in shown


def test_without_matplotlib_everything_but_figures_is_written(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = write_report(results).read_text(encoding="utf-8")
    assert "<noscript>" not in page
    assert page.count("<figure") == 3
    assert not list(results.rglob("figure.*"))


def test_addresses_on_the_page_exist_once(results: Path) -> None:
    page = write_report(results).read_text(encoding="utf-8")
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)


def test_texts_from_files_are_escaped(results: Path) -> None:
    page = write_report(results).read_text(encoding="utf-8")
    assert "window.broken" in page
    assert "<script>window.broken" not in page
    assert "<img src=x" not in page
    for content in re.findall(r'<script type="application/json">(.*?)</script>', page, flags=re.DOTALL):
        assert json.loads(content)["series"]


def test_every_text_of_an_experiment_is_escaped(tmp_path: Path) -> None:
    fields = (
        "title",
        "section",
        "shows",
        "trained",
        "command",
        "x_label",
        "y_label",
        "machine",
        "preset",
        "version",
    )
    write_folder(tmp_path / "small", small_rows(), small_meta(**dict.fromkeys(fields, NASTY)), CLAIMS)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert page.count("window.broken") > 10
    assert "<script>window.broken" not in page
    assert "<img src=x" not in page


def test_other_folders_are_left_out(results: Path) -> None:
    (results / "models").mkdir()
    (results / "notes.txt").write_text("mine")
    unfinished = results / "unfinished"
    unfinished.mkdir()
    (unfinished / "curves.csv").write_text("half a fi")
    assert not is_finished(unfinished)
    assert "unfinished" not in write_report(results).read_text()


def test_report_of_nothing(tmp_path: Path) -> None:
    assert "No experiment has finished yet" in write_report(tmp_path).read_text()
    with pytest.raises(InputError, match="lfom reproduce"):
        write_report(tmp_path / "absent")


def set_cell(column: str, value: str) -> Callable[[str], str]:
    def damage(text: str) -> str:
        lines = text.splitlines()
        cells = next(csv.reader([lines[1]]))
        cells[COLUMNS.index(column)] = value
        return "\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n"

    return damage


DAMAGE: dict[str, tuple[str, Callable[[str], str], str]] = {
    "cut off": ("curves.csv", lambda text: text[:-9], "cut off"),
    "column": ("curves.csv", lambda text: text.replace("stderr", "error", 1), "lacks the column stderr"),
    "empty": ("curves.csv", lambda text: "", "cut off"),
    "no rows": ("curves.csv", lambda text: text.splitlines()[0] + "\n", "no values"),
    "number": ("curves.csv", set_cell("value", "0.1x"), "value on line 2 is '0.1x'"),
    "nan": ("curves.csv", set_cell("value", "nan"), "a finite number"),
    "run": ("curves.csv", set_cell("run", "1.5"), "a whole number"),
    "training": ("curves.csv", set_cell("training", "other"), "paper or converged"),
    "scored on": ("curves.csv", set_cell("scored_on", "fres"), "expected fresh"),
    "experiment": ("curves.csv", set_cell("experiment", "else"), "expected small"),
    "fields": ("curves.csv", lambda text: text + "small,CGD\n", "does not have 10 fields"),
    "repeated": ("curves.csv", lambda text: text + text.splitlines()[1] + "\n", "repeats line 2"),
    "quote": ("curves.csv", lambda text: text + '"small\n', "is not CSV"),
    "claims": ("claims.json", lambda text: text[:-5], "not valid JSON"),
    "verdict": ("claims.json", lambda text: text.replace("holds", "maybe"), "the verdict 'maybe'"),
    "same id": ("claims.json", lambda text: text.replace('"id": "b"', '"id": "a"'), "repeats the id"),
    "meta": ("meta.json", lambda text: "", "not valid JSON"),
    "meta kind": ("meta.json", lambda text: "[]", "expected a dict"),
    "meta key": ("meta.json", lambda text: text.replace('"command"', '"comand"'), "no 'command'"),
    "meta value": (
        "meta.json",
        lambda text: text.replace("75.0", '"long"'),
        "'seconds' of the object is 'long'",
    ),
    "meta scale": ("meta.json", lambda text: text.replace("linear", "cubic"), "linear or log"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_file_is_named_with_a_remedy(results: Path, case: str) -> None:
    name, damage, fault = DAMAGE[case]
    path = results / "small" / name
    path.write_text(damage(path.read_bytes().decode()), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        write_report(results)
    for part in (str(path), fault, "lfom reproduce small --force"):
        assert part in str(caught.value)
    assert not (results / "report.html").exists()


def test_missing_lines_are_noticed_where_they_are_counted(results: Path) -> None:
    write_folder(results / "small", small_rows(), small_meta(rows=len(small_rows())), [])
    assert len(read_experiment(results / "small").rows) == len(small_rows())
    write_folder(results / "small", small_rows()[:-1], small_meta(rows=len(small_rows())), [])
    with pytest.raises(InputError, match=r"curves\.csv is damaged: it has .* and meta\.json counts"):
        read_experiment(results / "small")


def test_missing_and_binary_files_are_named(results: Path) -> None:
    (results / "small" / "curves.csv").unlink()
    (results / "wide" / "claims.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError) as caught:
        write_report(results)
    assert "curves.csv is damaged: it cannot be read (No such file or directory)" in str(caught.value)
    assert "claims.json is damaged: it is not UTF-8 text" in str(caught.value)


def test_logarithmic_axis_needs_positive_x(results: Path) -> None:
    path = results / "wide" / "curves.csv"
    path.write_text(set_cell("x", "0")(path.read_bytes().decode()))
    with pytest.raises(InputError, match="more than 0 on a logarithmic axis"):
        plot_experiment(results / "wide")


def test_every_curve_has_its_own_colour() -> None:
    names = [*(f"curve {k}" for k in range(30)), *SHARED]
    slots = colour_slots(names)
    assert [slots[name] for name in SHARED] == list(range(len(SHARED)))
    for dark in (False, True):
        assert len({colour(slot, dark) for slot in slots.values()}) == len(names)
    assert colour_slots(["one", "two"]) == {"one": len(SHARED), "two": len(SHARED) + 1}
    assert len({light for light, _ in PALETTE}) == len(PALETTE)


def test_folder_that_cannot_be_written(results: Path) -> None:
    plot_experiment(results / "small")
    (results / "report.html").mkdir()
    (results / "report.html" / "mine").write_text("kept")
    with pytest.raises(InputError, match=r"report\.html cannot be written"):
        write_report(results)


def test_the_figure_of_a_method_shows_its_last_polynomial() -> None:
    """Two steps of gradient descent of size 1/2 leave (1 - t/2)^2 of the error, and contract below t = 4."""
    method, axes = lfom.gradient_descent(0.5, 2), Figure().subplots()
    assert method.certificate is not None
    _polynomial(axes, method, method.certificate)
    *_, curve, end = axes.lines
    t, p = np.asarray(curve.get_data())
    assert t[-1] > 4
    np.testing.assert_allclose(p, (1 - t / 2) ** 2, atol=1e-6)
    np.testing.assert_allclose(np.asarray(end.get_xdata()), 4, rtol=1e-3)
