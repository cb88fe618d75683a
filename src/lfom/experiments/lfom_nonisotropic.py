"""Figure lfom_nonisotropic: the LFOM Memformer against CGD, NAG and momentum GD."""

from lfom.experiments.experiment import Experiment
from lfom.experiments.rows import curve_rows
from lfom.experiments.statistics import Claims, at_most, lower
from lfom.experiments.workbench import Outcome, Workbench, keys

CURVES = ("Memformer", "Linear Transformer")
CONVERGED = ("Memformer", "Memformer, untied", "Memformer, tied scalar", "Linear Transformer")
RIVALS = ("CGD", "NAG", "Momentum GD", "NAG, tuned", "Momentum GD, tuned")


class LfomNonisotropic(Experiment):
    name = "lfom_nonisotropic"
    title = "LFOM Memformer against CGD, NAG and momentum"
    section = "3.3, Figure lfom_nonisotropic"
    shows = (
        "A Memformer with a bank of past gradients (tied coefficients, one value for the context and one for "
        "the query) and a Linear Transformer, each depth trained separately, beside the classical methods, "
        "the exact optimum of the class and the authors' curves."
    )
    trained = (
        "Full A in every layer. paper: Adam as in the paper's text. converged: least squares on fresh prompts. "
        "Scored on fresh prompts with the query averaged out."
    )

    def run(self, bench: Workbench) -> Outcome:
        trained = {"paper": CURVES, "converged": CONVERGED}
        found = bench.curves([(c, t) for t in bench.trainings for c in trained[t]], bench.data())
        claims = Claims("3.3")
        for training in bench.trainings:
            ours = found["Memformer", training]
            for rival in RIVALS:
                claims.add(
                    f"memformer-beats-{rival.lower().replace(', ', '-').replace(' ', '-')}-{training}",
                    f"The LFOM Memformer ({training} training) has a lower loss than {rival} at depths 1 to 4.",
                    lower(ours, found[rival, "none"]),
                )
            claims.add(
                f"memformer-beats-linear-transformer-{training}",
                f"The Memformer has a lower loss than the Linear Transformer after {training} training.",
                lower(ours, found["Linear Transformer", training], 0.02, (2, 3, 4)),
            )
        if "converged" in bench.trainings:
            claims.add(
                "training-reaches-optimum",
                "Ours: training reaches the exact optimum of shared coefficients within 0.03.",
                at_most(found["Memformer", "converged"], found["exact optimum", "none"], 0.03),
                "NOTES 3",
            )
        main = ["CGD|none", "NAG, tuned|none", "Momentum GD, tuned|none", "exact optimum|none"]
        main += [*keys(bench.pairs(*CURVES)), "Memformer|published", "Linear Transformer|published"]
        return Outcome(curve_rows(found, self.name), claims, main)
