"""What can be learned: coefficients times a preconditioner times coordinates, by name."""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from lfom.core import checks
from lfom.core.checks import InputError

RANK = 8  # of a low-rank matrix, unless its name says another
PRECONDITIONERS = ("identity", "diagonal", "low-rank", "sine", "cosine", "full")
LARGEST_FULL = 512  # unknowns: a full preconditioner has half as many parameters squared


@dataclass(frozen=True)
class Coefficients:
    """Who computes the coefficients of a step. matrices: whether there is a preconditioner beside them.
    per_unknown: whether every unknown has its own; these begin with a diagonal matrix, which goes into them.
    conjugate: whether they are computed from each problem, which needs a quadratic. free: whether they are
    always affordable."""

    matrices: bool = True
    per_unknown: bool = False
    conjugate: bool = False
    free: bool = False

    def numbers(self, table: int, size: int) -> int:
        """How many are fitted, from the entries of a table and the number of unknowns."""
        return 0 if self.conjugate else table * (size if self.per_unknown else 1)


FAMILIES = {
    "scalar": Coefficients(matrices=False, free=True),
    "diagonal": Coefficients(matrices=False, per_unknown=True),
    "preconditioned": Coefficients(),
    "conjugate": Coefficients(conjugate=True),
}
MATRICES: dict[str, Callable[[int, int], int]] = {  # parameters, from the unknowns and the rank
    "identity": lambda size, rank: 0,
    "full": lambda size, rank: size * (size + 1) // 2,
    "low-rank": lambda size, rank: size * (rank + 1),
}


@dataclass(frozen=True)
class Structure:
    """One structure. family: who computes the coefficients. preconditioner: the kind of M.
    jacobi: whether M acts in coordinates in which every problem has a unit diagonal."""

    family: str
    preconditioner: str = "identity"
    jacobi: bool = False

    def __check_init__(self) -> None:
        """Asked of one that comes from a file."""
        checks.known("structure", self.family, FAMILIES)

    @property
    def coefficients(self) -> Coefficients:
        return FAMILIES[self.family]

    @property
    def first_matrix(self) -> str:
        """The kind of M that a fit begins with."""
        return "diagonal" if self.coefficients.per_unknown else self.preconditioner

    @property
    def from_gradients(self) -> bool:
        """Whether gradients alone are enough to run it."""
        return not self.coefficients.conjugate and not self.jacobi

    @property
    def name(self) -> str:
        if not self.coefficients.matrices and not self.jacobi:
            return self.family
        return f"{self.family}:{'jacobi+' * self.jacobi}{self.preconditioner}"

    def parameters(self, shape: tuple[int, ...], steps: int) -> int:
        """How many numbers are fitted."""
        size = math.prod(shape)
        kind, rank = ranked(self.preconditioner)
        matrix = MATRICES.get(kind, lambda size, rank: size)
        return self.coefficients.numbers(steps * (steps + 1) // 2, size) + matrix(size, rank)


def ranked(preconditioner: str) -> tuple[str, int]:
    """The kind of a matrix and its rank: "low-rank(50)" is low-rank of rank 50."""
    found = re.fullmatch(r"(low-rank)\((\d+)\)", preconditioner)
    return (found[1], checks.count("rank", int(found[2]))) if found else (preconditioner, RANK)


def parse(name: str) -> Structure:
    """A structure from its name, such as "conjugate:jacobi+full"."""
    family, colon, rest = str(name).partition(":")
    checks.known("structure", family, FAMILIES)
    jacobi = rest == "jacobi" or rest.startswith("jacobi+")
    kind = "identity" if not colon or rest == "jacobi" else rest.removeprefix("jacobi+")
    checks.known("preconditioner", ranked(kind)[0], PRECONDITIONERS)
    if kind != "identity" and not FAMILIES[family].matrices:
        raise InputError(f"structure {name!r}: only preconditioned and conjugate have a preconditioner.")
    return Structure(family, kind, jacobi)


def available(shape: tuple[int, ...], jacobi: bool, losses: bool) -> list[Structure]:
    """Every structure that exists for problems of this shape. jacobi: diagonals are known."""
    size = math.prod(shape)
    kinds = ["diagonal"]
    if size > 3:
        kinds.append("low-rank")
    if len(shape) > 1:
        kinds += ["sine", "cosine"]
    if size <= LARGEST_FULL:
        kinds.append("full")
    with_matrices = [family for family, own in FAMILIES.items() if own.matrices]
    found = [Structure("scalar"), Structure("diagonal")]
    for coordinates in (False, True)[: 1 + jacobi]:
        if coordinates:
            found += [Structure("scalar", jacobi=True), Structure("conjugate", jacobi=True)]
        for kind in kinds:
            found += [Structure(family, kind, coordinates) for family in with_matrices]
    return [one for one in found if not (losses and one.coefficients.conjugate)]


DOORS: dict[str, Callable[[Structure], bool]] = {
    "solve": lambda one: True,
    "optax": lambda one: one.from_gradients,
}


def passing(door: str, everything: list[Structure]) -> list[Structure]:
    """Those that a door can run."""
    return [one for one in everything if DOORS[door](one)]


def chosen(wanted: str | Iterable[str], everything: list[Structure]) -> list[Structure]:
    """The structures that a user asked for: "auto", a name, or several. "preconditioned" and
    "conjugate" stand for all of their kinds."""
    if wanted == "auto":
        return everything
    found: list[Structure] = []
    words = "'auto', a name such as 'conjugate:full', or a list of names"
    for name in checks.instance("structure", wanted, str | list | tuple | set, words) or [""]:
        checks.instance("structure", name, str, words)
    for name in [wanted] if isinstance(wanted, str) else list(wanted):
        one = parse(name)
        exact = ":" in name or not one.coefficients.matrices
        members = [one] if exact else [s for s in everything if s.family == one.family]
        missing = [
            s for s in members if replace(s, preconditioner=ranked(s.preconditioner)[0]) not in everything
        ]
        if missing or not members:
            names = ", ".join(s.name for s in everything)
            raise InputError(f"structure {name!r} does not exist for these problems. There are: {names}.")
        found += members
    if not found:
        raise InputError("structure names nothing to learn: pass 'auto' or one or more names.")
    return list(dict.fromkeys(found))
