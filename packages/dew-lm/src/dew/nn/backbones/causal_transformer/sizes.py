"""The sizes a decoder derives from its fields, and the rules its fields obey."""

from __future__ import annotations

from collections.abc import Sequence

from dew.nn.backbones.causal_transformer.config import BLOCKS, Biases, Rotary, Temperature
from dew.nn.backbones.causal_transformer.mixers import MLA
from dew.nn.mlp import ACTIVATIONS, PLAIN
from dew.nn.norms import NORMS
from dew.nn.ranges import check_positive


def feed_forward_width(hidden_size: int, activation: str) -> int:
    """The default inner width: 4 times the model's, or, gated, 8/3 of it rounded up to a multiple of 64."""
    if activation in PLAIN:
        return 4 * hidden_size
    return -(-8 * hidden_size // (3 * 64)) * 64


def windows(layers: int, window: int | None, pattern: Sequence[bool] | None) -> tuple[int | None, ...]:
    """The window of each layer: `window` where the repeated `pattern` is true, None elsewhere."""
    if pattern is None:
        return (window,) * layers
    return tuple(window if pattern[index % len(pattern)] else None for index in range(layers))


def check_sizes(**sizes: int | None) -> None:
    """Refuse a size below 1.

    Raises:
        ValueError: naming the size.
    """
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"{name}={size} must be at least 1")


def check_numbers(*, theta: float, eps: float, **caps: float | None) -> None:
    """Refuse a base, an epsilon or a softcap that is not finite and above 0.

    Args:
        theta: `rope_theta`.
        eps: `norm_eps`.
        caps: softcaps by their field's name; None has none.

    Raises:
        TypeError: naming the field that holds no number.
        ValueError: naming the field.
    """
    check_positive("rope_theta", theta)
    check_positive("norm_eps", eps)
    for name, cap in caps.items():
        check_positive(name, cap, remedy="leave it unset for none")


def check_heads(hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int | None) -> None:
    """Refuse heads that do not divide.

    Raises:
        ValueError: naming the field and what would do.
    """
    if num_heads % num_kv_heads:
        fits = [str(count) for count in range(1, num_heads + 1) if num_heads % count == 0]
        raise ValueError(
            f"num_kv_heads={num_kv_heads} must divide num_heads={num_heads}; use {', '.join(fits)}"
        )
    if head_dim is None and hidden_size % num_heads:
        raise ValueError(
            f"num_heads={num_heads} must divide hidden_size={hidden_size} where head_dim is unset; change "
            "either, or set head_dim"
        )


def check_mixer(
    mixer: MLA,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int | None,
    qk_norm: object,
    sinks: bool,
    temperature: Temperature | None,
    fraction: float,
) -> None:
    """Refuse fields of plain attention that latent attention has its own values for.

    Raises:
        ValueError: naming the field.
    """
    if num_kv_heads != num_heads:
        raise ValueError(
            f"num_kv_heads={num_kv_heads} with a mixer, whose every query head has a key head; leave it unset"
        )
    if head_dim not in (None, mixer.head_width):
        raise ValueError(
            f"head_dim={head_dim} is not the mixer's qk_nope_head_dim + qk_rope_head_dim={mixer.head_width}; "
            "leave it unset"
        )
    if qk_norm:
        raise ValueError(f"qk_norm={qk_norm} with a mixer, whose latent vectors are normalized; set it False")
    if sinks:
        raise ValueError("sinks=True with a mixer, which computes none; set it False")
    if temperature is not None:
        raise ValueError(f"attention_temperature={temperature} with a mixer, which has none; leave it unset")
    if fraction != 1:
        raise ValueError(
            f"rotary.fraction={fraction} with a mixer, of whose heads qk_rope_head_dim turns; leave it at 1"
        )


def check_parts(*, block: str, norm_kind: str, qk_norm: object, position: str) -> None:
    """Refuse the name of a part that there is not.

    Raises:
        ValueError: naming the field and what it may be.
    """
    choices: dict[str, tuple[object, tuple[object, ...]]] = {
        "block": (block, BLOCKS),
        "norm_kind": (norm_kind, NORMS),
        "qk_norm": (qk_norm, (False, True, "width", "l2")),
        "position": (position, ("rotary", "learned")),
    }
    for name, (value, known) in choices.items():
        if value not in known:
            raise ValueError(f"{name}={value!r} must be one of {', '.join(map(str, known))}")


def check_learned(rotary: Rotary, theta: float, usual: float) -> None:
    """Refuse settings of a rotation where positions are learned vectors.

    Raises:
        ValueError: naming the field.
    """
    if rotary != Rotary():
        raise ValueError(f"rotary={rotary} with position='learned', which turns nothing; leave rotary unset")
    if theta != usual:
        raise ValueError(f"rope_theta={theta} with position='learned', which turns nothing; leave it unset")


def check_biases(bias: Biases, *, experts: Sequence[bool]) -> None:
    """Refuse biases of feed-forward blocks where every layer has experts.

    Raises:
        ValueError: naming the field.
    """
    if bias.mlp and all(experts):
        raise ValueError(
            "bias.mlp=True with a mixture in every layer, so no block has one; set mixture.expert_bias, or "
            "leave it False"
        )


def check_rotary(rotary: Rotary, theta: float, head_width: int, window: int | None) -> None:
    """Refuse a turning part of a head that is no pairs, a scaling that is undefined for it or for the base,
    and a base for windows that no layer has.

    Raises:
        ValueError: naming the field.
    """
    width = rotary.width(head_width)
    if width < 2 or width % 2:
        part = "" if rotary.fraction == 1 else f"the {width} that rotary.fraction={rotary.fraction} takes of "
        raise ValueError(
            f"{part}head_dim={head_width} must be even: rotary positions turn pairs of coordinates"
        )
    kind = None if rotary.scaling is None else rotary.scaling.kind
    if kind == "yarn" and theta <= 1:
        raise ValueError(
            f"rope_theta={theta} must be above 1 with a rotary scaling of kind yarn, which divides by its "
            "logarithm"
        )
    if kind == "dynamic" and width == 2:
        raise ValueError(
            f"head_dim={head_width} leaves one turning pair, and a rotary scaling of kind dynamic takes two: "
            "it divides by their number less one"
        )
    if rotary.local_theta is not None and window is None:
        raise ValueError(
            f"rotary.local_theta={rotary.local_theta} is the base of layers with a sliding_window, "
            "and it is unset"
        )


def check_attention(
    *, activation: str, window: int | None, pattern: Sequence[bool] | None, causal: bool
) -> None:
    """Refuse an unknown activation and window fields that contradict each other.

    Raises:
        ValueError: naming the field.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r} must be one of {', '.join(ACTIVATIONS)}")
    if window is not None and not causal:
        raise ValueError(f"sliding_window={window} needs causal=True: the window reaches back only")
    if pattern is None:
        return
    if window is None:
        raise ValueError(f"sliding_layers={tuple(pattern)} needs sliding_window, the width of those layers")
    if not pattern:
        raise ValueError(
            "sliding_layers=() must hold at least one flag; leave it unset to window every layer"
        )


def check_chunks(*, size: int | None, pattern: Sequence[bool] | None, causal: bool) -> None:
    """Refuse chunk fields that contradict each other.

    Raises:
        ValueError: naming the field.
    """
    if size is not None and not causal:
        raise ValueError(f"attention_chunk_size={size} needs causal=True: a chunk is seen up to the query")
    if pattern is None:
        return
    if size is None:
        raise ValueError(
            f"chunked_layers={tuple(pattern)} needs attention_chunk_size, the size of those layers' chunks"
        )
    if not any(pattern):
        raise ValueError(
            f"chunked_layers={tuple(pattern)} puts chunks in no layer; leave it unset to have them in every "
            "layer, or leave attention_chunk_size unset"
        )


def check_turning(*, turning: Sequence[bool], qk_norm: object, temperature: Temperature | None) -> None:
    """Refuse what acts where heads turn, or where they do not, in a decoder without such a layer.

    Args:
        turning: whether heads turn, of each layer.
        qk_norm: of the decoder.
        temperature: of the decoder.

    Raises:
        ValueError: naming the field.
    """
    if qk_norm == "l2" and not any(turning):
        raise ValueError("qk_norm='l2' acts in layers that turn, and none does; set it False")
    if temperature is not None and all(turning):
        raise ValueError(
            f"attention_temperature={temperature} acts in layers that do not turn, and all do; set "
            "rotary.layers, or leave it unset"
        )


def check_depths(depths: int, *, causal: bool, logits_scale: float) -> None:
    """Refuse prediction depths of a decoder that has no next token or scales its logits.

    Raises:
        ValueError: naming the field.
    """
    if depths < 0:
        raise ValueError(f"num_nextn_predict_layers={depths} must be 0 or more")
    if depths and not causal:
        raise ValueError(f"num_nextn_predict_layers={depths} needs causal=True: depths predict later tokens")
    if depths and logits_scale != 1.0:
        raise ValueError(
            f"num_nextn_predict_layers={depths} with scales.logits={logits_scale} is undefined; unset either"
        )
