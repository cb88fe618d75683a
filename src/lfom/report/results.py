"""The results of one experiment, read from its folder and checked.

A folder holds curves.csv, claims.json and meta.json. Whatever is wrong with one of them is an
error that names the file and the command that makes it again; nothing is repaired in silence.
"""

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from lfom.core.checks import InputError

COLUMNS = (
    "experiment",
    "curve",
    "training",
    "x",
    "run",
    "measure",
    "value",
    "stderr",
    "prompts",
    "scored_on",
)
TRAININGS = ("paper", "converged", "published", "none")
SCORED_ON = ("fresh", "training prompts", "adaptation prompts")
VERDICTS = ("holds", "fails", "partly")
FLOOR = -60.0  # a log loss that is zero to rounding


@dataclass(frozen=True)
class Row:
    """One line of curves.csv. `run` is None for a value that belongs to no single run."""

    curve: str
    training: str
    x: float
    value: float
    run: int | None = None
    measure: str = "log_loss"
    stderr: float | None = None
    prompts: int | None = None
    scored_on: str = "fresh"


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, how it was tested, and what came out."""

    id: str
    claim: str
    section: str
    test: str
    verdict: str
    evidence: str


@dataclass(frozen=True)
class Meta:
    """What meta.json says; a label or scale holds for every measure, or names one for each."""

    experiment: str
    title: str
    section: str
    shows: str
    trained: str
    command: str
    x_label: str | dict[str, str]
    y_label: str | dict[str, str]
    x_scale: str | dict[str, str]
    main: tuple[str, ...]
    seconds: float  # by itself
    added_seconds: float  # to the whole run, in which experiments run side by side
    preset: str
    version: str
    machine: str
    finished: str


@dataclass(frozen=True)
class Result:
    """A finished experiment."""

    folder: Path
    meta: Meta
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]

    @property
    def name(self) -> str:
        return self.meta.experiment


def is_finished(folder: Path) -> bool:
    """Whether an experiment wrote its results here; meta.json is the mark that it ended."""
    others = (folder / "curves.csv", folder / "claims.json")
    return (folder / "meta.json").is_file() and any(file.is_file() for file in others)


def read_experiment(folder: Path) -> Result:
    """Read and check one experiment folder."""
    folder = Path(folder)
    meta, rows_expected = _meta(folder / "meta.json")
    rows = _rows(folder / "curves.csv", meta, rows_expected)
    return Result(folder, meta, rows, _claims(folder / "claims.json"))


def _damaged(path: Path, fault: str) -> NoReturn:
    name = path.parent.name
    raise InputError(f"{path} is damaged: {fault}. To make it again: lfom reproduce {name} --force")


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        _damaged(path, "it is not UTF-8 text")
    except OSError as error:
        _damaged(path, f"it cannot be read ({error.strerror})")


def _json(path: Path, wanted: type) -> Any:
    text = _text(path)
    try:
        content = json.loads(text)
    except ValueError as error:
        _damaged(path, f"it is not valid JSON ({error})")
    if not isinstance(content, wanted):
        _damaged(path, f"it holds a JSON {type(content).__name__}, expected a {wanted.__name__}")
    return content


def _sentences(value: Any) -> str:
    """A text, or a list of sentences."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return " ".join(value)
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def _plain(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def _name(value: Any) -> str:
    if not _plain(value).strip():
        raise ValueError("a text that is not empty")
    return value


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise ValueError("a list of texts")
    return tuple(value)


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError("a number of seconds, 0 or more")
    return float(value)


def _labels(value: Any) -> str | dict[str, str]:
    if isinstance(value, dict):
        return {measure: _plain(label) for measure, label in value.items()}
    return _plain(value)


def _scales(value: Any) -> str | dict[str, str]:
    scales = _labels(value)
    if set(scales.values() if isinstance(scales, dict) else [scales]) - {"linear", "log"}:
        raise ValueError("linear or log")
    return scales


def _field(path: Path, where: str, content: dict[str, Any], key: str, read: Callable[[Any], Any]) -> Any:
    if key not in content:
        _damaged(path, f"{where} has no {key!r}")
    try:
        return read(content[key])
    except ValueError as error:
        _damaged(path, f"{key!r} of {where} is {content[key]!r}, expected {error}")


def _meta(path: Path) -> tuple[Meta, int | None]:
    """The meta data and, where it says so, how many lines curves.csv must have."""
    content = _json(path, dict)
    if "seconds" in content:
        content = {"added_seconds": content["seconds"], **content}
    readers: dict[str, Callable[[Any], Any]] = {
        "experiment": _name,
        "title": _plain,
        "section": _plain,
        "shows": _sentences,
        "trained": _sentences,
        "command": _plain,
        "x_label": _labels,
        "y_label": _labels,
        "x_scale": _scales,
        "main": _names,
        "seconds": _seconds,
        "added_seconds": _seconds,
        "preset": _plain,
        "version": _plain,
        "machine": _plain,
        "finished": _plain,
    }
    fields = {key: _field(path, "the object", content, key, read) for key, read in readers.items()}
    return Meta(**fields), content.get("rows")


def _claims(path: Path) -> tuple[Claim, ...]:
    found: list[Claim] = []
    for number, content in enumerate(_json(path, list), 1):
        where = f"claim {number}"
        if not isinstance(content, dict):
            _damaged(path, f"{where} is {content!r}, expected an object")
        content = {"section": "", "test": "", **content}
        fields = {key: _field(path, where, content, key, _sentences) for key in Claim.__annotations__}
        claim = Claim(**fields)
        if claim.verdict not in VERDICTS:
            _damaged(path, f"{where} has the verdict {claim.verdict!r}, expected {' or '.join(VERDICTS)}")
        if claim.id in {other.id for other in found}:
            _damaged(path, f"{where} repeats the id {claim.id!r}")
        found.append(claim)
    return tuple(found)


def _rows(path: Path, meta: Meta, expected: int | None) -> tuple[Row, ...]:
    text = _text(path)
    if not text.endswith("\n"):
        _damaged(path, "its last line is cut off")
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    rows: list[Row] = []
    seen: dict[tuple[object, ...], int] = {}
    try:
        missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
        if missing:
            _damaged(path, f"it lacks the column {', '.join(missing)}")
        for line in reader:
            row = _row(path, reader.line_num, line, meta)
            key = (row.curve, row.training, row.x, row.run, row.measure, row.scored_on)
            if key in seen:
                _damaged(path, f"line {reader.line_num} repeats line {seen[key]}")
            seen[key] = reader.line_num
            rows.append(row)
    except csv.Error as error:
        _damaged(path, f"line {reader.line_num} is not CSV ({error})")
    if not rows:
        _damaged(path, "it has no values")
    if expected is not None and expected != len(rows):
        _damaged(path, f"it has {len(rows)} values, and meta.json counts {expected}")
    return tuple(rows)


def _row(path: Path, number: int, line: dict[Any, Any], meta: Meta) -> Row:
    if None in line or None in line.values():
        _damaged(path, f"line {number} does not have {len(COLUMNS)} fields")

    def fault(column: str, rule: str) -> NoReturn:
        _damaged(path, f"{column} on line {number} is {line[column]!r}, expected {rule}")

    def real(column: str) -> float:
        try:
            value = float(line[column])
        except ValueError:
            fault(column, "a number")
        return value if math.isfinite(value) else fault(column, "a finite number")

    def whole(column: str) -> int | None:
        if line[column] == "":
            return None
        value = real(column)
        return int(value) if value == int(value) and value >= 0 else fault(column, "a whole number")

    def one_of(column: str, allowed: tuple[str, ...]) -> str:
        return line[column] if line[column] in allowed else fault(column, " or ".join(allowed))

    one_of("experiment", (meta.experiment,))
    for column in ("curve", "measure"):
        if not line[column]:
            fault(column, "a name")
    x, measure = real("x"), line["measure"]
    if x <= 0 and for_measure(meta.x_scale, measure, "linear") == "log":
        fault("x", "more than 0 on a logarithmic axis")
    return Row(
        curve=line["curve"],
        training=one_of("training", TRAININGS),
        x=x,
        run=whole("run"),
        measure=measure,
        value=real("value"),
        stderr=None if line["stderr"] == "" else real("stderr"),
        prompts=whole("prompts"),
        scored_on=one_of("scored_on", SCORED_ON),
    )


def for_measure(labels: str | dict[str, str], measure: str, otherwise: str) -> str:
    """The label or scale of a measure."""
    return labels.get(measure, otherwise) if isinstance(labels, dict) else labels
