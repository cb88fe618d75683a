"""lfom reproduce --hosts: every process makes its share of the experiments, and the first one has all results."""

import functools
import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lfom.core import hosts
from lfom.report.folders import replace_folder
from lfom.reproduction import reproduce, wanted


def reproduce_together(
    experiments: Any, out: Path, *, force: bool, say: Callable[[str], None], **options: Any
) -> list[Any]:
    """As `reproduce`, with the same results: what is drawn depends on the seed and on names. The other processes send folders
    of finished experiments; what one could not finish, or has not sent, the first one makes again."""
    found, place = wanted(experiments), hosts.place()
    there = [] if force else [name for name in found if (out / name / "meta.json").exists()]
    known = set(json.loads(hosts.from_first(json.dumps(there).encode())))
    todo = [one for name, one in found.items() if name not in known and not one.alone]
    with hosts.alone(), tempfile.TemporaryDirectory(prefix="lfom-") as scratch:
        own = out if place.index == 0 else Path(scratch, "results")
        mine = todo[place.index :: place.count]
        if mine:
            reproduce(mine, own, force=force, say=say, **options)
        sent = b"" if place.index == 0 else _packed(own, {one.name for one in todo})
    if place.index == 0:
        say("waiting for the other processes")
    parts = hosts.gathered(sent)
    if place.index != 0:
        return []
    for content in parts[1:]:
        _unpack(content, out, set(found))
    with hosts.alone():
        return reproduce(found.values(), out, force=False, say=say, **options)


def _packed(folder: Path, names: set[str]) -> bytes:
    """The files of finished experiments, of all seeds."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as packed:
        for meta in sorted(folder.rglob("meta.json")):
            if meta.parent.name in names:
                for file in sorted(meta.parent.iterdir()):
                    packed.writestr(file.relative_to(folder).as_posix(), file.read_bytes())
    return held.getvalue()


def _unpack(content: bytes, out: Path, names: set[str]) -> None:
    """Each experiment's folder as a whole; only names that were asked for."""
    with (
        tempfile.TemporaryDirectory(prefix="lfom-") as scratch,
        zipfile.ZipFile(io.BytesIO(content)) as packed,
    ):
        packed.extractall(scratch)  # leaves out what would lie outside
        for meta in Path(scratch).rglob("meta.json"):
            if meta.parent.name in names:
                folder = out / meta.parent.relative_to(scratch)
                folder.parent.mkdir(parents=True, exist_ok=True)
                replace_folder(folder, functools.partial(shutil.copytree, meta.parent, dirs_exist_ok=True))
