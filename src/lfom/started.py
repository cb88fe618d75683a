"""Ctrl-C while the command line is still importing: no traceback, and exit status 130.

JAX takes seconds to import. Nothing has been begun by then, so that the process may end at once. A program that imports
lfom is left alone.
"""

import itertools
import os
import signal  # of the standard library as little as can be: whatever is imported here can still be interrupted
import sys
import time

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
# NumPy reads these once, when it is imported. Its products are small and run in threads of ours; threads of its own wait
# for work at full speed, on the cores that these need.
ONE_THREAD = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
BEGUN = time.perf_counter(), time.process_time()  # now, and the time that this process has worked until now


def is_command(argv: list[str], original: list[str]) -> bool:
    """Whether this process is the command `lfom`, or `python -m lfom`.

    >>> is_command(["/usr/bin/lfom", "verify"], ["python", "/usr/bin/lfom", "verify"])
    True
    >>> is_command(["-m", "verify"], ["python", "-m", "lfom", "verify"])
    True
    >>> is_command(["train.py"], ["python", "train.py"]), is_command(["-c"], ["python", "-c", "import lfom"])
    (False, False)
    """
    by_name = bool(argv) and os.path.basename(argv[0]) in ("lfom", "lfom.exe")
    as_module = argv[:1] == ["-m"] and any(pair == ("-m", "lfom") for pair in itertools.pairwise(original))
    return by_name or as_module


def end(number: int = 0, frame: object = None) -> None:
    """End now, whatever is being imported."""
    os._exit(INTERRUPTED)


def end_quietly_while_importing() -> None:
    """To be called first of all."""
    if is_command(sys.argv, sys.orig_argv):
        for name in ONE_THREAD:
            os.environ.setdefault(name, "1")
        try:
            signal.signal(signal.SIGINT, end)
        except ValueError:  # in another thread than the main one, where signals are nobody's
            return


def imported() -> None:
    """From here on Ctrl-C is a KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
