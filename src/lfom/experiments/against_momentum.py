"""Figures nag_vs_Memformer and mgd_vs_Memformer: the LFOM Memformer against one classical method, tuned and not."""

from lfom.experiments.experiment import Experiment
from lfom.experiments.lfom_nonisotropic import MEMFORMER, memformer_pairs
from lfom.experiments.rows import curve_rows
from lfom.experiments.statistics import Claims, at_most, below, compare, slug
from lfom.experiments.workbench import WITH_PHASES, Outcome, Workbench, keys


class AgainstMomentum(Experiment):
    trained = (
        "As in lfom_nonisotropic: full A, tied pair of values; A, then Gamma is the schedule of Appendix D, for the "
        "Memformer. Scored on fresh prompts."
    )
    trainings = WITH_PHASES

    def __init__(self, name: str, rival: str, words: str):
        self.name, self.rival = name, rival
        self.title = f"Memformer against {words}"
        self.section = f"Appendix B, Figure {name}"
        self.shows = f"{words[0].upper()}{words[1:]} with the step size of Appendix B and with the best one for each depth, against the Memformer."

    def run(self, bench: Workbench) -> Outcome:
        rival, trained = self.rival, memformer_pairs(bench)
        found = bench.curves(trained, bench.data())
        tuned, given = found[f"{rival}, tuned", "none"], found[rival, "none"]
        claims = Claims("Appendix B")
        rule = "tuned on sample prompts for each depth, the log loss on fresh prompts is not lower by more than 0.02 at depths 1 to 4"
        evidence = f"tuned minus Appendix B: {compare(tuned, given)}"
        claims.add(
            f"appendix-b-{slug(rival)}-is-best",
            f"The step size and momentum of Appendix B are the best for {rival}.",
            at_most(given, tuned, 0.02, rule=rule, evidence=evidence),
        )
        for training in bench.trainings:
            ours = found[MEMFORMER[training], training]
            claims.test(
                f"{self.name.lower().replace('_', '-')}-{slug(training)}",
                f"The Memformer beats {rival} ({training} training), also when {rival} is tuned.",
                "difference of log loss on the same fresh prompts below 0 by two standard errors, per depth, "
                "for the paper's and for the tuned step sizes",
                (below(ours[d], theirs[d]) for d in ours for theirs in (given, tuned)),
                f"against Appendix B: {compare(ours, given)}; against tuned: {compare(ours, tuned)}",
            )
        main = [f"{rival}|none", f"{rival}, tuned|none", "exact optimum|none", f"{rival}|published"]
        return Outcome(curve_rows(found, self.name), claims, main + keys(trained))


NAG = AgainstMomentum("nag_vs_Memformer", "NAG", "Nesterov's method (NAG)")
MOMENTUM = AgainstMomentum("mgd_vs_Memformer", "Momentum GD", "momentum GD")
