"""Settings whose function is not there yet: one table, checked before a run does any work."""

from __future__ import annotations

from collections.abc import Mapping

UNBUILT: Mapping[str, tuple[tuple[object, ...], str]] = {
    "trainer.layout.host_parameters": (((),), "keep the parameters on the devices"),
}
"""Dotted field -> the values that work, and what to do instead of the others."""


def refuse_unbuilt(config: object, table: Mapping[str, tuple[tuple[object, ...], str]] = UNBUILT) -> None:
    """Refuse a configuration that asks for something in `table`.

    Args:
        config: a dataclass tree.
        table: dotted field to the values that work and the way out. A family passes its own for its own
            fields.

    Raises:
        ValueError: the first such field, its value and the way out.
    """
    for path, (working, instead) in table.items():
        value = config
        for name in path.split("."):
            value = getattr(value, name)
        if value not in working:
            raise ValueError(f"{path}={value!r} is not supported in this version; {instead}")
