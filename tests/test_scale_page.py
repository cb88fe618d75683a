"""docs/scale.md: what it shows about streams and clusters runs as it stands, and files for clusters are well formed."""

import re
import subprocess
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


def test_files_for_clusters_are_well_formed() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra `cluster`")
    text = PAGE.read_text("utf8")
    service, job = yaml.safe_load_all(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0])
    assert service["spec"]["selector"]["job-name"] == job["metadata"]["name"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4
    words = job["spec"]["template"]["spec"]["containers"][0]["args"][0].split()
    assert words[words.index("--processes") + 1] == "4"
    scripts = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    assert len(scripts) == 3
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        for line in script.splitlines():
            if "lfom " in line and not line.startswith("#SBATCH"):
                command = line.split("lfom ", 1)[1].split("#")[0].split()
                assert {word for word in command if word.startswith("--")} <= known_options(command[0])


def known_options(command: str) -> set[str]:
    from typer.main import get_command

    from lfom.cli import app

    found: Any = get_command(app)
    return {name for parameter in found.commands[command].params for name in parameter.opts}
