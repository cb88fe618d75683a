"""lfom train: one model, by hand; safe to interrupt at any moment."""

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from lfom.commands import progress
from lfom.commands.announcing import announce, say
from lfom.commands.evaluate import print_scores, reference_name, score_rows
from lfom.commands.hosts import SCALE, Coordinator, Devices, Hosts, Process, Processes, placed, same_file
from lfom.commands.options import With, given, numbers, option, print_json, types_of
from lfom.commands.problem_files import check_out, load_checkpoint
from lfom.core import checks, room
from lfom.core.archive import LICENCE, versions
from lfom.core.checks import InputError
from lfom.core.files import remove_partial
from lfom.core.methods import Method
from lfom.core.parameters import kinds as kinds_of
from lfom.core.vectors import parameters
from lfom.files import save
from lfom.limits.optimum import exact_optimum
from lfom.methods.memformer import GAMMAS, KINDS, MEMORIES, PRECONDITIONERS, READERS, memformer
from lfom.prompts.distributions import PUBLISHED_SPECTRUM, TEXT_SPECTRUM
from lfom.started import INTERRUPTED
from lfom.training.adam import Adam
from lfom.training.checkpoints import OPTIMISERS, Checkpoint, key_for, regressions, seed_number
from lfom.training.fitting import FROM_RANDOM, default_optimiser, fit, trained_view
from lfom.training.least_squares import LeastSquares
from lfom.training.state import Diverged, Phase, State

SPECTRA = {"published": PUBLISHED_SPECTRUM, "text": TEXT_SPECTRUM}
KIND = {"joint": "with any P and Q", "tokens": "on tokens"}
# The rest is in the checkpoint.
WITH_RESUME = {"resume", "out", "force", "as_json", "prompts", "with_", *SCALE}


def _adam(text: str, name: str) -> str:
    """The help of one of Adam's options: the paper's default, and those of attention of any kind."""
    own = ", ".join(f"{getattr(FROM_RANDOM[view], name)} {words}" for view, words in KIND.items())
    return f"Adam: {text} [default: {getattr(Adam(), name)}; {own}]"


def train_command(
    context: typer.Context,
    reader: Annotated[
        str, option(f"Attention: {', '.join(READERS)}; sparse has A and B, linear any P and Q.", "Model")
    ] = "sparse",
    memory: Annotated[str, option(", ".join(MEMORIES), "Model")] = "bank",
    preconditioner: Annotated[str, option(f"A_l: {', '.join(PRECONDITIONERS)}", "Model")] = "full",
    covariates: Annotated[bool, option("Learn B too (GD++).", "Model", "--covariates")] = False,
    gamma: Annotated[str, option(f"The bank's coefficients: {', '.join(GAMMAS)}", "Model")] = "scalar",
    tied: Annotated[bool, option("One coefficient per direction.", "Model", "--tied/--untied")] = False,
    own_is_one: Annotated[bool, option("Own coefficients fixed at 1.", "Model", "--own-is-one")] = False,
    depths: Annotated[str, option("Layers; several are trained at once.", "Model")] = "1,2,3,4",
    heads: Annotated[int, option("Readers summed into one memory.", "Model")] = 1,
    spectrum: Annotated[str, option("published, text, or numbers: 1,0.5,0.25", "Prompts")] = "published",
    examples: Annotated[int, option("Examples in a prompt (n).", "Prompts", "--context")] = 20,
    runs: Annotated[int, option("Runs, each with its own rotation.", "Prompts")] = 5,
    noise: Annotated[float, option("Standard deviation of the labels' noise.", "Prompts")] = 0.0,
    variance: Annotated[float, option("Scale of the covariance.", "Prompts")] = 1.0,
    optimiser: Annotated[
        str | None, option("least-squares or adam. [default: by the model]", "Training")
    ] = None,
    steps: Annotated[int | None, option(_adam("steps.", "steps"), "Training")] = None,
    learning_rate: Annotated[float | None, option(_adam("rate.", "learning_rate"), "Training")] = None,
    batch: Annotated[int | None, option(_adam("prompts per step.", "batch"), "Training")] = None,
    resample: Annotated[int | None, option(_adam("steps on one batch.", "resample"), "Training")] = None,
    schedule: Annotated[str | None, option(_adam("constant or cosine.", "schedule"), "Training")] = None,
    warmup: Annotated[
        int | None, option(_adam("steps in which the rate grows.", "warmup"), "Training")
    ] = None,
    log: Annotated[
        bool | None, option("Adam: follow the log of the loss.", "Training", "--log/--no-log")
    ] = None,
    averaged: Annotated[
        bool | None,
        option("Adam: average the query out (not on tokens).", "Training", "--averaged/--sampled"),
    ] = None,
    train: Annotated[
        str | None,
        option(
            f"What is trained, of {', '.join(KINDS)}; in stages: 'A;coefficients'. [default: all]", "Training"
        ),
    ] = None,
    seed: Annotated[int, option("Seed of every random number.", "Training")] = 0,
    prompts: Annotated[int, option("Fresh prompts per run to score on.", "Output")] = 50_000,
    out: Annotated[Path | None, option("[default: model.safetensors]", "Output")] = None,
    resume: Annotated[Path | None, option("Go on with this checkpoint.", "Output")] = None,
    force: Annotated[bool, option("Replace an existing --out.", "Output", "--force")] = False,
    with_: With = None,
    licence: Annotated[str, option("Licence of the checkpoint, as an SPDX name.", "Output")] = LICENCE,
    as_json: Annotated[bool, option("Print JSON instead of a table.", "Output", "--json")] = False,
    devices: Devices = None,
    hosts: Hosts = False,
    coordinator: Coordinator = None,
    processes: Processes = None,
    process: Process = None,
) -> None:
    """Train a model; a checkpoint is kept after every pass, and Ctrl-C loses nothing."""
    placed(devices, hosts, coordinator, processes, process)
    said = {name for name in context.params if given(context, name)}
    if resume is not None:
        checks.count("prompts", prompts)
        checkpoint, licence = _resumed(resume, said, with_)
        path = resume if out is None else out
        if path.resolve() != resume.resolve():
            _writable(path, force, with_)
    else:
        if with_:
            raise InputError(
                f"--with is {with_[0]}: it tells which classes a checkpoint may hold, and nothing is read without --resume. "
                "Leave it out; models of your own are trained from Python (lfom.fit)."
            )
        eigenvalues, wanted = _spectrum(spectrum), _depths(depths)
        n, number = checks.count("context", examples), seed_number(seed)
        data = regressions(eigenvalues, n, runs, number, noise=noise, variance=variance)

        def built(depth: int) -> Method:
            return memformer(
                len(eigenvalues), depth, reader=reader, memory=memory, preconditioner=preconditioner, covariates=covariates,
                gamma=gamma, tied=tied, own_is_one=own_is_one, heads=heads, context=examples, key=key_for(seed, "model"),
            )  # fmt: skip

        model = built(max(wanted))
        kinds = _kinds(train, model)
        adam = {
            "steps": steps, "learning_rate": learning_rate, "batch": batch, "resample": resample,
            "schedule": schedule, "warmup": warmup, "log": log, "averaged": averaged,
        }  # fmt: skip
        view = trained_view(model)
        how = _optimiser(optimiser, adam, view) or default_optimiser(model, kinds[0])
        how.check_view(view)
        checkpoint = Checkpoint(model, data, wanted, kinds, how, seed, checks.count("prompts", prompts))
        scored = float(data.runs or 1) * prompts * progress.methods_scored(wanted)
        room.in_time(f"--prompts is {prompts}", scored * progress.LEAST_TO_SCORE, "Score on fewer.")

        def phases_of(depths: tuple[int, ...]) -> list[Phase]:
            if depths == wanted:
                return checkpoint.phases
            return replace(checkpoint, model=built(max(depths)), depths=depths).phases

        progress.check_affordable(phases_of, len(eigenvalues), wanted, data.runs or 1)
        path = Path("model.safetensors") if out is None else out
        _writable(path, force, None)
    asked = prompts if resume is None or "prompts" in said else checkpoint.prompts
    moved = resume is not None and path.resolve() != resume.resolve()
    job = Job(checkpoint, path, licence, as_json, Console(stderr=True), with_ or [], asked, moved)
    raise typer.Exit(job.run())


class Interrupts:
    """Ctrl-C raises KeyboardInterrupt at once, but not while it is held. It is also remembered:
    Python drops an exception raised inside a destructor or a callback of JAX, and the next `held`
    raises it then."""

    def __init__(self) -> None:
        self._noted = self._holding = False

    def _handle(self, number: int, frame: Any) -> None:
        self._noted = True
        if not self._holding:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._noted:
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGINT, self._handle)

    def __exit__(self, *details: object) -> None:
        signal.signal(signal.SIGINT, self._before)


@dataclass
class Job:
    """A fit with its checkpoint file; `run` returns the exit status."""

    checkpoint: Checkpoint
    path: Path
    licence: str
    as_json: bool
    console: Console
    own_files: list[Path]  # of --with
    prompts: int  # to score on
    moved: bool  # resumed under another name, of which there is no file yet
    interrupts: Interrupts = field(default_factory=Interrupts)

    def run(self) -> int:
        remove_partial(self.path)
        with self.interrupts:
            try:
                if self.moved:
                    self._keep(self.checkpoint)
                if not self.checkpoint.finished:
                    self._train()
                    self._score()
                elif self.prompts != self.checkpoint.prompts:
                    self._score()
            except KeyboardInterrupt:
                return self._interrupted()
            except FloatingPointError as error:
                return self._diverged(error)
        rows = list(self.checkpoint.metrics)
        if self.as_json:
            print_json(rows)
        else:
            print_scores(rows, brief=True)
            self._say(f"Saved in {self.path} (licence {self.licence}).")
        return 0

    def _train(self) -> None:
        now, phases = self.checkpoint, self.checkpoint.phases
        size = (now.data.stacked.dimension, now.depths, now.data.runs or 1)
        announce(progress.described(phases, *size[1:]), progress.estimate(phases, *size, now.prompts))
        found, optimum = progress.stages(phases, *size), known_optimum(now)
        told = progress.TrainingProgress(self.console, phases, found, now.depths, optimum, now.state)
        with told as bar:

            def watch(state: State, record: dict[str, Any]) -> None:
                _finite(state)
                self._keep(replace(self.checkpoint, state=state))
                bar(state, record)

            options = {name: getattr(now, name) for name in ("depths", "train", "optimiser")}
            options |= {"watch": watch, "tick": bar.tick, "resume": now.state}
            trained = fit(now.model, now.data, key=now.key("training"), **options)
        last = self.checkpoint.state
        assert last is not None  # every fit makes a pass
        state = State(len(phases) - 1, last.level, last.step, trained.vectors, {}, trained.history)
        self.checkpoint = replace(self.checkpoint, state=state)

    def _score(self) -> None:
        """The scores of the finished models; until they are there, the file stays as the last pass
        left it, so that a fit stopped here is resumed here."""
        with progress.PartProgress(self.console, "scoring on fresh prompts") as bar:
            rows = score_rows(self.checkpoint, self.prompts, bar)
        self._keep(replace(self.checkpoint, finished=True, metrics=tuple(rows), prompts=self.prompts))

    def _keep(self, checkpoint: Checkpoint) -> None:
        with self.interrupts.held():  # so that what is said about the file is true of it
            save(self.path, checkpoint, force=True, licence=self.licence)
            self.checkpoint = checkpoint

    def _interrupted(self) -> int:
        if self.checkpoint.state is None:
            nothing = "Interrupted before the first pass was done: nothing was written."
            self._say(f"{nothing} Start again as before.")
            return INTERRUPTED
        self._say(f"Interrupted. {self._where()} Go on with:")
        again = [*_program(), "train", "--resume", str(self.path), *(["--json"] * self.as_json)]
        again += [word for file in self.own_files for word in ("--with", str(file))]
        self._say(f"  {shlex.join(again)}")
        return INTERRUPTED

    def _diverged(self, error: FloatingPointError) -> int:
        self._say(f"lfom: {error}", style="red")
        self._say(self._where() or "No pass was good: nothing was written.")
        return 1

    def _where(self) -> str:
        if self.checkpoint.state is None:
            return ""
        passes = len(self.checkpoint.state.history)
        return f"{self.path} holds the last good state, after {passes} pass{'es' * (passes > 1)}."

    def _say(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def known_optimum(checkpoint: Checkpoint) -> float | None:
    """The exact optimum's log loss at the largest depth, where no model of this kind gets below it."""
    if checkpoint.model.moves_covariates or reference_name(checkpoint) != "exact optimum":
        return None
    data = checkpoint.data.stacked
    return exact_optimum(data.dimension, data.context, checkpoint.depths[-1]).log_loss


def _resumed(path: Path, given: set[str], with_: list[Path] | None) -> tuple[Checkpoint, str]:
    """The checkpoint to go on with, and its licence."""
    fixed = sorted(given - WITH_RESUME)
    if fixed:
        names = ", ".join("--" + {"examples": "context"}.get(n, n).replace("_", "-") for n in fixed)
        raise InputError(
            f"{names} cannot be combined with --resume: the checkpoint says how it is trained. Leave them "
            "out, or start a new training without --resume."
        )
    checkpoint, facts = load_checkpoint(same_file(path), types_of(with_))
    now = versions()
    changed = [f"{n} {v} (now {now.get(n)})" for n, v in facts["versions"].items() if v != now.get(n)]
    if changed and not checkpoint.finished:
        say(
            f"{path} was written with {', '.join(changed)}: the result may differ in the last digits from an "
            "uninterrupted training."
        )
    return checkpoint, facts["licence"]


def _finite(state: State) -> None:
    """A loss can be finite before the step that makes the parameters infinite."""
    bad = np.argwhere(~np.isfinite(state.vectors))
    if len(bad):
        raise Diverged(
            f"a parameter of run {bad[0][0]} is not finite after pass {state.step}. Lower the learning rate, "
            "or check the prompts for values that are too large."
        )


def _writable(path: Path, force: bool, inputs: list[Path] | None) -> None:
    check_out(path, force, "model.safetensors", f"--resume {path} to go on with it, ", inputs=inputs or [])


def _program() -> list[str]:
    """How this program was started, so that the command to resume can be pasted."""
    started = Path(sys.argv[0])
    return ["lfom"] if started.stem == "lfom" else [sys.executable, "-m", "lfom"]


def _spectrum(text: str) -> tuple[float, ...]:
    refusal = (
        f"--spectrum is {text!r}: pass published, text, or numbers separated by commas, such as 1,0.5,0.25."
    )
    return SPECTRA[text] if text in SPECTRA else tuple(numbers(text, float, refusal))


def _depths(text: str) -> tuple[int, ...]:
    refusal = f"--depths is {text!r}: pass whole numbers separated by commas, such as 1,2,4."
    return tuple(sorted({checks.count("depth", one) for one in numbers(text, int, refusal)}))


def _kinds(text: str | None, model: Method) -> tuple[tuple[str, ...], ...]:
    known = kinds_of(model)
    parameters(model)  # refuses one with nothing to train
    if text is None:
        return (known,)
    stages = tuple(tuple(part.strip() for part in stage.split(",")) for stage in text.split(";"))
    for stage in stages:
        for kind in stage:
            checks.known("parameter kind", kind, known)
    return stages


def _optimiser(name: str | None, adam: dict[str, Any], view: str) -> LeastSquares | Adam | None:
    """What was asked for; None for the default. Options of Adam that are not given are those of the view."""
    given = {key: value for key, value in adam.items() if value is not None}
    if name is not None:
        checks.known("optimiser", name, OPTIMISERS)
    trains = "adam" if name is None and view in FROM_RANDOM else name
    if given and trains != "adam":
        names = ", ".join(f"--{key.replace('_', '-')}" for key in given)
        raise InputError(
            f"{names}: only Adam has such options. Add --optimiser adam, or leave out what is Adam's."
        )
    if trains is None:
        return None
    if trains == "least-squares":
        return LeastSquares()
    for whole in ("steps", "batch", "resample"):
        if whole in given:
            checks.count(whole, given[whole])
    if "learning_rate" in given:
        checks.positive("learning_rate", given["learning_rate"])
    usual = FROM_RANDOM.get(view, Adam())
    own = {"warmup": min(usual.warmup, given.get("steps", usual.steps) // 20)}
    return replace(usual, **(own | given))
