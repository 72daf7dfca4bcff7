"""The help pages of the first stage, made from the components' own words."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

from dew.plugins.component import Component
from dew.plugins.known import DISTRIBUTIONS, SHIPPED_BY
from dew.plugins.loader import installed


def width() -> int:
    """Columns to write in: the terminal's, at most 100."""
    return min(100, shutil.get_terminal_size().columns)


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Two columns, the second wrapped under itself."""
    rows = list(rows)
    first = max((len(name) for name, _ in rows), default=0) + 4
    lines: list[str] = []
    for name, text in rows:
        wrapped = textwrap.wrap(text, max(20, width() - first)) or [""]
        lines.append(f"  {name:<{first - 2}}{wrapped[0]}")
        lines.extend(" " * first + line for line in wrapped[1:])
    return "\n".join(lines)


def of_kind(kind: str) -> list[Component]:
    """The registered components of one kind, each once, by name."""
    found = {part.name: part for (each, _), part in installed().components.items() if each == kind}
    return [found[name] for name in sorted(found)]


def left_out() -> str:
    """A closing line where plugins failed to load, empty otherwise."""
    failed = [problem for problem in installed().problems if not problem.disabled]
    if not failed:
        return ""
    what = "1 plugin or part is" if len(failed) == 1 else f"{len(failed)} plugins or parts are"
    return f"\n\n{what} left out; dew plugins says why."


def no_recipe() -> str:
    """What to install where there is nothing to train."""
    packages = sorted({package for (kind, _), package in SHIPPED_BY.items() if kind == "recipe"})
    return f"  none is installed; pip install {' or '.join(packages)}"


def overview() -> str:
    """The page of `dew --help`."""
    recipes = [(f"train {part.name}", part.summary) for part in of_kind("recipe")]
    commands = [(part.name, part.summary) for part in of_kind("command")]
    return (
        "Dew trains models in JAX with one Objective interface and one Trainer.\n\n"
        "usage: dew COMMAND [options]\n\n"
        f"Train:\n{table(recipes) or no_recipe()}\n\n"
        f"Use what was trained:\n{table(commands)}\n\n"
        "dew COMMAND --help shows a command's options; dew --version the installed packages." + left_out()
    )


def train_page() -> str:
    """The page of `dew train --help`."""
    recipes = [(part.name, part.summary) for part in of_kind("recipe")]
    return (
        "usage: dew train RECIPE [options]\n"
        "       dew train RECIPE --resume RUN [options]\n\n"
        f"Recipes:\n{table(recipes) or no_recipe()}\n\n"
        "dew train RECIPE --help shows its options and where they start." + left_out()
    )


def version() -> str:
    """The installed distributions of Dew with their versions."""
    lines: list[str] = []
    for name in DISTRIBUTIONS:
        try:
            lines.append(f"{name} {version_of(name)}")
        except PackageNotFoundError:
            continue
    return "\n".join(lines)
