"""What verdicts are made of: paired differences of scores, and the evidence in words."""

import math

import numpy as np

from lfom.training import Score


def verdict(*conditions: bool) -> str:
    """A verdict is computed, never typed in: holds if all are true, fails if none is, else partly."""
    return "holds" if all(conditions) else "partly" if any(conditions) else "fails"


def means(scores: dict[int, Score]) -> dict[int, float]:
    return {depth: score.log_loss for depth, score in scores.items()}


def gap(ours: Score, theirs: Score) -> tuple[float, float]:
    """Mean difference of log losses over runs, on the same prompts, and its standard error."""
    difference = ours.log_mean[:, -1] - theirs.log_mean[:, -1]
    runs = len(difference)
    return float(difference.mean()), float(difference.std(ddof=1) / math.sqrt(runs)) if runs > 1 else 0.0


def below(ours: Score, theirs: Score, by: float = 0.0) -> bool:
    """Whether ours is lower by more than `by`, beyond two standard errors of the difference."""
    mean, error = gap(ours, theirs)
    return mean + 2 * error < -by


def near(ours: Score, theirs: Score, within: float) -> bool:
    """Whether ours is above by at most `within` on average: no benefit of the doubt."""
    return gap(ours, theirs)[0] <= within


def compare(ours: dict[int, Score], theirs: dict[int, Score]) -> str:
    """Evidence: difference of log losses by depth."""
    parts = []
    for depth in ours:
        mean, error = gap(ours[depth], theirs[depth])
        parts.append(f"L={depth}: {mean:+.3f} ± {error:.3f}")
    return "; ".join(parts)


def values(scores: dict[int, Score]) -> str:
    """Evidence: log losses by depth with their spread over runs."""
    parts = []
    for depth, score in scores.items():
        parts.append(f"L={depth}: {score.log_loss:.3f} (spread {score.spread:.3f})")
    return "; ".join(parts)


def distance_to_identity(matrix: np.ndarray) -> float:
    """Dist(M, I) of Appendix D: how far M / |M| is from a multiple of the identity."""
    alpha = np.trace(matrix) / len(matrix)
    return float(np.linalg.norm(matrix - alpha * np.eye(len(matrix)))) / max(
        float(np.linalg.norm(matrix)), 1e-300
    )
