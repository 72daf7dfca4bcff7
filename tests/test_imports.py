"""Which module may import which, read from the sources; what light modules leave alone, seen at run time."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/src"))
HEAVY = ("jax", "numpy", "tyro", "jaxtyping", "flax", "optax", "orbax", "grain")
ORACLES = ("torch", "transformers", "diffusers", "trl")


def module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    module_name(path, package / "src"): (path, package.name)
    for package in PACKAGES
    for path in sorted((package / "src").rglob("*.py"))
}


def allowed(package: Path) -> set[str]:
    """The distributions of this repository that `package` declares, extras included, and itself."""
    return {package.name} | {name for name in declared(package) if name.startswith("dew-")}


def declared(package: Path) -> set[str]:
    """The distributions that `package` declares, extras included."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    stated = [*project["dependencies"], *(each for extra in extras for each in extra)]
    return {normal(re.split(r"[\[<>=!~; ]", each.strip(), maxsplit=1)[0]) for each in stated}


def normal(name: str) -> str:
    """A distribution's name as an index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of every import, those in functions and type-checking blocks included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield from ((node.module or "", alias.name) for alias in node.names)


def owner(module: str, name: str) -> str | None:
    """The distribution behind `from module import name`, looking through the lazy tables."""
    if f"{module}.{name}" in FILES:
        return FILES[f"{module}.{name}"][1]
    if module not in FILES:
        return None
    path, distribution = FILES[module]
    for node in ast.walk(ast.parse(path.read_text())) if path.name == "__init__.py" else ():
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "lazy":
            table = ast.literal_eval(node.args[1])
            if name in table:
                return table[name].split(":")[1]
    return distribution


def is_shared_level(path: Path) -> bool:
    return path.name == "__init__.py" and path.read_text().startswith("__path__ = ")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_imports_point_inward(package: Path):
    permitted = allowed(package)
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}.{name} of {owner(module, name)}"
        for path, distribution in FILES.values()
        if distribution == package.name and not is_shared_level(path)
        for module, name in imports(path)
        if (owner(module, name) or package.name) not in permitted
    ]
    assert wrong == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_every_library_that_is_imported_is_declared(package: Path):
    """By the distribution itself or one of ours that it needs; imports in functions count too."""
    ours = {each.name: each for each in PACKAGES}
    permitted = set().union(*(declared(ours[name]) for name in allowed(package)))
    owners = importlib.metadata.packages_distributions()
    tops = {
        (path.relative_to(ROOT), module.split(".")[0])
        for path, distribution in FILES.values()
        if distribution == package.name
        for module, _ in imports(path)
    }
    wrong = [
        f"{path} imports {top}"
        for path, top in sorted(tops)
        if top not in sys.stdlib_module_names | {"dew"}
        and not permitted & {normal(name) for name in owners.get(top, (top,))}
    ]
    assert wrong == []


def test_every_import_of_dew_names_a_module_that_exists():
    missing = [
        f"{path.relative_to(ROOT)}: {module}"
        for path, _ in FILES.values()
        for module, _ in imports(path)
        if module.split(".")[0] == "dew" and module not in FILES
    ]
    assert missing == []


def test_core_names_no_family_outside_its_tables():
    tables = {"dew.plugins.known"}
    families = {package.name for package in PACKAGES} - {"dew-core"}
    named = [
        f"{path.relative_to(ROOT)}: {node.value!r}"
        for module, (path, distribution) in FILES.items()
        if distribution == "dew-core" and module not in tables and not is_shared_level(path)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in families
    ]
    assert named == []


def test_no_module_imports_a_private_name_of_another():
    private = [
        f"{path.relative_to(ROOT)}: from {module} import {name}"
        for path, _ in FILES.values()
        for module, name in imports(path)
        if module.split(".")[0] == "dew" and name.startswith("_")
    ]
    assert private == []


def test_no_source_imports_a_reference_library():
    found = [
        f"{path.relative_to(ROOT)}: {module}"
        for path, _ in FILES.values()
        for module, _ in imports(path)
        if module.split(".")[0] in ORACLES
    ]
    assert found == []


def light_modules() -> list[str]:
    """The modules that must import without numerics."""
    roots = ("dew.plugins", "dew.registry", "dew.cli")
    names = [
        name
        for name in FILES
        if name in ("dew", "dew.lazy", "dew.artifacts")
        or name.startswith(tuple(f"{root}." for root in roots))
        or name in roots
        or "config" in name.split(".")
    ]
    return sorted(names)


PROBE = """
import importlib, json, sys
found = {}
for name in json.loads(sys.argv[1]):
    before = set(sys.modules)
    importlib.import_module(name)
    heavy = [each for each in json.loads(sys.argv[2]) if each in sys.modules and each not in before]
    if heavy:
        found[name] = heavy
print(json.dumps(found))
"""


def probe(names: list[str]) -> dict[str, list[str]]:
    """The heavy packages that importing `names` one after the other brings in, by the module that did."""
    command = [sys.executable, "-c", PROBE, json.dumps(names), json.dumps(HEAVY)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


def test_light_modules_leave_numerics_and_the_parser_alone():
    assert probe(light_modules()) == {}


def test_the_probe_sees_a_heavy_import():
    assert probe(["dew", "dew.objectives.base"])["dew.objectives.base"][0] == "jax"
