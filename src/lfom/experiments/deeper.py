"""Figures layers5 and layers7: more than four layers."""

from collections.abc import Sequence

from lfom.experiments.experiment import Experiment
from lfom.experiments.lfom_nonisotropic import MEMFORMER, memformer_pairs
from lfom.experiments.rows import Curves, curve_rows
from lfom.experiments.statistics import Claims, at_most, compare, slug, values
from lfom.experiments.workbench import A_THEN_GAMMA, DEPTHS, WITH_PHASES, Outcome, Workbench, keys
from lfom.prompts.distributions import PUBLISHED_SPECTRUM

KEEPS_UP = 0.1  # "keeps up with CGD": at most this much above it in log loss


class Deeper(Experiment):
    trainings = WITH_PHASES
    spectrum: Sequence[float]
    steps: int  # that CGD takes without being exact
    # Depths by the label of their models and prompts; other figures' are not made again.
    labels: dict[str, Sequence[int]]

    def run(self, bench: Workbench) -> Outcome:
        bench = bench.only_if_long(A_THEN_GAMMA)
        trained = memformer_pairs(bench)
        found: Curves = {}
        for own, depths in self.labels.items():
            for pair, scores in bench.curves(trained, bench.data(self.spectrum), depths, own).items():
                found.setdefault(pair, {}).update(scores)
        claims, optimum = Claims("Appendix C"), found["exact optimum", "none"]
        for training in bench.trainings:
            ours = found[MEMFORMER[training], training]
            rule = (
                f"log loss at most {KEEPS_UP} above CGD on the same fresh prompts at depths 1 to {self.steps}"
            )
            asked = [d for d in ours if d <= self.steps]
            claims.add(
                f"{self.name}-keeps-up-{slug(training)}",
                f"The Memformer keeps up with CGD for {self.steps} steps ({training} training).",
                at_most(ours, found["CGD", "none"], KEEPS_UP, asked, rule=rule, listed="keeps up at depths"),
            )
            evidence = f"Memformer {compare(ours, optimum)}"
            if (plain := ("Linear Transformer", training)) in found:
                evidence += f"; Linear Transformer {compare(found[plain], optimum)}"
            claims.measure(
                f"{self.name}-distance-to-optimum-{slug(training)}",
                f"Ours: how far {training} training ends from the exact optimum.",
                "difference of log loss on the same fresh prompts, per depth",
                f"{evidence}; losses {values(ours)}",
            )
        main = ["CGD|none", "exact optimum|none", "NAG, tuned|none", *keys(trained)]
        return Outcome(curve_rows(found), claims, main)


class Layers5(Deeper):
    name = "layers5"
    title = "Five layers, d = 5"
    section = "Appendix C, Figure layers5"
    shows = "Depths 1 to 5 in five dimensions, where CGD is exact after five steps."
    trained = "Depths 1 to 4 are those of lfom_nonisotropic, depth 5 is trained in the same way (A, then Gamma not with the quick preset). There are no published values for this figure."
    spectrum, steps, labels = PUBLISHED_SPECTRUM, 4, {"main": DEPTHS, "layers5": (5,)}


class Layers7(Deeper):
    name = "layers7"
    title = "Seven layers, d = 10"
    section = "Appendix C, Figure layers7"
    shows = "Depths 1 to 7 in ten dimensions, isotropic (the paper does not say which spectrum it used)."
    trained = "As in lfom_nonisotropic, depths 1, 3, 5 and 7 (A, then Gamma not with the quick preset). There are no published values for this figure."
    spectrum, steps, labels = (1.0,) * 10, 6, {"layers7": (1, 3, 5, 7)}
