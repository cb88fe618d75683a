"""Figure cg_without_preconditioning: the CGD-like Memformer with A = a_l I."""

from lfom.experiments.rows import baseline_rows, flatten, published_rows, score_rows
from lfom.experiments.statistics import below, compare, gap, verdict
from lfom.experiments.workbench import Outcome, Workbench
from lfom.report.results import Claim, Row

TITLE = "CGD-like Memformer without preconditioner"
SECTION = "3.3, Figure cg_without_preconditioning"
SHOWS = (
    "One register of past directions with numbers alpha and gamma that all prompts share, against CGD, "
    "which computes its own for every prompt. Beside it the exact optimum of shared numbers."
)
TRAINED = "Register with A = a_l I. paper: Adam; converged: least squares. Scored on fresh prompts."
CLOSE = 0.3  # "close to CGD": at most this much above it in log loss


def run(bench: Workbench) -> Outcome:
    data = bench.data()
    names = {
        "Memformer": "Memformer, register, scalar A",
        "Linear Transformer": "Linear Transformer, scalar A",
    }
    wanted = [(names[curve], training) for training in bench.trainings for curve in names]
    scores = bench.all_scores(wanted, data)
    table = bench.baselines(data)
    found = {(c, t): scores[names[c], t] for c in names for t in bench.trainings}
    rows = baseline_rows(table) + published_rows("cg_without_preconditioning")
    rows += flatten(score_rows(curve, training, s) for (curve, training), s in found.items())
    limits = bench.plain_optimum(data)
    rows += [
        Row("exact optimum, no preconditioner", "none", d, o.log_loss, stderr=o.log_stderr, prompts=o.prompts)
        for d, o in limits.items()
    ]
    claims = []
    for training in bench.trainings:
        ours, cgd = found["Memformer", training], table["CGD"]
        near = [d for d in ours if gap(ours[d], cgd[d])[0] <= CLOSE]
        claims.append(
            Claim(
                f"register-close-to-cgd-{training}",
                f"Without a preconditioner, shared numbers stay close to CGD ({training} training).",
                "3.3",
                f"log loss at most {CLOSE} above CGD on the same fresh prompts, per depth",
                verdict(*(d in near for d in ours)),
                f"within {CLOSE} at depths {near}: {compare(ours, cgd)}",
            )
        )
        claims.append(
            Claim(
                f"register-beats-linear-transformer-scalar-{training}",
                f"The register beats the Linear Transformer when A is a number ({training} training).",
                "3.3",
                "difference of log loss below -0.02 by two standard errors, depths 2 to 4",
                verdict(
                    *(below(ours[d], found["Linear Transformer", training][d], 0.02) for d in ours if d > 1)
                ),
                compare(ours, found["Linear Transformer", training]),
            )
        )
    if "converged" in bench.trainings:
        ours = found["Memformer", "converged"]
        claims.append(
            Claim(
                "shared-numbers-stop-paying",
                "One shared set of numbers instead of 2B of CGD: it pays until CGD's own numbers win.",
                "3.2 (Remark)",
                "depth up to which the exact optimum of shared numbers is within 0.1 of CGD",
                verdict(*(limits[d].log_loss - table["CGD"][d].log_loss <= 0.1 for d in limits)),
                "exact optimum minus CGD: "
                + "; ".join(f"L={d}: {limits[d].log_loss - table['CGD'][d].log_loss:+.3f}" for d in limits)
                + f". Below a log loss of about {table['CGD'][2].log_loss:.1f} CGD's own numbers are needed.",
            )
        )
    main = ["CGD|none", "exact optimum, no preconditioner|none", "Momentum GD, tuned|none"]
    main += [f"{c}|{t}" for t in bench.trainings for c in names]
    return Outcome(rows, claims, [*main, "Memformer|published", "Linear Transformer|published"])
