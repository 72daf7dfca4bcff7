"""Fields and tensors of mixtures of experts that several families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from dew.interop.decoders.family import Group, Row, linear
from dew.interop.decoders.forms import ROWS, STACKED
from dew.interop.decoders.llama_parts import LAYER, OWN
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.backbones.causal_transformer.sizes import feed_forward_width
from dew.nn.moe.config import ExpertGroups, GroupRank, Mixture, SharedExpert

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
AUXILIARY = ("output_router_logits", "router_aux_loss_coef")
"""Fields of the training loss, which change no logits."""


def mixture(
    numbers: Mapping[str, tuple[str, Any]],
    *,
    fixed: Mapping[str, Any] = MappingProxyType({}),
    parts: Sequence[Group] = (),
    also: Mapping[str, str] = MappingProxyType({}),
) -> Group:
    """The group of fields that a family's mixture has.

    Args:
        numbers: a field of `Mixture` -> its name in the file, and what a file without it means.
        fixed: what other fields of `Mixture` are whatever the file says.
        parts: groups that read and write further fields of `Mixture`.
        also: another name that files have for a field -> its name.
    """
    named = [name for name, _ in numbers.values()]
    names = (*named, *also, *(name for part in parts for name in part.names))

    def read(config: Mapping[str, Any]) -> dict[str, Any]:
        config = _one_name(config, also)
        own = {field: config.get(name, default) for field, (name, default) in numbers.items()}
        for part in parts:
            own |= part.read(config)
        return {"mixture": Mixture(**{**own, **fixed})}

    def write(model: CausalTransformer) -> dict[str, Any]:
        if model.mixture is None:
            return {}
        whole = replace(model.mixture, intermediate_size=inner_width(model))
        written = {name: getattr(whole, field) for field, (name, _) in numbers.items()}
        for part in parts:
            written |= part.write(model)
        return written

    spelled = {field: name for field, (name, _) in numbers.items()}
    spelled |= {own: name for part in parts for own, name in part.spelled.items()}
    return Group(tuple(names), read, write, spelled)


def _one_name(config: Mapping[str, Any], also: Mapping[str, str]) -> dict[str, Any]:
    """`config` with every field under its own name, and without nulls.

    Raises:
        ValueError: two names of one field say two things.
    """
    found: dict[str, Any] = {}
    for name, value in config.items():
        own = also.get(name, name)
        if value is None:
            continue
        if found.setdefault(own, value) != value:
            raise ValueError(
                f"config.json {name}={value!r} and {own}={found[own]!r} differ; keep one of them"
            )
    return found


def inner_width(model: CausalTransformer) -> int:
    """The inner width of the model's experts."""
    own = None if model.mixture is None else model.mixture.intermediate_size
    return own or model.intermediate_size or feed_forward_width(model.hidden_size, model.activation)


def sparse_layers() -> Group:
    """Qwen's layers with experts: each `decoder_sparse_step`-th, but those of `mlp_only_layers`."""

    def read(config: Mapping[str, Any]) -> dict[str, Any]:
        step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", ())
        return _where(lambda layer: layer not in dense and (layer + 1) % step == 0, config)

    def write(model: CausalTransformer) -> dict[str, Any]:
        return {"decoder_sparse_step": 1, "mlp_only_layers": _dense_layers(model)}

    return Group(("decoder_sparse_step", "mlp_only_layers"), read, write)


def later_layers(default: int) -> Group:
    """Experts in all layers but the first `first_k_dense_replace`."""

    def read(config: Mapping[str, Any]) -> dict[str, Any]:
        return _where(lambda layer: layer >= config.get("first_k_dense_replace", default), config)

    def write(model: CausalTransformer) -> dict[str, Any]:
        return {"first_k_dense_replace": len(_dense_layers(model))}

    return Group(("first_k_dense_replace",), read, write)


def _where(has: Callable[[int], bool], config: Mapping[str, Any]) -> dict[str, Any]:
    flags = tuple(has(layer) for layer in range(config["num_hidden_layers"]))
    return {} if all(flags) else {"layers": flags}


def _dense_layers(model: CausalTransformer) -> list[int]:
    held = model.mixture
    return [layer for layer in range(model.num_layers) if held is None or not held.at(layer)]


def expert_groups(rank: GroupRank, groups: int = 1, kept: int = 1) -> Group:
    """`n_group` groups of experts, of which a token chooses from `topk_group`.

    Args:
        rank: what a group is ranked by.
        groups: how many in a file that does not say.
        kept: from how many a token chooses then.
    """

    def read(config: Mapping[str, Any]) -> dict[str, Any]:
        count, keep = config.get("n_group", groups), config.get("topk_group", kept)
        return {} if count == keep else {"groups": ExpertGroups(count=count, keep=keep, rank=rank)}

    def write(model: CausalTransformer) -> dict[str, Any]:
        groups = None if model.mixture is None else model.mixture.groups
        return {"n_group": groups.count if groups else 1, "topk_group": groups.keep if groups else 1}

    spelled = {
        "groups.count": "n_group",
        "groups.keep": "topk_group",
        "count": "n_group",
        "keep": "topk_group",
    }
    return Group(("n_group", "topk_group"), read, write, spelled)


def shared_experts(default: int, width: str = "moe_intermediate_size") -> Group:
    """`n_shared_experts` blocks of the experts' width, as one block.

    Args:
        default: how many in a file that does not say.
        width: the field of the experts' width, which the file has.
    """

    def read(config: Mapping[str, Any]) -> dict[str, Any]:
        blocks = config.get("n_shared_experts", default)
        if width not in config:
            raise ValueError(f"config.json lacks {width}")
        return {"shared": SharedExpert(intermediate_size=blocks * config[width])}

    def write(model: CausalTransformer) -> dict[str, Any]:
        shared = None if model.mixture is None else model.mixture.shared
        blocks = 0 if shared is None else shared.intermediate_size // inner_width(model)
        return {"n_shared_experts": blocks}

    return Group(("n_shared_experts",), read, write)


def expert_rows(block: str = f"{LAYER}.mlp", names: Sequence[str] = PROJECTIONS) -> tuple[Row, ...]:
    """A router, and a tensor for each expert's gate, up and down projection, under the names given."""
    return (
        *linear(f"{block}.gate", f"{OWN}/mlp/gate"),
        *(
            Row(f"{block}.experts.{{expert}}.{name}.weight", (f"{OWN}/mlp/experts_{own}",), ROWS)
            for name, own in zip(names, PROJECTIONS, strict=True)
        ),
    )


STACKED_ROWS = (
    *linear(f"{LAYER}.mlp.gate", f"{OWN}/mlp/gate"),
    Row(
        f"{LAYER}.mlp.experts.gate_up_proj",
        (f"{OWN}/mlp/experts_gate_proj", f"{OWN}/mlp/experts_up_proj"),
        STACKED,
    ),
    Row(f"{LAYER}.mlp.experts.down_proj", (f"{OWN}/mlp/experts_down_proj",), STACKED),
)
"""A router, and two tensors for all experts of a layer."""


def shared_rows(name: str) -> tuple[Row, ...]:
    """The block beside the experts, under its name in the file."""
    return tuple(
        row
        for each in PROJECTIONS
        for row in linear(f"{LAYER}.mlp.{name}.{each}", f"{OWN}/mlp/shared_expert/{each}")
    )
