"""The choices of a decoder that need more than one value, as plain records. Importing it imports no JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dew.nn.ranges import check_positive
from dew.nn.rotary_scaling import RotaryScaling

type Block = Literal["pre", "post", "sandwich", "parallel", "parallel_shared"]
"""How a layer adds attention A and feed-forward F to its stream x, with norms N:

- `pre`: `x + A(N x)`, then `x + F(N x)`
- `post`: `x + N A(x)`, then `x + N F(x)`
- `sandwich`: `x + N A(N x)`, then `x + N F(N x)`
- `parallel`: `x + A(N x) + F(N x)` with a norm each
- `parallel_shared`: the same with one norm for both
"""
BLOCKS: tuple[str, ...] = ("pre", "post", "sandwich", "parallel", "parallel_shared")

type Position = Literal["rotary", "learned"]
"""Rotary angles of queries and keys, or a trained vector a position, added to the embedding."""


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """How queries and keys turn with their positions, beside the base `rope_theta`.

    Attributes:
        fraction: of a head's width that turns; the rest stays.
        pairs: `halves` or `neighbours`, see `dew.nn.rotary`.
        scaling: changes the frequencies; None leaves them.
        layers: which layers turn, a pattern repeated over the layers; None means all of them.
        local_theta: base in the layers with a sliding window, which `scaling` then leaves alone; None has
            one base for all.

    Raises:
        TypeError: a base that is no number.
        ValueError: a fraction outside (0, 1], an empty pattern, or a base that is not finite and above 0.
    """

    fraction: float = 1.0
    pairs: Literal["halves", "neighbours"] = "halves"
    scaling: RotaryScaling | None = None
    layers: tuple[bool, ...] | None = None
    local_theta: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"rotary fraction={self.fraction} must lie in (0, 1]; 1 turns the whole head")
        if self.pairs not in ("halves", "neighbours"):
            raise ValueError(f"rotary pairs={self.pairs!r} must be halves or neighbours")
        if self.layers == ():
            raise ValueError("rotary layers=() must hold at least one flag; leave it unset to turn all")
        check_positive("rotary.local_theta", self.local_theta)

    def width(self, head_width: int) -> int:
        """How many coordinates of a head turn."""
        return int(head_width * self.fraction)

    def at(self, layer: int) -> bool:
        """Whether the layer of this index turns."""
        return self.layers is None or self.layers[layer % len(self.layers)]


@dataclass(frozen=True, kw_only=True)
class Biases:
    """Which projections add a trained vector.

    Attributes:
        qkv: queries, keys and values.
        output: attention's output.
        mlp: projections of feed-forward blocks; a mixture's blocks have `expert_bias` of their own.
    """

    qkv: bool = False
    output: bool = False
    mlp: bool = False


@dataclass(frozen=True, kw_only=True)
class Scales:
    """Constant factors.

    Attributes:
        embedding: multiplies the embedding, rounded to the compute dtype first, as Gemma has it.
        residual: multiplies what attention and feed-forward add to the stream.
        logits: multiplies the logits, before any softcap.
        attention: multiplies the attention scores; None is `head_dim ** -0.5`.
        attention_by_layer: divide the scores of layer i, counted from 0, by i + 1.

    Raises:
        TypeError: a factor that is no number.
        ValueError: a factor that is not finite and above 0.
    """

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    attention: float | None = None
    attention_by_layer: bool = False

    def __post_init__(self) -> None:
        for name in ("embedding", "residual", "logits", "attention"):
            check_positive(f"scales.{name}", getattr(self, name), remedy="leave it unset for the usual one")

    def of_scores(self, head_width: int, layer: int) -> float:
        """What multiplies the attention scores of a layer."""
        scale = head_width**-0.5 if self.attention is None else self.attention
        return scale / (layer + 1) if self.attention_by_layer else scale


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """Attention scores that grow with a query's position p, where heads do not turn (arXiv 2501.19399).

    They are multiplied by `1 + strength log(1 + floor((p + 1) / every))`, which is 1 for the first positions.

    Attributes:
        strength: of the growth.
        every: positions after which it rises.

    Raises:
        TypeError: a strength that is no number.
        ValueError: `every` below 1, or a strength that is not finite and above 0.
    """

    strength: float = 0.1
    every: int = 8192

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"attention_temperature.every={self.every} must be at least 1")
        check_positive(
            "attention_temperature.strength",
            self.strength,
            remedy="leave attention_temperature unset for scores that do not grow",
        )


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """What one layer has to itself.

    Attributes:
        window: a query sees itself and the `window - 1` tokens before it; None sees all before it.
        chunk: of what it sees, a query sees the tokens of its own chunk of so many alone; None has no chunks.
        angles: name of the rotary table that its heads turn by; None turns nothing.
        scale: multiplies the attention scores.
        experts: whether experts stand in place of its feed-forward block.
    """

    window: int | None = None
    chunk: int | None = None
    angles: str | None = "global"
    scale: float
    experts: bool = False

    @property
    def reach(self) -> int | None:
        """The most keys that a query sees, those up to itself; None for all."""
        return min((size for size in (self.window, self.chunk) if size is not None), default=None)

    def told(self, *, scale: bool) -> str:
        """What the layer computes, in words; layers with the same words and parameters are alike."""
        spans = {"window": self.window, "chunk": self.chunk}
        reach = ", ".join(f"{name} {size}" for name, size in spans.items() if size is not None) or "full"
        turn = "" if self.angles == "global" else ", unturned" if self.angles is None else f", {self.angles}"
        factor = f", scale {self.scale:.4g}" if scale else ""
        return f"{reach}{turn}{factor}{' with experts' if self.experts else ''}"
