"""One import namespace over several distributions: the rules that keep it working, read from the sources."""

from __future__ import annotations

import ast
import importlib
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(ROOT.glob("packages/*/src"))
CORE = ROOT / "packages/dew-core/src"
SHARED = (
    "",
    "objectives",
    "nn",
    "nn/backbones",
    "data",
    "sampling",
    "inference",
    "interop",
    "inputs",
    "eval",
    "plugins",
)
FIRST = '__path__ = __import__("pkgutil").extend_path(__path__, __name__)'
FAMILIES = [source for source in SOURCES if source != CORE]


def level(source: Path, name: str) -> Path:
    return source / "dew" / name


def table(name: str) -> dict[str, str]:
    """The lazy table of a shared level, read from its source."""
    tree = ast.parse((level(CORE, name) / "__init__.py").read_text())
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "lazy"
    ]
    return ast.literal_eval(calls[0].args[1])


def exports() -> list[tuple[str, str, str]]:
    """(level's module, name, distribution) of every lazy export."""
    return [
        (".".join(["dew", *filter(None, name.split("/"))]), export, target.split(":")[1])
        for name in SHARED
        for export, target in table(name).items()
    ]


BUILT = {path.name for path in ROOT.glob("packages/*")}


@pytest.mark.parametrize("name", SHARED)
def test_shared_level_extends_its_path_first_and_holds_nothing_but_its_table(name: str):
    text = (level(CORE, name) / "__init__.py").read_text()
    assert text.splitlines()[0] == FIRST
    for node in ast.parse(text).body[1:]:
        if isinstance(node, ast.ImportFrom):
            assert (node.module, node.names[0].name) in {("typing", "TYPE_CHECKING"), ("dew.lazy", "lazy")}
        elif isinstance(node, ast.Assign):
            assert ast.unparse(node).startswith("__getattr__, __dir__ = lazy(__name__, {")
            assert ast.unparse(node.targets[0]).strip("()") == "__getattr__, __dir__"
        else:
            assert isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            assert all(isinstance(statement, ast.ImportFrom) for statement in node.body) and not node.orelse


@pytest.mark.parametrize("name", SHARED)
def test_type_checkers_see_the_names_of_the_table_that_are_built(name: str):
    tree = ast.parse((level(CORE, name) / "__init__.py").read_text())
    seen = {
        alias.asname
        for node in tree.body
        if isinstance(node, ast.If)
        for statement in node.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert seen == {export for export, target in table(name).items() if target.split(":")[1] in BUILT}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda path: path.parent.name)
def test_family_ships_whole_typed_packages_and_no_file_in_a_shared_level(family: Path):
    for name in SHARED:
        for entry in level(family, name).glob("*") if level(family, name).is_dir() else ():
            inside = f"{name}/{entry.name}".strip("/")
            if entry.name == "__pycache__" or inside in SHARED:
                continue
            assert entry.is_dir(), f"{entry} is a loose file in a level that dew-core owns"
            assert (entry / "__init__.py").is_file() and (entry / "py.typed").is_file(), entry


@pytest.mark.parametrize("family", FAMILIES, ids=lambda path: path.parent.name)
def test_family_roots_hold_the_namespace_alone(family: Path):
    assert [entry.name for entry in family.iterdir()] == ["dew"]


def test_core_is_typed():
    assert (CORE / "dew/py.typed").is_file()


def test_no_path_is_in_two_distributions():
    collisions = runpy.run_path(str(ROOT / "tools/typetree.py"))["collisions"]
    assert collisions(SOURCES) == []


@pytest.mark.parametrize(("module", "name", "owner"), exports())
def test_documented_name_is_there_or_names_its_distribution(module: str, name: str, owner: str):
    loaded = importlib.import_module(module)
    assert name in dir(loaded)
    if owner in BUILT:
        assert getattr(loaded, name) is not None
    else:
        with pytest.raises(ImportError, match=rf"^{module}\.{name} ships in {owner}: pip install {owner}$"):
            getattr(loaded, name)


def test_unknown_name_is_an_attribute_error():
    import dew

    with pytest.raises(AttributeError, match="module 'dew' has no attribute 'Trainr'"):
        _ = dew.Trainr


def test_error_inside_an_installed_module_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from dew.lazy import lazy

    (tmp_path / "broken_part.py").write_text("import module_that_is_nowhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    getter, _ = lazy("level", {"thing": "broken_part:dew-lm"})
    with pytest.raises(ModuleNotFoundError, match="No module named 'module_that_is_nowhere'"):
        getter("thing")
