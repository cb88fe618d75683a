"""What the figures nag_vs_Memformer and mgd_vs_Memformer share: one classical method, tuned and not."""

from lfom.experiments.rows import curve_rows
from lfom.experiments.statistics import Claims, at_most, below, compare
from lfom.experiments.workbench import Outcome, Workbench, keys


def against(bench: Workbench, rival: str, experiment: str) -> Outcome:
    trained = bench.pairs("Memformer", "Linear Transformer")
    found = bench.curves(trained, bench.data())
    tuned, given = found[f"{rival}, tuned", "none"], found[rival, "none"]
    claims = Claims("Appendix B")
    rule = "tuned on sample prompts for each depth, the log loss on fresh prompts is not lower by more than 0.02 at depths 1 to 4"
    claims.add(
        f"appendix-b-{rival.lower().replace(' ', '-')}-is-best",
        f"The step size and momentum of Appendix B are the best for {rival}.",
        at_most(given, tuned, 0.02, rule=rule, evidence=f"tuned minus Appendix B: {compare(tuned, given)}"),
    )
    for training in bench.trainings:
        ours = found["Memformer", training]
        claims.test(
            f"{experiment.lower().replace('_', '-')}-{training}",
            f"The Memformer beats {rival} ({training} training), also when {rival} is tuned.",
            "difference of log loss on the same fresh prompts below 0 by two standard errors, per depth, "
            "for the paper's and for the tuned step sizes",
            (below(ours[d], theirs[d]) for d in ours for theirs in (given, tuned)),
            f"against Appendix B: {compare(ours, given)}; against tuned: {compare(ours, tuned)}",
        )
    main = [f"{rival}|none", f"{rival}, tuned|none", "exact optimum|none", f"{rival}|published"]
    return Outcome(curve_rows(found, experiment), claims, main + keys(trained))
