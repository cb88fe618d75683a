"""--devices and --hosts: which devices of this process are used, and which processes work together.

JAX ends a process without an exception when another one is lost. So the work is done by a child, and the parent, which computes
nothing, says in a sentence what has happened.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from lfom.commands.announcing import say
from lfom.commands.options import option
from lfom.core import hosts
from lfom.core.archive import versions
from lfom.core.checks import InputError
from lfom.core.devices import devices as of_this_process

WATCHED = "LFOM_WATCHED"  # in the environment of a child: the number of the process that watches it
OWN = ("--process",)  # options that differ between processes
SCALE = ("devices", "hosts", "coordinator", "processes", "process")  # parameters of commands
# In the environment of jobs that JAX finds by itself: Slurm, Open MPI, Kubernetes, Cloud TPU.
JOBS = (
    "SLURM_JOB_ID",
    "OMPI_MCA_orte_hnp_uri",
    "KUBERNETES_SERVICE_HOST",
    "TPU_WORKER_ID",
    "CLOUD_TPU_TASK_ID",
)
PATIENCE = 60  # seconds until the others have to be there

Devices = Annotated[int | None, option("Use so many of this machine's devices. [default: all]", "Scale")]
Hosts = Annotated[
    bool, option("Join the processes of this Slurm, Open MPI or Kubernetes job.", "Scale", "--hosts")
]
Coordinator = Annotated[str | None, option("HOST:PORT of process 0, where no such job tells it.", "Scale")]
Processes = Annotated[int | None, option("How many processes there are.", "Scale")]
Process = Annotated[int | None, option("Which of them this is: 0, 1, ...", "Scale")]


def placed(
    devices: int | None, found: bool, coordinator: str | None, processes: int | None, process: int | None
) -> None:
    """To be called before anything is computed. Ends the parent of a child with the child's exit status."""
    if found or coordinator is not None or processes is not None or process is not None:
        _check(coordinator, processes, process)
        if WATCHED not in os.environ:
            raise typer.Exit(_watched())
        _join(coordinator, processes, process)
    use_devices(devices)


def use_devices(count: int | None) -> None:
    """So many of this process's devices from now on; with None, all."""
    if count is not None:
        of_this_process(count)


def _check(coordinator: str | None, processes: int | None, process: int | None) -> None:
    given = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    missing = [name for name, value in given.items() if value is None]
    if 0 < len(missing) < len(given):
        raise InputError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: give --coordinator HOST:PORT --processes N "
            "--process I, or --hosts alone under Slurm, Open MPI or Kubernetes."
        )
    if coordinator is None or processes is None or process is None:
        if not any(name in os.environ for name in JOBS):
            raise InputError(
                "--hosts found no job of Slurm, Open MPI or Kubernetes around this process: start it in one, or say --coordinator "
                "HOST:PORT --processes N --process I."
            )
        return
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise InputError(
            f"--coordinator is {coordinator!r}: pass the address and a free port of process 0, such as 10.0.0.1:6060."
        )
    if processes < 1:
        raise InputError(f"--processes is {processes}: pass how many there are, at least 1.")
    if not 0 <= process < processes:
        raise InputError(f"--process is {process}: with --processes {processes} pass 0 to {processes - 1}.")


def _watched() -> int:
    """The exit status of a child that does what this process was asked for."""
    command = [sys.executable, "-m", "lfom", *sys.argv[1:]]
    child = subprocess.Popen(command, env={**os.environ, WATCHED: str(os.getpid())})
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, lambda *_: None)  # the child hears it, too
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    try:
        status = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if status >= 0:
        return status
    say(
        f"lfom: this process was ended by {signal.Signals(-status).name}: it was killed, or another process of this run ended and JAX "
        f"ended this one after {hosts.HEARTBEAT} seconds without a word from it. What was written is whole: go on with --resume and any "
        "number of processes (lfom train), or start again."
    )
    return 1


def _join(coordinator: str | None, processes: int | None, process: int | None) -> None:
    _end_with_parent(int(os.environ[WATCHED]))
    try:
        place = hosts.joined(coordinator, processes, process, PATIENCE)
    except (RuntimeError, ValueError) as error:
        if coordinator is None:
            raise InputError(
                f"the processes of this job did not find each other within {PATIENCE} seconds: start one in every task, or say "
                f"--coordinator HOST:PORT --processes N --process I. (JAX: {_short(error)})"
            ) from None
        raise InputError(
            f"the {processes} processes did not find each other at {coordinator} within {PATIENCE} seconds. Start all of them, with the same "
            f"address, which process 0 must be able to listen on and the others to reach. (JAX: {_short(error)})"
        ) from None
    different = hosts.differences({"command": _without_own(sys.argv[1:]), **versions()})
    if different:
        raise InputError(
            f"processes were started differently: {'; '.join(different)}. Start all with the same command and versions."
        )
    if hosts.writes():
        say(f"lfom: {place.count} process{'es' * (place.count > 1)} together.")
    else:  # one tells what all do; errors go to sys.__stderr__ (lfom.cli)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for as long as this process lives


def same_file(path: Path) -> Path:
    """The file that process 0 has, on every process: the others need not see its disk."""
    if hosts.place().count == 1:
        return path
    content = hosts.from_first(path.read_bytes() if hosts.writes() and path.is_file() else b"")
    if hosts.writes() or not content:
        return path  # reading it says what is wrong
    copy = Path(tempfile.mkdtemp(prefix="lfom-")) / path.name
    copy.write_bytes(content)
    return copy


def _without_own(words: list[str]) -> str:
    """The command without what each process has of its own."""
    kept, skip = [], False
    for word in words:
        if skip or word.split("=")[0] in OWN:
            skip = not skip and "=" not in word
            continue
        kept.append(word)
    return " ".join(kept)


def _end_with_parent(parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _short(error: Any) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
