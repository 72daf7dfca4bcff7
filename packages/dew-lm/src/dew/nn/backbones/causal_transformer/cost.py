"""The multiply-adds of a decoder's forward pass, from its sizes alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dew.nn.backbones.causal_transformer.config import LayerPlan
from dew.nn.backbones.causal_transformer.sizes import feed_forward_width
from dew.nn.mlp import PLAIN

if TYPE_CHECKING:
    from dew.nn.backbones.causal_transformer.model import CausalTransformer


def active_weights(model: CausalTransformer) -> int:
    """The weights of matrix products that one token meets.

    The vocabulary head counts, tied or not, the embedding's look-up does not; of a mixture's experts those
    that the token chose, the shared one and the router.
    """
    layers = sum(_layer_weights(model, experts=plan.experts) for plan in model.plans)
    return layers + model.hidden_size * model.vocab_size


def _layer_weights(model: CausalTransformer, *, experts: bool) -> int:
    width, heads = model.hidden_size, model.num_heads + model.kv_heads
    if model.mixer is None:
        attention = 2 * width * heads * model.head_width
    else:
        attention = model.mixer.weights(width, model.num_heads)
    inner = model.intermediate_size or feed_forward_width(width, model.activation)
    products = 2 if model.activation in PLAIN else 3
    mixture = model.mixture
    if mixture is None or not experts:
        return attention + products * width * inner
    each = products if mixture.gate is None else 3
    expert = each * width * (mixture.intermediate_size or inner)
    mixed = mixture.top_k * expert + width * mixture.num_experts
    if mixture.shared is not None:
        mixed += products * width * mixture.shared.intermediate_size + width * mixture.shared.gated
    return attention + mixed


def seen_keys(length: int, window: int | None, *, causal: bool, chunk: int | None = None) -> int:
    """Pairs of a query and a key it sees, in a row of `length` tokens.

    `length^2` where all see all, `length (length + 1) / 2` where none sees a later one, `sum of
    min(i + 1, window)` under a window, and the sum of the chunks' own in chunks.
    """
    if not causal:
        return length * length
    if chunk is not None and chunk < length:
        whole, rest = divmod(length, chunk)
        return whole * seen_keys(chunk, window, causal=True) + seen_keys(rest, window, causal=True)
    span = length if window is None else min(window, length)
    return span * (span + 1) // 2 + (length - span) * span


def forward_macs(model: CausalTransformer, length: int) -> int:
    """Multiply-adds of one row of `length` tokens: `length P + sum over layers of 2 H D keys`.

    P are the active weights, H the query heads, D their width, and keys what `seen_keys` counts. Latent
    attention has `H (D + V)` for a key, V a value's width, and an indexer its own products with every key,
    beside those of attention with the keys it selects.
    """
    pairs = sum(_pair_macs(model, length, plan) for plan in model.plans)
    return length * active_weights(model) + pairs


def _pair_macs(model: CausalTransformer, length: int, plan: LayerPlan) -> int:
    seen = partial(seen_keys, length, causal=model.causal, chunk=plan.chunk)
    keys, mixer = seen(plan.window), model.mixer
    if mixer is None:
        return 2 * model.num_heads * model.head_width * keys
    indexed = mixer.index_products * keys
    if mixer.index_topk is not None:
        keys = min(keys, seen(min(mixer.index_topk, plan.window or length)))
    return mixer.pair_products(model.num_heads) * keys + indexed


def depths_macs(model: CausalTransformer, length: int) -> int:
    """Multiply-adds of the prediction depths over one row of `length` tokens.

    Each has a layer like the last, the projection of two halves and the shared head.
    """
    last, width = model.plans[-1], model.hidden_size
    weights = _layer_weights(model, experts=last.experts) + width * model.vocab_size + 2 * width**2
    return model.num_nextn_predict_layers * (length * weights + _pair_macs(model, length, last))
