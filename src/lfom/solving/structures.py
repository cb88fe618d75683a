"""What can be learned: coefficients times a preconditioner times coordinates, by name."""

from collections.abc import Iterable
from dataclasses import dataclass

from lfom.core import checks
from lfom.core.checks import InputError

FAMILIES = ("scalar", "diagonal", "preconditioned", "conjugate")
PRECONDITIONERS = ("identity", "diagonal", "low-rank", "sine", "cosine", "full")
LARGEST_FULL = 512  # unknowns: a full preconditioner has half as many parameters squared


@dataclass(frozen=True)
class Structure:
    """One structure. family: who computes the coefficients. preconditioner: the kind of M.
    jacobi: whether M acts in coordinates in which every problem has a unit diagonal."""

    family: str
    preconditioner: str = "identity"
    jacobi: bool = False

    @property
    def name(self) -> str:
        if self.family in ("scalar", "diagonal") and not self.jacobi:
            return self.family
        return f"{self.family}:{'jacobi+' * self.jacobi}{self.preconditioner}"

    def parameters(self, shape: tuple[int, ...], steps: int, rank: int) -> int:
        """How many numbers are fitted."""
        size = 1
        for n in shape:
            size *= n
        table = steps * (steps + 1) // 2
        of_coefficients = {"conjugate": 0, "diagonal": table * size}.get(self.family, table)
        of_matrix = {"identity": 0, "full": size * (size + 1) // 2, "low-rank": size * (rank + 1)}
        return of_coefficients + of_matrix.get(self.preconditioner, size)


def parse(name: str) -> Structure:
    """A structure from its name, such as "conjugate:jacobi+full"."""
    family, _, rest = str(name).partition(":")
    checks.known("structure", family, FAMILIES)
    jacobi = rest == "jacobi" or rest.startswith("jacobi+")
    kind = rest.removeprefix("jacobi").removeprefix("+") or "identity"
    checks.known("preconditioner", kind, PRECONDITIONERS)
    if family in ("scalar", "diagonal") and kind != "identity":
        raise InputError(f"structure {name!r}: only preconditioned and conjugate have a preconditioner.")
    return Structure(family, kind, jacobi)


def available(shape: tuple[int, ...], jacobi: bool, losses: bool) -> list[Structure]:
    """Every structure that exists for problems of this shape. jacobi: diagonals are known."""
    size = 1
    for n in shape:
        size *= n
    kinds = ["diagonal"]
    if size > 3:
        kinds.append("low-rank")
    if len(shape) > 1:
        kinds += ["sine", "cosine"]
    if size <= LARGEST_FULL:
        kinds.append("full")
    found = [Structure("scalar"), Structure("diagonal")]
    for coordinates in (False, True)[: 1 + jacobi]:
        if coordinates:
            found += [Structure("scalar", jacobi=True), Structure("conjugate", jacobi=True)]
        for kind in kinds:
            found.append(Structure("preconditioned", kind, coordinates))
            if not losses:
                found.append(Structure("conjugate", kind, coordinates))
    return found


def chosen(wanted: str | Iterable[str], everything: list[Structure]) -> list[Structure]:
    """The structures that a user asked for: "auto", a name, or several. "preconditioned" and
    "conjugate" stand for all of their kinds."""
    if wanted == "auto":
        return everything
    found: list[Structure] = []
    for name in [wanted] if isinstance(wanted, str) else list(wanted):
        one = parse(name)
        exact = ":" in name or one.family in ("scalar", "diagonal")
        members = [one] if exact else [s for s in everything if s.family == one.family]
        missing = [s for s in members if s not in everything]
        if missing or not members:
            names = ", ".join(s.name for s in everything)
            raise InputError(f"structure {name!r} does not exist for these problems. There are: {names}.")
        found += members
    if not found:
        raise InputError("structure names nothing to learn: pass 'auto' or one or more names.")
    return list(dict.fromkeys(found))
