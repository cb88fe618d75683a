"""What every experiment costs: each in a process of its own on two cores, several processes at a time where there are more.

    PYTHONPATH=src python benchmarks/experiments.py FOLDER [names]

Writes FOLDER/costs.csv (experiment, preset, seconds, processor seconds, gigabytes, exit status), and the results of each below
FOLDER. Seconds and memory are those of src/lfom/data/experiment_costs.csv.
"""

import csv
import os
import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lfom.experiments import EXPERIMENTS

CORES = 2


def main(folder: str, *names: str) -> None:
    places: queue.Queue[str] = queue.Queue()
    mine = sorted(os.sched_getaffinity(0))
    for at in range(0, len(mine) - CORES + 1, CORES):
        places.put(",".join(map(str, mine[at : at + CORES])))
    at_once, lock, file = places.qsize(), threading.Lock(), Path(folder) / "costs.csv"
    Path(folder).mkdir(parents=True, exist_ok=True)
    file.write_text("experiment,preset,seconds,processor,gigabytes,status\n", "utf-8")

    def one(name: str) -> None:
        place = places.get()
        words = ["reproduce", name, "--out", str(Path(folder) / name), "--force"]
        begun = time.monotonic()
        with open(Path(folder) / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                ["taskset", "-c", place, sys.executable, "-m", "lfom", *words], stdout=log, stderr=log
            )
            _, status, used = os.wait4(process.pid, 0)
        seconds = time.monotonic() - begun
        places.put(place)
        row = [name, "quick", round(seconds), round(used.ru_utime + used.ru_stime), f"{used.ru_maxrss / 2**20 * 1.0737:.2f}", status]  # fmt: skip
        with lock, open(file, "a", newline="", encoding="utf-8") as out:
            csv.writer(out, lineterminator="\n").writerow(row)
        print(*row, flush=True)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, names or EXPERIMENTS))


if __name__ == "__main__":
    main(*sys.argv[1:])
