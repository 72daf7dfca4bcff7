"""Core names no family and branches on none: its sources hold none of their names, and it loads none."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dew.plugins.known import SHIPPED_BY
from dew.plugins.loader import installed

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "packages/dew-core/src"
FAMILIES = sorted(
    path.name.removeprefix("dew-")
    for path in ROOT.glob("packages/dew-*")
    if path.name not in ("dew-core", "dew-inference")
)
"""dew-inference is left out: its name is that of a level all share."""
OWN_NAMES = ("objective", "recipe", "model")
"""Kinds whose registered names stand for a family; the names of others (a metric, a schedule) are words."""
PLACES = ("dew.plugins.known", "dew.nn", "dew.data.images", "dew.inputs", "dew.artifacts")
"""Where core may know them: the table behind helpful errors, and what families share."""
DEFAULTS = {"dew.config.model": {"simple_dit"}}
"""Documented defaults, kept as a name that the registry resolves."""
OF_ITS_OWN = {"transformer"}
"""Words that a family's class name shares with the field's language."""


def family_names() -> set[str]:
    """What a source of core must not say: packages, registered names and the classes behind them."""
    own = {f"dew-{name}" for name in FAMILIES}
    parts = [
        part for plugin in installed().plugins for part in plugin.components if plugin.distribution in own
    ]
    named = {part.name for part in parts if part.kind in OWN_NAMES}
    known = {name for (kind, name), package in SHIPPED_BY.items() if kind in OWN_NAMES and package in own}
    classes = {ref.rpartition(":")[2] for part in parts for ref in (part.ref, part.config) if ref}
    capitalised = {name for name in classes if name[0].isupper() and re.search("[a-z][A-Z]|[A-Z]{2}", name)}
    return ({*FAMILIES, *own} | named | known | capitalised) - OF_ITS_OWN


def module_name(path: Path) -> str:
    parts = path.relative_to(CORE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_shared_level(path: Path) -> bool:
    return path.name == "__init__.py" and path.read_text().startswith("__path__ = ")


def sources() -> dict[str, Path]:
    """The modules of core outside the places where a family may be known."""
    return {
        name: path
        for path in sorted(CORE.rglob("*.py"))
        if not is_shared_level(path)
        for name in [module_name(path)]
        if not any(name == place or name.startswith(f"{place}.") for place in PLACES)
    }


def said(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every word of a source with its line: in texts whole, in names part by part."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((line, word) for word in re.findall(r"dew-\w+|\w+", node.value))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in (*modules, *(alias.name for alias in node.names)):
                yield from ((line, word) for word in (name, *name.split(".")))
        else:
            for field in ("id", "attr", "arg", "name"):
                name = getattr(node, field, None)
                if isinstance(name, str):
                    yield from ((line, word) for word in (name, *name.lower().split("_")))


def offences(source: str, names: set[str]) -> list[tuple[int, str]]:
    """Lines of a source that say one of `names`."""
    return [(line, word) for line, word in said(ast.parse(source)) if word in names]


def test_no_source_of_core_says_a_family():
    names = family_names()
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for module, path in sources().items()
        for line, word in offences(path.read_text(), names - DEFAULTS.get(module, set()))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        'if config.objective == "lm":\n    pass',
        "from dew.objectives.diffusion import config",
        "import dew.nn.backbones.jepa",
        "if isinstance(objective, GRPOObjective):\n    pass",
        "class DPORunConfig:\n    pass",
        "lm_batch = 3",
        "value.is_jepa",
        "def f(*, rl=None):\n    pass",
        'raise ValueError("this needs dew-rl")',
        'NAMES = ("causal_transformer",)',
    ],
)
def test_each_way_of_saying_one_is_found(source):
    assert offences(source, family_names())


def test_words_that_only_contain_a_name_are_not_found():
    source = 'realm = helm.film\nPATHS = ("*lm_head*", "urls")\ndef overlap(model): return model.url'
    assert offences(source, family_names()) == []


def test_the_families_are_installed_and_named():
    assert {"lm", "diffusion", "jepa", "rl", "grpo", "dpo", "simple_dit"} <= family_names()


PROBE = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
modules = [module for name, module in sys.modules.items() if name.startswith("dew")]
print(json.dumps([module.__file__ for module in modules if getattr(module, "__file__", None)]))
"""


def test_importing_all_of_core_loads_nothing_of_a_family():
    """With every other plugin switched off, since a plugin is loaded by whom it is for."""
    names = [module_name(path) for path in sorted(CORE.rglob("*.py"))]
    modules = [name for name in names if not name.endswith("__main__") and name != "dew.testing.sharded"]
    environment = {**os.environ, "DEW_DISABLE_PLUGINS": "all"}
    command = [sys.executable, "-c", PROBE, json.dumps(modules)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    loaded = [Path(file) for file in json.loads(done.stdout.splitlines()[-1])]
    assert len(loaded) >= len(modules) - 2
    assert [str(file) for file in loaded if not file.is_relative_to(CORE)] == []
