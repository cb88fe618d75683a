"""The results of one experiment, read from its folder and checked.

A folder holds curves.csv, claims.json and meta.json. Whatever is wrong with one of them is an
error that names the file and the command that makes it again; nothing is repaired in silence.
"""

import csv
import io
import json
import math
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from lfom.core.checks import InputError
from lfom.core.words import brief

COLUMNS = (
    "experiment", "curve", "training", "x", "run", "measure", "value", "stderr", "prompts", "scored_on",
)  # fmt: skip
TRAININGS = ("paper", "converged", "published", "none")
SCORED_ON = ("fresh", "training prompts", "adaptation prompts")
# A user's experiment has names of its own for these: meta.json lists them.
VERDICTS = ("holds", "fails", "partly")
MEASURED = "measured"  # in place of a verdict: a number that nobody made a claim about
SEEDS = "seeds"  # results/seeds/SEED/EXPERIMENT are those of further seeds
ERROR = ".error.txt"  # results/EXPERIMENT.error.txt is the traceback of one that failed
FLOOR = -60.0  # a log loss that is zero to rounding


@dataclass(frozen=True)
class Row:
    """One line of curves.csv. `run` is None for a value that belongs to no single run.

    >>> import lfom
    >>> lfom.Row("my curve", "none", x=2, value=-0.3, run=0).measure
    'log_loss'
    """

    __repr__ = brief

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
    """One sentence of the paper, how it was tested, and what came out.

    >>> import lfom
    >>> lfom.Claim("mine", "Memory helps.", "My notes", "a lower loss", "holds", "-0.2 ± 0.1").verdict
    'holds'
    """

    __repr__ = brief

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
    training: str
    seed: int
    trainings: tuple[str, ...]  # names in curves.csv, as are
    scored_on: tuple[str, ...]
    source: str  # a digest of the user's file that the experiment stands in
    versions: str  # of the libraries that it was computed with


@dataclass(frozen=True)
class Result:
    """A finished experiment."""

    folder: Path
    meta: Meta
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    by_seed: dict[str, dict[int, str]] = field(default_factory=dict)  # verdicts by claim, of several seeds

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


def read_results(results: Path, order: Sequence[str] = (), leave_out: Collection[Path] = ()) -> list[Result]:
    """All finished experiments of a folder, those in `order` first, with their verdicts of further seeds.

    Folders that hold no finished experiment are left out; damaged ones are an error that names them all.
    """
    damaged = []

    def read(folders: Iterable[Path]) -> list[Result]:
        found = []
        for folder in folders:
            if is_finished(folder) and folder not in leave_out and not folder.name.startswith("."):
                try:
                    found.append(read_experiment(folder))
                except Damaged as error:
                    damaged.append(str(error))
        return found

    rank = {name: place for place, name in enumerate(order)}
    folders = sorted(results.iterdir(), key=lambda folder: (rank.get(folder.name, len(rank)), folder.name))
    found = read(folders)
    others = read(sorted(results.glob(f"{SEEDS}/*/*")))
    if damaged:
        raise InputError("\n".join(damaged))
    return [replace(main, by_seed=_by_seed(main, others)) for main in found]


def _by_seed(main: Result, others: Sequence[Result]) -> dict[str, dict[int, str]]:
    """The verdicts of every claim by seed, of results that differ from `main` in the seed only."""

    def asked(result: Result) -> tuple[str, ...]:
        return result.name, result.meta.preset, result.meta.training

    same = {one.meta.seed: one for one in [*others, main] if asked(one) == asked(main)}
    table: dict[str, dict[int, str]] = {}
    for seed in sorted(same) if len(same) > 1 else ():
        for claim in same[seed].claims:
            if claim.verdict != MEASURED:
                table.setdefault(claim.id, {})[seed] = claim.verdict
    return table


class Damaged(InputError):
    """A file of results that is not as it was written, and what is wrong with it."""

    def __init__(self, path: Path, fault: str, again: str = ""):
        again = again or made_again(path.parent)
        super().__init__(f"{path} is damaged: {fault}. To make it again: {again}")
        self.path, self.file, self.fault = path, path.name, fault


def made_again(folder: Path) -> str:
    """The command that makes the results of a folder again: what they say themselves, where that can be read."""
    rest, name = "", shlex.quote(folder.name)
    try:
        said = json.loads((folder / "meta.json").read_bytes())["command"]
        assert said.startswith("lfom reproduce ")
    except Exception:  # whatever is wrong with it: it is damaged
        said = f"lfom reproduce {name}"
        rest = f" (an experiment of your own by its Python file, not by {name})"
    force = "" if said.endswith(" --force") else " --force"
    return said + force + elsewhere(folder.parent) + rest


def elsewhere(out: Path) -> str:
    """The option for a folder of results that is not the usual one."""
    return "" if out == Path("results") else f" --out {shlex.quote(str(out))}"


def _damaged(path: Path, fault: str) -> NoReturn:
    raise Damaged(path, fault)


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


def _expected(what: str) -> NoReturn:
    raise ValueError(what)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else _expected("a text")


def _name(value: Any) -> str:
    return value if _plain(value).strip() else _expected("a text that is not empty")


def _names(value: Any) -> tuple[str, ...]:
    texts = isinstance(value, list) and all(isinstance(part, str) for part in value)
    return tuple(value) if texts else _expected("a list of texts")


def _sentences(value: Any) -> str:
    """A text, or a list of sentences."""
    return " ".join(_names(value)) if isinstance(value, list) else _plain(value)


def _seconds(value: Any) -> float:
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
    return float(value) if known else _expected("a number of seconds, 0 or more")


def _seed(value: Any) -> int:
    return value if type(value) is int else _expected("a whole number")


def _labels(value: Any) -> str | dict[str, str]:
    if isinstance(value, dict):
        return {measure: _plain(label) for measure, label in value.items()}
    return _plain(value)


def _scales(value: Any) -> str | dict[str, str]:
    scales = _labels(value)
    known = set(scales.values() if isinstance(scales, dict) else [scales]) <= {"linear", "log"}
    return scales if known else _expected("linear or log")


def _read(path: Path, what: str, value: Any, reader: Callable[[Any], Any]) -> Any:
    try:
        return reader(value)
    except ValueError as error:
        _damaged(path, f"{what} is {value!r}, expected {error}")


def _field(path: Path, where: str, content: dict[str, Any], key: str, reader: Callable[[Any], Any]) -> Any:
    if key not in content:
        _damaged(path, f"{where} has no {key!r}")
    return _read(path, f"{key!r} of {where}", content[key], reader)


def _meta(path: Path) -> tuple[Meta, int | None]:
    """The meta data and, where it says so, how many lines curves.csv must have."""
    content: dict[str, Any] = {
        "training": "both",
        "seed": 0,
        "trainings": [*TRAININGS],
        "scored_on": [*SCORED_ON],
        "source": "lfom",
        "versions": "",
    }
    content |= _json(path, dict)
    if "seconds" in content:
        content = {"added_seconds": content["seconds"], **content}
    readers: dict[str, Callable[[Any], Any]] = dict.fromkeys(Meta.__annotations__, _plain) | {
        "experiment": _name, "shows": _sentences, "trained": _sentences, "main": _names,
        "x_label": _labels, "y_label": _labels, "x_scale": _scales,
        "seconds": _seconds, "added_seconds": _seconds, "seed": _seed, "trainings": _names, "scored_on": _names,
    }  # fmt: skip
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
        if claim.verdict not in (*VERDICTS, MEASURED):
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

    def read(column: str, reader: Callable[[str], Any]) -> Any:
        return _read(path, f"{column} on line {number}", line[column], reader)

    def place(text: str) -> float:
        logarithmic = for_measure(meta.x_scale, line["measure"], "linear") == "log"
        x = _real(text)
        return x if x > 0 or not logarithmic else _expected("more than 0 on a logarithmic axis")

    read("experiment", _one_of(meta.experiment))
    listed = {"training": _one_of(*meta.trainings), "scored_on": _one_of(*meta.scored_on)}
    readers = READERS | listed | {"x": place}
    return Row(**{column: read(column, reader) for column, reader in readers.items()})


def _real(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        _expected("a number")
    return value if math.isfinite(value) else _expected("a finite number")


def _whole(text: str) -> int:
    value = _real(text)
    return int(value) if value == int(value) and value >= 0 else _expected("a whole number")


def _one_of(*allowed: str) -> Callable[[str], str]:
    return lambda text: text if text in allowed else _expected(" or ".join(allowed))


# How the columns of curves.csv are read; an empty run, stderr or prompts is None.
READERS: dict[str, Callable[[str], Any]] = {
    "curve": lambda text: text or _expected("a name"),
    "run": lambda text: _whole(text) if text else None,
    "measure": lambda text: text or _expected("a name"),
    "value": _real,
    "stderr": lambda text: _real(text) if text else None,
    "prompts": lambda text: _whole(text) if text else None,
}


def for_measure(labels: str | dict[str, str], measure: str, otherwise: str) -> str:
    """The label or scale of a measure."""
    return labels.get(measure, otherwise) if isinstance(labels, dict) else labels
