"""python -m tests.bad_calls [NUMBER]: so many calls of each kind, 300 by default; the faults, and how many."""

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.bad_calls import api, cli


def main() -> int:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    faults: Counter[str] = Counter()
    for kind in (api, cli):
        name = kind.__name__.rpartition(".")[2]
        if only and only != name:
            continue
        with tempfile.TemporaryDirectory() as place:
            folder, begun = Path(place), time.monotonic()
            calls = kind.some_calls(folder, number)
            for call in calls:
                wrong = kind.fault(call, folder)
                if wrong is not None:
                    faults[name] += 1
                    print(f"{call.text}: {wrong}", flush=True)
        print(
            f"{name}: {len(calls)} calls in {time.monotonic() - begun:.0f} s, {faults[name]} faults",
            flush=True,
        )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
