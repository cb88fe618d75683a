"""Figure cg_with_preconditioning: the CGD-like Memformer with full matrices."""

from lfom.experiments.rows import baseline_rows, flatten, published_rows, score_rows
from lfom.experiments.statistics import below, compare, near, values, verdict
from lfom.experiments.workbench import Outcome, Workbench
from lfom.report.results import Claim

TITLE = "CGD-like Memformer with preconditioner"
SECTION = "3.3, Figure cg_with_preconditioning"
SHOWS = (
    "One register of past directions and a full matrix in every layer, against CGD, and beside it the "
    "conjugate register: conjugate gradients with a preconditioner that was learned through them."
)
TRAINED = "Register with full A. paper: Adam; converged: least squares. Scored on fresh prompts."


def run(bench: Workbench) -> Outcome:
    data = bench.data()
    names = {"Memformer": "Memformer, register", "Linear Transformer": "Linear Transformer"}
    wanted = [(name, training) for training in bench.trainings for name in names.values()]
    if "converged" in bench.trainings:
        wanted.append(("Conjugate register", "converged"))
    scores = bench.all_scores(wanted, data)
    found = {(c, t): scores[names[c], t] for c in names for t in bench.trainings}
    if "converged" in bench.trainings:
        found["Conjugate register", "converged"] = scores["Conjugate register", "converged"]
    table = bench.baselines(data)
    rows = baseline_rows(table) + published_rows("cg_with_preconditioning")
    rows += flatten(score_rows(curve, training, scores) for (curve, training), scores in found.items())
    claims = []
    for training in bench.trainings:
        ours, cgd = found["Memformer", training], table["CGD"]
        beaten = [d for d in ours if below(ours[d], cgd[d])]
        claims.append(
            Claim(
                f"preconditioned-register-beats-cgd-{training}",
                f"With a preconditioner the CGD-like Memformer beats CGD ({training} training).",
                "3.3",
                "difference of log loss on the same fresh prompts below 0 by two standard errors, per depth",
                verdict(*(below(ours[d], cgd[d]) for d in ours)),
                f"beats CGD at depths {beaten}: {compare(ours, cgd)}",
            )
        )
    if "converged" in bench.trainings:
        conjugate, ideal = found["Conjugate register", "converged"], table["Preconditioned CGD"]
        claims.append(
            Claim(
                "conjugate-register-learns-preconditioner",
                "Ours: trained through it, the conjugate register reaches CGD preconditioned with the true "
                "inverse covariance.",
                "NOTES 3",
                "log loss at most 0.1 above preconditioned CGD at every depth",
                verdict(*(near(conjugate[d], ideal[d], 0.1) for d in conjugate)),
                f"{values(conjugate)}; against the true inverse covariance {compare(conjugate, ideal)}",
            )
        )
    main = ["CGD|none", "exact optimum|none", "Preconditioned CGD|none", "Conjugate register|converged"]
    main += [f"{c}|{t}" for t in bench.trainings for c in ("Memformer", "Linear Transformer")]
    return Outcome(rows, claims, [*main, "Memformer|published", "Linear Transformer|published"])
