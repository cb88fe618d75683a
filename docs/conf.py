"""How Sphinx builds the site: `make docs`.

Pages are MyST. Those that start with a kernel in their front matter are executed, each time, and show what came
out; nothing is fetched from a network, neither when the site is built nor when it is read.
"""

import contextlib
import inspect
import logging
import os
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))  # this checkout, whatever is installed
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])

# Kernels start without anyone's profile, and tell of errors only.
profile = Path(tempfile.mkdtemp(), "profile_default")
profile.mkdir()
(profile / "ipython_kernel_config.py").write_text("get_config().IPKernelApp.log_level = 40\n")
os.environ["IPYTHONDIR"] = str(profile.parent)
for quiet in ("traitlets", "jax"):
    logging.getLogger(quiet).setLevel(logging.WARNING)

project = "lfom"
author = "the authors of lfom"
copyright = "the authors of lfom, Apache-2.0"
# Pages are read in two processes. JAX does not like to be forked: nobody imports lfom before that.
version = release = tomllib.loads((HERE.parent / "pyproject.toml").read_text("utf8"))["project"]["version"]

extensions = ["myst_nb", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"lfom {version}"
html_theme_options = {"light_css_variables": {"code-font-size": "12px"}}
html_show_sourcelink = False
exclude_patterns = ["notebooks"]  # to download: their pages are executed, not they

# Pages that need a file which a checkout may not have; without it they are left out.
SHOWN = {
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "cite": "CITATION.cff",
    "scale": "docs/scale.md",
}
MISSING = [page for page, file in SHOWN.items() if not (HERE.parent / file).exists()]
exclude_patterns += [f"{page}.md" for page in MISSING]

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

    import lfom

    def code(found: str) -> str:
        name = found.removeprefix("lfom.")
        return f":py:obj:`{found} <lfom.{name}>`" if name in lfom.__all__ else f"``{found}``"

    pieces = text.split("`")
    plain = [re.sub(r"([\\*|_<>])", r"\\\1", piece) for piece in pieces[::2]]
    plain = [re.sub(r"docs/(\w+)\.md( \d(\.\d+)?)?", r":doc:`\g<0> </\1>`", piece) for piece in plain]
    plain[1:] = ["\\ " + piece if re.match(r"\w", piece) else piece for piece in plain[1:]]
    spans = [code(piece) for piece in pieces[1::2]] + [""]
    return "".join(a + b for a, b in zip(plain, spans, strict=True))


def _names(thing: Any) -> set[str]:
    """What a docstring may explain: the arguments of a function, the fields and members of a class."""
    names = {
        name
        for kind in getattr(thing, "__mro__", ())
        for name in (*vars(kind), *vars(kind).get("__annotations__", ()))
    }
    with contextlib.suppress(TypeError, ValueError):
        names |= set(inspect.signature(thing).parameters)
    return names


def _listed(text: str, names: set[str]) -> list[str]:
    """A paragraph; where it says "name: what it is. other: ..." of these names, a list of them."""
    one = "(?:" + "|".join(map(re.escape, sorted(names, key=len, reverse=True))) + ")" if names else "(?!)"
    starts = list(re.finditer(rf"(?:\A|(?<=[.;)\]] ))({one}(?:, {one})*): ", text))
    if not starts:
        return [_prose(text), ""]
    found = [_prose(text[: starts[0].start()].strip()), ""] if starts[0].start() else []
    ends = [start.start() for start in starts[1:]] + [len(text)]
    for start, end in zip(starts, ends, strict=True):
        words = ", ".join(f"**{_prose(name)}**" for name in start[1].split(", "))
        found.append(f"- {words}: {_prose(text[start.end() : end].strip())}")
    return [*found, ""]


def as_rst(lines: list[str], thing: Any) -> list[str]:
    """Our docstrings are plain text with `code`, indented equations and examples; here as reStructuredText."""
    found: list[str] = []
    names = _names(thing)
    for paragraph in re.split(r"\n[ ]*\n", "\n".join(lines).strip("\n")):
        if paragraph.lstrip().startswith(">>>"):
            found += [paragraph, ""]
        elif paragraph.startswith("    "):
            found += ["::", "", paragraph, ""]
        else:
            found += _listed(" ".join(line.strip() for line in paragraph.split("\n")), names)
    return "\n".join(found).split("\n")


def _process(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_rst(lines, thing)


def _shorter(app: Any, what: str, name: str, thing: Any, options: Any, signature: Any, returns: Any) -> Any:
    """An array is an Array, wherever its class stands."""
    return tuple(text and text.replace("jaxlib._jax.Array", "Array") for text in (signature, returns))


def _without_missing(app: Any, page: str, source: list[str]) -> None:
    if page == "index":
        lines = source[0].split("\n")
        source[0] = "\n".join(line for line in lines if line not in MISSING)


def setup(app: Any) -> None:
    app.connect("source-read", _without_missing)
    app.connect("autodoc-process-signature", _shorter)
    app.connect("autodoc-process-docstring", _process)
