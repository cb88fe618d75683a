"""The list of tests that `make test` leaves out names tests that exist, and leaves no function without reason."""

import ast
from pathlib import Path

import pytest

from tests import slow

ROOT = Path(__file__).parent.parent


def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("names", [slow.listed(), slow.ALWAYS], ids=["slow", "always"])
def test_every_name_is_that_of_a_test(names: set[str]) -> None:
    files = {name.split("::")[0] for name in names}
    known = {f"{file}::{function}" for file in files for function in functions(file)} | files
    assert {slow.function_of(name) for name in names} <= known


def test_what_is_left_out() -> None:
    little, long = slow.FAST / 2, 2 * slow.NOT_VERY_SLOW
    middle = (slow.FAST + slow.NOT_VERY_SLOW) / 2
    times = {"a::b[1]": middle + 1, "a::b[2]": middle, "a::b[3]": little, "a::c": middle, "a::d": long}
    assert list(slow.slow(times)) == ["a::b[1]", "a::b[2]", "a::d"]
    always = slow.ALWAYS[0]
    assert not list(slow.slow({always: 100.0}))


def test_times_are_those_of_all_files(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}").write_text(f'{{"test": "a::{number}", "seconds": {number}.5}}\n')
    assert slow.read([str(tmp_path / "0"), str(tmp_path / "1")]) == {"a::0": 0.5, "a::1": 1.5}
