"""Zarr groups: problems that are read from one, and solutions that go to another."""

from pathlib import Path
from typing import Any

import numpy as np

from lfom.core.checks import InputError
from lfom.scale.extras import extra

NEEDS = "A Zarr group"


def is_store(path: Path) -> bool:
    """Whether it is one on the disk, or by its name will be one."""
    return path.suffix == ".zarr" or any((path / name).is_file() for name in ("zarr.json", ".zgroup"))


def is_group(thing: Any) -> bool:
    """Whether it is one of Zarr's, which need not be installed for the question."""
    kind = type(thing)
    return kind.__module__.partition(".")[0] == "zarr" and kind.__name__ == "Group"


def arrays_of_group(group: Any) -> dict[str, Any]:
    """Its arrays by name; their values stay on the disk. group: one, or its path."""
    zarr = extra("zarr", NEEDS)
    if isinstance(group, Path):
        if not group.exists():
            raise InputError(f"{group} does not exist. Check the path of the Zarr group.")
        try:
            group = zarr.open_group(group, mode="r")
        except Exception as error:  # of whatever is damaged in it
            why = f"{type(error).__name__}: {error}"
            raise InputError(f"{group} cannot be read as a Zarr group ({why}).") from None
    return dict(group.arrays())


def opened(given: Any) -> Any:
    """A group to write to, made if it is not there."""
    zarr = extra("zarr", NEEDS)
    if is_group(given):
        return given
    try:
        return zarr.open_group(given, mode="a")
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise InputError(f"{given} cannot be opened as a Zarr group ({why}).") from None


def write_rows(group: Any, name: str, first: int, values: np.ndarray, chunk: int) -> None:
    """Values at the places first, first + 1, ... of the array of this name, which grows as it must."""
    if name not in group:
        rest = values.shape[1:]
        group.create_array(name, shape=(0, *rest), chunks=(chunk, *rest), dtype=values.dtype)
    array, end = group[name], first + len(values)
    if array.shape[0] < end:
        array.resize((end, *array.shape[1:]))
    array[first:end] = values
