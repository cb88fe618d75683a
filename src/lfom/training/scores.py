"""What a method scored: means with their spread, the tail of its losses, paired differences.

Nothing here grows with the number of prompts. Losses after the last step are counted in BINS of equal width in the logarithm,
64 for each power of two: a quantile is known to half a bin (`TOLD`, .55 %). Their sums over at most GROUPS groups of prompts
give the standard error of a difference.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

FLOOR = -60.0  # what the log of a loss that is zero to rounding is written as
WORST = 1e-4  # the share of prompts called the worst
PER_OCTAVE, LOWEST, HIGHEST = 64, -100, 100  # bins of a power of two; powers of two that have bins
BINS = (HIGHEST - LOWEST) * PER_OCTAVE + 2  # the first and the last hold all that is below and above
TOLD = 2 ** (0.5 / PER_OCTAVE) - 1  # the largest relative error of a quantile inside the bins
GROUPS = 10_000


def bins(losses: Any, xp: Any = jnp) -> Any:
    """The bin of each loss; one that is no number counts as too large."""
    place = xp.floor((xp.log2(xp.maximum(losses, 2.0**LOWEST)) - LOWEST) * PER_OCTAVE) + 1
    place = xp.where(losses < 2.0**LOWEST, 0, xp.where(losses < 2.0**HIGHEST, place, BINS - 1))
    return xp.clip(place, 0, BINS - 1).astype(xp.int32)


def counted(losses: Any, times: Any) -> Array:
    """How many losses fall into each bin (BINS,), each of them counted `times` times."""
    return jnp.zeros(BINS, jnp.int32).at[bins(losses)].add(times)


def counted_on_host(losses: np.ndarray) -> np.ndarray:
    """The same of every row: (runs, BINS) from (runs, prompts)."""
    return np.stack([np.bincount(bins(own, np), minlength=BINS) for own in losses])


def value_of(place: Any) -> np.ndarray:
    """The middle of a bin."""
    middle = LOWEST + (np.asarray(place, np.float64) - 0.5) / PER_OCTAVE
    return np.where(np.asarray(place) == 0, 0.0, 2.0 ** np.minimum(middle, HIGHEST))


@dataclass(frozen=True)
class Score:
    """What one method scored. Axes: run, step (0 to depth).

    last: the loss of every prompt after the last step, where it was asked for.

    >>> import jax
    >>> import lfom
    >>> data = lfom.LinearRegression([1.0, 0.5], context=6)
    >>> methods = {"GD": lfom.gradient_descent(0.5, steps=2), "CGD": lfom.conjugate_gradient(2)}
    >>> scores = lfom.evaluate(methods, data, prompts=1_000, key=jax.random.key(0))
    >>> difference, error = scores["CGD"].minus(scores["GD"])  # on the same prompts
    >>> difference < 0 < error
    True
    """

    def __repr__(self) -> str:
        runs = len(self.mean)
        return f"Score({self.name!r}, log loss {self.log_loss:.3f}, {runs} run{'s' * (runs > 1)}, {self.prompts:,} prompts)"

    name: str
    mean: np.ndarray  # (runs, steps) mean loss over prompts
    stderr: np.ndarray  # (runs, steps) its standard error
    prompts: int
    groups: np.ndarray  # (runs, groups) sums of the losses after the last step over groups of prompts, the same for all methods
    counts: np.ndarray  # (runs, BINS) how many of these losses fall into each bin
    last: Any = None  # (runs, prompts)

    @classmethod
    def of(cls, name: str, mean: Any, stderr: Any, last: np.ndarray) -> "Score":
        """From the loss of every prompt (runs, prompts)."""
        return cls(name, mean, stderr, last.shape[1], last, counted_on_host(last), last)

    @property
    def log_mean(self) -> np.ndarray:
        """(runs, steps), FLOOR where the loss is zero to rounding."""
        return log_floor(self.mean)

    @property
    def log_loss(self) -> float:
        """Log loss after the last step, averaged over runs."""
        return float(np.mean(self.log_mean[:, -1]))

    @property
    def log_stderr(self) -> np.ndarray:
        return self.stderr / np.maximum(self.mean, 1e-300)

    @property
    def spread(self) -> float:
        """Standard deviation over runs of the last log loss (0 for one run)."""
        column = self.log_mean[:, -1]
        return float(np.std(column, ddof=1)) if len(column) > 1 else 0.0

    def quantile(self, part: float) -> np.ndarray:
        """The loss after the last step that this part of the prompts stays below, of each run: to within .55 %."""
        wanted = math.ceil(part * self.prompts)
        return value_of([np.searchsorted(np.cumsum(own), max(wanted, 1)) for own in self.counts])

    @property
    def log_median(self) -> float:
        """Log of the median prompt's loss, averaged over runs."""
        return float(np.mean(log_floor(self.quantile(0.5))))

    @property
    def worst_share(self) -> float:
        """The part of the total loss that the worst 0.01 % of prompts make."""
        count, values = max(1, round(WORST * self.prompts)), value_of(np.arange(BINS))
        above = np.cumsum(self.counts[:, ::-1], axis=1)[:, ::-1] - self.counts  # losses in higher bins
        worst = np.clip(count - above, 0, self.counts) @ values
        total = self.mean[:, -1] * self.prompts
        return float(np.mean(np.minimum(worst / np.maximum(total, 1e-300), 1.0)))

    def minus(self, other: "Score") -> tuple[float, float]:
        """This method's last log loss minus another's on the same prompts, and the standard
        error of that difference: over runs if there are several, else over groups of prompts."""
        per_run = self.log_mean[:, -1] - other.log_mean[:, -1]
        if len(per_run) > 1:
            return float(per_run.mean()), float(per_run.std(ddof=1) / math.sqrt(len(per_run)))
        ratio = self._relative() - other._relative()
        return float(per_run[0]), float(np.sqrt(np.sum((ratio - ratio.mean()) ** 2)) / self.prompts)

    def _relative(self) -> np.ndarray:
        return self.groups[0] / max(self.mean[0, -1], 1e-300)


def log_floor(value: Any) -> np.ndarray:
    value = np.asarray(value, np.float64)
    return np.where(value <= math.exp(FLOOR), FLOOR, np.log(np.maximum(value, 1e-300)))  # NaN stays NaN
