"""Every Python and shell block of the README and of docs/ runs as it stands; what the site promises is there.

A page's blocks run in order, in one namespace, in an empty folder. Not run here: blocks after a line
`<!-- not run: WHY -->`, and cells with the tag `long`, which `make docs` runs.
"""

import ast
import builtins
import doctest
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import matplotlib
import matplotlib.pyplot as plt
import pytest

import lfom

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
ELSEWHERE = {"extend.md": "test_extend.py", "frontends.md": "test_frontends.py"}
PYTHON, SHELL = ("python", "{code-cell}"), ("shell", "bash", "sh", "console")
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]+) -->\n)?^```(?P<language>[^\s`]*)[^\n]*\n(?P<options>(?::[^\n]*\n)*)(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    language: str
    code: str
    runs: bool
    line: int


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf8")
    for found in FENCE.finditer(text):
        runs = found["why"] is None and "long" not in found["options"]
        yield Block(found["language"], found["code"], runs, text.count("\n", 0, found.start("code")))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def script(name: str) -> ModuleType:
    """A module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WITH_BLOCKS = [
    page
    for page in PAGES
    if page.name not in ELSEWHERE and any(b.runs and b.language in PYTHON + SHELL for b in blocks(page))
]


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name_of)
def test_every_block_of_a_page_runs_as_pasted(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matplotlib.use("Agg")
    work, commands = tmp_path / "work", tmp_path / "commands"
    work.mkdir()
    commands.mkdir()
    (commands / "lfom").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lfom "$@"\n')
    (commands / "lfom").chmod(0o755)
    monkeypatch.chdir(work)
    path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
    shell = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT / "src")}
    space: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if not block.runs:
            continue
        if block.language in PYTHON:
            code = "\n" * block.line + block.code
            exec(compile(code, name_of(page), "exec"), space)
            plt.close("all")
        elif block.language in SHELL:
            done = subprocess.run(
                ["bash", "-ec", block.code], env=shell, cwd=work, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{name_of(page)}, line {block.line}:\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_looks_like_code_says_its_language(page: Path) -> None:
    for block in blocks(page):
        if block.language in ("", "text"):
            first = block.code.strip().split("\n")[0]
            assert not re.match(r"(lfom|make|python|pip|import|from) ", first), (
                f"{name_of(page)}, line {block.line}: write ```shell or ```python"
            )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_command_hides_in_an_indented_line(page: Path) -> None:
    outside = FENCE.sub("", page.read_text("utf8"))
    hidden = re.findall(
        r"^    (?:\$ )?(?:lfom|make|python|pip|import|from|dask|srun) .*$", outside, re.MULTILINE
    )
    assert not hidden, f"{name_of(page)}: write ```shell or ```python"


def test_pages_that_are_run_elsewhere_are() -> None:
    for page, where in ELSEWHERE.items():
        assert page in (Path(__file__).parent / where).read_text("utf8")
        assert all(block.runs for block in blocks(DOCS / page) if block.language in PYTHON)


def test_the_start_page_takes_ten_lines() -> None:
    cell = next(block for block in blocks(DOCS / "start.md") if block.language == "{code-cell}")
    assert len(cell.code.strip().split("\n")) <= 10
    assert "fit(" in cell.code
    assert "plot(" in cell.code


@pytest.mark.parametrize("tour", ["researchers", "problems"])
def test_a_tour_and_its_notebook_agree(tour: str) -> None:
    made = script("notebooks")
    stored = (DOCS / "notebooks" / f"{tour}.ipynb").read_text("utf8")
    assert stored == made.written(tour), "make notebooks"
    cells = ["".join(cell["source"]) for cell in json.loads(stored)["cells"] if cell["cell_type"] == "code"]
    assert cells == [
        block.code.strip("\n") for block in blocks(DOCS / f"{tour}.md") if block.language in PYTHON
    ]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf8")):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), target


def test_links_inside_the_site_are_followed(tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text('<h1 id="here">x</h1>')
    good = (
        '<a href="other.html#here">x</a> <a href="#top">x</a> <p id="top"></p> <a href="https://x.org">x</a>'
    )
    (tmp_path / "index.html").write_text(good)
    faults = script("build").faults
    assert faults(tmp_path) == []
    bad = (
        '<a href="gone.html">x</a> <a href="other.html#gone">x</a> <script src="https://x.org/a.js"></script>'
    )
    (tmp_path / "index.html").write_text(bad)
    assert [fault.split(" ", 2)[1:] for fault in faults(tmp_path)] == [
        ["gone.html", "does not exist"],
        ["loads", "https://x.org/a.js"],
        ["other.html#gone", "has no such place"],
    ]


# The reference


@pytest.mark.parametrize("name", lfom.__all__)
def test_every_export_has_an_example_and_a_place_in_the_reference(name: str) -> None:
    pages = {
        page.name: page.read_text("utf8") for page in (DOCS / "api").glob("*.md") if page.name != "index.md"
    }
    thing = getattr(lfom, name)
    if isinstance(thing, tuple):  # a constant has no docstring: its page shows it
        assert sum(f"`lfom.{name}`" in text for text in pages.values()) == 1
        assert any(f"lfom.{name}" in b.code for p in pages for b in blocks(DOCS / "api" / p))
        return
    wanted = rf"^### lfom\.{name}$" if inspect.ismodule(thing) else rf"^\.\. auto\w+:: lfom\.{name}$"
    found = [page for page, text in pages.items() for _ in re.findall(wanted, text, re.MULTILINE)]
    assert len(found) == 1, f"{name} is on {found}: put it on one page of docs/api"
    assert ">>>" in (inspect.getdoc(thing) or ""), f"{name} has no example in its docstring"
    if not inspect.ismodule(thing):
        assert f"`{name}`" in (DOCS / "api" / "index.md").read_text("utf8")


@pytest.mark.parametrize(
    "name", [name for name in lfom.__all__ if not isinstance(getattr(lfom, name), tuple)]
)
def test_an_example_imports_what_it_uses(name: str) -> None:
    """The tests run examples inside their modules, where more is known than a reader has."""
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(getattr(lfom, name)) or "")
    known, used = set(dir(builtins)), set[str]()
    for node in ast.walk(ast.parse("".join(example.source for example in examples))):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else known).add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            known |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.ExceptHandler):
            known.add(node.name or "")
        elif isinstance(node, ast.arg):
            known.add(node.arg)
    assert used <= known, f"import {', '.join(sorted(used - known))} in the example of {name}"


def test_sections_that_are_cited_exist() -> None:
    """The code cites docs/mathematics.md by numbers."""
    headings = re.findall(r"^#{2,3} ([\d.]+?)\.? ", (DOCS / "mathematics.md").read_text("utf8"), re.MULTILINE)
    files = [p for folder in ("src", "tests", "benchmarks") for p in (ROOT / folder).rglob("*.py")]
    cited = {n for p in files for n in re.findall(r"mathematics\.md (\d(?:\.\d+)?)", p.read_text("utf8"))}
    assert len(cited) > 10
    assert cited <= set(headings), sorted(cited - set(headings))
