"""Four real families of related problems: some to learn from, others to be scored on.

Each family draws its problems from data that scikit-learn ships, or generates them. Learning and
held-out problems never share a row, a photograph or a random stream. Same seed, same problems.

    >>> from lfom.families import FAMILIES
    >>> FAMILIES["table"].held_out(3).X.shape
    (3, 100, 30)
"""

from lfom.families.deblurring import DEBLURRING
from lfom.families.diffusion import DIFFUSION
from lfom.families.digits import DIGITS
from lfom.families.family import Family
from lfom.families.table import TABLE

FAMILIES: dict[str, Family] = {family.name: family for family in (TABLE, DIFFUSION, DEBLURRING, DIGITS)}

__all__ = ["FAMILIES", "Family"]
