"""The two tours as notebooks, made from their pages: python docs/notebooks.py (`make notebooks`)."""

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TOURS = ("researchers", "problems")
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n((?::[^\n]*\n)*)(.*?)^```\n", re.DOTALL | re.MULTILINE)


def notebook(page: str) -> dict[str, Any]:
    """A page as a notebook: its text and its cells, in order; links lead to the pages beside it."""
    text = re.sub(r"\A---\n.*?\n---\n", "", page, flags=re.DOTALL)
    cells: list[dict[str, Any]] = []

    def add(kind: str, source: str) -> None:
        source = source.strip("\n")
        if source:
            more = {"execution_count": None, "outputs": []} if kind == "code" else {}
            lines = source.splitlines(keepends=True)
            cells.append(
                {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, **more, "source": lines}
            )

    def words(source: str) -> str:
        source = re.sub(r"The same page as a \{download\}`[^`]*`\.\n", "", source)
        return re.sub(r"\]\((?![a-z]+:|#)", "](../", source)

    place = 0
    for found in CELL.finditer(text):
        add("markdown", words(text[place : found.start()]))
        add("code", found[2])
        place = found.end()
    add("markdown", words(text[place:]))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def written(tour: str) -> str:
    """What docs/notebooks/TOUR.ipynb should hold."""
    return json.dumps(notebook((HERE / f"{tour}.md").read_text("utf8")), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (HERE / "notebooks").mkdir(exist_ok=True)
    for tour in TOURS:
        (HERE / "notebooks" / f"{tour}.ipynb").write_text(written(tour), "utf8")
