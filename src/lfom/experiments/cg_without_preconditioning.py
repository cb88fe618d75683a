"""Figure cg_without_preconditioning: the CGD-like Memformer with A = a_l I."""

from typing import Any

from lfom.core.runs import PerRun, fingerprint
from lfom.experiments.experiment import Experiment
from lfom.experiments.rows import Curves, Row, curve_rows
from lfom.experiments.statistics import Claims, at_most, lower
from lfom.experiments.workbench import DEPTHS, Outcome, Workbench, keys
from lfom.limits.optimum import Optimum, sampled_optima

CURVES = {"Memformer": "Memformer, register, scalar A", "Linear Transformer": "Linear Transformer, scalar A"}
OPTIMUM = "exact optimum, no preconditioner"
CLOSE = 0.3  # "close to CGD": at most this much above it in log loss


def shared_optima(bench: Workbench, data: PerRun, label: str) -> dict[int, Optimum]:
    """The best shared numbers by depth, which are the same for all rotations."""
    key = bench.stream("optimum") if label == "main" else bench.stream("optimum", label)
    make = lambda: sampled_optima(data[0], DEPTHS, key, prompts=400_000)  # noqa: E731
    return bench.keep(("shared optima", fingerprint(data), label), make)


def compared(
    bench: Workbench, data: PerRun, label: str = "main", prompts: int | None = None
) -> tuple[Curves, Claims]:
    """The curves of the figure on any data, and what the paper says of them."""
    wanted = [(c, t) for c in CURVES for t in bench.trainings]
    found = bench.curves(wanted, data, label=label, models=CURVES, prompts=prompts)
    cgd, claims = found["CGD", "none"], Claims("3.3")
    for training in bench.trainings:
        ours = found["Memformer", training]
        rule = f"log loss at most {CLOSE} above CGD on the same fresh prompts, per depth"
        claims.add(
            f"register-close-to-cgd-{training}",
            f"Without a preconditioner, shared numbers stay close to CGD ({training} training).",
            at_most(ours, cgd, CLOSE, rule=rule, listed=f"within {CLOSE} at depths"),
        )
        claims.add(
            f"register-beats-linear-transformer-scalar-{training}",
            f"The register beats the Linear Transformer when A is a number ({training} training).",
            lower(ours, found["Linear Transformer", training], 0.02, (2, 3, 4)),
        )
    if "converged" in bench.trainings:
        limits = shared_optima(bench, data, label)
        above = {d: limits[d].log_loss - cgd[d].log_loss for d in limits}
        claims.test(
            "shared-numbers-stop-paying",
            "One shared set of numbers instead of 2B of CGD: it pays until CGD's own numbers win.",
            "log loss of the exact optimum of shared numbers at most 0.1 above CGD's, per depth",
            (each <= 0.1 for each in above.values()),
            f"exact optimum minus CGD: {'; '.join(f'L={d}: {each:+.3f}' for d, each in above.items())}. "
            f"Below a log loss of about {cgd[2].log_loss:.1f} CGD's own numbers are needed.",
            "3.2 (Remark)",
        )
    return found, claims


class CgWithoutPreconditioning(Experiment):
    name = "cg_without_preconditioning"
    title = "CGD-like Memformer without preconditioner"
    section = "3.3, Figure cg_without_preconditioning"
    shows = (
        "One register of past directions with numbers alpha and gamma that all prompts share, against CGD, "
        "which computes its own for every prompt. Beside it the exact optimum of shared numbers."
    )
    trained = "Register with A = a_l I. paper: Adam; converged: least squares. Scored on fresh prompts."

    def run(self, bench: Workbench) -> Outcome:
        found, claims = compared(bench, bench.data())
        rows = curve_rows(found, self.name)
        for d, best in shared_optima(bench, bench.data(), "main").items():
            more: dict[str, Any] = {"stderr": best.log_stderr, "prompts": best.prompts}
            rows.append(Row(OPTIMUM, "none", d, best.log_loss, **more))
        main = ["CGD|none", f"{OPTIMUM}|none", "Momentum GD, tuned|none"]
        main += keys(bench.pairs(*CURVES))
        return Outcome(rows, claims, [*main, "Memformer|published", "Linear Transformer|published"])
