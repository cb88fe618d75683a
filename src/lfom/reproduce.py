"""lfom reproduce: run experiments, write their results, draw them, make the report.

A finished experiment is not run again; one that fails does not stop the others.
"""

import contextlib
import csv
import datetime
import importlib
import io
import json
import os
import platform
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lfom
from lfom.core import checks
from lfom.core.checks import InputError
from lfom.core.files import write_whole
from lfom.experiments import EXPERIMENTS
from lfom.experiments.workbench import PRESETS, Outcome, Workbench
from lfom.report import plot_experiment, read_experiment, write_report
from lfom.report.results import COLUMNS

MARK = ".lfom-results"  # a folder with this file is ours to write into
AT_A_TIME = 2  # experiments
TRAININGS = {"paper": ("paper",), "converged": ("converged",), "both": ("paper", "converged")}


@dataclass(frozen=True)
class Done:
    """How one experiment ended: "made", "kept" (it was finished before), "failed", or "empty" (it has
    nothing to show for the training asked for)."""

    name: str
    status: str
    seconds: float
    message: str = ""


def reproduce(
    names: Sequence[str] = (),
    out: Path = Path("results"),
    *,
    preset: str = "quick",
    training: str = "both",
    force: bool = False,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> list[Done]:
    """Run the named experiments (all by default) that are not finished, and write the report."""
    for name in names:
        checks.known("experiment", name, EXPERIMENTS)
    checks.known("preset", preset, PRESETS)
    checks.known("training", training, TRAININGS)
    prepare_folder(out)
    bench = Workbench(preset, seed, say=say, trainings=TRAININGS[training])
    asked = {"preset": preset, "training": training, "seed": seed}
    done: dict[str, Done] = {}
    todo = []
    for name in [n for n in EXPERIMENTS if n in names or not names]:
        try:
            if not force and _finished(out / name, asked):
                done[name] = Done(name, "kept", 0.0)
            else:
                todo.append(name)
        except InputError as error:
            done[name] = Done(name, "failed", 0.0, str(error))
    begun = time.perf_counter()
    for name, outcome, seconds in _outcomes(todo, bench):
        added, begun = time.perf_counter() - begun, time.perf_counter()
        done[name] = _record(name, outcome, out, asked, {"seconds": seconds, "added_seconds": added})
    damaged = [name for name, item in done.items() if item.status == "failed"]
    with _set_aside(out, damaged):
        write_report(out, order=list(EXPERIMENTS))
    return [done[name] for name in EXPERIMENTS if name in done]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. running: whether experiments are still running in threads."""

    def __init__(self, running: bool):
        super().__init__()
        self.running = running


def _outcomes(names: Sequence[str], bench: Workbench) -> Iterator[tuple[str, Outcome | Exception, float]]:
    """What each experiment found, or its error, and its seconds; as soon as it has ended. Two run at a
    time, since compiling leaves cores idle; those that measure time run alone, at the end."""
    alone = [name for name in names if _runs_alone(name)]
    pool = ThreadPoolExecutor(AT_A_TIME)
    futures = {pool.submit(_outcome, name, bench): name for name in names if name not in alone}
    try:
        left = dict(futures)
        try:
            for future in as_completed(futures):
                yield left.pop(future), *future.result()
        except KeyboardInterrupt:
            ended = [future for future in left if future.done() and not future.exception()]
            for future in ended:
                yield left.pop(future), *future.result()
            raise
        for name in alone:
            yield name, *_outcome(name, bench)
    except KeyboardInterrupt:
        raise Interrupted(any(future.running() for future in futures)) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _outcome(name: str, bench: Workbench) -> tuple[Outcome | Exception, float]:
    begun = time.perf_counter()
    bench.say(f"experiment {name}")
    try:
        return _module(name).run(bench), time.perf_counter() - begun
    except Exception as error:
        return error, time.perf_counter() - begun


def _runs_alone(name: str) -> bool:
    try:
        return getattr(_module(name), "ALONE", False)
    except Exception:  # `_outcome` meets it again, and reports it
        return False


def _module(name: str) -> Any:
    return importlib.import_module(f"lfom.experiments.{EXPERIMENTS[name]}")


def _record(
    name: str, outcome: Outcome | Exception, out: Path, asked: dict[str, Any], times: dict[str, float]
) -> Done:
    """Write what was found, or the error."""
    try:
        if isinstance(outcome, Exception):
            raise outcome
        made = _write(name, outcome, out / name, asked, times)
    except InputError as error:
        return Done(name, "failed", times["seconds"], str(error))
    except Exception as error:
        write_whole(out / f"{name}.error.txt", traceback.format_exc().encode())
        text = f"{type(error).__name__}: {error} (all of it in {out / f'{name}.error.txt'})"
        return Done(name, "failed", times["seconds"], text)
    return Done(name, "made" if made else "empty", times["seconds"])


def prepare_folder(out: Path) -> None:
    """Make the folder for results, or say at once why it cannot be used."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file: name a folder for the results.")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).exists():
        raise InputError(
            f"--out {out} holds something else than results of lfom: name an empty or a new folder."
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out {out} cannot be made ({error.strerror}): choose a folder you may write to."
        ) from None
    if not os.access(out, os.W_OK):
        raise InputError(f"--out {out} cannot be written: choose a folder you may write to.")
    write_whole(out / MARK, b"results of lfom reproduce\n")


def _finished(folder: Path, asked: dict[str, Any]) -> bool:
    """Whether the results asked for are there; damaged ones are an error, not re-made in silence."""
    if not (folder / "meta.json").exists():
        return False
    read_experiment(folder)
    meta = json.loads((folder / "meta.json").read_text("utf8"))
    return all(meta.get(key) == value for key, value in asked.items())


def _write(name: str, outcome: Outcome, folder: Path, asked: dict[str, Any], times: dict[str, float]) -> bool:
    """Write an experiment's results; False if it has nothing to show for this training."""
    module = _module(name)
    if not outcome.rows:
        return False
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    write_whole(folder / "curves.csv", _csv(name, outcome).encode())
    write_whole(folder / "claims.json", json.dumps([asdict(c) for c in outcome.claims], indent=1).encode())
    option = "" if asked["training"] == "both" else f" --training {asked['training']}"
    meta = {
        "experiment": name,
        "title": module.TITLE,
        "section": module.SECTION,
        "shows": module.SHOWS,
        "trained": module.TRAINED,
        "command": f"lfom reproduce {name} --preset {asked['preset']}{option} --force",
        "x_label": getattr(module, "X_LABEL", "layers or steps"),
        "y_label": getattr(module, "Y_LABEL", "log of the mean squared error"),
        "x_scale": getattr(module, "X_SCALE", "linear"),
        "main": outcome.main,
        "rows": len(outcome.rows),
        **{key: round(value, 2) for key, value in times.items()},
        "version": lfom.__version__,
        "machine": machine(),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **asked,
    }
    write_whole(folder / "meta.json", json.dumps(meta, indent=1).encode())
    plot_experiment(folder)
    return True


def _csv(name: str, outcome: Outcome) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in outcome.rows:
        values = {key: "" if value is None else value for key, value in asdict(row).items()}
        writer.writerow({"experiment": name, **values})
    return text.getvalue()


@contextlib.contextmanager
def _set_aside(out: Path, names: Sequence[str]) -> Any:
    """Hide the results of failed experiments from the report, without touching their files."""
    moved = []
    try:
        for name in names:
            if (out / name / "meta.json").exists():
                (out / name / "meta.json").rename(out / name / "meta.damaged")
                moved.append(name)
        yield
    finally:
        for name in moved:
            (out / name / "meta.damaged").rename(out / name / "meta.json")


def machine() -> str:
    """The machine in words, without its name."""
    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
