"""What the figures layers5 and layers7 share: more than four layers."""

from collections.abc import Sequence

from lfom.experiments.rows import baseline_rows, flatten, score_rows
from lfom.experiments.statistics import compare, near, values, verdict
from lfom.experiments.workbench import Outcome, Workbench
from lfom.report.results import Claim
from lfom.training import Score

KEEPS_UP = 0.1  # "keeps up with CGD": at most this much above it in log loss


def deeper(
    bench: Workbench, spectrum: Sequence[float], labels: dict[str, Sequence[int]], steps: int, label: str
) -> Outcome:
    """labels: depths by the label of their models and prompts; those of other figures are not made again."""
    data = bench.data(spectrum)
    curves = ("Memformer", "Linear Transformer")
    found: dict[tuple[str, str], dict[int, Score]] = {}
    table: dict[str, dict[int, Score]] = {}
    for own, depths in labels.items():
        wanted = [(c, t) for t in bench.trainings for c in curves]
        for pair, scores in bench.all_scores(wanted, data, depths, own).items():
            found.setdefault(pair, {}).update(scores)
        for curve, scores in bench.baselines(data, depths, own).items():
            table.setdefault(curve, {}).update(scores)
    rows = baseline_rows(table)
    rows += flatten(score_rows(curve, training, s) for (curve, training), s in found.items())
    claims = []
    for training in bench.trainings:
        ours, cgd = found["Memformer", training], table["CGD"]
        kept_up = [d for d in ours if near(ours[d], cgd[d], KEEPS_UP)]
        claims.append(
            Claim(
                f"{label}-keeps-up-{training}",
                f"The Memformer keeps up with CGD for {steps} steps ({training} training).",
                "Appendix C",
                f"log loss at most {KEEPS_UP} above CGD on the same fresh prompts at depths 1 to {steps}",
                verdict(*(d in kept_up for d in ours if d <= steps)),
                f"keeps up at depths {kept_up}: {compare(ours, cgd)}",
            )
        )
        claims.append(
            Claim(
                f"{label}-distance-to-optimum-{training}",
                f"Ours: how far {training} training ends from the exact optimum.",
                "NOTES 3",
                "paired difference of log loss at most 0.03 at every depth",
                verdict(*(near(ours[d], table["exact optimum"][d], 0.03) for d in ours)),
                f"Memformer {compare(ours, table['exact optimum'])}; Linear Transformer "
                f"{compare(found['Linear Transformer', training], table['exact optimum'])}; losses {values(ours)}",
            )
        )
    main = ["CGD|none", "exact optimum|none", "NAG, tuned|none"]
    return Outcome(rows, claims, main + [f"{c}|{t}" for t in bench.trainings for c in curves])
