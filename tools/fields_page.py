"""Write docs/guides/fields.md: every field of a run's configuration with its type and default.

    uv run python tools/fields_page.py            rewrite the page
    uv run python tools/fields_page.py --check    fail when it differs

What stands here lands in `run.json`, so a changed default is a change of the record.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from pathlib import Path
from typing import Any

from dew import registry
from dew.config import ModelConfig, OptimConfig, RunConfig, TrainerConfig

PAGE = Path(__file__).resolve().parent.parent / "docs" / "guides" / "fields.md"
LINEN = ("parent", "name")

HEAD = """# Fields and defaults

Every field that lands in a run's `run.json`. `tools/fields_page.py` writes this page; CI compares it.
"""


def shown(value: object) -> str:
    """A default as one writes it."""
    if isinstance(value, type):
        return value.__name__
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}({', '.join(changed(value))})"
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return repr(value)


def changed(record: Any) -> list[str]:
    """The fields of `record` that differ from its class's defaults, as arguments."""
    values = {field: getattr(record, field.name) for field in dataclasses.fields(record)}
    return [f"{field.name}={shown(value)}" for field, value in values.items() if value != initial(field)]


def initial(field: dataclasses.Field[Any]) -> object:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{shown(field.default)}`"
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
        # A folder under the user's home: name what finds it.
        return f"`{field.default_factory.__name__}()`" if isinstance(value, str) else f"`{shown(value)}`"
    return "required"


def table(cls: type[Any], skip: tuple[str, ...] = ()) -> str:
    rows = [
        f"| `{field.name}` | `{str(field.type).replace('|', chr(92) + '|')}` | {default(field)} |"
        for field in dataclasses.fields(cls)
        if field.name not in skip
    ]
    return "\n".join(["| field | type | default |", "| --- | --- | --- |", *rows]) + "\n"


def sections() -> list[tuple[str, str]]:
    """Title and table of each record."""
    core = [ModelConfig, OptimConfig, TrainerConfig]
    parts = [(cls.__name__, table(cls)) for cls in core]
    shared = tuple(field.name for field in dataclasses.fields(RunConfig))
    for name in registry.recipes.names():
        cls = registry.recipes.config(name)
        parts.append((f"Recipe `{name}`: {cls.__name__}", table(cls, skip=shared)))
    for kind in (registry.datasets, registry.schedules, registry.presets, registry.samplers):
        for name in kind.names():
            cls = kind.config(name)
            parts.append((f"{kind.kind.capitalize()} `{name}`: {cls.__name__}", table(cls)))
    for name in registry.models.names():
        model = registry.models.get(name)
        parts.append((f"Model `{name}`: {model.__name__}", table(model, skip=LINEN)))
        parts += [(f"{each.__name__} of model `{name}`", table(each)) for each in records(model)]
    return parts


def records(cls: type[Any]) -> list[type[Any]]:
    """The dataclasses that fields of `cls` hold, and those that theirs hold."""
    found: list[type[Any]] = []
    for name, hint in typing.get_type_hints(cls).items():
        for arm in typing.get_args(hint) or (hint,):
            if name not in LINEN and dataclasses.is_dataclass(arm) and isinstance(arm, type):
                found += [each for each in (arm, *records(arm)) if each not in found]
    return found


def page() -> str:
    return HEAD + "".join(f"\n## {title}\n\n{body}" for title, body in sections())


def main() -> int:
    wanted = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted)
        return 0
    if PAGE.read_text() == wanted:
        return 0
    print("docs/guides/fields.md is stale: uv run python tools/fields_page.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
