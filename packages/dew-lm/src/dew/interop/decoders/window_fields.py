"""Sliding windows of a `config.json`: in every layer, or in those that `layer_types` names.

A file without `layer_types` means what its family says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dew.interop.decoders.family import Group, stated
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.backbones.causal_transformer.sizes import windows

SLIDING, FULL = "sliding_attention", "full_attention"

type Pattern = Callable[[Mapping[str, Any]], Sequence[bool]]
"""Which layers have the window, where a file does not name them."""


def window_everywhere(default: int | None) -> Group:
    """One window for all layers, or none; `default` is that of a file that does not say."""

    def read(config: Mapping[str, Any]) -> dict[str, Any]:
        return {"sliding_window": config.get("sliding_window", default)}

    return Group(("sliding_window",), read, lambda model: {"sliding_window": model.sliding_window})


def switched_window(default: int) -> Group:
    """One window for all layers where `use_sliding_window` turns it on."""

    def read(config: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "sliding_window": config.get("sliding_window", default)
            if config.get("use_sliding_window")
            else None
        }

    def write(model: CausalTransformer) -> dict[str, Any]:
        return {
            "sliding_window": model.sliding_window,
            "use_sliding_window": model.sliding_window is not None,
        }

    return Group(("sliding_window", "use_sliding_window"), read, write)


def windows_by_layer(
    *,
    default: int | None,
    pattern: Pattern,
    switch: bool = False,
    others: tuple[str, ...] = (),
    turned: bool | None = None,
) -> Group:
    """A window in the layers that `layer_types` names.

    Args:
        default: the window of a file that does not say.
        pattern: the layers of a file that does not say.
        switch: `use_sliding_window` turns all of it on.
        others: fields that `pattern` reads.
        turned: True where the layers without a window are those whose heads do not turn.
    """
    names = ("sliding_window", "layer_types", *(("use_sliding_window",) if switch else ()), *others)

    def read(config: Mapping[str, Any]) -> dict[str, Any]:
        width = config.get("sliding_window", default)
        if switch and not config.get("use_sliding_window", False):
            width = None
        kinds = layer_kinds(config)
        flags = pattern(config) if kinds is None else [kind == SLIDING for kind in kinds]
        turning = [flag and width is not None for flag in flags]
        own: dict[str, Any] = {"rotary.layers": tuple(turning)} if turned and not all(turning) else {}
        if width is None or not any(flags):
            return own
        return own | {"sliding_window": width} | ({} if all(flags) else {"sliding_layers": tuple(flags)})

    def write(model: CausalTransformer) -> dict[str, Any]:
        spans = windows(model.num_layers, model.sliding_window, model.sliding_layers)
        kinds = [FULL if span is None else SLIDING for span in spans]
        width = next(filter(None, spans), None)
        used = {"use_sliding_window": width is not None} if switch else {}
        return {"sliding_window": width, "layer_types": kinds, **used}

    return Group(names, read, write)


def every(name: str, default: int) -> Pattern:
    """All layers but each `name`-th."""

    def pattern(config: Mapping[str, Any]) -> list[bool]:
        step = config.get(name) or default
        return [(layer + 1) % step != 0 for layer in range(config["num_hidden_layers"])]

    return pattern


def after(name: str, default: int) -> Pattern:
    """The layers from the `name`-th on."""

    def pattern(config: Mapping[str, Any]) -> list[bool]:
        first = stated(config, name, default)
        return [layer >= first for layer in range(config["num_hidden_layers"])]

    return pattern


def all_layers(config: Mapping[str, Any]) -> list[bool]:
    """Every layer."""
    return [True] * config["num_hidden_layers"]


def layer_kinds(config: Mapping[str, Any], local: str = SLIDING) -> list[str] | None:
    """`layer_types` of the file, or None where it has none.

    Args:
        config: the file.
        local: the kind of the layers that see a part of what is before them.

    Raises:
        ValueError: another kind, or not one for each layer.
    """
    kinds = config.get("layer_types")
    unknown = sorted(set(kinds or ()) - {local, FULL})
    if unknown:
        raise ValueError(f"config.json layer_types names {', '.join(unknown)}; {local} and {FULL} are read")
    if kinds is not None and len(kinds) != config["num_hidden_layers"]:
        raise ValueError(
            f"config.json layer_types names {len(kinds)} layers, and num_hidden_layers is "
            f"{config['num_hidden_layers']}"
        )
    return kinds
