"""How Sphinx builds the site: `make docs`.

Pages are MyST. Those that start with a kernel in their front matter are executed, each time, and show what came
out; nothing is fetched from a network, neither when the site is built nor when it is read.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))  # this checkout, whatever is installed
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])

import lfom  # noqa: E402

project = "lfom"
author = "the authors of lfom"
copyright = "the authors of lfom, Apache-2.0"
version = release = lfom.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"lfom {version}"
html_static_path: list[str] = []
html_show_sourcelink = False
exclude_patterns = ["build", "notebooks"]

# Pages that show a file of the project, which may not be there yet.
SHOWN = {"changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md", "cite": "CITATION.cff"}
exclude_patterns += [f"{page}.md" for page, file in SHOWN.items() if not (HERE.parent / file).exists()]
suppress_warnings = ["toc.empty_glob", "misc.highlighting_failure"]

myst_enable_extensions: list[str] = []
myst_heading_anchors = 4
nb_execution_mode = "force"  # a cache is keyed by the page alone, and would not see a change of the library
nb_execution_raise_on_error = True
nb_execution_timeout = 180
nb_execution_in_temp = True
nb_merge_streams = True

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100


def _prose(text: str) -> str:
    """A paragraph of a docstring as reStructuredText: `code` stays code, everything else is as it stands."""

    def code(found: str) -> str:
        name = found.removeprefix("lfom.")
        return f":py:obj:`{found} <lfom.{name}>`" if name in lfom.__all__ else f"``{found}``"

    pieces = text.split("`")
    plain = [re.sub(r"([\\*|_<>])", r"\\\1", piece) for piece in pieces[::2]]
    plain[1:] = ["\\ " + piece if re.match(r"\w", piece) else piece for piece in plain[1:]]
    spans = [code(piece) for piece in pieces[1::2]] + [""]
    return "".join(a + b for a, b in zip(plain, spans, strict=True))


def as_rst(lines: list[str]) -> list[str]:
    """Our docstrings are plain text with `code`, indented equations and examples; here as reStructuredText."""
    found: list[str] = []
    for paragraph in re.split(r"\n[ ]*\n", "\n".join(lines).strip("\n")):
        if paragraph.lstrip().startswith(">>>"):
            found += [paragraph, ""]
        elif paragraph.startswith("    "):
            found += ["::", "", paragraph, ""]
        else:
            found += [_prose("\n".join(line.strip() for line in paragraph.split("\n"))), ""]
    return "\n".join(found).split("\n")


def _process(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_rst(lines)


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _process)
