"""Which devices of this process are used: all that JAX has, unless fewer are asked for.

Work that is cut into pieces (`lfom.core.threads`) is dealt out to them. What a piece computes does not depend on who
computes it, so results are the same to the last bit for any number of devices of one kind.
"""

from types import TracebackType
from typing import Any

import jax

from lfom.core import checks
from lfom.core.checks import InputError

_asked: list[int] = []  # the last one counts


class devices:
    """Use so many of this process's devices from now on, or inside a `with` block.

    >>> import lfom
    >>> from lfom.core.devices import used
    >>> with lfom.devices(1):
    ...     len(used())
    1
    """

    def __init__(self, count: int):
        there = jax.local_devices()
        self.count = checks.count("devices", count)
        if self.count > len(there):
            raise InputError(
                f"devices is {self.count}: this process has {len(there)} ({there[0].platform}). Ask for at most {len(there)}; "
                "for CPUs, XLA_FLAGS=--xla_force_host_platform_device_count=N makes N of them."
            )
        self._before = list(_asked)
        _asked[:] = [self.count]

    def __repr__(self) -> str:
        return f"devices({self.count})"

    def __enter__(self) -> "devices":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _asked[:] = self._before


def used() -> list[Any]:
    """The one that `jax.default_device` names, or all, or as many as were asked for."""
    chosen: Any = jax.config.jax_default_device  # type: ignore[attr-defined]
    if chosen is not None:
        return [chosen]
    there = jax.local_devices()
    return there[: _asked[-1]] if _asked else there
