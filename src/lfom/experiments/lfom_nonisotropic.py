"""Figure lfom_nonisotropic: the LFOM Memformer against CGD, NAG and momentum GD."""

from lfom.core.runs import PerRun
from lfom.experiments.experiment import Experiment
from lfom.experiments.rows import Curves, curve_rows
from lfom.experiments.statistics import Claims, compare, lower, slug
from lfom.experiments.workbench import A_THEN_GAMMA, WITH_PHASES, Outcome, Workbench, keys

CURVES = ("Memformer", "Linear Transformer")
CONVERGED = ("Memformer", "Memformer, untied", "Memformer, tied scalar", "Linear Transformer")
# Its Gamma begins at 0, so that training A alone is training a Linear Transformer, as in Appendix D.
FROM_ZERO = "Memformer, own 1"
TRAINED_BY = {"paper": CURVES, "converged": CONVERGED, A_THEN_GAMMA: (FROM_ZERO,)}
MEMFORMER = {"paper": "Memformer", "converged": "Memformer", A_THEN_GAMMA: FROM_ZERO}
RIVALS = ("CGD", "NAG", "Momentum GD", "NAG, tuned", "Momentum GD, tuned")


def memformer_pairs(bench: Workbench) -> list[tuple[str, str]]:
    """(curve, training) of the Memformer of each training, and of the Linear Transformer, which has no Gamma."""
    plain = [("Linear Transformer", t) for t in bench.trainings if t != A_THEN_GAMMA]
    return [*((MEMFORMER[t], t) for t in bench.trainings), *plain]


def compared(
    bench: Workbench, data: PerRun, label: str = "main", prompts: int | None = None, variants: bool = True
) -> tuple[Curves, Claims]:
    """The curves of the figure on any data, and what the paper says of them. variants: of the bank as well."""
    trained = TRAINED_BY if variants else TRAINED_BY | {"converged": CURVES}
    wanted = [(c, t) for t in bench.trainings for c in trained[t]]
    if A_THEN_GAMMA in bench.trainings:
        wanted.append((FROM_ZERO, "paper"))
    found = bench.curves(wanted, data, label=label, prompts=prompts)
    claims = Claims("3.3")
    for training in bench.trainings:
        ours = found[MEMFORMER[training], training]
        for rival in RIVALS:
            claims.add(
                f"memformer-beats-{slug(rival)}-{slug(training)}",
                f"The LFOM Memformer ({training} training) has a lower loss than {rival} at depths 1 to 4.",
                lower(ours, found[rival, "none"]),
            )
    for training in ("paper", "converged"):
        if training in bench.trainings:
            claims.add(
                f"memformer-beats-linear-transformer-{training}",
                f"The Memformer has a lower loss than the Linear Transformer after {training} training.",
                lower(found["Memformer", training], found["Linear Transformer", training], 0.02, (2, 3, 4)),
            )
    if A_THEN_GAMMA in bench.trainings:
        ours, together = found[FROM_ZERO, A_THEN_GAMMA], found[FROM_ZERO, "paper"]
        plain, steps = found["Linear Transformer", "paper"], bench.preset.adam_steps
        evidence = (
            f"{steps:,} Adam steps on A and {steps:,} on Gamma, minus {steps:,} on both: {compare(ours, together)}; "
            f"minus the Linear Transformer, A alone: {compare(ours, plain)}"
        )
        claims.add(
            "first-a-then-gamma-is-better",
            "Training A first and then Gamma (Appendix D) ends lower than training both together.",
            lower(ours, together, 0.02, (2, 3, 4), evidence=evidence),
            "Appendix D",
        )
    if "converged" in bench.trainings:
        optimum = "exact optimum" if data[0].has_exact_optimum else "sampled optimum"
        claims.measure(
            "distance-to-optimum",
            f"Ours: how far training ends from the {optimum} of shared coefficients.",
            "difference of log loss on the same fresh prompts, per depth",
            compare(found["Memformer", "converged"], found[optimum, "none"]),
            "docs/mathematics.md 3",
        )
    return found, claims


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
        "Full A in every layer. paper: Adam as in the paper's text. A, then Gamma (Appendix D): the same "
        "Adam steps on A alone, then as many on Gamma alone, for tied numbers that begin at 0 (own coefficient 1). "
        "converged: least squares on fresh prompts. Scored on fresh prompts with the query averaged out."
    )
    trainings = WITH_PHASES

    def run(self, bench: Workbench) -> Outcome:
        found, claims = compared(bench, bench.data())
        main = ["CGD|none", "NAG, tuned|none", "Momentum GD, tuned|none", "exact optimum|none"]
        main += keys(memformer_pairs(bench))
        main += ["Memformer|published", "Linear Transformer|published"]
        return Outcome(curve_rows(found, self.name), claims, main)
