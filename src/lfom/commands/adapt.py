"""lfom adapt: trained experts fitted to prompts of a shifted distribution, or to yours."""

import math
from pathlib import Path
from typing import Annotated, Any

import equinox as eqx
import jax
import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table

from lfom.adaptation import SETTINGS, Adaptation, adapt
from lfom.commands.hosts import Devices, use_devices
from lfom.commands.options import With, option, print_json, types_of
from lfom.commands.problem_files import model_of
from lfom.commands.telling import telling
from lfom.core import checks
from lfom.core.checks import InputError
from lfom.core.methods import GATINGS, Algorithm, Mixture
from lfom.files import load
from lfom.methods.classical import conjugate_gradient
from lfom.methods.memformer import KINDS, mixture
from lfom.prompts.distributions import Distribution, LinearRegression
from lfom.prompts.prompt import Prompt, prompt_from_arrays
from lfom.prompts.run import run
from lfom.prompts.shifts import HeavyTailed, turn
from lfom.solving.npz import load_arrays
from lfom.training.checkpoints import Checkpoint, seed_number

PANELS = ("Adaptation", "Prompts", "Output")


def adapt_command(
    files: Annotated[list[Path], typer.Argument(help="Checkpoints of `lfom train`, one per expert.")],
    setting: Annotated[str, option(", ".join(SETTINGS), PANELS[0])] = "label-free",
    train: Annotated[str, option(f"What is fitted: gates, {', '.join(KINDS)}.", PANELS[0])] = "gates",
    gating: Annotated[str, option(", ".join(GATINGS), PANELS[0])] = "free",
    per_layer: Annotated[bool, option("Gates per head and layer.", PANELS[0], "--per-layer")] = False,
    folds: Annotated[int | None, option("Parts of the context held out in turn.", PANELS[0])] = None,
    steps: Annotated[int | None, option("Budget: least-squares steps.", PANELS[0])] = None,
    seconds: Annotated[float | None, option("Budget: seconds.", PANELS[0])] = None,
    depth: Annotated[int | None, option("Layers. [default: the most]", PANELS[0])] = None,
    data: Annotated[Path | None, option("Your prompts: .npz with X, y, query, target.", PANELS[1])] = None,
    prompts: Annotated[int, option("Prompts to adapt to.", PANELS[1])] = 1_000,
    variance: Annotated[float | None, option("Shift: scale of the covariance.", PANELS[1])] = None,
    noise: Annotated[float | None, option("Shift: noise of the labels.", PANELS[1])] = None,
    examples: Annotated[int | None, option("Shift: examples (n).", PANELS[1], "--context")] = None,
    angle: Annotated[float | None, option("Shift: rotate the covariance (radians).", PANELS[1])] = None,
    degrees: Annotated[int | None, option("Shift: Student's t covariates.", PANELS[1])] = None,
    seed: Annotated[int, option("Seed of the prompts.", PANELS[1])] = 0,
    with_: With = None,
    fresh: Annotated[int, option("Fresh prompts to score on.", PANELS[2])] = 20_000,
    as_json: Annotated[bool, option("Print JSON instead of a table.", PANELS[2], "--json")] = False,
    devices: Devices = None,
) -> None:
    """Fit gates, or other parameters, of trained experts to new prompts; scored on other ones."""
    checks.known("setting", setting, SETTINGS)
    use_devices(devices)
    kinds = tuple(part.strip() for part in train.split(","))
    types = types_of(with_)
    experts = [load(file, types=types) for file in files]
    heads: Any = [model_of(file, one, depth) for file, one in zip(files, experts, strict=True)]
    # One checkpoint is a model without gates; several are experts with gates.
    model = heads[0] if len(heads) == 1 else mixture(heads, per_layer=per_layer, gating=gating)
    keys = jax.random.split(jax.random.key(seed_number(seed)), 3)
    shift = {"variance": variance, "noise": noise, "context": examples, "angle": angle, "degrees": degrees}
    source: Distribution | None = None
    if data is None:
        source = _shifted(files[0], experts[0], shift, keys[0])
        adapting = _draw(source, keys[1], checks.count("prompts", prompts))
    else:
        given = ", ".join(f"--{name}" for name, value in shift.items() if value is not None)
        if given:
            raise InputError(f"{given} shift the prompts that are drawn: leave them out with --data.")
        adapting = read_prompts(data)
    with telling("adapting") as say:
        found = adapt(
            model, adapting, setting=setting, train=kinds, folds=folds, steps=steps, seconds=seconds,
            watch=lambda step, spent: say(f"adapting: step {step}, {spent:.1f} s"),
        )  # fmt: skip
        say("scoring on fresh prompts")
        scores = [] if source is None else _scores(model, found, source, keys[2], fresh)
    result = _facts(found, scores)
    if as_json:
        print_json(result)
    else:
        _print(result)
    raise typer.Exit(0 if (found.kept > 0).any() else 1)


def _shifted(file: Path, expert: Any, shift: dict[str, Any], key: jax.Array) -> Distribution:
    """The distribution that the first expert was trained on, with what the options change."""
    base = expert.data[0] if isinstance(expert, Checkpoint) else None
    if not isinstance(base, LinearRegression):
        raise InputError(f"{file} does not say which prompts it was trained on: pass yours with --data.")
    names = ("spectrum", "context", "rotation", "variance", "noise", "weights", "weight_variance")
    options = {name: getattr(base, name) for name in names}
    options |= {name: shift[name] for name in ("variance", "noise", "context") if shift[name] is not None}
    if shift["angle"] is not None:
        turned = turn(key, base.dimension, float(shift["angle"]))
        options["rotation"] = turned if base.rotation is None else base.rotation @ turned
    shifted = LinearRegression(**options)
    return shifted if shift["degrees"] is None else HeavyTailed(shifted, shift["degrees"])


@eqx.filter_jit
def _draw(source: Distribution, key: jax.Array, count: int) -> Prompt:
    return source.prompts(key, count)


def read_prompts(path: Path) -> Prompt:
    """Prompts from an .npz file; nothing in it can run code."""
    names = ("X", "y", "query", "target")
    again = ": write it with numpy.savez(file, X=..., y=..., query=..., target=...)."
    arrays = load_arrays(path, "Check the path.", again)
    missing = [name for name in names if name not in arrays]
    if missing:
        raise InputError(
            f"{path} lacks {', '.join(missing)}: X (prompts, n, d), y (prompts, n), query (prompts, d) and "
            "target (prompts,) are needed (target may be zeros where no label is read)."
        )
    return prompt_from_arrays(*(arrays[name] for name in names))


def _scores(
    model: Algorithm, found: Adaptation, source: Distribution, key: jax.Array, count: int
) -> list[dict[str, Any]]:
    """On fresh prompts, one query each; per prompt, every one of them adapts by itself first."""
    new = _draw(source, key, checks.count("fresh", count))
    adapted = found.model
    if found.setting == "per prompt":
        adapted = adapt(model, new, setting="per prompt", steps=found.steps).model
    methods: dict[str, Algorithm] = {"unadapted": model, "adapted": adapted}
    if isinstance(model, Mixture):
        methods |= {f"expert {h + 1} alone": head for h, head in enumerate(model.heads)}
    methods["CGD"] = conjugate_gradient(model.depth)
    variance = float(np.mean(np.asarray(new.target, np.float64) ** 2))
    rows = []
    for name, method in methods.items():
        error = np.asarray(run(method, new).predictions[-1] - new.target, np.float64) ** 2 / variance
        mean = float(error.mean())
        if not math.isfinite(mean):
            raise InputError(f"{name} diverges on these prompts: train experts closer to them.")
        stderr = float(error.std() / math.sqrt(len(error)) / max(mean, 1e-300))
        loss = math.log(max(mean, 1e-26))
        rows.append({"model": name, "relative_log_loss": loss, "stderr": stderr, "prompts": count})
    return rows


def _facts(found: Adaptation, scores: list[dict[str, Any]]) -> dict[str, Any]:
    model = found.model
    shared = isinstance(model, Mixture) and not model.per_prompt
    error = {"before": float(found.before[0]), "after": float(found.after[0])}
    return {
        "setting": found.setting,
        "train": list(found.train),
        "prompts": found.prompts,
        "steps": found.steps,
        "seconds": round(found.seconds, 3),
        "context_error": None if math.isnan(error["after"]) else error,
        "kept": float(found.kept[0]),
        "note": found.note,
        "gates": np.asarray(model.gates, np.float64).tolist() if shared else None,
        "scores": scores,
    }


def _print(result: dict[str, Any]) -> None:
    console = Console()
    if result["scores"]:
        loss = Column("relative log loss", justify="right", no_wrap=True)
        table = Table("model", loss, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for row in result["scores"]:
            table.add_row(row["model"], f"{row['relative_log_loss']:.3f} ±{row['stderr']:.3f}")
        console.print(table)
        fresh = f"{result['scores'][0]['prompts']:,} fresh prompts"
        console.print(f"{fresh}; loss relative to the labels' variance.", style="dim")
    prompts = f"{result['prompts']:,} prompts"
    lines = [f"{result['steps']} steps on {prompts}, {result['seconds']:.1f} s with compilation."]
    if result["context_error"]:
        error = result["context_error"]
        lines.append(f"Held-out context error {error['before']:.4g} before, {error['after']:.4g} after.")
    if result["gates"] is not None:
        lines.append(f"Gates: {np.array2string(np.asarray(result['gates']), precision=3)}")
    lines.append(result["note"])
    console.print("\n".join(lines), highlight=False)
