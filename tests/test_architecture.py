"""How the source is built: one name per class, imports in one direction, no reaching into privates.

docs/design.md draws the order of the folders; here it is checked, from the text of the modules alone.
"""

import ast
import builtins
import functools
import importlib.util
import pkgutil
import re
import symtable
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

import lfom
from lfom.core.preconditioners import outer_times
from tests.conftest import HAVE_SHAPES

ROOT = Path(lfom.__file__).parent
# A folder imports itself and those before it. __init__ is the library's front door: applications may use it.
ORDER = (
    "started", "reference", "core", "prompts", "methods", "limits", "training", "adaptation", "solving", "families", "frontends", "files",
    "scale", "__init__", "report", "experiments", "verify", "reproduction", "bench", "commands", "cli", "__main__",
)  # fmt: skip
# Functions of the first open the others when they are called, so that methods can solve and be saved.
DOORS, BEHIND = "core.methods", ("solving", "files", "scale")
DATA = "data"  # files alone
# Where user input is told apart, which may ask for its type.
ASKS = ("core.checks", "commands", "frontends")
MOST_SWITCHES = 15
# Of no class of ours, but what a memory keeps of layers that are written out.
KEPT = {"core.memories": {"tuple"}}
DOCUMENTED = (
    "_exit",
    "_replace",
    "_asdict",
    "_fields",
)  # of os and of named tuples: public in spite of the name


def folder(name: str) -> str:
    return name.partition(".")[0]


class Module:
    """One module by its name below lfom: its text and its tree."""

    def __init__(self, path: Path):
        parts = path.relative_to(ROOT).with_suffix("").parts
        self.is_folder = parts[-1] == "__init__" and len(parts) > 1
        self.name = ".".join(parts[:-1] if self.is_folder else parts)
        self.folder = parts[0]
        self.text = path.read_text()
        self.tree = ast.parse(self.text)

    def imports(self) -> Iterator[tuple[ast.AST, str, bool]]:
        """Every import of something of lfom: the node, the module below lfom, whether inside a function."""
        for node, inside in _walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.partition(".")[0] == "lfom":
                        yield node, alias.name.partition(".")[2] or "__init__", inside
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}: imports are written in full, from lfom on"
                if folder(node.module or "") == "lfom":
                    for alias in node.names:
                        yield node, self._target((node.module or "").partition(".")[2], alias.name), inside

    @staticmethod
    def _target(name: str, imported: str) -> str:
        """The module that `from lfom.name import imported` reads."""
        inner = f"{name}.{imported}".lstrip(".")
        path = ROOT.joinpath(*inner.split("."))
        return inner if path.is_dir() or path.with_suffix(".py").exists() else name or "__init__"


def _walk(tree: ast.AST, inside: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it stands in a function."""
    for child in ast.iter_child_nodes(tree):
        yield child, inside
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _walk(child, inside or function)


@functools.cache
def modules() -> dict[str, Module]:
    found = [Module(path) for path in sorted(ROOT.rglob("*.py"))]
    return {module.name: module for module in found if module.folder != DATA}


# Names


def classes() -> dict[str, list[str]]:
    """Every class by its name, with the modules that define it."""
    found: dict[str, list[str]] = {}
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(module.name)
    return found


def test_no_class_name_is_defined_twice() -> None:
    assert len(classes()) > 100
    assert {name: where for name, where in classes().items() if len(where) > 1} == {}


# Undefined names. Ruff and mypy would take the shapes in jaxtyping's strings for names, so that they are told not to look;
# the compiler's own tables know which names a module uses, and leave texts alone.

GIVEN = {*dir(builtins), "__file__", "__name__", "__doc__", "__path__", "__spec__", "__annotations__"}
REPOSITORY = ROOT.parent.parent
WRITTEN = [
    path
    for part in ("src", "tests", "docs", "examples", "benchmarks")
    for path in sorted((REPOSITORY / part).rglob("*.py"))
]


def undefined(text: str, name: str) -> list[str]:
    """Names that are read and that neither their function nor the module defines."""
    top = symtable.symtable(text, name, "exec")
    tables, todo = [], [top]
    while todo:
        tables.append(todo.pop())
        todo += tables[-1].get_children()
    known = GIVEN | {symbol.get_name() for symbol in top.get_symbols() if _is_defined(symbol)}
    known |= {
        symbol.get_name()
        for table in tables
        for symbol in table.get_symbols()
        if symbol.is_declared_global() and symbol.is_assigned()
    }
    return sorted(
        f"{name}: {symbol.get_name()} in {table.get_name()}"
        for table in tables
        for symbol in table.get_symbols()
        if symbol.is_referenced()
        and (symbol.is_global() or (table is top and not _is_defined(symbol)))
        and symbol.get_name() not in known
    )


def _is_defined(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def test_no_name_is_undefined() -> None:
    assert len(WRITTEN) > 200
    wrong = [fault for path in WRITTEN for fault in undefined(path.read_text("utf8"), str(path))]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("print(absent)", 1),
        ("def f():\n    return absent", 1),
        ("def f():\n    return later\nlater = 1", 0),
        ("def f(x: absent): pass", 1),
        ("class A:\n    one = 1\n    def f(self): return one", 1),
        ("class A:\n    one = 1\n    two = one\n    def f(self): return __class__", 0),
        ("[x for x in range(3)]; print(x)", 1),
        ("try:\n    1\nexcept ValueError as e:\n    print(e, __file__)", 0),
        ("def f():\n    global made\n    made = 1\ndef g(): return made", 0),
        ("from jaxtyping import Float\ndef f(x: Float[int, 'depth d']): pass", 0),
        ("import os.path as p, sys\ndef f(): return p, sys, os", 1),
        ("def f():\n    def g(): return x\n    x = 1\n    return g, lambda y: (x, y, z)", 1),
    ],
)
def test_undefined_names_are_seen(text: str, count: int) -> None:
    assert len(undefined(text, "made")) == count


# Directions


def test_every_folder_has_a_place_in_the_order() -> None:
    assert sorted({module.folder for module in modules().values()} - set(ORDER)) == []
    assert sorted(set(ORDER) - {module.folder for module in modules().values()}) == []


def test_folders_import_in_one_direction() -> None:
    places = {name: place for place, name in enumerate(ORDER)}
    wrong = [
        f"{module.name} imports {target}"
        for module in modules().values()
        for _, target, inside in module.imports()
        if places[folder(target)] > places[module.folder] and not inside
    ]
    assert wrong == []


def test_only_the_doors_of_a_method_open_what_comes_later() -> None:
    places = {name: place for place, name in enumerate(ORDER)}
    late = [
        (module.name, target)
        for module in modules().values()
        for _, target, inside in module.imports()
        if inside and places[folder(target)] > places[module.folder]
    ]
    assert late, "the doors are gone: take the exception out"
    assert [(name, target) for name, target in late if name != DOORS or folder(target) not in BEHIND] == []


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    edges = {
        name: {target for _, target, inside in module.imports() if not inside and target in modules()}
        for name, module in modules().items()
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path, name])
        if name not in done:
            for target in sorted(edges[name]):
                visit(target, (*path, name))
            done.add(name)

    for name in edges:
        visit(name, ())


# Privates


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def reached(module: Module) -> list[str]:
    """Private names of other modules that a module imports or reads."""
    found, ours = [], set()
    for node, _ in _walk(module.tree):
        if isinstance(node, ast.ImportFrom) and folder(node.module or "") == "lfom":
            for alias in node.names:
                ours.add(alias.asname or alias.name)
                if is_private(alias.name) or any(map(is_private, (node.module or "").split("."))):
                    found.append(f"{module.name} imports {node.module}.{alias.name}")
        elif isinstance(node, ast.Import):
            ours |= {alias.asname or "lfom" for alias in node.names if folder(alias.name) == "lfom"}
    own = {
        node.name for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    } | attributes_set(module.tree)
    for node, _ in _walk(module.tree):
        if not isinstance(node, ast.Attribute) or not is_private(node.attr):
            continue
        base = ast.unparse(node.value)
        first = re.split(r"\W", base)[0]
        # Of a module or a class that was imported, or of an object of which no class here has such a name.
        if first in ours or (node.attr not in own and node.attr not in DOCUMENTED):
            found.append(f"{module.name} reads {base}.{node.attr}")
    return found


def attributes_set(tree: ast.AST) -> set[str]:
    """Names that classes of a module give to their own attributes."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def test_no_module_reaches_into_the_privates_of_another() -> None:
    wrong = [text for module in modules().values() for text in reached(module)]
    assert wrong == []


# Switches on our own classes


def switches(module: Module, names: set[str]) -> list[str]:
    """isinstance, issubclass, type(x) is, hasattr, checks.has and match on classes of these names, with the line each
    stands in; "NO REASON" where no comment stands there or in the line before."""
    found, lines = [], module.text.splitlines()
    for said in module.tree.body:  # tables and unions of classes
        if isinstance(said, ast.Assign | ast.AnnAssign) and said.value and mentioned(said.value) & names:
            targets = said.targets if isinstance(said, ast.Assign) else [said.target]
            names = names | {name for target in targets for name in mentioned(target)}
    for node, _ in _walk(module.tree):
        switch = False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("isinstance", "issubclass"):
                switch = bool(mentioned(node.args[1]) & names)
            switch = switch or node.func.id in ("hasattr", "has")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            switch = node.func.attr == "has"
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            asked = any(
                isinstance(side, ast.Call) and isinstance(side.func, ast.Name) and side.func.id == "type"
                for side in sides
            )
            switch = asked and bool({name for side in sides for name in mentioned(side)} & names)
        elif isinstance(node, ast.Match):
            patterns = [
                p for case in node.cases for p in ast.walk(case.pattern) if isinstance(p, ast.MatchClass)
            ]
            switch = any(mentioned(pattern.cls) & names for pattern in patterns)
        if switch:
            line, before = lines[node.lineno - 1], lines[node.lineno - 2] if node.lineno > 1 else ""  # type: ignore[attr-defined]
            why = (
                ""
                if re.search("  # (?!type:|fmt:)", line) or before.strip().startswith("#")
                else " NO REASON"
            )
            found.append(f"{module.name}:{node.lineno}: {line.strip()}{why}")  # type: ignore[attr-defined]
    return found


def mentioned(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)
    }


def test_few_switches_on_the_type_of_our_own_classes_are_left() -> None:
    names = set(classes())
    found = [
        text
        for module in modules().values()
        if not module.name.startswith(ASKS)
        for text in switches(module, names | KEPT.get(module.name, set()))
    ]
    assert len(found) <= MOST_SWITCHES, "\n".join(found)
    assert [text for text in found if text.endswith("NO REASON")] == []


# Shapes


def test_shapes_are_checked_wherever_they_are_said() -> None:
    """The checks need beartype (the extra test), and are installed by folders (tests/conftest.py)."""
    assert importlib.util.find_spec("beartype"), "install lfom[test]: without beartype no test checks a shape"
    say = {module.folder for module in modules().values() if "from jaxtyping import" in module.text}
    assert say - set(HAVE_SHAPES) == set()
    assert {folder for folder in HAVE_SHAPES if not (ROOT / folder).is_dir()} == set()
    with pytest.raises(TypeCheckError):
        outer_times(jnp.ones((2, 1), int), jnp.ones(2))


# The rules themselves


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("isinstance(x, Bank)", 1),
        ("isinstance(x, (int, memories.Bank))", 1),
        ("isinstance(x, int | str)", 0),
        ("type(x) is Bank", 1),
        ("type(x) == Bank or type(y) is dict", 1),
        ("hasattr(x, 'name')", 1),
        ("checks.has(x, 'name') or has(x, 'name')", 2),
        ("match x:\n    case Bank(): pass\n    case int(): pass", 1),
        ("match x:\n    case 1: pass", 0),
    ],
)
def test_switches_are_seen(text: str, count: int, tmp_path: Path) -> None:
    found = switches(made(text, tmp_path), {"Bank"})
    assert len(found) == count
    assert all(one.endswith("NO REASON") for one in found)
    told = switches(made(f"# why\n{text}", tmp_path), {"Bank"})
    assert not any(one.endswith("NO REASON") for one in told)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("from lfom.core.memories import _own", 1),
        ("from lfom.core import memories\nmemories._own(1)", 1),
        ("from lfom.core._hidden import own", 1),
        ("import lfom.core.memories\nlfom.core.memories._own(1)", 1),
        ("def f(x): return x._secret", 1),
        (
            "class A:\n    def __init__(self): self._own = 1\n    def f(self, other): return self._own + other._own",
            0,
        ),
        ("from lfom.core.memories import Bank\nBank.__name__", 0),
    ],
)
def test_reaching_into_privates_is_seen(text: str, count: int, tmp_path: Path) -> None:
    assert len(reached(made(text, tmp_path))) == count


def made(text: str, folder: Path) -> Module:
    module = Module.__new__(Module)
    module.name, module.folder, module.text, module.tree = "made", "made", text, ast.parse(text)
    return module


def test_the_page_on_the_paper_names_what_exists() -> None:
    text = (ROOT.parent.parent / "docs" / "paper.md").read_text("utf8")
    names = re.findall(
        r"`((?:core|prompts|methods|limits|training|adaptation|experiments|verify)\.[\w.]+)`", text
    )
    assert len(names) > 30
    for name in names:
        if not name.endswith(".py"):
            found = pkgutil.resolve_name(f"lfom.{name}")
            assert found is not None
    for file in re.findall(r"`?([\w/]+\.py)`?", text):
        assert (ROOT / file).exists() or (ROOT / "experiments" / file).exists(), file
