"""How much code a command goes through: lines of code (without docstrings, comments and blank lines) of the modules that it
imports, less those of functions that it never enters.

    python benchmarks/lines.py NOTES.json -- lfom verify     # runs the command, and adds what it entered to NOTES.json
    python benchmarks/lines.py --sum NOTES.json SRC          # the lines of all that was noted, by folder, and of all there are

With two trees in turn (PYTHONPATH), the same commands say how much code each has for the same work.
"""

import ast
import io
import json
import os
import sys
import threading
import tokenize
from collections import Counter
from pathlib import Path

NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


def code_lines(text: str) -> set[int]:
    """Lines with code on them."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                found.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return found


def entered_lines(text: str, entered: set[int]) -> set[int]:
    """Lines of code, less those of functions whose first line (that of their decorators) was not entered."""
    found = code_lines(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if not {first, node.lineno} & entered:
                found.difference_update(range(first, (node.end_lineno or 0) + 1))
    return found


def watch(notes: Path, command: list[str]) -> None:
    seen = set()

    def note(frame, event, argument):  # type: ignore[no-untyped-def]
        if event == "call":
            seen.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    sys.argv = command
    status = 0
    try:
        from lfom.cli import main

        main()
    except SystemExit as ended:
        status = int(ended.code or 0)
    finally:
        sys.setprofile(None)
        import lfom

        root = Path(lfom.__file__).parent
        known = json.loads(notes.read_text()) if notes.exists() else {}
        for code in list(seen):
            path = Path(code.co_filename)
            if path.is_relative_to(root):
                at = known.setdefault(str(path.relative_to(root)), [])
                if code.co_firstlineno not in at:
                    at.append(code.co_firstlineno)
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if file and Path(file).is_relative_to(root):
                known.setdefault(str(Path(file).relative_to(root)), [])
        notes.write_text(json.dumps(known))
        print(f"{' '.join(command)[:90]}: exit status {status}", flush=True)
        os._exit(status)


def told(notes: Path, source: Path) -> None:
    known = json.loads(notes.read_text())
    rows: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for path in sorted(source.rglob("*.py")):
        name, text = str(path.relative_to(source)), path.read_text("utf-8")
        folder = name.split("/")[0] if "/" in name else "."
        whole[folder] += len(code_lines(text))
        if name in known:
            rows[folder] += len(entered_lines(text, set(known[name])))
    for folder, count in sorted(whole.items()):
        print(f"{folder:14} {rows[folder]:6,} of {count:6,}")
    print(f"{'all':14} {sum(rows.values()):6,} of {sum(whole.values()):6,}")


if __name__ == "__main__":
    if sys.argv[1] == "--sum":
        told(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        watch(Path(sys.argv[1]), sys.argv[3:])
