"""What experiments will take: recorded costs, since an experiment is more than its sizes tell."""

import csv
import functools
import importlib.resources
from collections.abc import Collection
from statistics import mean

from lfom.core.estimates import Cost
from lfom.experiments import EXPERIMENTS

SHARED = 0.5  # of its time an experiment takes after others, whose models it shares; two run at a time
ONE_OF_BOTH = 0.6  # of the time with --training both
BESIDE = 0.3e9  # bytes more for the second one that runs


@functools.cache
def recorded() -> dict[tuple[str, str], Cost]:
    """By name and preset: seconds of an experiment alone on two quiet cores, and bytes. See lfom/data/README.md."""
    text = importlib.resources.files("lfom.data").joinpath("experiment_costs.csv").read_text("utf8")
    return {
        (row["experiment"], row["preset"]): Cost(float(row["seconds"]), 1e9 * float(row["gigabytes"]))
        for row in csv.DictReader(text.splitlines())
    }


def together(names: Collection[str], preset: str, training: str, seeds: int) -> Cost | None:
    """Of those that are ours; one without a record counts as the mean of all. None where nothing is known."""
    known = {name: cost for (name, by), cost in recorded().items() if by == preset}
    ours = [name for name in names if name in EXPERIMENTS]
    if not ours or not known:
        return None
    usual = Cost(mean(one.seconds for one in known.values()), mean(one.bytes for one in known.values()))
    found = [known.get(name, usual) for name in ours]
    first = max(one.seconds for one in found)
    seconds = first + SHARED * (sum(one.seconds for one in found) - first)
    part = 1.0 if training == "both" else ONE_OF_BOTH
    return Cost(seeds * part * seconds, max(one.bytes for one in found) + BESIDE * (len(found) > 1))
