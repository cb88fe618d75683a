"""Figure layers7: seven layers, d = 10."""

from lfom.experiments.deeper import deeper
from lfom.experiments.workbench import Outcome, Workbench

TITLE = "Seven layers, d = 10"
SECTION = "Appendix C, Figure layers7"
SHOWS = "Depths 1 to 7 in ten dimensions, isotropic (the paper does not say which spectrum it used)."
TRAINED = "As in lfom_nonisotropic, depths 1, 3, 5 and 7. There are no published values for this figure."


def run(bench: Workbench) -> Outcome:
    return deeper(bench, (1.0,) * 10, {"layers7": (1, 3, 5, 7)}, 6, "layers7")
