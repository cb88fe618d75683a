"""Apply every slip (or those named) in a copy of the working tree, run its tests, take it back."""

import argparse
import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import ROOT, Slip, load

COPIED = (
    "src",
    "tests",
    "docs",
    "examples",
    "benchmarks",
    "README.md",
    "pyproject.toml",
)  # some tests read documents
COMPILED = Path("build/compiled")  # where tests keep programs (tests/conftest.py): all copies share it
ENOUGH = 0.95  # of the slips must be caught
LIMIT = 300  # seconds for the tests of one slip
LIMIT_UNCHANGED = 1_800  # seconds for the named tests on the code as it is
MEMORY = 8 * 2**30  # bytes that a test run may write to: a slip that asks for all there is ends nothing else
PASSED, FAILED, INTERRUPTED = 0, 1, 2  # pytest's exit codes; 2 also where a file cannot be imported
RUNNING: set[subprocess.Popen[str]] = set()


@dataclass(frozen=True)
class Outcome:
    slip: Slip
    verdict: str
    seconds: float
    seen_by: str

    @property
    def caught(self) -> bool:
        return self.verdict != "SURVIVED"


def copied(place: Path) -> Path:
    """A copy of the working tree, without what is made from it."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            place.mkdir(exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    (ROOT / COMPILED).mkdir(parents=True, exist_ok=True)
    (place / COMPILED).parent.mkdir()
    (place / COMPILED).symlink_to(ROOT / COMPILED)  # a program is known by its text: a slip's is another one
    return place


def run_tests(tree: Path, tests: Sequence[str], limit: float) -> tuple[int | None, str]:
    """pytest's exit code, None if it took too long, and what it printed."""
    # No bytecode: a file that is changed twice within a second could be taken for the old one.
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    # compiled as by `make test`, whose programs are found again
    options = ("-x", "-q", "-p", "no:cacheprovider", "--compiled-quickly")
    command = [sys.executable, "-m", "pytest", *options, *tests]
    process = subprocess.Popen(
        command, cwd=tree, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    if hasattr(resource, "prlimit"):  # Linux
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY, MEMORY))
    RUNNING.add(process)
    try:
        printed, _ = process.communicate(timeout=limit)
        return process.returncode, printed
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        stop(process)
        RUNNING.discard(process)


def stop(process: subprocess.Popen[str]) -> None:
    """End a test run and whatever it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def interrupted(number: int, frame: object) -> None:
    """Ctrl-C, or an end from outside: test runs have sessions of their own, and do not hear it."""
    for process in tuple(RUNNING):
        stop(process)
    raise KeyboardInterrupt


def check_unchanged(trees: Sequence[Path], slips: Sequence[Slip]) -> None:
    """Every named test passes on the code as it is, which is the copy's."""
    where = "import lfom; print(lfom.__file__)"
    environment = os.environ | {"PYTHONPATH": str(trees[0] / "src")}
    found = subprocess.run([sys.executable, "-c", where], env=environment, capture_output=True, text=True)
    if not found.stdout.startswith(str(trees[0])):
        sys.exit(f"the tests would not run the copy in {trees[0]} but {found.stdout}{found.stderr}")
    by_file: dict[str, dict[str, None]] = {}
    for test in (test for slip in slips for test in slip.tests):
        by_file.setdefault(test.partition("::")[0], {})[test] = None
    parts: list[list[str]] = [[] for _ in trees]
    for tests in sorted(by_file.values(), key=len, reverse=True):  # each file in one process: it shares work
        whole = [test for test in tests if "::" not in test]
        min(parts, key=len).extend(whole or tests)
    jobs = [(tree, part) for tree, part in zip(trees, parts, strict=True) if part]
    with ThreadPoolExecutor(len(jobs)) as pool:
        ended = list(pool.map(lambda job: run_tests(job[0], job[1], LIMIT_UNCHANGED), jobs))
    for code, printed in ended:
        if code != PASSED:
            sys.exit(f"{printed}\nthe tests do not pass on the code as it is (pytest's exit code {code})")


def tried(slip: Slip, tree: Path) -> Outcome:
    """What the tests say of the code with this slip in it."""
    path, begun = tree / slip.file, time.perf_counter()
    good = path.read_text(encoding="utf-8")
    path.write_text(slip.applied(good), encoding="utf-8")
    try:
        code, printed = run_tests(tree, slip.tests, LIMIT)
    finally:
        path.write_text(good, encoding="utf-8")
    seconds = time.perf_counter() - begun
    if code is None:
        return Outcome(slip, "caught (time)", seconds, f"took more than {LIMIT} s")
    if code < 0:
        return Outcome(slip, "caught (ended)", seconds, f"ended by signal {-code}")
    if code not in (PASSED, FAILED, INTERRUPTED):
        raise RuntimeError(f"{printed}\nslip {slip.name!r}: pytest's exit code is {code}")
    seen = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", printed, flags=re.MULTILINE)
    return Outcome(slip, "SURVIVED" if code == PASSED else "caught", seconds, seen[1] if seen else "")


def each(slips: Sequence[Slip], trees: Sequence[Path]) -> Iterator[Outcome]:
    """The outcomes as they come, with one slip at a time in each tree."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for tree in trees:
        free.put(tree)

    def one(slip: Slip) -> Outcome:
        tree = free.get()
        try:
            return tried(slip, tree)
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as pool:
        futures = [pool.submit(one, slip) for slip in slips]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:  # an error, or Ctrl-C
            pool.shutdown(wait=False, cancel_futures=True)
            for process in tuple(RUNNING):
                stop(process)
            raise


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    options.add_argument("names", nargs="*", help="slips to try (all)")
    options.add_argument("--workers", type=int, default=2, help="slips at a time, each in its own copy (2)")
    options.add_argument("--trust", action="store_true", help="do not run the tests without a slip first")
    given = options.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    slips = load()
    unknown = sorted(set(given.names) - {slip.name for slip in slips})
    if unknown:
        sys.exit(f"no slip is called {', '.join(unknown)}")
    slips = [slip for slip in slips if not given.names or slip.name in given.names]
    for slip in slips:  # loudly, and before any work
        slip.applied((ROOT / slip.file).read_text(encoding="utf-8"))
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="lfom-mutants-") as folder:
        number = max(1, min(given.workers, len(slips)))
        trees = [copied(Path(folder).resolve() / str(worker)) for worker in range(number)]
        if not given.trust:
            check_unchanged(trees, slips)
            print(f"the tests pass without a slip ({time.perf_counter() - begun:.0f} s)", flush=True)
        outcomes = []
        for outcome in each(slips, trees):
            outcomes.append(outcome)
            print(row(outcome), flush=True)
    caught = sum(outcome.caught for outcome in outcomes)
    share = caught / len(slips)
    minutes = (time.perf_counter() - begun) / 60
    print(f"\n{caught} of {len(slips)} slips caught ({100 * share:.0f} %) in {minutes:.1f} minutes")
    for outcome in outcomes:
        if not outcome.caught:
            print(f"SURVIVED: {outcome.slip.name} in {outcome.slip.file}")
    sys.exit(share < ENOUGH)


def row(outcome: Outcome) -> str:
    slip = outcome.slip
    return f"{outcome.verdict:14} {slip.name:44} {outcome.seconds:4.0f} s  {outcome.seen_by or slip.file}"


if __name__ == "__main__":
    main()
