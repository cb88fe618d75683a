"""Figure nag_vs_Memformer: the LFOM Memformer against Nesterov's method (NAG)."""

from lfom.experiments.against_momentum import against
from lfom.experiments.workbench import Outcome, Workbench

TITLE = "Memformer against Nesterov's method (NAG)"
SECTION = "Appendix B, Figure nag_vs_Memformer"
SHOWS = "Nesterov's method (NAG) with the step size of Appendix B and with the best one for each depth, against the Memformer."
TRAINED = "As in lfom_nonisotropic: full A, tied pair of values. Scored on fresh prompts."


def run(bench: Workbench) -> Outcome:
    return against(bench, "NAG", "nag_vs_Memformer")
