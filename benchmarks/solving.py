"""Where the time of `method.solve` goes, family by family: the call, its compiled program, and iterative rivals.

Run from the source folder: PYTHONPATH=src python benchmarks/solving.py [folder with learned methods] [families]
Methods that the folder lacks are learned. Times are medians for the whole batch at the number of steps that takes the median
error to 1e-2. Methods take turns of ten calls each, as whoever solves batch after batch would make them; the median of the first
calls of all turns, after other programs have run, stands beside that of all. LFOM_TRACE=folder writes a profile of the call.
"""

import gzip
import json
import os
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import jax
import numpy as np

import lfom
from lfom.bench.rival import Judge
from lfom.bench.rivals import rivals
from lfom.bench.solve import BUDGET, LEARNING, STRUCTURES
from lfom.families import FAMILIES

ROUNDS, IN_A_ROW = 12, 10


def milliseconds(programs):
    """The medians of all calls, and of the first of every turn."""
    for program in programs.values():
        jax.block_until_ready(program())
    times = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, program in programs.items():
            for _ in range(IN_A_ROW):
                start = time.perf_counter()
                jax.block_until_ready(program())
                times[name].append(1e3 * (time.perf_counter() - start))
    return {
        name: (statistics.median(some), statistics.median(some[::IN_A_ROW])) for name, some in times.items()
    }


def kernels(call, folder: Path) -> None:
    """How often each kernel runs in one call, and for how long (microseconds)."""
    jax.block_until_ready(call())
    with jax.profiler.trace(str(folder)):
        jax.block_until_ready(call())
    count, total = Counter(), Counter()
    for path in folder.rglob("*.trace.json.gz"):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        names = {e["pid"]: e["args"].get("name", "") for e in events if e.get("name") == "process_name"}
        for e in events:
            if e.get("ph") == "X" and "GPU" in names.get(e["pid"], ""):
                count[e["name"]] += 1
                total[e["name"]] += e["dur"]
    print(f"    {sum(count.values())} events on the device, {sum(total.values()):.0f} us")
    for name, n in count.most_common(12):
        print(f"      {n:4d} x {name[:70]}  {total[name]:.0f} us")


def steps_to(run, score, accuracy=1e-2, most=512) -> int | None:
    """The smallest number of steps with a median error that small, by halving an interval."""

    def enough(steps: int) -> bool:
        return float(np.median(score(run(steps)))) <= accuracy

    high = 1
    while high < most and not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        low, high = (low, (low + high) // 2) if enough((low + high) // 2) else ((low + high) // 2, high)
    return high if enough(high) else None


def main(folder: str = "", *names: str) -> None:
    print("device:", jax.devices()[0].device_kind, "jax", jax.__version__)
    for name in names or FAMILIES:
        family = FAMILIES[name]
        problems = family.held_out(family.batch)
        path = Path(folder) / f"{name}.safetensors"
        if folder and path.exists():
            method = lfom.load(path)
        else:
            method = lfom.learn(family.learning(LEARNING[family.batch]), BUDGET, STRUCTURES[name][-1])
        score = Judge(problems)
        runs = {"ours": lambda steps: method.solve(problems, steps=steps).value}
        for rival in rivals(problems):
            if rival.library != "SciPy" and rival.iterative and "Chebyshev" not in rival.name:
                runs[rival.name] = rival.run
        needed = {who: steps_to(run, score) for who, run in runs.items()}
        found = milliseconds({w: (lambda w=w: runs[w](needed[w])) for w in runs if needed[w]})
        print(f"{name}: {len(problems)} problems", flush=True)
        for who, (ms, first) in found.items():
            print(
                f"    {who:28s} {needed[who]:4d} steps {ms:8.3f} ms, first of a turn {first:8.3f}", flush=True
            )
        toler = milliseconds({"tolerance 1e-2": lambda: method.solve(problems, tolerance=1e-2).value})
        print("   ", {k: round(v, 3) for k, (v, _) in toler.items()}, flush=True)
        if os.environ.get("LFOM_TRACE"):
            kernels(
                lambda: method.solve(problems, steps=needed["ours"]).value,
                Path(os.environ["LFOM_TRACE"]) / name,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
