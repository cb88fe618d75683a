"""Section 3.4 on fresh prompts: how many training prompts until shared parameters keep up with CGD."""

from lfom.experiments.fixed_batches import by_size
from lfom.experiments.small_batches import LARGE, SMALL, memformers
from lfom.experiments.workbench import DEPTHS, Claim, Outcome, Row, Workbench, below, gap, score_rows, verdict

TITLE = "Batch size sweep"
SECTION = "3.4 and 5"
SHOWS = (
    "The Memformer of depth 4, trained on 1, 10, 50, 100 or 1,000 prompts: with fewer of them its loss on "
    "these prompts falls and its loss on fresh prompts rises. CGD on the same prompts beside it."
)
TRAINED = (
    "Bank with scalar coefficients (own coefficient 1), full A in every layer: 103 parameters, fitted to "
    "the fixed set of each size. paper: 1,000 Adam steps; converged: least squares on the set itself."
)
X_LABEL = "training prompts"
X_SCALE = "log"
DEPTH = 4
SIZES = (*SMALL, *LARGE)


def run(bench: Workbench) -> Outcome:
    rows: list[Row] = []
    claims = []
    for number, training in enumerate(bench.trainings):
        small = memformers(bench, training, SMALL, DEPTHS)
        large = memformers(bench, training, LARGE, (DEPTH,))
        own = by_size({**small.training, **large.training}, DEPTH)
        fresh = by_size({**small.fresh, **large.fresh}, DEPTH)
        cgd = by_size({**small.cgd_training, **large.cgd_training}, DEPTH)
        cgd_fresh = by_size({**small.cgd_fresh, **large.cgd_fresh}, DEPTH)
        rows += score_rows("Memformer", training, own, "training prompts")
        rows += score_rows("Memformer", training, fresh)
        if not number:
            rows += score_rows("CGD", "none", cgd, "training prompts") + score_rows("CGD", "none", cgd_fresh)
        beaten = [size for size in SIZES if below(own[size], cgd[size])]
        kept_up = [size for size in SIZES if not below(cgd_fresh[size], fresh[size])]
        differences = {size: gap(fresh[size], cgd_fresh[size]) for size in SIZES}
        listed = "; ".join(f"B={size}: {m:+.3f} ± {e:.3f}" for size, (m, e) in differences.items())
        first = f"from B = {min(kept_up)} on" if kept_up else f"for no B up to {max(SIZES)}"
        claims += [
            Claim(
                f"batch-sweep-training-prompts-{training}",
                f"Shared parameters trained on up to 1,000 prompts ({training} training) beat CGD on these "
                "same prompts.",
                "3.4",
                "depth 4: log loss below CGD's on the training prompts by two standard errors, per size",
                verdict(*(size in beaten for size in SIZES)),
                f"below CGD for B in {beaten}; log loss "
                + "; ".join(f"B={size}: {own[size].log_loss:.3f}" for size in SIZES),
            ),
            Claim(
                f"batch-sweep-fresh-prompts-{training}",
                f"Trained on a small batch ({training} training), shared parameters also keep up with CGD on "
                "fresh prompts.",
                "3.4",
                "depth 4: log loss on the same fresh prompts not above CGD's by more than two standard "
                "errors, per size",
                verdict(*(size in kept_up for size in SIZES)),
                f"keeps up with CGD {first}; difference {listed}",
            ),
        ]
    return Outcome(rows, claims, [*(f"Memformer|{training}" for training in bench.trainings), "CGD|none"])
