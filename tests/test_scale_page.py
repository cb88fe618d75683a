"""docs/scale.md: what it shows about streams and clusters runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "scale.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dask.array", reason="the extra `cluster` is not installed")
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {"__name__": "page"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf8"), re.DOTALL)
    assert len(blocks) >= 2
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/scale.md, block {number}", "exec"), found)
