"""Figure layers5: five layers, d = 5."""

from lfom.experiments.deeper import deeper
from lfom.experiments.workbench import DEPTHS, Outcome, Workbench
from lfom.prompts.distributions import PUBLISHED_SPECTRUM

TITLE = "Five layers, d = 5"
SECTION = "Appendix C, Figure layers5"
SHOWS = "Depths 1 to 5 in five dimensions, where CGD is exact after five steps."
TRAINED = "Depths 1 to 4 are those of lfom_nonisotropic, depth 5 is trained in the same way. There are no published values for this figure."


def run(bench: Workbench) -> Outcome:
    return deeper(bench, PUBLISHED_SPECTRUM, {"main": DEPTHS, "layers5": (5,)}, 4, "layers5")
