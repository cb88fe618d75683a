"""Streams of problems: throughput and memory, workers of a Dask cluster, and workers that are killed.

    python benchmarks/streams.py stream [--problems 1000000]     against warm batches in memory, and peak memory
    python benchmarks/streams.py workers [--rounds 3]            two Dask workers of one core against one
    python benchmarks/streams.py kills [--runs 20] [--seed 0]    a worker is killed: is anything lost, twice, or different?
    python benchmarks/streams.py stops [--runs 20] [--seed 0]    the same where `lfom solve` itself is killed, and begun again

Least squares with n = 20 and d = 10 in float32, 8 steps of conjugate gradients.
"""

import argparse
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import lfom
from lfom.scale.cluster import connected

ROWS, UNKNOWNS, STEPS = 20, 10, 8
BATCH = 20_000
POOL = 10  # batches that are in memory
METHOD = lfom.conjugate_gradient(STEPS)


def drawn(rng: np.random.Generator, count: int = BATCH) -> tuple[np.ndarray, np.ndarray]:
    X = rng.standard_normal((count, ROWS, UNKNOWNS), np.float32)
    return X, X.sum(axis=2) + rng.standard_normal((count, ROWS), np.float32)


# Stream


def from_pool(pool: list[tuple[np.ndarray, np.ndarray]], batches: int) -> Iterator[lfom.LeastSquaresProblems]:
    """Problems that lie somewhere as NumPy's arrays: every batch is built anew, which copies it to JAX's."""
    for number in range(batches):
        yield lfom.LeastSquaresProblems(*pool[number % len(pool)])


def from_chance(batches: int) -> Iterator[lfom.LeastSquaresProblems]:
    rng = np.random.default_rng(1)
    for _ in range(batches):
        yield lfom.LeastSquaresProblems(*drawn(rng))


Rates = tuple[
    float, float
]  # problems per second, and per second of processor time, which other work does not touch


def rates_of(work: Callable[[], int]) -> Rates:
    begun, processor = time.perf_counter(), time.process_time()
    problems = work()
    return problems / (time.perf_counter() - begun), problems / (time.process_time() - processor)


def in_memory(pool: list[lfom.LeastSquaresProblems], batches: int) -> int:
    for number in range(batches):
        jax.block_until_ready(METHOD.solve(pool[number % len(pool)]).value)
    return batches * BATCH


def streamed(source: Iterator[lfom.LeastSquaresProblems]) -> int:
    last: dict[str, np.ndarray] = {}  # what came last is looked at, as a user would

    def sink(name: str, solution: lfom.Solution) -> None:
        last["w"] = np.asarray(solution.value)

    summary = lfom.solve_stream(METHOD, source, sink)
    assert summary.ok
    return summary.problems


def stream(problems: int, rounds: int) -> None:
    rng, batches = np.random.default_rng(0), -(-problems // BATCH)
    pool = [drawn(rng) for _ in range(POOL)]
    METHOD.solve(lfom.LeastSquaresProblems(*pool[0]))
    rate, _ = rates_of(lambda: streamed(from_pool(pool, batches)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{batches * BATCH:,} problems at {rate:,.0f} per second, peak resident memory {peak:.2f} GB (asked: below 1.5)"
    )
    kept = [lfom.LeastSquaresProblems(*one) for one in pool]
    part = max(batches // rounds, POOL)
    ways: dict[str, Callable[[], int]] = {
        "in memory": lambda: in_memory(kept, part),
        "stream, of arrays": lambda: streamed(from_pool(pool, part)),
        "stream, drawn": lambda: streamed(from_chance(part)),
        "drawing alone": lambda: sum(len(one) for one in from_chance(part)),
    }
    found: dict[str, list[Rates]] = {name: [] for name in ways}
    for _ in range(rounds):  # in turn, since other work on the machine comes and goes
        for name, way in ways.items():
            found[name].append(rates_of(way))
    print(f"{'':20}{'per second':>12}  of in memory{'by processor time':>32}")
    for name, rates in found.items():
        texts = [f"{statistics.median(one[0] for one in rates):12,.0f}"]
        for clock in range(2):
            ratios = [one[clock] / base[clock] for one, base in zip(rates, found["in memory"], strict=True)]
            texts.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        print(f"{name:20}{texts[0]}  {texts[1]:30}{texts[2]}")


# Workers


def write_shards(folder: Path, shards: int, size: int) -> Path:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(shards):
        X, y = drawn(rng, size)
        np.savez(folder / f"{number:03d}.npz", X=X, y=y)
    return folder


def solve_with(client: Any, shards: Path, out: Path) -> Rates:
    """Problems per second, and per second of processor time of the workers."""
    begun, processor = time.perf_counter(), sum(client.run(time.process_time).values())
    summary = lfom.solve_stream(METHOD, shards, out, cluster=client.scheduler.address)
    assert summary.ok, summary.failed
    spent = sum(client.run(time.process_time).values()) - processor
    return summary.problems / (time.perf_counter() - begun), summary.problems / max(spent, 1e-9)


def workers(folder: Path, rounds: int, count: int, size: int) -> None:
    shards = write_shards(folder / "problems", count, size)
    rates: dict[int, list[Rates]] = {1: [], 2: []}
    for _ in range(rounds):
        for number, found in rates.items():  # one cluster at a time: also an idle one needs its processes
            with connected(f"local:{number}") as client:
                solve_with(client, shards, folder / "warm")
                found.append(solve_with(client, shards, folder / "out"))
            for name in ("warm", "out"):
                shutil.rmtree(folder / name)
    for number, found in rates.items():
        told = ", ".join(f"{rate:,.0f} ({rate / (number * processor):.0%})" for rate, processor in found)
        print(f"{number} of one core, problems per second (and share of its core that each had): {told}")
    pairs = list(zip(rates[1], rates[2], strict=True))
    for clock, factor, name in (
        (0, 1, "by the clock"),
        (1, 2, "by processor time, each on a core of its own"),
    ):
        ratios = [factor * b[clock] / a[clock] for a, b in pairs]
        print(
            f"two over one, {name}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}; asked: 1.6)"
        )


# Kills


def contents(folder: Path) -> dict[str, dict[str, bytes]]:
    found = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            found[path.name] = {name: file[name].tobytes() for name in file.files}
    return found


def kills(folder: Path, runs: int, seed: int, count: int, size: int) -> int:
    shards, chance, wrong = write_shards(folder / "problems", count, size), random.Random(seed), 0
    with connected("local:2") as client:
        solve_with(client, shards, folder / "warm")
        begun = time.perf_counter()
        solve_with(client, shards, folder / "undisturbed")
        whole = time.perf_counter() - begun
        wanted = contents(folder / "undisturbed")
        print(f"undisturbed: {len(wanted)} shards in {whole:.1f} s\n{'killed after':>14}  what was found")
        for number in range(runs):
            client.wait_for_workers(2)
            victim, moment = (
                chance.choice(list(client.run(os.getpid).values())),
                chance.random() * whole,
            )
            timer = threading.Timer(moment, os.kill, (victim, signal.SIGKILL))
            timer.start()
            out = folder / f"out{number}"
            summary = lfom.solve_stream(METHOD, shards, out, cluster=client.scheduler.address)
            timer.join()
            same = contents(out) == wanted
            counted = summary.problems == count * size and summary.ok
            left = [path.name for path in out.iterdir() if path.name.endswith(".partial")]
            good = same and counted and not left
            wrong += not good
            print(
                f"{moment:12.2f} s  {'all, once, the same bits' if good else 'WRONG'} "
                f"({summary.made} made, {summary.kept} kept)",
                flush=True,
            )
            shutil.rmtree(out)
    print(f"\n{runs} kills: {wrong or 'nothing'} wrong")
    return 1 if wrong else 0


def stops(folder: Path, runs: int, seed: int, count: int, size: int) -> int:
    shards, chance, wrong = write_shards(folder / "problems", count, size), random.Random(seed), 0
    METHOD.save(folder / "method.safetensors")

    def command(out: Path) -> subprocess.Popen[bytes]:
        asked = ["solve", str(folder / "method.safetensors"), str(shards), "--out", str(out)]
        return subprocess.Popen(
            [sys.executable, "-m", "lfom", *asked], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    assert command(folder / "undisturbed").wait() == 0
    wanted = contents(folder / "undisturbed")
    print("what was found")
    for number in range(runs):
        out, enough = folder / f"out{number}", chance.randrange(count)
        process = command(out)
        while process.poll() is None and len(list(out.glob("*.npz"))) < enough:
            time.sleep(0.001)
        time.sleep(0.02 * chance.random())
        process.kill()
        process.wait()
        kept = {path.name: path.stat().st_mtime_ns for path in out.glob("*.npz")}
        status = command(out).wait()
        untouched = all((out / name).stat().st_mtime_ns == when for name, when in kept.items())
        good = status == 0 and untouched and contents(out) == wanted
        wrong += not good
        print(
            f"{'all, once, the same bits' if good else 'WRONG'} (killed after {len(kept)} of {count}, which were kept)",
            flush=True,
        )
        shutil.rmtree(out)
    print(f"\n{runs} kills: {wrong or 'nothing'} wrong")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("stream", "workers", "kills", "stops"))
    for name, usual in (
        ("problems", 1_000_000),
        ("rounds", 5),
        ("runs", 20),
        ("seed", 0),
        ("shards", 24),
        ("size", 20_000),
    ):
        parser.add_argument(f"--{name}", type=int, default=usual)
    asked = parser.parse_args()
    print(f"load of this machine: {os.getloadavg()[0]:.1f}, cores: {os.cpu_count()}")
    if asked.what == "stream":
        stream(asked.problems, asked.rounds)
        return 0
    with tempfile.TemporaryDirectory() as own:
        if asked.what == "workers":
            workers(Path(own), asked.rounds, asked.shards, asked.size)
            return 0
        broken = kills if asked.what == "kills" else stops
        return broken(Path(own), asked.runs, asked.seed, asked.shards, asked.size)


if __name__ == "__main__":
    sys.exit(main())
