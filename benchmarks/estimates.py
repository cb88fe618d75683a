"""What commands say before their work beside what it took: ten settings, time and peak memory.

Run from the source folder: PYTHONPATH=src python benchmarks/estimates.py [names of settings]
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
PREPARE = "--prepare"
SAID = re.compile(r"about ([\d.]+) (s|min|h) and ([\d.,]+) GB")

SETTINGS = {
    "train: bank, 3 runs of depth 1 and 2": "train --runs 3 --depths 1,2 --prompts 20000 --out bank.safetensors",
    "train: register, depth 6": "train --memory register --runs 1 --depths 6 --prompts 20000 --out register.safetensors",
    "train: GD++ by Adam": "train --covariates --runs 2 --depths 2 --optimiser adam --steps 300 --prompts 20000 --out gdpp.safetensors",
    "learn: regressions, one structure": "learn regressions.npz --steps 4 --structure preconditioned:diagonal --out a.safetensors",
    "learn: dense systems, all structures": "learn systems.npz --steps 6 --out b.safetensors",
    "learn: large systems": "learn large.npz --steps 8 --structure conjugate:low-rank,conjugate:diagonal --out c.safetensors",
    "solve: a file of regressions": "solve cg.safetensors many.npz --out solved.npz",
    "solve: large systems, to a tolerance": "solve cg.safetensors large.npz --out solved2.npz --tolerance 1e-3",
    "solve: a stream of shards": "solve cg.safetensors shards --out solutions",
    "reproduce: sigma_convergence": "reproduce sigma_convergence --out results",
}


@dataclass(frozen=True)
class Run:
    said: tuple[float, float]
    took: tuple[float, float]
    processor: float

    @property
    def ratios(self) -> list[float]:
        return [one / other for one, other in zip(self.said, self.took, strict=True)]


def prepare(folder: Path) -> None:
    """Files of problems, and a method."""
    import numpy as np

    import lfom

    rng = np.random.default_rng(0)

    def regressions(name: str, count: int, n: int, d: int) -> None:
        X = (rng.standard_normal((count, n, d)) * np.logspace(0, -1, d)).astype(np.float32)
        np.savez(folder / name, X=X, y=X.sum(axis=2))

    def systems(name: str, count: int, d: int) -> None:
        G = rng.standard_normal((count, d, 2 * d)).astype(np.float32)
        A = G @ G.transpose(0, 2, 1) / (2 * d)
        np.savez(folder / name, A=A, b=rng.standard_normal((count, d)).astype(np.float32))

    regressions("regressions.npz", 500, 20, 8)
    regressions("many.npz", 400_000, 20, 10)
    systems("systems.npz", 200, 16)
    systems("large.npz", 200, 256)
    (folder / "shards").mkdir()
    for number in range(8):
        regressions(f"shards/{number}.npz", 30_000, 20, 10)
    lfom.conjugate_gradient(8).save(folder / "cg.safetensors")


def measured(command: str, folder: Path) -> Run:
    """Seconds from the line to the end, and the largest memory that this process ever had."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lfom", *command.split()],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path("src").resolve())},
    )
    lines: list[tuple[float, str]] = []

    def listen() -> None:
        assert process.stderr is not None
        lines.extend((time.monotonic(), line) for line in process.stderr)

    listener = threading.Thread(target=listen)
    listener.start()
    _, status, usage = os.wait4(process.pid, 0)
    end = time.monotonic()
    listener.join()
    found = next(((when, match) for when, line in lines if (match := SAID.search(line))), None)
    if status or found is None:
        raise SystemExit(f"{command}: status {status}\n" + "".join(line for _, line in lines))
    when, match = found
    said = float(match[1]) * UNITS[match[2]], float(match[3].replace(",", ""))
    return Run(said, (end - when, usage.ru_maxrss * 1024 / 1e9), usage.ru_utime + usage.ru_stime)


def main() -> None:
    if sys.argv[1:2] == [PREPARE]:
        prepare(Path(sys.argv[2]))
        return
    wanted = [name for name in SETTINGS if not sys.argv[1:] or any(part in name for part in sys.argv[1:])]
    within = [0, 0]
    print("| setting | said | took | ratio | said GB | took GB | ratio | load |\n" + "| --- " * 8 + "|")
    with tempfile.TemporaryDirectory() as name:
        # In a process of its own: the peak of a child counts from its parent's memory.
        subprocess.run([sys.executable, __file__, PREPARE, name], check=True)
        for setting in wanted:
            run = measured(SETTINGS[setting], Path(name))
            (time_said, memory_said), (time_took, memory_took), ratios = run.said, run.took, run.ratios
            print(
                f"| {setting} | {time_said:.0f} s | {time_took:.0f} s | {ratios[0]:.2f} | {memory_said:.1f} | "
                f"{memory_took:.2f} | {ratios[1]:.2f} | {os.getloadavg()[0]:.0f} |",
                flush=True,
            )
            print(f"  {run.processor:.1f} s of processors", file=sys.stderr, flush=True)
            within = [n + (0.5 <= ratio <= 2) for n, ratio in zip(within, ratios, strict=True)]
    print(f"Within a factor of two: time {within[0]} of {len(wanted)}, memory {within[1]} of {len(wanted)}")


if __name__ == "__main__":
    main()
