"""Two source trees side by side: the same commands with each in turn, on the same two cores, and what each took.

    python benchmarks/beside.py --trees before=build/before/src now=src --turns 2 -- lfom verify

A tree is the folder that holds lfom, such as that of `git archive COMMIT src | tar -x -C build/before`. Every row: tree, seconds
by the clock, processor seconds, programs compiled (JAX's backend_compile events), and the seconds of their compilation.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

COUNTED = """
import json, os, resource, sys, time
begun = time.perf_counter()
from lfom.cli import main
import jax
found = []
jax.monitoring.register_event_duration_secs_listener(lambda name, secs, **_: "backend_compile" in name and found.append(secs))
status = 0
try:
    main()
except SystemExit as ended:
    status = ended.code or 0
used = resource.getrusage(resource.RUSAGE_SELF)
with open(os.environ["LFOM_BESIDE"], "w") as file:
    json.dump([time.perf_counter() - begun, used.ru_utime + used.ru_stime, len(found), sum(found), status], file)
"""


def timed(tree: str, command: list[str], cores: str, folder: Path) -> list[float]:
    """One run in a folder of its own, with nothing compiled before."""
    told = folder / "told.json"
    environment = os.environ | {"PYTHONPATH": str(Path(tree).resolve()), "LFOM_BESIDE": str(told)}
    pinned = ["taskset", "-c", cores] if cores else []
    program = folder / "lfom"  # a process of this name is the command line for lfom, and sets what that sets
    program.write_text(COUNTED)
    run = [*pinned, sys.executable, str(program), *command[1:]]
    with (folder / "output").open("w") as output:
        subprocess.run(run, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False)
    if not told.exists():
        raise SystemExit(
            f"{tree}: {' '.join(command)} ended without a word:\n{(folder / 'output').read_text()[-2_000:]}"
        )
    return json.loads(told.read_text())


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--trees", nargs="+", required=True, help="NAME=FOLDER")
    options.add_argument("--turns", type=int, default=2)
    options.add_argument("--cores", default="0,1", help="as taskset takes them; empty for all")
    options.add_argument("command", nargs="+", help="lfom and its arguments, after --")
    given = options.parse_args()
    trees = [item.partition("=")[::2] for item in given.trees]
    for turn in range(given.turns):
        for name, tree in trees:
            with tempfile.TemporaryDirectory() as folder:
                seconds, processor, programs, compiling, status = timed(
                    tree, given.command, given.cores, Path(folder)
                )
            ended = f", exit status {status}" if status else ""
            print(
                f"{' '.join(given.command)[:60]} | {turn} | {name} | {seconds:.1f} s | {processor:.1f} s of processors | "
                f"{programs:.0f} programs | {compiling:.1f} s compiling{ended}",
                flush=True,
            )


if __name__ == "__main__":
    main()
