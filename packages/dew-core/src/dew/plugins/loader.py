"""Load the installed plugins, each alone: whatever one of them does, the others work.

pluggy's own loader stops at the first entry point that fails and skips a second plugin of one name in
silence. Here every entry point of the group `dew` is loaded, registered and asked for its components by
itself, and what goes wrong is kept as one line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

import pluggy

from dew.plugins import hooks
from dew.plugins.component import CONTRACT, Component
from dew.plugins.known import DISTRIBUTIONS

GROUP = "dew"
DISABLE = "DEW_DISABLE_PLUGINS"


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """One plugin that loaded: who ships it and the components it got registered."""

    name: str
    distribution: str
    version: str
    module: ModuleType
    components: tuple[Component, ...]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why a plugin, or one component of it, is left out. `disabled` when the user asked for it."""

    plugin: str
    distribution: str
    reason: str
    disabled: bool = False

    def __str__(self) -> str:
        return f"{self.plugin} ({self.distribution}): {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """Everything that is installed.

    Attributes:
        plugins: those that loaded, Dew's own first.
        problems: one entry for each plugin or component left out.
        components: by kind and name, aliases included.
        owners: the distribution behind each of `components`.
        manager: pluggy's manager, with the plugins that loaded.
    """

    plugins: tuple[Plugin, ...]
    problems: tuple[Problem, ...]
    components: Mapping[tuple[str, str], Component]
    owners: Mapping[tuple[str, str], str]
    manager: pluggy.PluginManager


class Refused(Exception):
    """A plugin that breaks the contract; the message is the reason."""


def one_line(error: BaseException) -> str:
    """`error` as its type and message on a single line of readable length."""
    message = re.sub(r"\s+", " ", str(error)).strip()
    kind = type(error).__name__
    return (f"{kind}: {message}" if message else kind)[:300]


def guarded[T](reason: str, function: Callable[[], T]) -> T:
    """Call `function`; every failure but an interrupt becomes `Refused`, a call of `sys.exit` too."""
    try:
        return function()
    except (KeyboardInterrupt, Refused):
        raise
    except BaseException as error:
        raise Refused(f"{reason} {one_line(error)}") from error


def distribution_of(entry: EntryPoint) -> tuple[str, str]:
    """Name and version of the distribution that declares `entry`."""
    return (entry.dist.name, entry.dist.version) if entry.dist else ("unknown", "")


def ordered(entries: Iterable[EntryPoint]) -> list[EntryPoint]:
    """Dew's own first, so that their names win a clash; then by name and distribution."""

    def rank(entry: EntryPoint) -> tuple[int, str, str]:
        distribution = distribution_of(entry)[0]
        own = DISTRIBUTIONS.index(distribution) if distribution in DISTRIBUTIONS else len(DISTRIBUTIONS)
        return own, entry.name, distribution

    return sorted(entries, key=rank)


def named(setting: str) -> set[str]:
    """The names in `DEW_DISABLE_PLUGINS`, separated by commas or spaces."""
    return set(re.split(r"[,\s]+", setting.strip())) - {""}


def misnamed(setting: str, installed: set[str]) -> list[Problem]:
    """The names in `DEW_DISABLE_PLUGINS` that switch nothing off."""
    reason = f"{DISABLE} names it, and no plugin is called that"
    unknown = sorted(named(setting) - installed - {"all"})
    return [Problem(plugin=name, distribution="none", reason=reason) for name in unknown]


def disabled_names(setting: str) -> Callable[[str], bool]:
    """Read `DEW_DISABLE_PLUGINS`: `all` (except dew-core's), or names separated by commas or spaces."""
    names = named(setting)
    return lambda name: name in names or ("all" in names and name != "core")


def manager() -> pluggy.PluginManager:
    """A manager that knows Dew's hooks and no plugin yet."""
    empty = pluggy.PluginManager(hooks.PROJECT)
    empty.add_hookspecs(hooks)
    return empty


def checked(entry: EntryPoint) -> tuple[ModuleType, list[Component]]:
    """Import one plugin, check it against the contract and collect all its components.

    It is tried in a manager of its own, so that one that fails leaves nothing behind.
    """
    module = guarded("cannot be imported:", entry.load)
    if not isinstance(module, ModuleType):
        raise Refused(f"{entry.value!r} must name a module, not {type(module).__name__}")
    number = vars(module).get("DEW_CONTRACT")
    if number != CONTRACT:
        raise Refused(f"DEW_CONTRACT is {number!r} and this Dew reads {CONTRACT}; install a matching release")
    trial = manager()
    guarded("breaks a hook:", lambda: trial.register(module, name=entry.name))
    guarded("has an unknown hook:", trial.check_pending)
    if not trial.get_hookcallers(module):
        raise Refused("implements no hook; mark its functions with dew.plugins.hookimpl")
    listed = guarded("dew_components raised", lambda: [list(each) for each in trial.hook.dew_components()])
    parts = [part for each in listed for part in each]
    wrong = next((part for part in parts if not isinstance(part, Component)), None)
    if wrong is not None:
        raise Refused(f"dew_components yields {type(wrong).__name__}, not dew.plugins.Component")
    return module, parts


class Loading:
    """The catalog while it is being built."""

    def __init__(self) -> None:
        self.manager = manager()
        self.plugins: dict[str, Plugin] = {}
        self.problems: list[Problem] = []
        self.components: dict[tuple[str, str], Component] = {}
        self.owners: dict[tuple[str, str], str] = {}

    def add(self, entry: EntryPoint) -> None:
        """Load one entry point, or note why it is left out."""
        distribution, version = distribution_of(entry)
        try:
            if entry.name in self.plugins:
                taken = self.plugins[entry.name].distribution
                raise Refused(f"plugin name {entry.name!r} is taken by {taken}; rename the entry point")
            module, parts = checked(entry)
            guarded("cannot be registered:", lambda: self.manager.register(module, name=entry.name))
        except Refused as refused:
            self.problems.append(Problem(plugin=entry.name, distribution=distribution, reason=str(refused)))
            return
        kept = tuple(part for part in parts if self.claim(part, entry.name, distribution))
        self.plugins[entry.name] = Plugin(
            name=entry.name, distribution=distribution, version=version, module=module, components=kept
        )

    def claim(self, part: Component, plugin: str, distribution: str) -> bool:
        """Register `part` under its names, unless one of them is taken."""
        keys = [(part.kind, name) for name in (part.name, *part.aliases)]
        taken = next((key for key in keys if key in self.components), None)
        if taken is not None:
            reason = f"{part.kind} {taken[1]!r} is taken by {self.owners[taken]}; this one is left out"
            self.problems.append(Problem(plugin=plugin, distribution=distribution, reason=reason))
            return False
        for key in keys:
            self.components[key] = part
            self.owners[key] = distribution
        return True


def load(entries: Iterable[EntryPoint], *, disable: str = "") -> Catalog:
    """Load `entries`, except those that `disable` names."""
    is_disabled = disabled_names(disable)
    state = Loading()
    entries = ordered(entries)
    state.problems.extend(misnamed(disable, {entry.name for entry in entries}))
    for entry in entries:
        if is_disabled(entry.name):
            state.problems.append(
                Problem(
                    plugin=entry.name,
                    distribution=distribution_of(entry)[0],
                    reason=f"switched off by {DISABLE}",
                    disabled=True,
                )
            )
        else:
            state.add(entry)
    return Catalog(
        plugins=tuple(state.plugins.values()),
        problems=tuple(state.problems),
        components=state.components,
        owners=state.owners,
        manager=state.manager,
    )


@cache
def installed() -> Catalog:
    """The catalog of this environment, loaded once per process."""
    return load(entry_points(group=GROUP), disable=os.environ.get(DISABLE, ""))
