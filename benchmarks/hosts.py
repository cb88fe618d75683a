"""Several processes of some cores each against one: prompts per second of `evaluate`, and of passes of least squares.

    python benchmarks/hosts.py [--rounds 3] [--cores 1] [--most 2] [--weak]

Strong scaling: the same prompts for all, 16 million of them and 4 million for each pass. Weak (--weak): 4 and 1 million for each
process.

Every process is pinned to cores of its own (Linux). Conjugate gradients on d = 5, n = 20; a fit of a bank of four layers with
passes of many prompts. The time of the slowest process, after everything was compiled.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

PROMPTS, PASS = 4_000_000, 1_000_000
BANDWIDTH = 1e9  # bytes per second between processes of one machine


def work(index, count, address, rounds, cores, times):
    every = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, every[index * cores : (index + 1) * cores])
    import jax

    import lfom
    from lfom.core import hosts

    if count > 1:
        hosts.joined(address, count, index, 60)
    data = lfom.LinearRegression([1.0, 1.0, 0.25, 0.0625, 1.0], 20)
    methods, model = {"CGD": lfom.conjugate_gradient(4)}, lfom.memformer(5, 4, key=jax.random.key(0))
    how = lfom.LeastSquares(first=times * PASS, last=times * PASS, passes=(2, 1))

    def scored(key):
        return lfom.evaluate(methods, data, prompts=times * PROMPTS, key=key)["CGD"].mean

    def fitted(key):
        return lfom.fit(model, data, key=key, optimiser=how).vectors

    found = {}
    for name, job in (("evaluate", scored), ("least squares", fitted)):
        job(jax.random.key(0))
        took = []
        for at in range(rounds):
            begun = time.perf_counter()
            job(jax.random.key(at + 1))
            took.append(time.perf_counter() - begun)
        found[name] = took
    if count == 1:
        found["exchange"] = exchange(methods, data, times)
    if index == 0:
        print(json.dumps(found), flush=True)


def exchange(methods, data, times):
    """What the results of `evaluate` cost that travel: seconds and bytes, by one process alone."""
    import jax

    import lfom
    from lfom.core import hosts
    from lfom.training import evaluation

    kept, plain = [], evaluation.everywhere

    def seen(*given):
        for result in plain(*given):
            kept.append(result)
            yield result

    evaluation.everywhere = seen
    lfom.evaluate(methods, data, prompts=times * PROMPTS, key=jax.random.key(0))
    evaluation.everywhere = plain
    begun = time.perf_counter()
    content = hosts._packed(kept)
    packed = time.perf_counter()
    hosts._unpacked(content, jax.tree.structure(kept[0]))
    return [packed - begun, time.perf_counter() - packed, len(content)]


def predicted(alone, exchange, count):
    """Each computes its share and packs it; all of it travels to all, and each unpacks all."""
    pack, unpack, size = exchange
    return alone / count + pack / count + unpack + (count - 1) * size / count / BANDWIDTH


def measured(count, rounds, cores, times=1):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
    options = {"rounds": rounds, "address": address, "count": count, "cores": cores, "times": times}
    command = [
        sys.executable,
        __file__,
        *(word for name, value in options.items() for word in (f"--{name}", str(value))),
    ]
    begun = [
        subprocess.Popen([*command, "--index", str(i)], stdout=subprocess.PIPE, text=True)
        for i in range(count)
    ]
    texts = [one.communicate()[0] for one in begun]
    return json.loads(texts[0].splitlines()[-1])


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--cores", type=int, default=1)
    asked.add_argument("--most", type=int, default=2)
    asked.add_argument("--weak", action="store_true")
    for hidden, kind in (("--address", str), ("--count", int), ("--index", int), ("--times", int)):
        asked.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.index is not None:
        work(given.index, given.count, given.address, given.rounds, given.cores, given.times)
        return
    print(f"load of this machine: {os.getloadavg()[0]:.1f}, cores: {len(os.sched_getaffinity(0))}")
    size = 1 if given.weak else 4
    one = measured(1, given.rounds, given.cores, size)
    for count in (2, 4, 8):
        if count > given.most:
            break
        times = count if given.weak else 1
        several = measured(count, given.rounds, given.cores, times * size)
        for name in ("evaluate", "least squares"):
            a, b = statistics.median(one[name]), statistics.median(several[name])
            print(
                f"{name}: 1 process {a:.2f} s, {count} processes{' with their share each' if given.weak else ''} {b:.2f} s: "
                f"{times * a / b:.2f} times the prompts per second",
                flush=True,
            )
            if name == "evaluate":
                travels = [times * cost for cost in one["exchange"]]
                model = predicted(times * a, travels, count)
                print(f"  the cost model says {model:.2f} s, {100 * (model / b - 1):+.0f} %", flush=True)


if __name__ == "__main__":
    main()
