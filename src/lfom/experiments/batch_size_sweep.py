"""Section 3.4 on fresh prompts: how many training prompts until shared parameters keep up with CGD."""

from lfom.experiments.fixed_batches import by_size, lower_in_all_runs
from lfom.experiments.rows import score_rows
from lfom.experiments.small_batches import LARGE, SMALL, memformers
from lfom.experiments.statistics import gap, near, verdict
from lfom.experiments.workbench import DEPTHS, Outcome, Workbench
from lfom.report.results import Claim, Row

TITLE = "Batch size sweep"
SECTION = "3.4 and 5"
SHOWS = (
    "The Memformer of depth 4, trained on 1, 10, 50, 100 or 1,000 prompts: with fewer of them its loss on "
    "these prompts falls and its loss on fresh prompts rises. CGD on the same prompts beside it."
)
TRAINED = (
    "Bank with scalar coefficients (own coefficient 1), full A in every layer: 103 parameters, fitted to "
    "the fixed set of each size. converged: least squares on the set itself, for 1 and 10 prompts 10,000 "
    "Adam steps. paper: 1,000 Adam steps, for 1 and 10 prompts only (the paper's small batches)."
)
X_LABEL = "training prompts"
X_SCALE = "log"
DEPTH = 4


def run(bench: Workbench) -> Outcome:
    rows: list[Row] = []
    claims = []
    for training in bench.trainings:
        parts = [memformers(bench, training, SMALL, DEPTHS)]
        if training == "converged":
            parts.append(memformers(bench, training, LARGE, (DEPTH,)))
        own, fresh, cgd, cgd_fresh = (
            by_size({at: score for part in parts for at, score in getattr(part, name).items()}, DEPTH)
            for name in ("training", "fresh", "cgd_training", "cgd_fresh")
        )
        sizes = list(own)
        rows += score_rows("Memformer", training, own, "training prompts")
        rows += score_rows("Memformer", training, fresh)
        if training == bench.trainings[-1]:
            rows += score_rows("CGD", "none", cgd, "training prompts") + score_rows("CGD", "none", cgd_fresh)
        beaten = [size for size in sizes if lower_in_all_runs(own[size], cgd[size])]
        kept_up = [size for size in sizes if near(fresh[size], cgd_fresh[size], 0)]
        differences = {size: gap(fresh[size], cgd_fresh[size]) for size in sizes}
        listed = "; ".join(f"B={size}: {m:+.3f} ± {e:.3f}" for size, (m, e) in differences.items())
        first = f"from B = {min(kept_up)} on" if kept_up else f"for no B up to {max(sizes)}"
        claims += [
            Claim(
                f"batch-sweep-training-prompts-{training}",
                f"Shared parameters trained on up to {max(sizes)} prompts ({training} training) beat CGD on these "
                "same prompts.",
                "3.4",
                "depth 4: loss on the training prompts below CGD's in every run, per size",
                verdict(*(size in beaten for size in sizes)),
                f"below CGD for B in {beaten}; log loss "
                + "; ".join(f"B={size}: {own[size].log_loss:.3f}" for size in sizes),
            ),
            Claim(
                f"batch-sweep-fresh-prompts-{training}",
                f"Trained on a small batch ({training} training), shared parameters also keep up with CGD on "
                "fresh prompts.",
                "3.4",
                "depth 4: log loss on the same fresh prompts not above CGD's by more than two standard "
                "errors, per size",
                verdict(*(size in kept_up for size in sizes)),
                f"keeps up with CGD {first}; difference {listed}",
            ),
        ]
    return Outcome(rows, claims, [*(f"Memformer|{training}" for training in bench.trainings), "CGD|none"])
