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

from lfom.commands.evaluate import print_scores, reference_name, score_rows
from lfom.commands.options import option, print_json
from lfom.commands.problem_files import check_out
from lfom.commands.progress import EvaluationProgress, TrainingProgress, estimate, stages
from lfom.core import checks
from lfom.core.checks import InputError
from lfom.core.files import remove_partial
from lfom.limits.optimum import exact_optimum
from lfom.methods.memformer import GAMMAS, MEMORIES, PRECONDITIONERS
from lfom.prompts.distributions import PUBLISHED_SPECTRUM, TEXT_SPECTRUM
from lfom.training.adam import Adam
from lfom.training.checkpoints import LICENCE, Checkpoint, load, save, versions
from lfom.training.configuration import OPTIMISERS, Configuration, seed_number
from lfom.training.fitting import default_optimiser, fit
from lfom.training.least_squares import LeastSquares
from lfom.training.parameters import KINDS
from lfom.training.state import Diverged, State

SPECTRA = {"published": PUBLISHED_SPECTRUM, "text": TEXT_SPECTRUM}
SCHEDULES = ("constant", "cosine")
WITH_RESUME = {"resume", "out", "force", "as_json", "prompts"}  # the rest is in the checkpoint
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def train_command(
    context: typer.Context,
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
        str | None, option("least-squares or adam. [default: by the number of parameters]", "Training")
    ] = None,
    steps: Annotated[int | None, option("Adam: steps. [default: 1000]", "Training")] = None,
    learning_rate: Annotated[float | None, option("Adam: rate. [default: 0.01]", "Training")] = None,
    batch: Annotated[int | None, option("Adam: prompts per step. [default: 1000]", "Training")] = None,
    schedule: Annotated[str | None, option("Adam: constant or cosine.", "Training")] = None,
    train: Annotated[
        str, option(f"What is trained: {', '.join(KINDS)}; in stages: 'A;coefficients'.", "Training")
    ] = ",".join(KINDS),
    seed: Annotated[int, option("Seed of every random number.", "Training")] = 0,
    prompts: Annotated[int, option("Fresh prompts per run to score on.", "Output")] = 50_000,
    out: Annotated[Path | None, option("[default: model.safetensors]", "Output")] = None,
    resume: Annotated[Path | None, option("Go on with this checkpoint.", "Output")] = None,
    force: Annotated[bool, option("Replace an existing --out.", "Output", "--force")] = False,
    licence: Annotated[str, option("Licence of the checkpoint, as an SPDX name.", "Output")] = LICENCE,
    as_json: Annotated[bool, option("Print JSON instead of a table.", "Output", "--json")] = False,
) -> None:
    """Train a model; a checkpoint is kept after every pass, and Ctrl-C loses nothing."""
    given = {name for name in context.params if _given(context, name)}
    if resume is not None:
        checkpoint = _resumed(resume, given, prompts)
        path = resume if out is None else out
        if path.resolve() != resume.resolve():
            _writable(path, force)
    else:
        kinds = _kinds(train)
        eigenvalues = _spectrum(spectrum)
        configuration = Configuration(
            model={
                "d": len(eigenvalues),
                "memory": checks.known("memory", memory, MEMORIES),
                "preconditioner": checks.known("preconditioner", preconditioner, PRECONDITIONERS),
                "covariates": covariates,
                "gamma": checks.known("gamma", gamma, GAMMAS),
                "tied": tied,
                "own_is_one": own_is_one,
                "heads": checks.count("heads", heads),
                "context": checks.count("context", examples),
            },
            data={
                "spectrum": eigenvalues,
                "context": examples,
                "runs": checks.count("runs", runs),
                "noise": noise,
                "variance": variance,
            },
            depths=_depths(depths),
            train=kinds,
            optimiser=LeastSquares(),
            seed=seed_number(seed),
            prompts=checks.count("prompts", prompts),
        )
        adam = {"steps": steps, "learning_rate": learning_rate, "batch": batch, "schedule": schedule}
        configuration = replace(configuration, optimiser=_optimiser(optimiser, adam, configuration))
        nothing = State(0, 0, 0, np.zeros((0, 0, 0), np.float32))
        checkpoint = Checkpoint(configuration, nothing, configuration.rotations(), licence=licence)
        path = Path("model.safetensors") if out is None else out
        _writable(path, force)
    job = Job(checkpoint, path, as_json, Console(stderr=True))
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
    as_json: bool
    console: Console
    saved: bool = False
    interrupts: Interrupts = field(default_factory=Interrupts)

    def run(self) -> int:
        self.saved = bool(self.checkpoint.state.history)
        remove_partial(self.path)
        with self.interrupts:
            try:
                if not self.checkpoint.finished:
                    self._train()
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
            self._say(f"Saved in {self.path} (licence {self.checkpoint.licence}).")
        return 0

    def _train(self) -> None:
        configuration = self.checkpoint.configuration
        data = configuration.distributions(self.checkpoint.rotations)
        phases = configuration.phases(data)
        d, depths, runs = configuration.model["d"], configuration.depths, configuration.data["runs"]
        self._say(estimate(phases, d, depths, runs))
        found = stages(phases, d, depths, runs)
        resume = self.checkpoint.state if self.checkpoint.state.history else None
        with TrainingProgress(
            self.console, phases, found, depths, known_optimum(configuration), resume
        ) as bar:

            def watch(state: State, record: dict[str, Any]) -> None:
                _finite(state)
                self._keep(replace(self.checkpoint, state=state))
                bar(state, record)

            trained = fit(
                configuration.template(),
                data,
                key=configuration.key("training"),
                depths=depths,
                train=configuration.train,
                optimiser=configuration.optimiser,
                watch=watch,
                tick=bar.tick,
                resume=resume,
            )
        last = self.checkpoint.state
        state = State(len(phases) - 1, last.level, last.step, trained.vectors, {}, trained.history)
        self.checkpoint = replace(self.checkpoint, state=state)

    def _score(self) -> None:
        """The scores of the finished models; until they are there, the file stays as the last pass
        left it, so that a fit stopped here is resumed here."""
        with EvaluationProgress(self.console) as bar:
            rows = score_rows(self.checkpoint, self.checkpoint.configuration.prompts, bar)
        self._keep(replace(self.checkpoint, finished=True, metrics=tuple(rows)))

    def _keep(self, checkpoint: Checkpoint) -> None:
        with self.interrupts.held():  # so that what is said about the file is true of it
            save(self.path, checkpoint)
            self.checkpoint, self.saved = checkpoint, True

    def _interrupted(self) -> int:
        if not self.saved:
            self._say(
                "Interrupted before the first pass was done: nothing was written. Start again as before."
            )
            return INTERRUPTED
        self._say(f"Interrupted. {self._where()} Go on with:")
        again = [*_program(), "train", "--resume", str(self.path), *(["--json"] * self.as_json)]
        self._say(f"  {shlex.join(again)}")
        return INTERRUPTED

    def _diverged(self, error: FloatingPointError) -> int:
        self._say(f"lfom: {error}", style="red")
        self._say(self._where() if self.saved else "No pass was good: nothing was written.")
        return 1

    def _where(self) -> str:
        passes = len(self.checkpoint.state.history)
        return f"{self.path} holds the last good state, after {passes} pass{'es' * (passes > 1)}."

    def _say(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def known_optimum(configuration: Configuration) -> float | None:
    """The exact optimum's log loss at the largest depth, where no model of this kind gets below it."""
    model = configuration.model
    if model["covariates"] or reference_name(configuration) != "exact optimum":
        return None
    return exact_optimum(model["d"], configuration.data["context"], configuration.depths[-1]).log_loss


def _resumed(path: Path, given: set[str], prompts: int) -> Checkpoint:
    fixed = sorted(given - WITH_RESUME)
    if fixed:
        names = ", ".join("--" + {"examples": "context"}.get(n, n).replace("_", "-") for n in fixed)
        raise InputError(
            f"{names} cannot be combined with --resume: the checkpoint says how it is trained. Leave them "
            "out, or start a new training without --resume."
        )
    checkpoint = load(path)
    if "prompts" in given:
        configuration = replace(checkpoint.configuration, prompts=checks.count("prompts", prompts))
        checkpoint = replace(checkpoint, configuration=configuration)
    now = versions()
    changed = [f"{n} {v} (now {now[n]})" for n, v in checkpoint.versions.items() if v != now.get(n)]
    if changed and not checkpoint.finished:
        Console(stderr=True).print(
            f"{path} was written with {', '.join(changed)}: the result may differ in the last digits from an "
            "uninterrupted training.",
            highlight=False,
            soft_wrap=True,
        )
    return checkpoint


def _finite(state: State) -> None:
    """A loss can be finite before the step that makes the parameters infinite."""
    bad = np.argwhere(~np.isfinite(state.vectors))
    if len(bad):
        raise Diverged(
            f"a parameter of run {bad[0][0]} is not finite after pass {state.step}. Lower the learning rate, "
            "or check the prompts for values that are too large."
        )


def _writable(path: Path, force: bool) -> None:
    check_out(path, force, "model.safetensors", f"--resume {path} to go on with it, ")


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _program() -> list[str]:
    """How this program was started, so that the command to resume can be pasted."""
    started = Path(sys.argv[0])
    return ["lfom"] if started.stem == "lfom" else [sys.executable, "-m", "lfom"]


def _spectrum(text: str) -> tuple[float, ...]:
    if text in SPECTRA:
        return SPECTRA[text]
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--spectrum is {text!r}: pass published, text, or numbers separated by commas, such as "
            "1,0.5,0.25."
        ) from None


def _depths(text: str) -> tuple[int, ...]:
    try:
        found = {checks.count("depth", int(part)) for part in text.split(",")}
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"--depths is {text!r}: pass whole numbers separated by commas, such as 1,2,4."
        ) from None
    return tuple(sorted(found))


def _kinds(text: str) -> tuple[tuple[str, ...], ...]:
    stages = tuple(tuple(part.strip() for part in stage.split(",")) for stage in text.split(";"))
    for stage in stages:
        for kind in stage:
            checks.known("parameter kind", kind, KINDS)
    return stages


def _optimiser(name: str | None, adam: dict[str, Any], configuration: Configuration) -> LeastSquares | Adam:
    given = {key: value for key, value in adam.items() if value is not None}
    if name is not None:
        checks.known("optimiser", name, OPTIMISERS)
    if given and name != "adam":
        names = ", ".join(f"--{key.replace('_', '-')}" for key in given)
        raise InputError(f"{names} belong to Adam: add --optimiser adam, or leave them out.")
    if name is None:
        return default_optimiser(configuration.template(), configuration.train[0])
    if name == "least-squares":
        return LeastSquares()
    for whole in ("steps", "batch"):
        if whole in given:
            checks.count(whole, given[whole])
    if "learning_rate" in given:
        checks.positive("learning_rate", given["learning_rate"])
    if "schedule" in given:
        checks.known("schedule", given["schedule"], SCHEDULES)
    return Adam(**given)
