"""The list of slips fits the code as it is, and its runner tells a slip that is seen from one that is not."""

import ast
from pathlib import Path

import pytest

from tests.mutants import ROOT, Slip, load
from tests.mutants.__main__ import each

SLIPS = load()


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.name)
def test_every_slip_still_fits_its_file_and_has_tests(slip: Slip) -> None:
    content = (ROOT / slip.file).read_text(encoding="utf-8")
    changed = slip.applied(content)  # refuses a text that does not stand in the file exactly once
    if slip.file.endswith(".py"):  # a slip that cannot be run would be caught by anything
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(content))
    assert slip.tests
    for test in slip.tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not name or f"\ndef {name.partition('[')[0]}(" in text


def test_a_text_that_is_gone_or_stands_twice_is_refused() -> None:
    slip = Slip("sign", "src/small.py", "a - b", "a + b", ("tests/test_small.py",))
    assert slip.applied("return a - b\n") == "return a + b\n"
    for content in ("return b\n", "return a - b or a - b\n"):
        with pytest.raises(ValueError, match="must once"):
            slip.applied(content)


def test_slips_are_caught_or_survive_and_are_taken_back(tmp_path: Path) -> None:
    code = "def less(a, b):\n    return a - b\n\n\ndef half(a):\n    return a / 2\n"
    ours = "def pytest_addoption(parser):\n    parser.addoption('--compiled-quickly', action='store_true')\n"
    for name, text in (
        ("src/small.py", code),
        ("tests/test_small.py", TESTS),
        ("tests/conftest.py", ours),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    slips = [
        Slip("seen", "src/small.py", "a - b", "b - a", ("tests/test_small.py::test_less",)),
        Slip("unseen", "src/small.py", "a / 2", "a // 2", ("tests/test_small.py::test_half",)),
        Slip(
            "ends", "src/small.py", "a / 2", "__import__('os').abort()", ("tests/test_small.py::test_half",)
        ),
    ]
    found = {outcome.slip.name: outcome for outcome in each(slips, [tmp_path])}
    assert found["seen"].caught
    assert found["seen"].seen_by == "tests/test_small.py::test_less"
    assert found["unseen"].verdict == "SURVIVED"
    assert found["ends"].caught
    assert (tmp_path / "src/small.py").read_text() == code


TESTS = """
import small

def test_less():
    assert small.less(3, 1) == 2

def test_half():
    assert small.half(4) == 2
"""
