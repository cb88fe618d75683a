"""One Adam step of 5 runs on a GPU, beside the floors of memory traffic and of launches.

Run from the source folder: PYTHONPATH=src python benchmarks/h200.py
"""

import statistics
import time

import jax
import jax.numpy as jnp

from lfom.bench.train import BATCH, DEPTH, RUNS, D, adam_programs


def seconds(program, *arguments, rounds: int = 20) -> float:
    jax.block_until_ready(program(*arguments))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(program(*arguments))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    print("device:", jax.devices()[0].device_kind, "jax", jax.__version__)
    steps = 1_000
    programs, _ = adam_programs(ours_steps=steps, token_steps=20)
    ours = seconds(programs["iterates"]) / steps
    tokens = seconds(programs["tokens"], rounds=5) / 20
    # Memory floor: G, b, query and target of all prompts once per step (they stay in the L2 cache).
    numbers = RUNS * BATCH * (D * D + D + D + 1)
    # Launch floor: a loop whose body is one small kernel.
    tiny = jnp.zeros((RUNS, DEPTH, D, D))
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, steps, lambda _, y: y * 1.0001 + 1e-6, x))
    launch = seconds(loop, tiny) / steps
    rows = [
        ("adam step, 5 runs, iterates", ours * 1e6),
        ("adam step, 1 run, tokens", tokens * 1e6),
        ("one small kernel in a loop (launch floor)", launch * 1e6),
        ("memory floor at 4.3 TB/s", numbers * 4 / 4.3e12 * 1e6),
    ]
    print(f"{'program':45s} microseconds")
    for name, value in rows:
        print(f"{name:45s} {value:10.2f}")


if __name__ == "__main__":
    main()
