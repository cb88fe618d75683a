"""What problems can be: in words, and what that means for a method learned from them."""

from dataclasses import dataclass

ENERGY = "energy norm of the error"


@dataclass(frozen=True)
class Kind:
    """name: what the problems are. alike: problems of one such word are solved by the same methods. matrix:
    whether A is a matrix. measure: what their errors are. fallback: what solves a problem where a method
    does not. quadratic: whether they are quadratics, of which something can be promised beforehand."""

    name: str
    alike: str
    matrix: bool = False
    quadratic: bool = True
    measure: str = ENERGY
    fallback: str = "conjugate gradients"

    def __str__(self) -> str:
        return self.name


LEAST_SQUARES = Kind("least squares", "matrices", matrix=True)
SYSTEMS = Kind("linear systems", "matrices", matrix=True)
OPERATORS = Kind("operators", "operators")
LOSSES = Kind(
    "convex losses", "losses", quadratic=False, measure="excess loss", fallback="line-searched gradient"
)
KINDS = {kind.name: kind for kind in (LEAST_SQUARES, SYSTEMS, OPERATORS, LOSSES)}
