"""Claims, and what their verdicts are made of: paired differences of scores, and the evidence in words."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lfom.report.results import MEASURED, Claim
from lfom.training import Score

Depths = dict[int, Score]
Truth = bool | np.bool_


def verdict(*conditions: Truth) -> str:
    """A verdict is computed, never typed in: holds if all are true, fails if none is, else partly. What no case was found
    for does not hold."""
    return "holds" if conditions and all(conditions) else "partly" if any(conditions) else "fails"


def slug(text: str) -> str:
    """As a part of a claim's id."""
    return text.lower().replace(", ", "-").replace(" ", "-")


def mean_error(values: np.ndarray) -> tuple[float, float]:
    """The mean over runs and its standard error; 0 for one run."""
    runs = len(values)
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(runs)) if runs > 1 else 0.0


def written(values: np.ndarray, form: str = "+.3f") -> str:
    mean, error = mean_error(values)
    return f"{mean:{form}} ± {error:{form.lstrip('+')}}"


def under(values: np.ndarray, by: float = 0.0) -> bool:
    """Whether values are below -by on average over runs, beyond two standard errors."""
    mean, error = mean_error(values)
    return mean + 2 * error < -by


def difference(ours: Score, theirs: Score) -> np.ndarray:
    """Of the log losses on the same prompts, by run."""
    return ours.log_mean[:, -1] - theirs.log_mean[:, -1]


def below(ours: Score, theirs: Score, by: float = 0.0) -> bool:
    """Whether ours is lower by more than `by`, beyond two standard errors of the difference."""
    return under(difference(ours, theirs), by)


def near(ours: Score, theirs: Score, within: float) -> bool:
    """Whether ours is above by at most `within` on average: no benefit of the doubt."""
    return mean_error(difference(ours, theirs))[0] <= within


def lower_in_all_runs(ours: Score, theirs: Score) -> bool:
    """Where losses reach zero to rounding, their logs have no useful standard error."""
    return bool((ours.mean[:, -1] < theirs.mean[:, -1]).all())


def listed(
    found: Mapping[Any, Any], words: Callable[[Any], str] = str, form: str = "{}: {}", between: str = "; "
) -> str:
    """Evidence: all that was found, each with its name."""
    return between.join(form.format(name, words(one)) for name, one in found.items())


def compare(ours: Depths, theirs: Depths, at: str = "L") -> str:
    """Evidence: difference of log losses by depth."""
    return listed({x: difference(ours[x], theirs[x]) for x in ours}, written, at + "={}: {}")


def values(scores: Depths) -> str:
    """Evidence: log losses by depth with their spread over runs."""
    return listed(scores, lambda score: f"{score.log_loss:.3f} (spread {score.spread:.3f})", "L={}: {}")


def each_run(by_depth: dict[int, np.ndarray]) -> str:
    """Evidence: values of every run, by depth."""
    return listed(by_depth, lambda own: ", ".join(f"{value:+.3f}" for value in own), "L={}: {}")


def share(rest: np.ndarray, whole: np.ndarray) -> float:
    """The norm of the one over that of the other."""
    return float(np.linalg.norm(rest)) / max(float(np.linalg.norm(whole)), 1e-300)


def distance_to_identity(matrix: np.ndarray) -> float:
    """Dist(M, I) of Appendix D: how far M / |M| is from a multiple of the identity."""
    rest = matrix - np.trace(matrix) / len(matrix) * np.eye(len(matrix))
    return share(rest, matrix)


@dataclass(frozen=True)
class Finding:
    """A rule, whether it is met in every case, and the evidence in words."""

    rule: str
    met: Iterable[Truth]
    evidence: str


class Claims(list[Claim]):
    """The claims of an experiment, in the section of the paper that makes them.

    >>> import lfom
    >>> claims = lfom.Claims("My notes")
    >>> claims.test("mine", "Memory helps.", "a lower loss at every depth", [True, False], "-0.2, +0.1")
    >>> claims[0].verdict
    'partly'
    """

    def __init__(self, section: str):
        super().__init__()
        self.section = section

    def add(self, id: str, text: str, found: Finding, section: str = "") -> None:
        self.append(Claim(id, text, section or self.section, found.rule, verdict(*found.met), found.evidence))

    def measure(self, id: str, text: str, how: str, evidence: str, section: str = "") -> None:
        """A number that stands beside the claims without a verdict."""
        self.append(Claim(id, text, section or self.section, how, MEASURED, evidence))

    def test(
        self, id: str, text: str, rule: str, met: Truth | Iterable[Truth], evidence: str, section: str = ""
    ) -> None:
        """A claim with a rule of its own; met: whether it holds, or in which cases."""
        cases = [met] if isinstance(met, Truth) else met
        self.add(id, text, Finding(rule, cases, evidence), section)


def lower(ours: Depths, theirs: Depths, by: float = 0.0, depths: Sequence[int] = (), **words: str) -> Finding:
    """Ours is below theirs by more than `by`, beyond two standard errors, at every depth (or those given).

    words: another rule or evidence than the usual; `listed` stands before the depths where it is so.
    """
    least = f"below {f'{-by:g}' if by else 0} by two standard errors"
    rule = f"difference of log loss on the same fresh prompts {least}, per depth"
    if depths:
        rule = f"difference of log loss {least}, depths {depths[0]} to {depths[-1]}"
    met = {d: below(ours[d], theirs[d], by) for d in ours}
    return _finding(met, depths, **({"rule": rule, "evidence": compare(ours, theirs)} | words))


def at_most(ours: Depths, theirs: Depths, above: float, depths: Sequence[int] = (), **words: str) -> Finding:
    """Ours is at most this much above theirs, on average, at every depth (or those given)."""
    rule = f"paired difference of log loss at most {above} at every depth"
    met = {d: near(ours[d], theirs[d], above) for d in ours}
    return _finding(met, depths, **({"rule": rule, "evidence": compare(ours, theirs)} | words))


def _finding(
    met: dict[int, bool], depths: Sequence[int], rule: str, evidence: str, listed: str = ""
) -> Finding:
    where = f"{listed} {[d for d in met if met[d]]}: " if listed else ""
    return Finding(rule, [met[d] for d in depths or met], where + evidence)
