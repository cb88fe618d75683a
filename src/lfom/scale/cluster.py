"""A Dask cluster: how it is reached, and how independent jobs are spread over its workers.

A worker that dies costs the job it was at, which is given to another. Dask blames a death on every job that its worker had;
so a job whose worker died is repeated by itself, after all others, before it is given up: none is blamed for its
neighbour.
"""

import contextlib
import logging
import os
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from lfom.core.checks import InputError
from lfom.scale.extras import extra

TIMES = 3  # a job may fail
CONNECTING = 10.0  # seconds for a scheduler to answer
STARTING = 60.0  # seconds for a first worker to come
PATIENCE = 60.0  # seconds without any worker
LOOK = 2.0  # seconds after which it is looked whether anybody is still there
# Of workers on this machine, before JAX is imported there: one core each.
ONE_CORE = {
    "NPROC": "1",  # the threads of JAX's CPU client
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",  # a GPU is not shared among processes
}
# Ctrl-C reaches all processes of a terminal; ours alone answers it, and ends the others.
NO_INTERRUPT = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
ANY_PORT = "127.0.0.1:0"  # two clusters do not quarrel about one
FLAG = "--xla_cpu_multi_thread_eigen=false"

Job = tuple[str, tuple[Any, ...]]  # name, arguments
Ended = tuple[str, Any, str | None]  # name, result, or why there is none


@contextlib.contextmanager
def connected(cluster: str, one_core: bool = True) -> Iterator[Any]:
    """A client of the cluster that "local:N" starts, or that has its scheduler at this address."""
    distributed = extra("distributed", "--cluster")
    if not isinstance(cluster, str) or not cluster:
        raise InputError(f"cluster is {cluster!r}: pass local:N, or the address of a Dask scheduler.")
    kind, _, workers = cluster.partition(":")
    if kind == "local":
        if not re.fullmatch(r"[1-9]\d{0,3}", workers):
            raise InputError(f"cluster is {cluster!r}: write local:N with N processes, such as local:2.")
        with _local(distributed, int(workers), one_core) as client:
            yield client
        return
    try:
        client = distributed.Client(cluster, timeout=CONNECTING, set_as_default=False)
    except Exception as error:  # Dask raises a dozen kinds for addresses and connections
        raise InputError(
            f"no Dask scheduler answers at {cluster} ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}). "
            "Start one with `dask scheduler`, check the address (tcp://HOST:PORT), or use --cluster local:N."
        ) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=STARTING)
        except Exception:
            raise InputError(
                f"the Dask scheduler at {cluster} has no workers after {STARTING:.0f} s. Start some with "
                f"`dask worker {cluster}`."
            ) from None
        yield client


@contextlib.contextmanager
def _local(distributed: Any, workers: int, one_core: bool) -> Iterator[Any]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}".strip()
    environment = ONE_CORE | {"XLA_FLAGS": flags} if one_core else {}
    settings = {
        "distributed.scheduler.allowed-failures": 0,  # `spread` counts
        "distributed.nanny.pre-spawn-environ": environment,
        # Dask looks so long after a death whether the worker is back, and dismisses it if it has died again meanwhile.
        "distributed.deploy.lost-worker-timeout": "1 day",
        # What nobody looks at takes time from workers that share their cores with it.
        "distributed.worker.profile.enabled": False,
        "distributed.scheduler.active-memory-manager.start": False,
    }
    before = dict(os.environ)
    os.environ.update(environment)  # what is set already wins over Dask's setting
    try:
        with (
            extra("dask.config", "--cluster").set(settings),
            distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                memory_limit=0,
                preload=[NO_INTERRUPT],
                dashboard_address=None,
                scheduler_kwargs={"dashboard_address": ANY_PORT},
                silence_logs=logging.CRITICAL,
            ) as local,
            distributed.Client(local, set_as_default=False) as client,
        ):
            yield client
    finally:  # Dask sets the workers' environment in this process too
        for name in environment:
            os.environ.pop(name, None)
        os.environ.update({name: before[name] for name in environment if name in before})


def spread(client: Any, work: Callable[..., Any], jobs: Iterable[Job], waiting: int = 0) -> Iterator[Ended]:
    """work(*arguments) of every job, as they end, as many at a time as workers have threads. waiting: how many more wait
    for each, so that a worker need not wait for us between short ones."""
    distributed = extra("distributed", "--cluster")
    left, alone, running = iter(jobs), deque[Job](), dict[Any, Job]()
    failures, lonely, watch = Counter[str](), set[str](), Watch(client)

    def start(job: Job) -> None:
        future = client.submit(work, *job[1], pure=False)
        running[future] = job

    try:
        while True:
            while len(running) < watch.threads() * (1 + waiting) and (job := next(left, None)) is not None:
                start(job)
            if not running and alone:
                lonely.add(alone[0][0])
                start(alone.popleft())
            if not running:
                return
            for future in _finished(distributed, list(running), watch):
                name, arguments = running.pop(future)
                if future.status == "finished":
                    yield name, future.result(), None
                    continue
                error = future.exception()
                killed = isinstance(error, distributed.KilledWorker)
                failures[name] += 1 + (error.allowed_failures if killed else 0)
                if killed and (failures[name] < TIMES or name not in lonely):
                    alone.append((name, arguments))
                elif failures[name] < TIMES:
                    start((name, arguments))
                else:
                    died = "its worker was killed (memory may have run out)"
                    why = died if killed else f"{type(error).__name__}: {error}"
                    yield name, None, f"failed {failures[name]} times: {why}"
    finally:
        with contextlib.suppress(Exception):  # the scheduler may be gone
            client.cancel(list(running), force=True)


def _finished(distributed: Any, futures: list[Any], watch: "Watch") -> list[Any]:
    """Those that have ended, at least one of them unless time has passed."""
    try:
        with watch.client.as_current():
            found = distributed.wait(futures, timeout=LOOK, return_when="FIRST_COMPLETED").done
    except TimeoutError:
        found = set()
    except distributed.CancelledError:
        raise watch.gone() from None
    if any(future.status in ("cancelled", "lost") for future in found):
        raise watch.gone()
    if not found:
        watch.look()
    return list(found)


class Watch:
    """Whether the scheduler and its workers are there."""

    def __init__(self, client: Any):
        self.client, self.seen, self.asked, self.known = client, time.monotonic(), 0.0, 1

    def gone(self) -> InputError:
        return InputError(
            "the Dask scheduler is gone. What was finished is kept: start it again, and then the same command."
        )

    def threads(self) -> int:
        """Of all workers, at least 1; asked for every two seconds, since workers come and go."""
        if time.monotonic() - self.asked > LOOK:
            self.look()
        return max(self.known, 1)

    def look(self) -> None:
        self.asked = time.monotonic()
        if self.client.status != "running":
            raise self.gone()
        try:
            threads = self.client.sync(self.client.scheduler.ncores, callback_timeout=CONNECTING)
            self.known = sum(threads.values())
        except Exception:
            raise self.gone() from None
        if self.known:
            self.seen = time.monotonic()
        elif time.monotonic() - self.seen > PATIENCE:
            raise InputError(
                f"the cluster has had no worker for {PATIENCE:.0f} s. What was finished is kept: start workers, and then "
                "the same command."
            )
