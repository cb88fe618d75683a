"""lfom evaluate: the models of a checkpoint on fresh prompts, beside CGD and the optimum."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from lfom.commands.hosts import Coordinator, Devices, Hosts, Process, Processes, placed, same_file
from lfom.commands.options import AsJson, With, numbers, print_json, types_of
from lfom.commands.problem_files import load_checkpoint
from lfom.commands.progress import PartProgress
from lfom.core.arrays import as_array
from lfom.core.checks import InputError, count
from lfom.core.parameters import leaves
from lfom.core.runs import PerRun
from lfom.limits.optimum import IN_SINGLE, Optimum, exact_optimum, sampled_optima, with_preconditioner
from lfom.methods.classical import conjugate_gradient
from lfom.prompts.distributions import LinearRegression
from lfom.training.checkpoints import Checkpoint, seed_number
from lfom.training.evaluation import Progress, evaluate
from lfom.training.scores import Score

NAMES = {"exact optimum": "optimum", "sampled optimum": "optimum", "preconditioned CGD": "PCGD"}  # in tables


def evaluate_command(
    file: Annotated[Path, typer.Argument(help="A checkpoint that `lfom train` wrote.")],
    prompts: Annotated[
        int | None, typer.Option(help="Fresh prompts per run. [default: 200,000; with --contexts 10,000]")
    ] = None,
    contexts: Annotated[
        str | None, typer.Option(help="Score after each number of examples: 1:40, or 1,5,20.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the prompts. [default: that of the file]")] = None,
    with_: With = None,
    as_json: AsJson = False,
    devices: Devices = None,
    hosts: Hosts = False,
    coordinator: Coordinator = None,
    processes: Processes = None,
    process: Process = None,
) -> None:
    """Score a checkpoint on fresh prompts, beside CGD and the optimum on the same ones."""
    placed(devices, hosts, coordinator, processes, process)
    checkpoint, _ = load_checkpoint(same_file(file), types_of(with_))
    if seed is not None:
        checkpoint = replace(checkpoint, seed=seed_number(seed))
    usual = 200_000 if contexts is None else 10_000
    prompts = count("prompts", usual if prompts is None else prompts)
    lengths = None if contexts is None else numbers_of(contexts)
    console = Console(stderr=True)
    if not checkpoint.finished:
        console.print(f"{file} is unfinished: its models are scored as they stand.", soft_wrap=True)
    try:
        with PartProgress(console, "scoring on fresh prompts") as bar:
            if lengths is None:
                rows = score_rows(checkpoint, prompts, bar)
            else:
                rows = prefix_rows(checkpoint, prompts, lengths, bar)
    except FloatingPointError as error:
        console.print(f"lfom: {error}", style="red", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    if as_json:
        print_json(rows)
    elif lengths is None:
        print_scores(rows)
    else:
        print_prefixes(rows)


def score_rows(
    checkpoint: Checkpoint, prompts: int, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """One row per depth: the trained model, CGD and the reference on the same prompts."""
    data, fit = checkpoint.data, checkpoint.fit
    name = reference_name(checkpoint)
    methods: dict[str, Any] = {"CGD": conjugate_gradient(max(fit.depths))}
    methods |= {f"model {depth}": fit.per_run(depth) for depth in fit.depths}
    if name is not None:
        best = references(name, checkpoint)
        methods |= {f"reference {depth}": method for depth, method in best.items()}
    scores = evaluate(methods, data, prompts=prompts, key=checkpoint.key("evaluation"), progress=progress)
    return [_row(depth, scores, name) for depth in fit.depths]


def numbers_of(text: str) -> Sequence[int]:
    """1:40, or 1,5,20, as numbers of examples."""
    refusal = (
        f"--contexts is {text!r}: pass the first and the last number of examples (1:40), or a list (1,5,20)."
    )
    found = numbers(text.replace(":", ","), int, refusal)
    if ":" in text and len(found) != 2:
        raise InputError(refusal)
    return range(found[0], found[1] + 1) if ":" in text else found


def prefix_rows(
    checkpoint: Checkpoint, prompts: int, contexts: Sequence[int], progress: Progress | None = None
) -> list[dict[str, Any]]:
    """One row per number of examples and method: each trained depth, CGD of the deepest, ridge, the Bayes predictor."""
    fit = checkpoint.fit
    methods: dict[str, Any] = {f"model {depth}": fit.per_run(depth) for depth in fit.depths}
    methods["CGD"] = conjugate_gradient(max(fit.depths))
    asked: dict[str, Any] = {"contexts": contexts, "prompts": prompts, "progress": progress}
    scores = evaluate(methods, checkpoint.data, key=checkpoint.key("evaluation"), **asked)
    return [
        {
            "examples": k,
            "method": name,
            "prompts": score.prompts,
            "mean": float(score.mean[:, at].mean()),
            "low": score.low[:, at].tolist(),
            "high": score.high[:, at].tolist(),
            "runs": score.mean[:, at].tolist(),
            "predicting_0": float(score.zero.mean()),
        }
        for name, score in scores.items()
        for at, k in enumerate(score.contexts)
    ]


def print_prefixes(rows: list[dict[str, Any]]) -> None:
    """Numbers of examples down, methods across."""
    names = list(dict.fromkeys(row["method"] for row in rows))
    table = _table(["examples", *names])
    means = {(row["examples"], row["method"]): row["mean"] for row in rows}
    for k in dict.fromkeys(row["examples"] for row in rows):
        table.add_row(str(k), *(f"{means[k, name]:.3g}" for name in names))
    console, runs = Console(), len(rows[0]["runs"])
    console.print(table)
    legend = (
        f"Mean squared error after so many examples, {rows[0]['prompts']:,} fresh prompts per run, mean of {runs} "
        f"run{'s' * (runs > 1)}; predicting 0: {rows[0]['predicting_0']:.3g}. --json has 5 and 95 % points."
    )
    console.print(legend, style="dim", highlight=False)


def reference_name(checkpoint: Checkpoint) -> str | None:
    """What the models are compared with: the best that shared scalar coefficients can do (without
    B), or conjugate gradients with the inverse covariance. None where it is not known: with
    label noise the best preconditioner is not the inverse covariance, and of many layers it cannot be run in float32."""
    model, data = checkpoint.model, checkpoint.data[0]
    exact = isinstance(data, LinearRegression) and data.has_one_matrix and float(data.noise) == 0
    if model.is_conjugate:
        return "preconditioned CGD" if exact else None
    if not any(leaf.inside for leaf in leaves(model) if leaf.kind not in ("coefficients", "gates")):
        return "sampled optimum"  # no matrices: multiples of the identity
    return "exact optimum" if exact and max(checkpoint.depths) <= IN_SINGLE else None


def references(name: str, checkpoint: Checkpoint) -> Mapping[int, Optimum | PerRun]:
    """The method of this name for each depth."""
    data, depths = checkpoint.data, checkpoint.depths
    if name == "sampled optimum":  # A = a I: the same for every rotation
        return sampled_optima(data[0], depths, checkpoint.key("optimum"), prompts=400_000)
    inverses = np.linalg.inv(np.stack([np.asarray(one.covariance, np.float64) for one in data.each()]))
    inverses = (inverses + np.swapaxes(inverses, -1, -2)) / 2

    def with_inverse(depth: int, inverse: np.ndarray) -> Any:
        if name == "preconditioned CGD":
            return conjugate_gradient(depth, inverse)
        optimum = exact_optimum(data.stacked.dimension, data.stacked.context, depth)
        return with_preconditioner(optimum, as_array(inverse))

    return {depth: PerRun([with_inverse(depth, inverse) for inverse in inverses]) for depth in depths}


def _row(depth: int, scores: dict[str, Score], name: str | None) -> dict[str, Any]:
    score, cgd = scores[f"model {depth}"], scores["CGD"]
    cgd = replace(cgd, mean=cgd.mean[:, : depth + 1], stderr=cgd.stderr[:, : depth + 1])
    other = None if name is None else scores[f"reference {depth}"]
    difference, stderr = (None, None) if other is None else score.minus(other)
    row = {
        "depth": depth,
        "prompts": score.prompts,
        "log_loss": score.log_loss,
        "stderr": float(np.sqrt(np.sum(score.log_stderr[:, -1] ** 2)) / len(score.mean)),
        "spread": score.spread,
        "log_median": score.log_median,
        "worst_share": score.worst_share,
        "runs": score.log_mean[:, -1].tolist(),
        "trajectory": score.log_mean.mean(axis=0).tolist(),
        "CGD": cgd.log_loss,
        "CGD_trajectory": cgd.log_mean.mean(axis=0).tolist(),
        "reference": name,
        "reference_log_loss": None if other is None else other.log_loss,
        "difference": difference,
        "difference_stderr": stderr,
    }
    values = [value for value in row.values() if isinstance(value, float)]
    if not np.isfinite(values).all():
        raise FloatingPointError(
            f"the scores at depth {depth} are too large to be counted (log loss {score.log_loss:.3g}): the "
            "models diverge on these prompts. Train again with a lower learning rate."
        )
    return row


def print_scores(rows: list[dict[str, Any]], *, brief: bool = False) -> None:
    """The rows as a table that fits in 80 columns; brief leaves out tails and CGD."""
    name = rows[0]["reference"]
    names = ["depth", "log loss", "spread"] + ([] if brief else ["median", "worst", "CGD"])
    table = _table(names + ([NAMES[name], "difference"] if name else []))
    for row in rows:
        cells = [str(row["depth"]), with_error(row["log_loss"], row["stderr"]), f"{row['spread']:.3f}"]
        if not brief:
            cells += [f"{row['log_median']:.2f}", f"{100 * row['worst_share']:.1f}%", f"{row['CGD']:.2f}"]
        if name:
            difference = with_error(row["difference"], row["difference_stderr"], "+")
            cells += [f"{row['reference_log_loss']:.3f}", difference]
        table.add_row(*cells)
    console = Console()
    console.print(table)
    console.print(_legend(rows, brief), style="dim", highlight=False)


def _table(headings: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def with_error(value: float, error: float, sign: str = "") -> str:
    return f"{value:{sign}.3f} ±{error:.3f}"


def _legend(rows: list[dict[str, Any]], brief: bool) -> str:
    runs, name = len(rows[0]["runs"]), rows[0]["reference"]
    parts = [f"{rows[0]['prompts']:,} fresh prompts per run, mean of {runs} run{'s' * (runs > 1)}."]
    if runs > 1:
        parts.append("spread: standard deviation over runs.")
    if not brief:
        parts.append("worst: share of the loss in the worst 0.01 % of prompts.")
    if name is None:
        parts.append(
            f"The optimum is not shown: with label noise, or beyond {IN_SINGLE} layers, it cannot be run."
        )
    else:
        parts.append(f"difference: to the {name} on the same prompts, paired.")
    return " ".join(parts)
