"""The 21 experiments of before the one core, with the trainings and passes that they had then: what later work put into them is
left out, so that their time can be compared with that of the commit before.

    python benchmarks/first_experiments.py FOLDER [--whole]

Left out: the optima of GD++ and its memory of pairs, first A and then Gamma, Adam for the Memformer whose own coefficient is 1 in
the first figure, and the last pass for the coefficients of deep models. --whole leaves nothing out. Prints seconds by the clock
and of processors, gigabytes and programs; FOLDER holds the results.
"""

import resource
import sys
import time

BEGUN = time.perf_counter()
FOLDER, *OPTIONS = sys.argv[1:]
# A process of this name is the command line for lfom, and sets what that sets before NumPy is imported.
sys.argv[0] = "lfom"

from lfom import cli  # noqa: E402, I001
import jax  # noqa: E402
from lfom.experiments import lfom_gdpp_nonisotropic as gdpp  # noqa: E402
from lfom.experiments import workbench  # noqa: E402
from lfom.training import least_squares  # noqa: E402

NAMES = [
    "cg_without_preconditioning",
    "cg_with_preconditioning",
    "lfom_nonisotropic",
    "nag_vs_Memformer",
    "mgd_vs_Memformer",
    "lfom_gdpp_nonisotropic",
    "efficiency",
    "sigma_convergence",
    "layers5",
    "layers7",
    "batch_size_1",
    "batch_size_10",
    "batch_size_sweep",
    "ExtractedLFOMvsCGD",
    "learnability",
    "5head_attention_experiment",
    "mixture_of_experts_ood",
    "adaptation",
    "how_many_experts",
    "gaussian_mixture_model_ood_lt",
    "gaussian_mixture_model_ood_mem",
]


def leave_out() -> None:
    workbench.WITH_PHASES.pop(workbench.A_THEN_GAMMA)
    least_squares.DEEP = 1_000  # layers from which on coefficients have a pass of their own
    for of_training in gdpp.TRAINED_BY.values():
        of_training[:] = [curve for curve in of_training if curve != gdpp.PAIRS]
    gdpp.OPTIMA.clear()
    gdpp.RewrittenCovariates._at_convergence = lambda self, found, claims: None  # type: ignore[method-assign]


def main(folder: str, *options: str) -> None:
    programs: list[float] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: programs.append(seconds) if "backend_compile" in name else None
    )
    if "--whole" not in options:
        leave_out()
    sys.argv = ["lfom", "reproduce", *NAMES, "--out", folder, "--force"]
    try:
        cli.main()
    except SystemExit as ended:
        print(f"exit status {ended.code or 0}")
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"{time.perf_counter() - BEGUN:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of processors, "
        f"{used.ru_maxrss / 2**20:.2f} GB, {len(programs)} programs"
    )


if __name__ == "__main__":
    main(FOLDER, *OPTIONS)
