"""`dew plugins`: what is installed and by whom; `dew plugins check` imports every part."""

from __future__ import annotations

from collections import defaultdict

from dew.cli.errors import FAILURE, SUCCESS, UserError
from dew.cli.pages import table
from dew.cli.suggest import unknown
from dew.plugins.component import Component
from dew.plugins.loader import Catalog, Plugin, installed, one_line
from dew.registry.registry import resolve

USAGE = """usage: dew plugins          list the plugins, their parts, and what is left out and why
       dew plugins check    import every part; exit 1 when one fails

DEW_DISABLE_PLUGINS=all switches off every plugin but dew-core's, NAME[,NAME] those named."""


def main(argv: list[str]) -> int:
    """Run the command and return its exit status."""
    if argv[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return SUCCESS
    if not argv:
        print(listing(installed()))
        return SUCCESS
    if argv != ["check"]:
        raise UserError(
            unknown("subcommand of dew plugins", " ".join(argv), ["check"], "it takes check, or nothing")
        )
    return check(installed())


def parts_of(plugin: Plugin) -> str:
    """The names a plugin adds, grouped by kind."""
    kinds: defaultdict[str, list[str]] = defaultdict(list)
    for part in plugin.components:
        kinds[part.kind].append(part.name)
    return (
        "; ".join(f"{kind} {', '.join(sorted(names))}" for kind, names in sorted(kinds.items()))
        or "hooks only"
    )


def listing(catalog: Catalog) -> str:
    """Every plugin with its parts, then one line for each that is left out."""
    rows = [(f"{each.name} ({each.distribution} {each.version})", parts_of(each)) for each in catalog.plugins]
    text = f"Plugins:\n{table(rows)}"
    if catalog.problems:
        text += "\n\nLeft out:\n" + "\n".join(f"  {problem}" for problem in catalog.problems)
    return text


def check(catalog: Catalog) -> int:
    """Import every reference of every plugin and say which fail."""
    failures = [str(problem) for problem in catalog.problems if not problem.disabled]
    count = 0
    for plugin in catalog.plugins:
        for part in plugin.components:
            count += 1
            failures += [f"{plugin.name} ({plugin.distribution}): {reason}" for reason in broken(part)]
    for failure in failures:
        print(failure)
    print(f"{count} parts of {len(catalog.plugins)} plugins, {len(failures)} problems")
    return FAILURE if failures else SUCCESS


def broken(part: Component) -> list[str]:
    """Why the references of `part` cannot be imported; empty when they can."""
    reasons: list[str] = []
    for reference in filter(None, (part.ref, part.config)):
        try:
            resolve(reference)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            reasons.append(f"{part.kind} {part.name!r}: {reference} cannot be imported: {one_line(error)}")
    return reasons
