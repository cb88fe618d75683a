"""lfom reproduce: run experiments, write their results, draw them, make the report.

A finished experiment is not run again; one that fails does not stop the others. Finished results are replaced
on request only, as a whole.
"""

import csv
import datetime
import functools
import io
import json
import os
import platform
import re
import shlex
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lfom
from lfom.core import checks
from lfom.core.archive import versions
from lfom.core.checks import InputError
from lfom.core.files import own_folder, remove_partial, write_whole
from lfom.core.user_code import module_of
from lfom.core.words import brief
from lfom.experiments import EXPERIMENTS, experiment_named
from lfom.experiments.experiment import Experiment, experiments_in, nameless_in
from lfom.experiments.workbench import ASKED_WITH, PRESETS, TRAININGS, Outcome, Workbench
from lfom.report import draw_experiment, read_experiment, ready_to_draw, write_report, write_verdicts
from lfom.report.folders import repair_folder, replace_folder
from lfom.report.results import COLUMNS, ERROR, SEEDS, Damaged, elsewhere
from lfom.scale.cluster import connected, spread

MARK = ".lfom-results"  # a folder with this file is ours to write into
AT_A_TIME = 3  # experiments: one of them often waits for a program to be compiled
CHOICES = {"both": tuple(TRAININGS), **{name: (name,) for name in TRAININGS}}  # --training
FAILURES = ("refused", "damaged", "failed")  # how an experiment ends that has nothing to show
Wanted = str | Path | Experiment | type[Experiment]


@dataclass(frozen=True)
class Done:
    """How one experiment ended: "made", "kept" (it was finished before), "refused" (there are other results in
    its place), "damaged" (they cannot be read), "failed", or "empty" (nothing to show for the training asked for)."""

    __repr__ = brief

    name: str
    status: str
    seconds: float
    message: str = ""
    seed: int = 0


def reproduce(
    experiments: Wanted | Iterable[Wanted] = (),
    out: str | Path = "results",
    *,
    preset: str = "quick",
    training: str = "both",
    force: bool = False,
    seed: int | Sequence[int] = 0,
    say: Callable[[str], None] | None = None,
    cluster: str | None = None,
) -> list[Done]:
    """Run experiments that are not finished, and write out/report.html.

    experiments: names of ours (all of them by default), paths of Python files with your own, and `Experiment`
    objects. training: "paper", "converged" or "both"; what has trainings of its own runs them all. force: replace
    finished results. seed: of several, the results of the first are the main ones, and verdicts are counted over
    all of them. cluster: "local:N" or the address of a Dask scheduler, whose workers run the experiments; those that
    measure time run here, at the end. The results are the same.

    >>> from pathlib import Path
    >>> import lfom
    >>> import tempfile
    >>> class Halves(lfom.Experiment):
    ...     name, title = "halves", "What halves with every step"
    ...     def run(self, bench):
    ...         return lfom.Outcome([lfom.Row("halves", "none", x, 2.0**-x) for x in range(3)], [])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = lfom.reproduce(Halves(), folder)
    ...     done[0].status, Path(folder, "report.html").exists()
    ('made', True)
    """
    out = checks.file_path("out", out)
    checks.known("preset", preset, PRESETS)
    checks.known("training", training, CHOICES)
    seeds = _seeds(seed)
    checks.flag("force", force)
    checks.function("say", say, "a function of a text")
    found = wanted(experiments)
    folders = {one: out if one == seeds[0] else out / SEEDS / str(one) for one in seeds}
    if cluster is not None:
        _check_travels(found.values())
    for folder in folders.values():
        prepare_folder(folder)
    done: list[Done] = []
    with nullcontext() if cluster is None else connected(cluster, one_core=False) as client:
        for one, folder in folders.items():
            asked = {"preset": preset, "training": training, "seed": one}
            done += _with_one_seed(found, folder, asked, force, Workbench(preset, one, say=say), client)
    damaged = [folders[item.seed] / item.name for item in done if item.status == "damaged"]
    missing = {
        item.name: f"{item.status}: {item.message}"
        for item in done
        if item.status in FAILURES and item.seed == seeds[0]
    }
    try:
        write_report(out, [*EXPERIMENTS, *found], damaged, missing)
        if (out / SEEDS).exists():
            write_verdicts(out, leave_out=damaged)
    except InputError as error:
        done.append(Done("report.html", "failed", 0.0, str(error)))
    return done


def _seeds(seed: Any) -> list[int]:
    several = isinstance(seed, list | tuple | range)
    found = [checks.seed("seed", one) for one in (seed if several else [seed])]
    if not found:
        raise InputError("seed is empty: pass a whole number, or a list of them.")
    return list(dict.fromkeys(found))


def wanted(experiments: Wanted | Iterable[Wanted]) -> dict[str, Experiment]:
    """Experiments by name: ours in their order, then the user's own."""
    several = isinstance(experiments, Iterable) and not isinstance(experiments, str)
    every: list[Any] = [*experiments] if several else [experiments]  # type: ignore[misc]
    names, own = set() if every else set(EXPERIMENTS), []
    for one in every:
        if isinstance(one, str | Path) and Path(one).suffix == ".py":
            own += _in_file(Path(one))
        elif isinstance(one, str | Path):
            names.add(checks.known("experiment", str(one), EXPERIMENTS))
        else:
            own.append(one() if isinstance(one, type) else one)
    found = {name: experiment_named(name) for name in EXPERIMENTS if name in names}
    for one in own:
        _check(one)
        if one.name in found:
            raise InputError(f"two experiments have the name {one.name!r}: rename one of them.")
        found[one.name] = one
    return found


def _in_file(path: Path) -> list[Experiment]:
    module = module_of(path)
    found, nameless = experiments_in(module), nameless_in(module)
    if nameless:
        raise InputError(
            f"{nameless[0]} in {path} has no name: write a line such as name = {nameless[0].lower()!r} into the class, "
            "under which its results are kept."
        )
    if not found:
        raise InputError(f"{path} has no experiment: write a subclass of lfom.Experiment with a name in it.")
    for one in found:
        one.file = str(path)
    return found


def _check(one: Any) -> None:
    """Whether this can be a user's experiment."""
    checks.instance("an experiment", one, Experiment, "a name, a path that ends in .py or an lfom.Experiment")
    if one.name in EXPERIMENTS:
        raise InputError(
            f"{one.name!r} is the name of one of our experiments: give yours another one, so that neither replaces "
            "the other in the results."
        )
    if not re.fullmatch(r"\w[\w-]*", str(one.name)) or one.name == SEEDS:
        raise InputError(
            f"{type(one).__name__} has the name {one.name!r}: its results go to a folder of that name, so choose "
            f"one of letters, digits, _ and - (but not {SEEDS!r})."
        )


def _with_one_seed(
    found: dict[str, Experiment],
    out: Path,
    asked: dict[str, Any],
    force: bool,
    bench: Workbench,
    client: Any = None,
) -> list[Done]:
    done: dict[str, Done] = {}
    for name, one in found.items():
        repair_folder(out / name)
        if not force and (there := _what_is_there(one, out / name, asked | {"source": one.source})):
            status, message = there
            done[name] = Done(name, status, 0.0, message, asked["seed"])
    begun = time.perf_counter()
    todo = [one for name, one in found.items() if name not in done]
    if todo:
        threading.Thread(target=ready_to_draw, daemon=True).start()
    chosen = CHOICES[asked["training"]]
    ended = (
        _outcomes(todo, bench, chosen)
        if client is None
        else _outcomes_on(client, todo, bench, chosen, asked["seed"])
    )
    for one, outcome, seconds in ended:
        added, begun = time.perf_counter() - begun, time.perf_counter()
        times = {"seconds": seconds, "added_seconds": added}
        done[one.name] = Done(one.name, *_record(one, outcome, out, asked, times), seed=asked["seed"])
    return [done[name] for name in found]


def _what_is_there(one: Experiment, folder: Path, asked: dict[str, Any]) -> tuple[str, str] | None:
    """Nothing (then it is made), the results asked for, others, or damaged ones; those are never re-made in
    silence."""
    if not folder.exists() or not any(folder.iterdir()):
        return None
    if not (folder / "meta.json").exists():
        there = "something else than finished results"
    else:
        try:
            meta = asdict(read_experiment(folder).meta)
        except Damaged as error:
            again = _command(one, asked) + ("" if is_object(one) else elsewhere(folder.parent))
            return "damaged", str(Damaged(error.path, error.fault, again))
        if all(meta[key] == value for key, value in asked.items()):
            return "kept", ""
        if all(meta[key] == asked[key] for key in asked if key != "source"):
            return "refused", (
                f"{folder} holds results of an earlier version of this experiment's file. Run it again with --force, or "
                "choose another --out."
            )
        there = "results of " + ", ".join(f"{key} {meta[key]}" for key in asked if key != "source")
    words = ", ".join(f"{key} {value}" for key, value in asked.items() if key != "source")
    return "refused", (
        f"{folder} holds {there}, and {words} was asked for. Replace what is there with --force, or choose another "
        "--out."
    )


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. running: whether experiments are still running in threads."""

    def __init__(self, running: bool):
        super().__init__()
        self.running = running


Ended = tuple[Experiment, Outcome | Exception, float]


def _outcomes(todo: Sequence[Experiment], bench: Workbench, chosen: Sequence[str]) -> Iterator[Ended]:
    """What each experiment found, or its error, and its seconds; as soon as it has ended. Three run at a
    time, since compiling leaves cores idle; those that measure time run alone, at the end."""
    pool = ThreadPoolExecutor(AT_A_TIME)
    futures = {pool.submit(_outcome, one, bench, chosen): one for one in todo if not one.alone}
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
        for one in todo:
            if one.alone:
                yield one, *_outcome(one, bench, chosen)
    except KeyboardInterrupt:
        raise Interrupted(any(future.running() for future in futures)) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _check_travels(experiments: Iterable[Experiment]) -> None:
    """Workers find experiments by name or in a file."""
    for one in experiments:
        if is_object(one):
            raise InputError(
                f"{one.name} is an object of this process, which workers do not have: write it to a Python file, and pass "
                "its path."
            )


def _outcomes_on(
    client: Any, todo: Sequence[Experiment], bench: Workbench, chosen: Sequence[str], seed: int
) -> Iterator[Ended]:
    """The same by the workers of a cluster."""
    named = {one.name: one for one in todo}
    jobs = [
        (one.name, (one.name, one.file and str(Path(one.file).resolve()), bench.preset.name, seed, chosen))
        for one in todo
        if not one.alone
    ]
    bench.say(f"{len(jobs)} experiments on a cluster")
    try:
        for number, (name, found, why) in enumerate(spread(client, run_on_worker, jobs), 1):
            bench.say(f"{number} of {len(jobs)} experiments are back from the cluster: {name}")
            yield named[name], *((RuntimeError(why), 0.0) if found is None else found)
    except KeyboardInterrupt:
        raise Interrupted(running=False) from None
    yield from _outcomes([one for one in todo if one.alone], bench, chosen)


def run_on_worker(
    name: str, file: str, preset: str, seed: int, chosen: Sequence[str]
) -> tuple[Outcome | Exception, float]:
    """What a worker of a cluster does: an experiment of ours, or of a user's file."""
    one = next(e for e in _in_file(Path(file)) if e.name == name) if file else experiment_named(name)
    found, seconds = _outcome(one, _bench_of_worker(preset, seed), chosen)
    return _travelling(found), seconds


def _travelling(found: Outcome | Exception) -> Outcome | Exception:
    """An error as another one, where the process that hears of it may not know its class or what it holds."""
    if not isinstance(found, Exception):
        return found
    known = type(found).__module__.split(".")[0] in ("builtins", "lfom")
    plain = all(isinstance(one, str | bytes | int | float | None) for one in found.args)
    return found if known and plain else RuntimeError(f"{type(found).__name__}: {found}")


@functools.cache
def _bench_of_worker(preset: str, seed: int) -> Workbench:
    """What a worker has made for one experiment it need not make for the next."""
    return Workbench(preset, seed)


def _outcome(one: Experiment, bench: Workbench, chosen: Sequence[str]) -> tuple[Outcome | Exception, float]:
    """chosen: of our trainings; what a user's experiment adds is always run."""
    begun = time.perf_counter()
    bench.say(f"experiment {one.name}")
    asked = {name: ASKED_WITH.get(name, name) for name in one.trainings}
    trainings = {
        name: one.trainings[name] for name, by in asked.items() if by in chosen or by not in TRAININGS
    }
    try:
        return one.run(bench.with_trainings(trainings)), time.perf_counter() - begun
    except Exception as error:
        return error, time.perf_counter() - begun


def _record(
    one: Experiment, outcome: Outcome | Exception, out: Path, asked: dict[str, Any], times: dict[str, float]
) -> tuple[str, float, str]:
    """Write what was found, or the error: status, seconds, message."""
    seconds = times["seconds"]
    try:
        if isinstance(outcome, Exception):
            raise outcome
        if not outcome.rows:
            return "empty", seconds, ""
        _write(one, outcome, out / one.name, asked, times)
    except InputError as error:
        return "failed", seconds, str(error)
    except Exception as error:
        path = out / f"{one.name}{ERROR}"
        with suppress(InputError):  # the sentence below is what counts
            write_whole(path, traceback.format_exc().encode())
        return "failed", seconds, f"{type(error).__name__}: {error} (all of it in {path})"
    (out / f"{one.name}{ERROR}").unlink(missing_ok=True)  # of an earlier run
    return "made", seconds, ""


def prepare_folder(out: Path) -> None:
    """Make the folder for results, or say at once why it cannot be used."""
    own_folder(out, MARK, "results")
    if not os.access(out, os.W_OK):
        raise InputError(f"--out {out} cannot be written: choose a folder you may write to.")
    if not (out / MARK).exists():
        write_whole(out / MARK, b"results of lfom reproduce\n")
    for name in ("report.html", "verdicts.json"):
        remove_partial(out / name)


def _write(
    one: Experiment, outcome: Outcome, folder: Path, asked: dict[str, Any], times: dict[str, float]
) -> None:
    """Write an experiment's results, whole or not at all."""
    meta = {
        "experiment": one.name,
        "title": one.title or one.name,
        "section": one.section,
        "shows": one.shows,
        "trained": one.trained,
        "command": _command(one, asked),
        "x_label": one.x_label,
        "y_label": one.y_label,
        "x_scale": one.x_scale,
        "main": outcome.main,
        "rows": len(outcome.rows),
        "trainings": list(dict.fromkeys(row.training for row in outcome.rows)),
        "scored_on": list(dict.fromkeys(row.scored_on for row in outcome.rows)),
        **{key: round(value, 2) for key, value in times.items()},
        "version": lfom.__version__,
        "versions": ", ".join(f"{name} {known}" for name, known in versions().items() if name != "lfom"),
        "machine": machine(),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **asked,
        "source": one.source,
    }
    claims = [asdict(claim) for claim in outcome.claims]

    def write(new: Path) -> None:
        write_whole(new / "curves.csv", _csv(one.name, outcome).encode())
        write_whole(new / "claims.json", json.dumps(claims, indent=1).encode())
        write_whole(new / "meta.json", json.dumps(meta, indent=1).encode())
        if not draw_experiment(new):  # which reads it all back
            read_experiment(new)

    try:
        replace_folder(folder, write)
    except Damaged as error:
        raise InputError(
            f"what it found cannot be shown: {error.fault} ({error.file}). Correct what run() of "
            f"{type(one).__name__} returns."
        ) from None
    except (InputError, OSError) as error:
        raise InputError(
            f"its results cannot be written to {folder}, where nothing has changed: {error}"
        ) from error


def _command(one: Experiment, asked: dict[str, Any]) -> str:
    """What makes it again."""
    if is_object(one):
        return f"lfom.reproduce({type(one).__name__}(), preset={asked['preset']!r}, seed={asked['seed']}, force=True)"
    usual = {"training": "both", "seed": 0}
    options = "".join(f" --{key} {asked[key]}" for key in usual if asked[key] != usual[key])
    return f"lfom reproduce {shlex.quote(one.file or one.name)} --preset {asked['preset']}{options} --force"


def is_object(one: Experiment) -> bool:
    """Whether it is an experiment of this process alone, which no command finds."""
    return not one.file and one.name not in EXPERIMENTS


def _csv(name: str, outcome: Outcome) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in outcome.rows:
        values = {key: "" if value is None else value for key, value in asdict(row).items()}
        writer.writerow({"experiment": name, **values})
    return text.getvalue()


def machine() -> str:
    """The machine in words, without its name."""
    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
