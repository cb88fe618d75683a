"""Figure cg_with_preconditioning: the CGD-like Memformer with full matrices."""

from lfom.core.runs import PerRun
from lfom.experiments.experiment import Experiment
from lfom.experiments.rows import Curves, curve_rows
from lfom.experiments.statistics import Claims, at_most, compare, lower, values
from lfom.experiments.workbench import Outcome, Workbench, keys

CURVES = {"Memformer": "Memformer, register", "Linear Transformer": "Linear Transformer"}
LEARNED = ("Conjugate register", "converged")


def compared(
    bench: Workbench, data: PerRun, label: str = "main", prompts: int | None = None
) -> tuple[Curves, Claims]:
    """The curves of the figure on any data, and what the paper says of them."""
    wanted = [(c, t) for c in CURVES for t in bench.trainings]
    if "converged" in bench.trainings:
        wanted.append(LEARNED)
    found = bench.curves(wanted, data, label=label, models=CURVES, prompts=prompts)
    claims = Claims("3.3")
    for training in bench.trainings:
        claims.add(
            f"preconditioned-register-beats-cgd-{training}",
            f"With a preconditioner the CGD-like Memformer beats CGD ({training} training).",
            lower(found["Memformer", training], found["CGD", "none"], listed="beats CGD at depths"),
        )
    if "converged" in bench.trainings:
        conjugate, ideal = found[LEARNED], found["Preconditioned CGD", "none"]
        evidence = f"{values(conjugate)}; against the true inverse covariance {compare(conjugate, ideal)}"
        rule = "log loss at most 0.1 above preconditioned CGD at every depth"
        claims.add(
            "conjugate-register-learns-preconditioner",
            "Ours: trained through it, the conjugate register reaches CGD preconditioned with the true inverse covariance.",
            at_most(conjugate, ideal, 0.1, rule=rule, evidence=evidence),
            "docs/mathematics.md 3",
        )
    return found, claims


class CgWithPreconditioning(Experiment):
    name = "cg_with_preconditioning"
    title = "CGD-like Memformer with preconditioner"
    section = "3.3, Figure cg_with_preconditioning"
    shows = (
        "One register of past directions and a full matrix in every layer, against CGD, and beside it the "
        "conjugate register: conjugate gradients with a preconditioner that was learned through them."
    )
    trained = "Register with full A. paper: Adam; converged: least squares. Scored on fresh prompts."

    def run(self, bench: Workbench) -> Outcome:
        found, claims = compared(bench, bench.data())
        main = ["CGD|none", "exact optimum|none", "Preconditioned CGD|none", *keys([LEARNED])]
        main += [*keys(bench.pairs(*CURVES)), "Memformer|published", "Linear Transformer|published"]
        return Outcome(curve_rows(found, self.name), claims, main)
