"""What the figures nag_vs_Memformer and mgd_vs_Memformer share: one classical method, tuned and not."""

from lfom.experiments.rows import baseline_rows, flatten, published_rows, score_rows
from lfom.experiments.statistics import below, compare, near, verdict
from lfom.experiments.workbench import Outcome, Workbench
from lfom.report.results import Claim


def against(bench: Workbench, rival: str, experiment: str) -> Outcome:
    data = bench.data()
    table = bench.baselines(data)
    curves = ("Memformer", "Linear Transformer")
    found = bench.all_scores([(c, t) for t in bench.trainings for c in curves], data)
    rows = baseline_rows(table) + published_rows(experiment)
    rows += flatten(score_rows(curve, training, s) for (curve, training), s in found.items())
    tuned, given = table[f"{rival}, tuned"], table[rival]
    claims = [
        Claim(
            f"appendix-b-{rival.lower().replace(' ', '-')}-is-best",
            f"The step size and momentum of Appendix B are the best for {rival}.",
            "Appendix B",
            "tuned on sample prompts for each depth, the log loss on fresh prompts is not lower by more than "
            "0.02 at depths 1 to 4",
            verdict(*(near(given[d], tuned[d], 0.02) for d in tuned)),
            "tuned minus Appendix B: " + compare(tuned, given),
        )
    ]
    for training in bench.trainings:
        ours = found["Memformer", training]
        claims.append(
            Claim(
                f"{experiment.lower().replace('_', '-')}-{training}",
                f"The Memformer beats {rival} ({training} training), also when {rival} is tuned.",
                "Appendix B",
                "difference of log loss on the same fresh prompts below 0 by two standard errors, per depth, "
                "for the paper's and for the tuned step sizes",
                verdict(*(below(ours[d], r[d]) for d in ours for r in (given, tuned))),
                f"against Appendix B: {compare(ours, given)}; against tuned: {compare(ours, tuned)}",
            )
        )
    main = [f"{rival}|none", f"{rival}, tuned|none", "exact optimum|none", f"{rival}|published"]
    return Outcome(rows, claims, main + [f"{c}|{t}" for t in bench.trainings for c in curves])
