"""The shape of a mixture of experts, as plain values. Importing it imports no JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dew.nn.ranges import check_positive

type ScoreKind = Literal["softmax", "sigmoid"]
"""How a router's logits become scores: over all experts together, or each expert by itself."""

type GroupRank = Literal["best", "best_two"]
"""What a group of experts is ranked by: its best score, or the sum of its two best."""


@dataclass(frozen=True, kw_only=True)
class ExpertGroups:
    """Equal groups of consecutive experts: a token's experts come from the groups that rank highest.

    Attributes:
        count: how many groups.
        keep: how many of them a token may choose from.
        rank: `best` as DeepSeek-V2 (arXiv 2405.04434, section 2.2.2), `best_two` as DeepSeek-V3 (arXiv
            2412.19437, section 2.1.2).

    Raises:
        ValueError: a number below 1, `keep` above `count`, or an unknown rank.
    """

    count: int
    keep: int
    rank: GroupRank = "best"

    def __post_init__(self) -> None:
        if self.rank not in ("best", "best_two"):
            raise ValueError(f"mixture groups rank={self.rank!r} must be best or best_two")
        if self.count < 1 or not 1 <= self.keep <= self.count:
            raise ValueError(
                f"mixture groups keep={self.keep} of count={self.count} must be at least 1 and at most count"
            )


@dataclass(frozen=True, kw_only=True)
class SharedExpert:
    """One feed-forward block that every token passes through beside its experts.

    Several shared experts of one width are one block of their summed width.

    Attributes:
        intermediate_size: inner width.
        gated: scale its output by `sigmoid(x w)`, as Qwen2-MoE does.

    Raises:
        ValueError: a width below 1.
    """

    intermediate_size: int
    gated: bool = False

    def __post_init__(self) -> None:
        if self.intermediate_size < 1:
            raise ValueError(
                f"mixture shared.intermediate_size={self.intermediate_size} must be at least 1; "
                "leave shared unset for a mixture without"
            )


@dataclass(frozen=True, kw_only=True)
class ClampedGate:
    """GPT-OSS's gated activation: `(u + 1) g sigmoid(alpha g)`, with `g <= limit` and `|u| <= limit`.

    Attributes:
        alpha: slope of the sigmoid.
        limit: bound of the gate from above, and of the other factor from both sides.

    Raises:
        TypeError: a value that is no number.
        ValueError: a value that is not finite and above 0.
    """

    alpha: float = 1.702
    limit: float = 7.0

    def __post_init__(self) -> None:
        for name in ("alpha", "limit"):
            check_positive(f"mixture gate.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Feed-forward blocks of which every token passes through a few.

    With logits `z = x W`, scores `s = softmax(z)` or `sigmoid(z)` and a token's experts C, the weights are
    `w_e = scale s_e`, or `w_e = scale s_e / sum over C of s` where they are normalized. Normalized softmax
    scores are the softmax over the chosen logits alone.

    Attributes:
        num_experts: how many blocks.
        top_k: how many of them a token passes through.
        intermediate_size: inner width of each block; None takes the model's.
        normalize: scale the weights of the chosen experts to sum to 1, as Mixtral does.
        bias: keep a bias for each expert that shifts which are chosen and not how they are weighted; see
            `balance_rate` of the language-model objective (arXiv 2408.15664).
        layers: which layers have the mixture, a pattern repeated over the layers; the others keep the dense
            block. None means all of them.
        scores: softmax or sigmoid.
        scale: of all weights (`routed_scaling_factor` of published configurations).
        groups: choose within the best groups of experts alone; None chooses among all.
        shared: a block beside the experts, or None.
        router_bias: the router's logits have a trained bias, `z = x W + b`.
        expert_bias: the projections of every expert have biases.
        gate: the experts' activation in place of the model's, or None.
        weigh_inputs: an expert computes `f(w x)` in place of `w f(x)`, as Llama 4 does.

    Raises:
        TypeError: a scale that is no number.
        ValueError: a size below 1, `top_k` above what can be chosen from, groups that do not divide the
            experts, a scale that is not finite and above 0, or a pattern without a true flag.
    """

    num_experts: int
    top_k: int
    intermediate_size: int | None = None
    normalize: bool = True
    bias: bool = False
    layers: tuple[bool, ...] | None = None
    scores: ScoreKind = "softmax"
    scale: float = 1.0
    groups: ExpertGroups | None = None
    shared: SharedExpert | None = None
    router_bias: bool = False
    expert_bias: bool = False
    gate: ClampedGate | None = None
    weigh_inputs: bool = False

    def __post_init__(self) -> None:
        for name in ("num_experts", "top_k", "intermediate_size"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(f"mixture {name}={size} must be at least 1")
        if self.top_k > self.num_experts:
            raise ValueError(
                f"mixture top_k={self.top_k} is above num_experts={self.num_experts}; "
                f"use at most {self.num_experts}"
            )
        if self.layers is not None and not any(self.layers):
            raise ValueError(
                f"mixture layers={self.layers!r} puts experts in no layer; "
                "leave it unset to put them in all, or leave the mixture out"
            )
        if self.scores not in ("softmax", "sigmoid"):
            raise ValueError(f"mixture scores={self.scores!r} must be 'softmax' or 'sigmoid'")
        check_positive("mixture scale", self.scale)
        if self.groups is not None:
            self._check_groups(self.groups)

    def _check_groups(self, groups: ExpertGroups) -> None:
        size, rest = divmod(self.num_experts, groups.count)
        if rest:
            raise ValueError(
                f"mixture groups.count={groups.count} must divide num_experts={self.num_experts}"
            )
        if groups.keep * size < self.top_k:
            raise ValueError(
                f"mixture top_k={self.top_k} is above the {groups.keep * size} experts of "
                f"groups.keep={groups.keep} groups of {size}; keep more groups or choose fewer experts"
            )
        if groups.rank == "best_two" and size < 2:
            raise ValueError(
                f"mixture groups.rank='best_two' needs two experts a group, and groups.count={groups.count} "
                f"leaves {size}; use fewer groups, or rank='best'"
            )

    def at(self, layer: int) -> bool:
        """Whether the layer of this index has the mixture."""
        return self.layers is None or self.layers[layer % len(self.layers)]
