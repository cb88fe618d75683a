"""Section 3.4 on fresh prompts: how many training prompts until shared parameters keep up with CGD."""

from lfom.experiments.experiment import Experiment
from lfom.experiments.fixed_batches import LARGE, SMALL, both_rows, memformers
from lfom.experiments.statistics import Claims, compare, lower_in_all_runs, near
from lfom.experiments.workbench import DEPTHS, Outcome, Workbench, keys

DEPTH = 4


class BatchSizeSweep(Experiment):
    name = "batch_size_sweep"
    title = "Batch size sweep"
    section = "3.4 and 5"
    shows = (
        "The Memformer of depth 4, trained on 1, 10, 50, 100 or 1,000 prompts: with fewer of them its loss on "
        "these prompts falls and its loss on fresh prompts rises. CGD on the same prompts beside it."
    )
    trained = (
        "Bank with scalar coefficients (own coefficient 1), full A in every layer: 103 parameters, fitted to "
        "the fixed set of each size. converged: least squares on the set itself, for 1 and 10 prompts 10,000 "
        "Adam steps. paper: 1,000 Adam steps, for 1 and 10 prompts only (the paper's small batches)."
    )
    x_label = "training prompts"
    x_scale = "log"

    def run(self, bench: Workbench) -> Outcome:
        rows, claims = [], Claims("3.4")
        for training in bench.trainings:
            parts = memformers(bench, training, SMALL, DEPTHS).at_depth(DEPTH)
            if training == "converged":
                more = memformers(bench, training, LARGE, (DEPTH,)).at_depth(DEPTH)
                parts = [few | many for few, many in zip(parts, more, strict=True)]
            own, fresh, cgd, cgd_fresh, _ = parts
            rows += both_rows("Memformer", training, own, fresh)
            if training == list(bench.trainings)[-1]:
                rows += both_rows("CGD", "none", cgd, cgd_fresh)
            beaten = [size for size in own if lower_in_all_runs(own[size], cgd[size])]
            kept_up = [size for size in own if near(fresh[size], cgd_fresh[size], 0)]
            first = f"from B = {min(kept_up)} on" if kept_up else f"for no B up to {max(own)}"
            losses = "; ".join(f"B={size}: {score.log_loss:.3f}" for size, score in own.items())
            claims.test(
                f"batch-sweep-training-prompts-{training}",
                f"Shared parameters trained on up to {max(own)} prompts ({training} training) beat CGD on these same prompts.",
                "depth 4: loss on the training prompts below CGD's in every run, per size",
                (size in beaten for size in own),
                f"below CGD for B in {beaten}; log loss {losses}",
            )
            claims.test(
                f"batch-sweep-fresh-prompts-{training}",
                f"Trained on a small batch ({training} training), shared parameters also keep up with CGD on fresh prompts.",
                "depth 4: log loss on the same fresh prompts not above CGD's on average over runs, per size",
                (size in kept_up for size in own),
                f"keeps up with CGD {first}; difference {compare(fresh, cgd_fresh, 'B')}",
            )
        return Outcome(rows, claims, [*keys(bench.pairs("Memformer")), "CGD|none"])
