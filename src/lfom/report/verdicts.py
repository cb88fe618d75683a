"""Verdicts of several seeds: how often each came, per claim."""

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from lfom.core.files import write_whole
from lfom.report.results import VERDICTS, read_results


def in_words(by_seed: dict[int, str]) -> str:
    """
    >>> in_words({0: "holds", 1: "holds"}), in_words({0: "partly", 1: "holds", 2: "holds"})
    ('holds in 2 of 2 seeds', 'holds in 2, partly in 1 of 3 seeds')
    """
    counts = Counter(by_seed.values())
    parts = [f"{verdict} in {counts[verdict]}" for verdict in VERDICTS if counts[verdict]]
    return f"{', '.join(parts)} of {len(by_seed)} seeds"


def write_verdicts(results: Path, leave_out: Collection[Path] = ()) -> None:
    """Write results/verdicts.json, of all claims with results of more than one seed."""
    lines = [
        {"experiment": result.name, "claim": claim, "counts": Counter(by_seed.values()), "seeds": by_seed}
        for result in read_results(results, leave_out=leave_out)
        for claim, by_seed in result.by_seed.items()
    ]
    write_whole(results / "verdicts.json", json.dumps(lines, indent=1).encode())


def verdicts_markdown(results: Path) -> str:
    """Which verdicts are not the same in all seeds, as a page of documentation."""
    found = read_results(results)
    table = [(result, claim, result.by_seed[claim.id]) for result in found for claim in result.claims
             if claim.id in result.by_seed]  # fmt: skip
    mixed = [line for line in table if len(set(line[2].values())) > 1]
    seeds = sorted({seed for *_, by_seed in table for seed in by_seed})
    same, listed = len(table) - len(mixed), ", ".join(map(str, seeds))
    lines = [
        "# Verdicts and seeds",
        "",
        f"Of {len(table)} claims, {same} have the same verdict with each of the seeds {listed}.",
    ]
    if mixed:
        head = f"| claim | experiment | {' | '.join(f'seed {seed}' for seed in seeds)} |"
        lines += ["The others:", "", head, "| --- | --- |" + " --- |" * len(seeds)]
    for result, claim, by_seed in mixed:
        verdicts = " | ".join(by_seed.get(seed, "") for seed in seeds)
        lines.append(f"| {claim.claim.replace('|', chr(92) + '|')} | {result.name} | {verdicts} |")
    return "\n".join(lines) + "\n"
