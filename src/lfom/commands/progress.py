"""How long it will take, how far it is: estimates before the work, and bars during it.

Bars are drawn on stderr by a thread of their own, so the clock goes on while a compiled program
runs. Where stderr is not a terminal there is a plain line every few seconds.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from lfom.commands.telling import PlainLines
from lfom.core import room
from lfom.core.estimates import Cost, duration, fits
from lfom.training.adam import Adam, batches_at_once
from lfom.training.fitting import trained_view
from lfom.training.krylov import has_krylov_view
from lfom.training.state import Phase, State

# Measured on two cores of a server CPU; another machine differs, hence "an estimate".
COMPILE = 3.0  # seconds per phase
COMPILE_LAYER = {True: 0.3, False: 1.0}  # seconds more per layer, in the Krylov view and without
SCORE = 3.0  # seconds to compile the scores at the end
SCORE_PROMPT = 1e-6  # seconds for a method's score of a prompt
LEAST_TO_SCORE = 1e4  # operations for it, at the least
DRAW = 2.5e-8  # seconds to draw a prompt, times d^2
RATE = 8e9  # operations per second in loops over prompts
MATRIX_RATE = 25e9  # and in large matrix products
COVARIATES = 12.0  # a layer of GD++ costs this many others
ATTENTION = {"joint": 26.0, "tokens": 270.0}  # and of attention in these views (tokens: 20 of them)
BASE = 450e6  # bytes: Python, JAX and its compiler
BASE_LAYER = 30e6  # bytes more per layer
LIKELY = 8  # passes at the beginning: 5 to 10 were seen


@dataclass(frozen=True)
class Stage:
    """Passes over equally many prompts. likely, most: how many passes there will be."""

    phase: int
    level: int
    likely: int
    most: int
    seconds: float  # of one pass, estimated
    compiling: float  # seconds to compile its phase

    @property
    def place(self) -> tuple[int, int]:
        return self.phase, self.level


def stages(phases: list[Phase], d: int, depths: tuple[int, ...], runs: int) -> list[Stage]:
    """The passes that a fit will make."""
    found, models, depth = [], runs * len(depths), max(depths)
    for index, phase in enumerate(phases):
        options, p, model = phase.optimiser, phase.parameters.size, phase.parameters.template
        plain = COVARIATES if model.moves_covariates else 1.0
        forward = 4.0 * d * d * depth * ATTENTION.get(trained_view(model), plain)  # per prompt
        fast = has_krylov_view(model) and not isinstance(options, Adam)
        compiling = COMPILE + COMPILE_LAYER[fast] * depth
        if isinstance(options, Adam):
            together = batches_at_once(options) * options.resample
            blocks = -(-options.steps // together)
            seconds = models * together * options.batch * (3 * forward / (2 * RATE) + DRAW * d * d)
            found.append(Stage(index, 0, blocks, blocks, seconds, compiling))
        elif options is not None:
            # J^T J, J itself (a reverse pass per residual), and a forward pass per candidate
            columns = d * d + depth if fast else p
            products = 2.0 * d * columns**2 / MATRIX_RATE
            rest = (d * forward / MATRIX_RATE if fast else 3 * d * forward / RATE) + 6 * forward / RATE
            per_prompt = DRAW * d * d + products + rest
            first, last = options.levels(fast, depth, d)
            levels = [(last, options.passes[1])]
            if not phase.careful:
                levels.insert(0, (first, options.passes[0]))
            for level, (prompts, most) in enumerate(levels):
                seconds = models * prompts * per_prompt
                found.append(Stage(index, level, min(most, LIKELY), most, seconds, compiling))
    return found


def compile_seconds(found: list[Stage], after: int = -1) -> float:
    """Seconds to compile the phases that come after this one."""
    return sum({stage.phase: stage.compiling for stage in found if stage.phase > after}.values())


def estimate(phases: list[Phase], d: int, depths: tuple[int, ...], runs: int, prompts: int) -> Cost:
    """What a fit and its scores will take, by the likely number of passes."""
    found = stages(phases, d, depths, runs)
    likely = sum(stage.seconds * stage.likely for stage in found)
    scoring = SCORE + SCORE_PROMPT * runs * prompts * methods_scored(depths)
    return Cost(compile_seconds(found) + likely + scoring, memory_of(phases, d, depths, runs))


def methods_scored(depths: tuple[int, ...]) -> int:
    """The models, a reference for each, and conjugate gradients."""
    return 2 * len(depths) + 1


def described(phases: list[Phase], depths: tuple[int, ...], runs: int) -> str:
    """What is trained."""
    models, size = runs * len(depths), phases[-1].parameters.size
    return f"Training {models} model{'s' * (models > 1)} (runs x depths), up to {size:,} numbers each"


def memory_of(phases: list[Phase], d: int, depths: tuple[int, ...], runs: int) -> float:
    """Bytes that a fit needs, by estimate: programs, and the arrays of the largest phase."""
    models, depth = runs * len(depths), max(depths)

    def arrays(phase: Phase) -> float:
        options, p = phase.optimiser, phase.parameters.size
        if isinstance(options, Adam):  # prompts, and what the steps of one batch leave for their gradient
            drawn = 4.0 * runs * batches_at_once(options) * options.batch * d * (d + 2)
            return drawn + 4.0 * models * options.batch * (d * d + 4 * d * depth)
        if options is None:
            return 0.0
        columns = d * d + depth if has_krylov_view(phase.parameters.template) else p
        return 12.0 * options.chunk * d * columns + 24.0 * models * columns**2

    return BASE + BASE_LAYER * depth + max(map(arrays, phases))


def check_affordable(
    phases_of: Callable[[tuple[int, ...]], list[Phase]], d: int, depths: tuple[int, ...], runs: int
) -> None:
    """Refuse a training that would take more memory than there is, or days, ten times over to be sure. phases_of: of
    models of given depths."""
    phases, deepest = phases_of(depths), max(depths)
    said = f"depth {deepest} with up to {max(phase.parameters.size for phase in phases):,} numbers"

    def of_depth(depth: int) -> float:
        return memory_of(phases if depth == deepest else phases_of((depth,)), d, (depth,), 1)

    def of_runs(count: int) -> float:
        return memory_of(phases, d, depths, count)

    fits(f"--depths is {deepest}", deepest, of_depth, "The largest of --depths that fits is {}.")
    fits(f"--runs is {runs} of {said}", runs, of_runs, "The largest --runs that fits is {}.")
    seconds = sum(stage.seconds * stage.likely for stage in stages(phases, d, depths, runs)) / 10
    room.in_time(f"{runs} runs of {said}", seconds * room.RATE, "Pass fewer layers, runs or steps.")


class TimeLeft(ProgressColumn):
    """Counts down to the task's deadline."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        deadline = task.fields.get("deadline")
        if deadline is None:
            return Text("")
        left = max(int(deadline - time.monotonic()), 0)
        return Text(f"about {left // 60}:{left % 60:02d} left")


class Bar:
    """A bar on stderr that goes when the work is done; nothing where stderr is no terminal."""

    def __init__(self, console: Console, text: str):
        self._bar = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True, max_width=18)),
            BarColumn(bar_width=8),
            TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True)),
            TimeLeft(table_column=Column(no_wrap=True)),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(text, total=1.0, text="")
        self._begun, self._name_now = time.monotonic(), text
        self._lines = None if console.is_terminal else PlainLines(text, steps=False)

    def show(self, text: str, *, name: str | None = None, left: float | None = None) -> None:
        now = time.monotonic()
        done = 0.0 if left is None else (now - self._begun) / max(now - self._begun + left, 1e-9)
        deadline = None if left is None else now + left
        self._name_now = self._name_now if name is None else name
        if self._lines is not None:
            rest = "" if left is None else f", about {duration(left)} left"
            self._lines(f"{self._name_now}: {text}{rest}" if text else f"{self._name_now}{rest}")
        self._bar.update(self._task, description=name, completed=done, text=text, deadline=deadline)

    def __enter__(self) -> Any:
        self._bar.start()
        if self._lines is not None:
            self._lines.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        if self._lines is not None:
            self._lines.__exit__(*details)
        self._bar.stop()


class PartProgress(Bar):
    """Progress of work that says which part of it is done: `lfom.evaluate` and `lfom.learn`."""

    def __call__(self, done: float, text: str) -> None:
        elapsed = max(time.monotonic() - self._begun, 0.1)
        self.show(text, left=elapsed * (1 - done) / done if done else None)


class TrainingProgress(Bar):
    """Progress of `lfom.fit`: after every pass the last depth's loss, its distance to the optimum
    where that is known, and the time left."""

    def __init__(
        self,
        console: Console,
        phases: list[Phase],
        found: list[Stage],
        depths: tuple[int, ...],
        optimum: float | None,
        state: State | None = None,
    ):
        super().__init__(console, "compiling")
        self._stages, self._depths, self._optimum = found, depths, optimum
        self._slower = 1.0  # than estimated: known after the first pass that compiled nothing
        self._last = (time.monotonic(), (-1, -1))
        self._state, self._text = State(0, 0, 0, np.zeros(0)) if state is None else state, ""
        self._name = phases[self._state.phase].name

    def tick(self, part: float) -> None:
        """Inside a pass: the part of it that is done."""
        left = self._left(self._state) - part * self._estimated(_place(self._state)) * self._slower
        self.show(self._text, name=self._name, left=max(left, 0.0))

    def __call__(self, state: State, record: dict[str, Any]) -> None:
        now, place = time.monotonic(), (state.phase, int(record["level"]))
        before, place_before = self._last
        if place_before == place:
            self._slower = (now - before) / max(self._estimated(place), 1e-9)
        self._last = (now, place)
        loss = float(np.mean([run[-1] for run in record["log_loss"]]))
        text = f"depth {self._depths[-1]}: {loss:.3f}"
        if self._optimum is not None:
            text += f", optimum {loss - self._optimum:+.3f}"
        self._state, self._text, self._name = state, text, record["phase"]
        self.show(text, name=record["phase"], left=self._left(state))

    def _left(self, state: State) -> float:
        total, here = 0.0, _place(state)
        made = sum((record["number"], record["level"]) == here for record in state.history)
        for stage in self._stages:
            if stage.place >= here:
                done = made if stage.place == here else 0
                passes = max((stage.likely if done < stage.likely else stage.most) - done, 0)
                total += passes * stage.seconds * self._slower
        return total + compile_seconds(self._stages, after=state.phase)

    def _estimated(self, place: tuple[int, int]) -> float:
        """Seconds of one pass there."""
        return next((stage.seconds for stage in self._stages if stage.place == place), 0.0)


def _place(state: State) -> tuple[int, int]:
    return state.phase, int(state.level)
