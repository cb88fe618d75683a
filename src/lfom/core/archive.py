"""One file of this library as bytes: plain facts and named arrays, and a checksum over all of it.

It is a safetensors file that others can read. Its metadata has two entries: `checksum`, the SHA-256 of the whole
file with the 64 characters of the checksum replaced by zeros, and `lfom`, one JSON object. The checksum always
stands at the same place, so that it is compared before anything is believed. Nothing depends on the clock: the
same content is written as the same bytes.
"""

import hashlib
import importlib.metadata
import json
import math
from typing import Any

import jax
import numpy as np

VERSION = 3
OLD = (rb"\"lfom method", rb"\"lfom checkpoint")  # formats of lfom 0.1, near the beginning of a file
LICENCE = "CC0-1.0"
BEGIN = b'{"__metadata__":{"checksum":"'
PLACE, DIGITS = 8 + len(BEGIN), 64  # of the checksum
LARGEST_HEADER = 32 << 20  # bytes
MOST_VALUES = 4_000_000  # of a header: so many take a few hundred megabytes as objects of Python
LONGEST_AXIS, MOST_AXES = 1 << 40, 32
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
          "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool"}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Refused(Exception):
    """Why a file cannot be used, as the rest of a sentence that begins with its name."""


def damaged(why: str) -> Refused:
    return Refused(f"is damaged: {why}. Copy it again from where it came from, or make it again.")


def own_version() -> str:
    try:
        return importlib.metadata.version("lfom")
    except importlib.metadata.PackageNotFoundError:  # run from the source folder
        return "0.2.0"


def versions() -> dict[str, str]:
    """The versions that decide whether a resumed fit gives the same bits."""
    return {"lfom": own_version(), "jax": jax.__version__, "numpy": np.__version__}


def packed(facts: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    """The bytes of a file with these facts, which are values of JSON, and these arrays."""
    known = {"format": "lfom", "version": VERSION, **facts}
    text = json.dumps(known, allow_nan=False, separators=(",", ":"))
    header: dict[str, Any] = {"__metadata__": {"checksum": "0" * DIGITS, "lfom": text}}
    end, parts = 0, []
    for name, array in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):  # aligned
        begin, end = end, end + array.nbytes
        shape = list(array.shape)
        header[name] = {"dtype": NAMES[str(array.dtype)], "shape": shape, "data_offsets": [begin, end]}
        parts.append(array.tobytes())
    written = json.dumps(header, separators=(",", ":")).encode()
    _small_enough(written.decode())
    written += b" " * (-len(written) % 8)
    content = b"".join((len(written).to_bytes(8, "little"), written, *parts))
    return content[:PLACE] + checksum(content) + content[PLACE + DIGITS :]


def checksum(content: bytes) -> bytes:
    """Of a file, whatever stands in the checksum's place."""
    found = hashlib.sha256(content[:PLACE] + b"0" * DIGITS)
    found.update(memoryview(content)[PLACE + DIGITS :])
    return found.hexdigest().encode()


def begins_well(begin: bytes) -> None:
    """Refuse by its first bytes a file that is none of ours, before all of it is read."""
    if begin[8:PLACE] == BEGIN:
        return
    if any(old in begin for old in OLD):
        raise Refused("was written by lfom 0.1, which this version does not read: train or learn it again.")
    raise Refused(
        "is damaged, truncated or not a file of lfom. Pass one of lfom.save, lfom train or lfom learn."
    )


def unpacked(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Facts and arrays of a file. Nothing is parsed before the checksum was compared, and no array is made
    before its size was."""
    begins_well(content)
    if checksum(content) != content[PLACE : PLACE + DIGITS]:
        raise damaged("its checksum is not that of its content, so that something was changed, cut or added")
    size = 8 + int.from_bytes(content[:8], "little")
    header = _parsed(content[8:size])
    match header.pop("__metadata__", None):
        case {"lfom": str(text)}:
            facts = _parsed(text)
        case _:
            raise damaged("its header has no entry `lfom`")
    match facts:
        case {"format": "lfom", "version": int(version)} if version > VERSION:
            raise Refused(
                f"was written by a newer lfom, as version {version} of the format. Install that one."
            )
        case {
            "format": "lfom",
            "version": 3,
            "what": str(),
            "licence": str(),
            "versions": dict(),
            "content": _,
        }:
            return facts, _tensors(header, content, size)
    raise damaged("its header says not what every file says")


def _parsed(text: str | bytes) -> dict[str, Any]:
    try:
        text = text if isinstance(text, str) else text.decode()
        _small_enough(text)
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(f"its header is not JSON ({type(error).__name__})") from None
    if not isinstance(found, dict):
        raise damaged("its header is not a JSON object")
    return found


def _small_enough(text: str) -> None:
    """Before objects are made of it: `[],[],[]` grows thirty times when it is parsed."""
    values = sum(text.count(mark) for mark in ",[{")
    if len(text) > LARGEST_HEADER or values > MOST_VALUES:
        most = f"at most {LARGEST_HEADER:,} characters and {MOST_VALUES:,} values are written and read"
        raise Refused(f"has a header of {len(text):,} and {values:,}: {most}. Keep many numbers in arrays.")


def _is_size(n: Any) -> bool:
    return type(n) is int and 0 <= n <= LONGEST_AXIS


def _tensors(header: dict[str, Any], content: bytes, start: int) -> dict[str, np.ndarray]:
    """The arrays that the header announces: one after the other, and nothing else."""
    found, at = {}, 0
    for name, said in header.items():
        match said:
            case {"dtype": str(kind), "shape": list(shape), "data_offsets": [begin, end], **rest} if (
                not rest and kind in DTYPES and len(shape) <= MOST_AXES and all(map(_is_size, shape))
            ):
                dtype, count = np.dtype(DTYPES[kind]), math.prod(shape)
            case _:
                raise damaged(f"the tensor {name[:80]} is not described as one")
        if begin != at or end != at + count * dtype.itemsize or start + end > len(content):
            raise damaged(f"the tensor {name[:80]} does not lie where it should")
        array = np.frombuffer(content, dtype, count, start + at) if count else np.zeros(0, dtype)
        if kind == "BOOL" and (array.view(np.uint8) > 1).any():
            raise damaged(f"the tensor {name[:80]} holds other values than true and false")
        found[name], at = array.reshape(shape).copy(), end
    if start + at != len(content):
        raise damaged("there are bytes that belong to no tensor")
    return found
