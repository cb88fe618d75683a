"""Are results ever lost? `lfom reproduce --force` over finished results, killed at random moments, and with files
that cannot grow beyond a random size: the old results must be there or the new ones, whole, each time.

    python benchmarks/kills.py [--kills 20] [--limits 10] [--seed 0] [--out FOLDER]
"""

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lfom.core.checks import InputError
from lfom.report import read_experiment
from lfom.report.folders import repair_folder

MINE = """
import os
import lfom

class Tiny(lfom.Experiment):
    name = "tiny"
    title = "A value that tells which run wrote it"

    def run(self, bench):
        value = float(os.environ["LFOM_KILLS"])
        rows = [lfom.Row("value", "mine", x, value, run) for x in range(1, 41) for run in range(5)]
        return lfom.Outcome(rows, [lfom.Claim("c", "It ends.", "", "it ends", "holds", str(value))])
"""
FILES = ("claims.json", "curves.csv", "figure.png", "figure.svg", "meta.json")


class Bench:
    """A folder with finished results of version 0, and what writes others over them."""

    def __init__(self, out: Path, mine: Path):
        self.out, self.folder, self.mine = out, out / "tiny", mine
        mine.write_text(MINE)

    def start(self, version: int, before: Callable[[], None] | None = None) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "lfom",
            "reproduce",
            str(self.mine),
            "--out",
            str(self.out),
            "--force",
        ]
        return subprocess.Popen(
            command, env=os.environ | {"LFOM_KILLS": str(version)}, preexec_fn=before, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def there(self) -> int | None:
        """The version of the results, repaired as at the next start; None if they are not whole."""
        repair_folder(self.folder)
        try:
            values = {row.value for row in read_experiment(self.folder).rows}
        except InputError:
            return None
        whole = all((self.folder / name).stat().st_size for name in FILES)
        report = (self.out / "report.html").read_text().rstrip().endswith("</html>")
        return int(values.pop()) if whole and report and len(values) == 1 else None


def wait(process: subprocess.Popen[str], folder: Path, writing: bool) -> float:
    """Until new results are being written, or are not any more; the time."""
    while process.poll() is None and folder.with_name(f".{folder.name}.new").exists() != writing:
        time.sleep(0.001)
    return time.perf_counter()


def main() -> int:
    parser = argparse.ArgumentParser()
    for name, usual in (("kills", 20), ("limits", 10), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        bench = Bench(asked.out or Path(own) / "results", Path(own) / "tiny.py")
        return run(bench, asked.kills, asked.limits, random.Random(asked.seed))


def run(bench: Bench, kills: int, limits: int, chance: random.Random) -> int:
    begun = time.perf_counter()
    process = bench.start(0)
    first, last = (wait(process, bench.folder, writing) for writing in (True, False))
    text, _ = process.communicate()
    whole, part = time.perf_counter() - begun, 1.2 * (last - first)
    version, lost = bench.there(), 0
    if version != 0:
        print(text)
        return 1
    print(f"a run takes {whole:.1f} s, of which it writes for {last - first:.1f} s\n")
    print(f"{'what happened':46}{'ended with':>12}  results")

    def show(what: str, new: int, status: int) -> None:
        nonlocal version, lost
        found = bench.there()
        words = {version: "the old, whole", new: "the new, whole"}
        lost += found not in words
        print(f"{what:46}{status:12}  {words.get(found, 'LOST')}", flush=True)
        version = found

    for number in range(1, kills + 1):
        process = bench.start(number)
        within = number % 4 != 0  # most of them while files are written
        if within:
            wait(process, bench.folder, True)
        moment = chance.random() * (part if within else whole)
        time.sleep(moment)
        process.kill()
        process.communicate()
        since = "it began to write" if within else "its start"
        show(f"killed {moment:.3f} s after {since}", number, process.returncode)
    largest = max((bench.folder / name).stat().st_size for name in FILES)
    for number in range(kills + 1, kills + 1 + limits):
        size = int(largest * chance.random())
        process = bench.start(number, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
        text, _ = process.communicate()
        named = process.returncode == 0 or ("tiny" in text and "cannot be written" in " ".join(text.split()))
        lost += not named
        show(
            f"no file larger than {size:,} bytes{'' if named else ', and NOT SAID'}",
            number,
            process.returncode,
        )
    print(f"\n{kills} kills, {limits} limits: {lost or 'nothing'} lost")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
