"""Is anything lost when one of several processes dies? `lfom train` on 2 or 3 processes, of which a random one is killed at a
random moment; then `--resume` with another number of processes. The file must have the bytes of the undisturbed run.

    python benchmarks/host_kills.py [--kills 20] [--seed 0] [--at-once 2]
"""

import argparse
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FILE = "model.safetensors"
TRAIN = ["train", "--depths", "1,2", "--runs", "2", "--seed", "3", "--prompts", "20000", "--out", FILE]
PATIENCE = 600


def begun(folder, words, count):
    """The command on so many processes, each with a parent of its own that watches it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
    own = [["--coordinator", address, "--processes", str(count), "--process", str(i)] for i in range(count)]
    return [
        subprocess.Popen(
            [sys.executable, "-m", "lfom", *words, *(extra if count > 1 else [])],
            cwd=folder, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for extra in own
    ]  # fmt: skip


def ended(processes):
    """Exit status and words of each, and the seconds until the last."""
    start = time.perf_counter()
    texts = [one.communicate(timeout=PATIENCE)[0] for one in processes]
    return [(one.returncode, text) for one, text in zip(processes, texts, strict=True)], (
        time.perf_counter() - start
    )


def disturbed(number, chance, whole, expected):
    """One run: what happened, and whether the file has the expected bytes at the end."""
    count, again = chance.choice([(2, 1), (2, 3), (3, 1), (3, 2)])
    victim, moment = chance.randrange(count), chance.random() * whole
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / FILE
        processes = begun(folder, TRAIN, count)
        time.sleep(moment)
        done = processes[victim].poll() is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(processes[victim].pid, signal.SIGKILL)
        others, seconds = ended(processes)
        told = all(status == 0 or "lfom:" in text for at, (status, text) in enumerate(others) if at != victim)
        there = file.exists()
        words = ["train", "--resume", FILE] if there else TRAIN
        results, _ = ended(begun(folder, words, again))
        same = file.read_bytes() == expected
        other = sorted(path.name for path in Path(folder).iterdir() if path.name != FILE)
    state = "had ended" if done else ("left a checkpoint" if there else "before any checkpoint")
    fine = told and same and not other and not any(status for status, _ in results)
    print(
        f"{number:3}  process {victim} of {count} killed after {moment:5.1f} s ({state}); the others ended after {seconds:4.1f} s; "
        f"{'resumed' if there else 'begun again'} with {again}: {'the same bytes' if fine else f'WRONG {told} {same} {other} {results}'}",
        flush=True,
    )
    return fine, done


def main():
    parser = argparse.ArgumentParser()
    for name, usual in (("kills", 20), ("seed", 0), ("at-once", 2)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ended(begun(folder, TRAIN, 1))
        expected = (Path(folder) / FILE).read_bytes()
    for count in (2, 3):
        with tempfile.TemporaryDirectory() as folder:
            results, whole = ended(begun(folder, TRAIN, count))
            same = (Path(folder) / FILE).read_bytes() == expected
        print(f"{count} processes, undisturbed, {whole:.1f} s: {'the bytes of one' if same else results}")
    with ThreadPoolExecutor(asked.at_once) as pool:
        chances = [random.Random(f"{asked.seed} {number}") for number in range(asked.kills)]
        jobs = [
            pool.submit(disturbed, number, chance, whole, expected) for number, chance in enumerate(chances)
        ]
        found = [job.result() for job in jobs]
    right, after = sum(fine for fine, _ in found), sum(done for _, done in found)
    print(
        f"{right} of {len(found)} runs ended with the bytes of the undisturbed one ({after} had ended before the kill)"
    )
    return 0 if right == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
