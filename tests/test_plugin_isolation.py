"""Bad plugins: each is one line in `dew plugins`, and everything else works.

The plugins are folders with an `entry_points.txt` on the import path: all that an installed distribution is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions
from pathlib import Path

import pytest

from dew.plugins.loader import Catalog, load

GOOD = """
from dew.plugins import Component, hookimpl

DEW_CONTRACT = 1

@hookimpl
def dew_components():
    yield Component("metric", "{name}", "json:dumps", "A metric.")
"""


@dataclass(frozen=True)
class Bad:
    """A way to be broken: the source, what the line says, and the name of the entry point if it matters."""

    source: str
    reason: str
    entry: str = ""


BAD = {
    "import-error": Bad("import module_that_is_nowhere", "ModuleNotFoundError: No module named 'module_that"),
    "system-exit": Bad("raise SystemExit('no licence')", "cannot be imported: SystemExit: no licence"),
    "half-way": Bad(
        GOOD.format(name="first") + "    raise RuntimeError('second part')\n",
        "dew_components raised RuntimeError: second part",
    ),
    "unknown-hook": Bad(
        GOOD.format(name="misspelt").replace("def dew_components", "def dew_componets"),
        "has an unknown hook: PluginValidationError: unknown hook 'dew_componets'",
    ),
    "wrong-argument": Bad(
        GOOD.format(name="argument").replace("dew_components()", "dew_components(registry)"),
        "breaks a hook: PluginValidationError",
    ),
    "other-contract": Bad(
        GOOD.format(name="future").replace("DEW_CONTRACT = 1", "DEW_CONTRACT = 2"),
        "DEW_CONTRACT is 2 and this Dew reads 1",
    ),
    "no-contract": Bad(GOOD.format(name="none").replace("DEW_CONTRACT = 1", ""), "DEW_CONTRACT is None"),
    "taken-plugin": Bad(GOOD.format(name="taken"), "plugin name 'core' is taken by dew-core", entry="core"),
    "taken-component": Bad(
        GOOD.format(name="cosine").replace('"metric"', '"schedule"'),
        "schedule 'cosine' is taken by dew-core; this one is left out",
    ),
    "no-hook": Bad("DEW_CONTRACT = 1", "implements no hook"),
    "wrong-yield": Bad(
        GOOD.format(name="x") + "    yield 'metric'\n", "yields str, not dew.plugins.Component"
    ),
    "bad-reference": Bad(
        GOOD.format(name="x").replace("json:dumps", "json.dumps"), 'must read "module:attribute"'
    ),
    "interrupting-name": Bad(GOOD.format(name="a b"), "must hold letters, digits"),
}


def install(site: Path, name: str, source: str, entry: str = "") -> None:
    """Put the distribution `name` with one plugin module on the path `site`."""
    module = name.replace("-", "_") + "_plugin"
    (site / f"{module}.py").write_text(source)
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[dew]\n{entry or name} = {module}\n")


def entries(*paths: Path | str) -> list[EntryPoint]:
    """The plugin entry points under `paths`."""
    found = distributions(path=[str(path) for path in paths])
    return [entry for each in found for entry in each.entry_points if entry.group == "dew"]


def dew_entries() -> list[EntryPoint]:
    """Those of the installed dew-core."""
    return [
        entry
        for each in distributions(name="dew-core")
        for entry in each.entry_points
        if entry.group == "dew"
    ]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for path in tmp_path.glob("*_plugin.py"):
        sys.modules.pop(path.stem, None)


def catalog(site: Path, disable: str = "") -> Catalog:
    return load(dew_entries() + entries(site), disable=disable)


@pytest.mark.parametrize("name", BAD)
def test_bad_plugin_is_one_line_and_the_good_one_beside_it_works(site: Path, name: str):
    install(site, name, BAD[name].source, BAD[name].entry)
    install(site, "zz-good", GOOD.format(name="good"))
    loaded = catalog(site)
    (problem,) = loaded.problems
    assert BAD[name].reason in str(problem) and f"({name})" in str(problem)
    assert "\n" not in str(problem)
    assert loaded.owners["metric", "good"] == "zz-good"
    assert loaded.owners["schedule", "cosine"] == "dew-core"


def test_plugin_that_fails_half_way_registers_nothing(site: Path):
    install(site, "half-way", BAD["half-way"].source)
    assert ("metric", "first") not in catalog(site).components


def test_plugin_with_a_taken_component_keeps_its_others(site: Path):
    more = '    yield Component("metric", "mine", "json:loads", "Another.")\n'
    install(site, "taken-component", BAD["taken-component"].source + more)
    loaded = catalog(site)
    assert loaded.components["metric", "mine"].ref == "json:loads"
    assert loaded.components["schedule", "cosine"].ref.startswith("dew.")


def test_dews_own_name_wins_over_a_plugin_that_sorts_before_it(site: Path):
    install(site, "aaa", BAD["taken-component"].source)
    assert catalog(site).owners["schedule", "cosine"] == "dew-core"


def test_two_third_parties_with_one_name_keep_the_first_by_distribution(site: Path):
    install(site, "bbb", GOOD.format(name="shared"), entry="same")
    install(site, "aaa", GOOD.format(name="shared"), entry="same")
    loaded = catalog(site)
    assert loaded.owners["metric", "shared"] == "aaa"
    assert [str(problem) for problem in loaded.problems] == [
        "same (bbb): plugin name 'same' is taken by aaa; rename the entry point"
    ]


def test_one_module_behind_two_entry_points_counts_once(site: Path):
    install(site, "twice", GOOD.format(name="twice"))
    info = site / "twice-1.0.dist-info/entry_points.txt"
    info.write_text(info.read_text() + "twice_again = twice_plugin\n")
    loaded = catalog(site)
    assert [plugin.name for plugin in loaded.plugins] == ["core", "twice"]
    assert "twice_again (twice): cannot be registered: ValueError" in str(loaded.problems[0])


def test_interrupt_while_loading_is_not_swallowed(site: Path):
    install(site, "slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        catalog(site)


@pytest.mark.parametrize("setting", ["one", "one,other", "other one", "all"])
def test_switched_off_plugin_is_not_even_imported(site: Path, setting: str):
    install(site, "one", "raise RuntimeError('imported')")
    loaded = catalog(site, disable=setting)
    switched_off = [str(problem) for problem in loaded.problems if problem.disabled]
    assert switched_off == ["one (one): switched off by DEW_DISABLE_PLUGINS"]
    assert [plugin.name for plugin in loaded.plugins] == ["core"]


def dew(site: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program with the plugins of `site` installed."""
    settings = os.environ | {"PYTHONPATH": str(site), "COLUMNS": "200"} | environment
    command = [sys.executable, "-m", "dew", *words]
    return subprocess.run(command, capture_output=True, text=True, env=settings)


@pytest.fixture
def broken_site(tmp_path: Path) -> Path:
    for name, bad in BAD.items():
        install(tmp_path, name, bad.source, bad.entry)
    return tmp_path


def test_dew_plugins_lists_every_bad_one_in_a_line_and_ends_well(broken_site: Path):
    result = dew(broken_site, "plugins")
    assert result.returncode == 0 and result.stderr == ""
    lines = result.stdout.splitlines()
    for name, bad in BAD.items():
        assert sum(f"({name})" in line and bad.reason in line for line in lines) == 1, name
    assert any(line.startswith("  lm (dew-lm ") for line in lines)


def test_help_of_a_recipe_works_beside_bad_plugins(broken_site: Path):
    result = dew(broken_site, "train", "lm", "--help")
    assert result.returncode == 0 and "--trainer.steps" in result.stdout


def test_check_fails_for_bad_plugins_and_names_them(broken_site: Path):
    result = dew(broken_site, "plugins", "check")
    assert result.returncode == 1
    assert "import-error (import-error): cannot be imported" in result.stdout


def test_families_can_be_switched_off_by_the_environment(tmp_path: Path):
    result = dew(tmp_path, "train", "lm", DEW_DISABLE_PLUGINS="lm")
    assert result.returncode == 2
    where = "it ships in dew-lm; that is installed, but its plugin is not loaded: dew plugins says why"
    assert result.stderr == f"dew: 'lm' is no recipe here: {where}\n"


@pytest.mark.slow
def test_training_works_beside_bad_plugins(broken_site: Path, tmp_path: Path):
    options = [
        "--trainer.steps",
        "2",
        "--trainer.checkpoint-dir",
        str(tmp_path / "runs"),
        "--trainer.name",
        "run",
    ]
    result = dew(broken_site, "train", "lm", *options)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "runs/run/run.json").is_file()


def test_every_reference_of_what_is_installed_can_be_imported(tmp_path: Path):
    result = dew(tmp_path, "plugins", "check")
    assert result.returncode == 0, result.stdout


def test_a_name_that_switches_nothing_off_is_a_line():
    problems = load([], disable="nosuch, all").problems
    assert [str(problem) for problem in problems] == [
        "nosuch (none): DEW_DISABLE_PLUGINS names it, and no plugin is called that"
    ]
