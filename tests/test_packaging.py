"""What is shipped: the sdist and the wheel, installed into an empty environment, and what the package says of itself."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import lfom
from lfom.core import extras
from lfom.core.archive import own_version

ROOT = Path(lfom.__file__).parents[2]
PYPROJECT = ROOT / "pyproject.toml"
pytestmark = pytest.mark.skipif(not PYPROJECT.exists(), reason="lfom is not run from a checkout")


def run(*words: object, **options: object) -> subprocess.CompletedProcess:
    """Without the paths of this process, which would lead to the checkout."""
    options = {"env": {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}} | options
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=300, **options)  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel."""
    place = tmp_path_factory.mktemp("built")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    got = run(*pip, "install", "--quiet", "--target", place / "hatch", "hatchling")
    if got.returncode:
        pytest.skip("pip cannot install hatchling by name here, so that nothing can be built")
    path = {"PYTHONPATH": str(place / "hatch"), "PATH": "/usr/bin:/bin"}
    made = run(sys.executable, "-m", "hatchling", "build", "-d", place / "dist", cwd=ROOT, env=path)
    assert made.returncode == 0, made.stdout + made.stderr
    return place / "dist"


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with nothing but the wheel in it, and the libraries of this one beside it."""
    place = tmp_path_factory.mktemp("environment")
    assert run(sys.executable, "-m", "venv", "--without-pip", place).returncode == 0
    python = place / "bin" / "python"
    wheel = next(built.glob("*.whl"))
    pip = (sys.executable, "-m", "pip", "--python", python)
    got = run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
    assert got.returncode == 0, got.stderr
    own = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(own) / "libraries.pth").write_text("\n".join(sorted(paths)) + "\n")
    return place / "bin"


def test_the_wheel_holds_the_package_and_its_data(built: Path) -> None:
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    for wanted in ("lfom/py.typed", "lfom/report/template.html", "lfom/report/page.js", "lfom/cli.py"):
        assert wanted in names
    assert not any(name.startswith("tests/") for name in names)


def test_the_sdist_holds_what_a_checkout_does(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for wanted in (
        "src/lfom/cli.py",
        "tests/test_laws.py",
        "Makefile",
        "CITATION.cff",
        "CHANGELOG.md",
        "constraints.txt",
    ):
        assert wanted in names


def test_the_sdist_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    path = {"PYTHONPATH": str(built.parent / "hatch"), "PATH": "/usr/bin:/bin"}
    (folder,) = tmp_path.iterdir()
    made = run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        tmp_path / "dist",
        cwd=folder,
        env=path,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    one, other = (zipfile.ZipFile(next(place.glob("*.whl"))) for place in (built, tmp_path / "dist"))
    assert {file.filename: file.CRC for file in one.infolist()} == {
        file.filename: file.CRC for file in other.infolist()
    }


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_an_empty_environment_gets_all_it_needs(kind: str, built: Path, tmp_path: Path) -> None:
    """With no library of this one: pip fetches what the package names, and every statement is verified."""
    pip = (tmp_path / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet")
    assert run(sys.executable, "-m", "venv", tmp_path).returncode == 0
    if run(*pip, "download", "--no-deps", "--dest", tmp_path / "any", "equinox").returncode:
        pytest.skip("pip finds no libraries by name here")
    got = run(*pip, "install", "--constraint", ROOT / "constraints.txt", next(built.glob(kind)))
    assert got.returncode == 0, got.stderr
    bare = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAX", "XLA", "PYTHON"))
    }
    checked = run(tmp_path / "bin" / "lfom", "verify", "--json", cwd=tmp_path, env=bare)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert all(row["ok"] for row in json.loads(checked.stdout))


def test_statements_are_verified_by_what_was_installed(environment: Path, tmp_path: Path) -> None:
    where = run(
        environment / "python", "-c", "import lfom; print(lfom.__file__, lfom.__version__)", cwd=tmp_path
    )
    assert str(environment.parent) in where.stdout, where.stderr
    assert where.stdout.split()[-1] == tomllib.loads(PYPROJECT.read_text("utf8"))["project"]["version"]
    checked = run(environment / "lfom", "verify", "--only", "gates at a corner", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert "holds" in checked.stdout
    assert "1 of 1 checked" in checked.stderr


def test_the_version_is_written_once_more_and_is_the_same() -> None:
    project = tomllib.loads(PYPROJECT.read_text("utf8"))["project"]
    assert f"version: {project['version']}\n" in (ROOT / "CITATION.cff").read_text("utf8")
    assert f"## {project['version']}\n" in (ROOT / "CHANGELOG.md").read_text("utf8")
    assert own_version() == project["version"]


def test_every_extra_that_is_named_exists() -> None:
    project = tomllib.loads(PYPROJECT.read_text("utf8"))["project"]
    assert set(extras.EXTRAS.values()) <= set(project["optional-dependencies"])
    for module, extra in extras.EXTRAS.items():
        name = extras.NAMES.get(module, module)
        assert any(one.startswith(name) for one in project["optional-dependencies"][extra])
        assert not any(one.startswith(name) for one in project["dependencies"])


WITHOUT = """
import sys
sys.modules["matplotlib"] = sys.modules["sklearn"] = None  # as if they were not installed
import lfom
import lfom.cli, lfom.frontends, lfom.reproduction, lfom.bench.solve_report, lfom.families
try:
    lfom.frontends.InContextRegressor
except lfom.InputError as error:
    print(error)
from lfom.families.table import TABLE
try:
    TABLE.learning(3)
except lfom.InputError as error:
    print(error)
from lfom.report.figures import can_draw
print(can_draw())
"""


def test_everything_is_imported_without_the_extras() -> None:
    found = run(sys.executable, "-c", WITHOUT, env=os.environ | {"PYTHONPATH": str(ROOT / "src")})
    assert found.returncode == 0, found.stderr
    first, second, last = found.stdout.splitlines()
    assert "scikit-learn" in first
    assert "pip install 'lfom[sklearn]'" in first
    assert "the family table needs scikit-learn" in second
    assert last == "False"


def test_a_missing_library_is_named_as_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = r"The table needs scikit-learn, .* pip install 'lfom\[sklearn\]', or scikit-learn by itself"
    with pytest.raises(extras.MissingExtra, match=said):
        raise extras.missing("sklearn.base", "The table")
    (tmp_path / "lacks_another.py").write_text("import lfom_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(extras.MissingExtra, match=r"pip install lfom_nobody_has, or"):
        extras.needed("lfom_nobody_has.part", "It")
    with pytest.raises(ModuleNotFoundError) as caught:  # it is there: what it lacks is not ours to name
        extras.needed("lacks_another", "It")
    assert not isinstance(caught.value, extras.MissingExtra)
