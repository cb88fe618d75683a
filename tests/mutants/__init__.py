"""Realistic slips, one at a time, and the tests that should see each: `make mutants`.

A slip is data, in slips.toml: a name, a file, a text that stands in it exactly once, what the slip makes of
that text, and the tests (files or node ids) that should fail. Nothing is changed in the working tree.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SLIPS = Path(__file__).with_name("slips.toml")


@dataclass(frozen=True)
class Slip:
    name: str
    file: str
    text: str
    becomes: str
    tests: tuple[str, ...]

    def applied(self, content: str) -> str:
        """The file's content with the slip in it."""
        found = content.count(self.text)
        if found != 1:
            raise ValueError(
                f"slip {self.name!r}: its text stands in {self.file} {found} times, and must once. Bring "
                "tests/mutants/slips.toml up to date."
            )
        return content.replace(self.text, self.becomes)


def load(path: Path = SLIPS) -> list[Slip]:
    """All slips, in the order of the file."""
    found = []
    for name, fields in tomllib.loads(path.read_text(encoding="utf-8")).items():
        found.append(Slip(name, **(fields | {"tests": tuple(fields["tests"])})))
    return found
