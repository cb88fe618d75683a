"""Figure mgd_vs_Memformer: the LFOM Memformer against momentum GD."""

from lfom.experiments.against_momentum import against
from lfom.experiments.workbench import Outcome, Workbench

TITLE = "Memformer against momentum GD"
SECTION = "Appendix B, Figure mgd_vs_Memformer"
SHOWS = "Momentum GD with the step size of Appendix B and with the best one for each depth, against the Memformer."
TRAINED = "As in lfom_nonisotropic: full A, tied pair of values. Scored on fresh prompts."


def run(bench: Workbench) -> Outcome:
    return against(bench, "Momentum GD", "mgd_vs_Memformer")
