"""Warm time per problem of `solve` for batch sizes from 500 to 5,000, primes included, and how many programs were compiled.

    python benchmarks/sizes.py [--rounds 9] [--calls 9]

Linear systems of 64 unknowns, 8 steps of conjugate gradients. In every round each size is solved once and then timed for so many
calls; of all of them the median counts. With several rounds a machine that is slow for a moment is slow for all sizes.
"""

import argparse
import os
import statistics
import time

import jax
import jax.monitoring
import numpy as np

import lfom

UNKNOWNS, STEPS = 64, 8
SIZES = (500, 503, 509, 557, 600, 613, 647, 701, 751, 800, 877, 997, 1_000, 1_009, 1_151, 1_301, 1_500, 1_753, 2_003, 2_503,
         3_001, 3_511, 4_001, 4_507, 5_000)  # fmt: skip


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--rounds", type=int, default=9)
    asked.add_argument("--calls", type=int, default=9)
    given = asked.parse_args()
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if "backend_compile" in event else None
    )
    random = np.random.default_rng(0)
    factors = random.standard_normal((max(SIZES), UNKNOWNS, 2 * UNKNOWNS)).astype(np.float32)
    A = factors @ factors.transpose(0, 2, 1) / (2 * UNKNOWNS)
    b = random.standard_normal((max(SIZES), UNKNOWNS)).astype(np.float32)
    method = lfom.conjugate_gradient(STEPS)
    batches = {size: lfom.LinearSystems(A[:size], b[:size]) for size in SIZES}
    before = len(compiled)

    def solved(size):
        begun = time.perf_counter()
        jax.block_until_ready(method.solve(batches[size], steps=STEPS).value)
        return 1e6 * (time.perf_counter() - begun) / size

    for size in SIZES:
        solved(size)
    programs, took = len(compiled) - before, {size: [] for size in SIZES}
    for _ in range(given.rounds):
        for size in SIZES:
            solved(size)
            took[size] += [solved(size) for _ in range(given.calls)]
    middle = {size: statistics.median(times) for size, times in took.items()}
    print(
        f"load of this machine: {os.getloadavg()[0]:.1f}, cores: {len(os.sched_getaffinity(0))}, {jax.default_backend()}"
    )
    for size, time_ in middle.items():
        low, high = np.quantile(took[size], [0.25, 0.75])
        print(f"{size:>6,} problems: {time_:5.1f} us each (quarters {low:.1f} to {high:.1f})")
    print(f"from {min(middle.values()):.1f} to {max(middle.values()):.1f} us: a factor of "
          f"{max(middle.values()) / min(middle.values()):.2f}; {programs} programs")  # fmt: skip


if __name__ == "__main__":
    main()
