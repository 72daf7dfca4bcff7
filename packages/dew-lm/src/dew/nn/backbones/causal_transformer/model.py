"""The decoder-only transformer, with the parameter names of Llama checkpoints in Hugging Face's layout.

Dimensions: B rows, S or T tokens, E model width, V vocabulary, C cache slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Bool, Float, Int

from dew.nn.attention import AttentionImpl
from dew.nn.backbones.causal_transformer.cache import (
    Cache,
    LayerCache,
    capacity_of,
    empty_latent_layer,
    empty_layer,
)
from dew.nn.backbones.causal_transformer.config import (
    Biases,
    Block,
    LayerPlan,
    Position,
    Rotary,
    Scales,
    Temperature,
)
from dew.nn.backbones.causal_transformer.cost import depths_macs, forward_macs
from dew.nn.backbones.causal_transformer.depths import PredictionDepth, all_depths
from dew.nn.backbones.causal_transformer.layer import DecoderLayer
from dew.nn.backbones.causal_transformer.mixers import MLA
from dew.nn.backbones.causal_transformer.sizes import (
    check_attention,
    check_biases,
    check_chunks,
    check_depths,
    check_heads,
    check_learned,
    check_mixer,
    check_numbers,
    check_parts,
    check_rotary,
    check_sizes,
    check_turning,
    feed_forward_width,
    windows,
)
from dew.nn.backbones.causal_transformer.spec import LayerSpec, Places, Table
from dew.nn.backbones.causal_transformer.stages import layers_over_stages, sown_collections
from dew.nn.dense import Dense
from dew.nn.frequencies import score_factor
from dew.nn.mlp import Activation
from dew.nn.moe.config import Mixture
from dew.nn.moe.routes import RouterRows
from dew.nn.norms import NormKind
from dew.nn.pipeline import active_stages
from dew.nn.rotary import rotary_table
from dew.nn.sharding import named_axes, unboxed
from dew.nn.stack import DecoderBank, StackView
from dew.nn.tokens import check_positions, split_lookup, split_tokens


class CausalTransformer(nn.Module):
    """Decoder: embedding, `num_layers` layers of attention and feed-forward, norm, vocabulary head.

    Attributes:
        vocab_size: V.
        hidden_size: E.
        num_layers: how many layers.
        num_heads: query heads of a layer.
        num_kv_heads: key heads, a divisor of `num_heads`; None takes `num_heads`.
        head_dim: width of a head; None takes `hidden_size / num_heads`.
        intermediate_size: inner width of the feed-forward blocks; None takes 4 E without a gate, and 8/3 E
            rounded up to a multiple of 64 for the gated ones.
        max_seq_len: the longest sequence, in tokens.
        rope_theta: base of the rotary frequencies.
        rotary: what else there is to the rotation: scaling, the part of a head that turns, its pairs, the
            layers that turn, another base under a window.
        position: `rotary`, or `learned`, a trained vector for each of `max_seq_len` positions.
        block: where the norms stand in a layer and what they read, see `Block`.
        norm_kind: of every norm: `rms`, `rms_offset`, `layer` or `layer_scale`.
        norm_eps: added to every norm's mean square.
        activation: gated (`swiglu`, `geglu`, `geglu_erf`) or not (`relu2`, `gelu`, `gelu_erf`).
        bias: which projections add a trained vector.
        scales: constant factors of embedding, residual branches, logits and attention scores.
        qk_norm: normalize queries and keys before the rotation: True in each head, `width` over all heads;
            or, as Llama 4 does, `l2`: each head behind its rotation, without a scale, in layers that turn.
        sinks: every head has a trained score that takes its share of the attention and has no value (arXiv
            2508.10925).
        tie_embeddings: the head is the embedding, transposed.
        sliding_window: a query sees itself and the `sliding_window - 1` tokens before it; None sees all
            before it.
        sliding_layers: which layers have the window, a pattern repeated over the layers; None means all of
            them.
        attention_chunk_size: a query sees the tokens of its own chunk of so many alone, of those up to
            itself; None has no chunks. They are counted from the first token of a document, as its
            positions are.
        chunked_layers: which layers have chunks, a pattern repeated over the layers; None means all of them.
        attention_temperature: growth of the scores with the position, in layers that do not turn.
        attn_logit_softcap: bounds attention scores to `(-c, c)` by `c tanh(s / c)`.
        final_logit_softcap: bounds logits likewise.
        dtype: computes; norms' statistics, rotation, softmax and logits are float32 or wider.
        param_dtype: stores.
        precision: of every product; None is the backend's default.
        attention_impl: the attention kernel.
        remat: recompute each layer's activations in the backward pass instead of keeping them.
        causal: a token sees no later one.
        mixture: experts in place of the feed-forward blocks; None has one block a layer.
        num_nextn_predict_layers: prediction depths behind the decoder (`causal_transformer.depths`), each
            with a layer like the last. They are trained with `mtp_weight` and draft for `Speculative`; the
            logits do not depend on them.
        mixer: latent attention in place of plain attention. It has its own head widths and a key head for
            each query head, and with YaRN a factor on the scores, `dew.nn.frequencies.score_factor`.

    Raises:
        TypeError: at construction, for a base, an epsilon or a softcap that is no number.
        ValueError: at construction, for sizes below 1, heads that do not divide, an odd number of turning
            coordinates, an unknown part, window fields that contradict each other, or a base, an epsilon or
            a softcap that is not finite and above 0.
    """

    vocab_size: int
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    num_kv_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    max_seq_len: int = 2048
    rope_theta: float = 10000.0
    rotary: Rotary = Rotary()
    position: Position = "rotary"
    block: Block = "pre"
    norm_kind: NormKind = "rms"
    norm_eps: float = 1e-6
    activation: Activation = "swiglu"
    bias: Biases = Biases()
    scales: Scales = Scales()
    qk_norm: bool | Literal["width", "l2"] = False
    sinks: bool = False
    tie_embeddings: bool = False
    sliding_window: int | None = None
    sliding_layers: tuple[bool, ...] | None = None
    attention_chunk_size: int | None = None
    chunked_layers: tuple[bool, ...] | None = None
    attention_temperature: Temperature | None = None
    attn_logit_softcap: float | None = None
    final_logit_softcap: float | None = None
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32
    precision: jax.lax.PrecisionLike = None
    attention_impl: AttentionImpl | None = "auto"
    remat: bool = False
    causal: bool = True
    mixture: Mixture | None = None
    num_nextn_predict_layers: int = 0
    mixer: MLA | None = None

    def __post_init__(self) -> None:
        check_sizes(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate_size,
            max_seq_len=self.max_seq_len,
            sliding_window=self.sliding_window,
            attention_chunk_size=self.attention_chunk_size,
        )
        check_numbers(
            theta=self.rope_theta,
            eps=self.norm_eps,
            attn_logit_softcap=self.attn_logit_softcap,
            final_logit_softcap=self.final_logit_softcap,
        )
        if self.mixer is None:
            check_heads(self.hidden_size, self.num_heads, self.kv_heads, self.head_dim)
        else:
            check_mixer(
                self.mixer,
                num_heads=self.num_heads,
                num_kv_heads=self.kv_heads,
                head_dim=self.head_dim,
                qk_norm=self.qk_norm,
                sinks=self.sinks,
                temperature=self.attention_temperature,
                fraction=self.rotary.fraction,
            )
        check_parts(block=self.block, norm_kind=self.norm_kind, qk_norm=self.qk_norm, position=self.position)
        if self.position == "rotary":
            check_rotary(self.rotary, self.rope_theta, self._turning_width, self.sliding_window)
        else:
            check_learned(self.rotary, self.rope_theta, type(self).rope_theta)
        check_biases(self.bias, experts=self._with_experts)
        check_attention(
            activation=self.activation,
            window=self.sliding_window,
            pattern=self.sliding_layers,
            causal=self.causal,
        )
        check_chunks(size=self.attention_chunk_size, pattern=self.chunked_layers, causal=self.causal)
        check_turning(
            turning=[plan.angles is not None for plan in self.plans],
            qk_norm=self.qk_norm,
            temperature=self.attention_temperature,
        )
        check_depths(self.num_nextn_predict_layers, causal=self.causal, logits_scale=self.scales.logits)
        super().__post_init__()

    @property
    def kv_heads(self) -> int:
        """The number of key heads."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def head_width(self) -> int:
        """The width of a head's query and key."""
        if self.mixer is not None:
            return self.mixer.head_width
        return self.hidden_size // self.num_heads if self.head_dim is None else self.head_dim

    @property
    def _turning_width(self) -> int:
        """The part of a head that may turn."""
        return self.head_width if self.mixer is None else self.mixer.qk_rope_head_dim

    @property
    def bank(self) -> DecoderBank:
        """Where the layers stand in a variables tree."""
        kinds = tuple(plan.told(scale=self.scales.attention_by_layer) for plan in self.plans)
        return DecoderBank((), StackView(self.num_layers, kinds=kinds))

    @property
    def plans(self) -> tuple[LayerPlan, ...]:
        """What each layer has to itself: it may differ from its neighbours."""
        spans = windows(self.num_layers, self.sliding_window, self.sliding_layers)
        chunks = windows(self.num_layers, self.attention_chunk_size, self.chunked_layers)
        factor = 1.0 if self.mixer is None else score_factor(self.rotary.scaling)
        return tuple(
            LayerPlan(
                window=span,
                chunk=chunks[index],
                angles=self._angles_at(index, span),
                scale=factor * self.scales.of_scores(self.head_width, index),
                experts=experts,
            )
            for index, (span, experts) in enumerate(zip(spans, self._with_experts, strict=True))
        )

    @property
    def _with_experts(self) -> tuple[bool, ...]:
        """Which layers have experts."""
        mixture = self.mixture
        return tuple(mixture is not None and mixture.at(layer) for layer in range(self.num_layers))

    def _angles_at(self, layer: int, window: int | None) -> str | None:
        if self.position != "rotary" or not self.rotary.at(layer):
            return None
        return "local" if window is not None and self.rotary.local_theta is not None else "global"

    def forward_macs(self, length: int) -> int:
        """Multiply-adds that one row of `length` tokens needs, of attention the keys that a query sees."""
        return forward_macs(self, length)

    def depths_macs(self, length: int) -> int:
        """What the prediction depths need beside `forward_macs`."""
        return depths_macs(self, length)

    def setup(self) -> None:
        table = partial(nn.Embed, features=self.hidden_size, dtype=self.dtype, param_dtype=self.param_dtype)
        drawn = nn.initializers.normal(self.hidden_size**-0.5)
        self.embed_tokens = table(self.vocab_size, embedding_init=named_axes(drawn, "vocab", "embed"))
        if self.position == "learned":
            self.embed_positions = table(
                self.max_seq_len, embedding_init=named_axes(drawn, "position", "embed")
            )
        # Decoding keeps nothing for a gradient, so only the full forward is recomputed.
        layer = nn.remat(DecoderLayer) if self.remat else DecoderLayer
        spec = self._layer_spec()
        self.layers = [layer(spec, plan) for plan in self.plans]
        self.norm = spec.make_norm()
        ahead = range(self.num_nextn_predict_layers)
        self.depths = [PredictionDepth(spec, self.plans[-1], self.remat) for _ in ahead]
        if not self.tie_embeddings:
            self.lm_head = Dense(
                self.vocab_size, ("embed", "vocab"), dtype=self.dtype, param_dtype=self.param_dtype
            )

    def _layer_spec(self) -> LayerSpec:
        width = self.intermediate_size
        return LayerSpec(
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_width,
            intermediate_size=feed_forward_width(self.hidden_size, self.activation)
            if width is None
            else width,
            activation=self.activation,
            mixture=self.mixture,
            mixer=self.mixer,
            block=self.block,
            norm_kind=self.norm_kind,
            norm_eps=self.norm_eps,
            qk_norm=self.qk_norm,
            sinks=self.sinks,
            temperature=self.attention_temperature,
            bias=self.bias,
            pairs=self.rotary.pairs,
            residual=self.scales.residual,
            causal=self.causal,
            softcap=self.attn_logit_softcap,
            # Two outputs a layer are added to the stream: their sum keeps unit scale at the start.
            output_gain=(2 * self.num_layers) ** -0.5,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            attention_impl=self.attention_impl,
        )

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        *,
        train: bool = False,
        positions: Int[Array, "B S"] | None = None,
        segment_ids: Int[Array, "B S"] | None = None,
    ) -> Float[Array, "B S V"]:
        """The logits of every next token, float32 or wider and capped."""
        hidden = self.hidden_states(tokens, train=train, positions=positions, segment_ids=segment_ids)
        if self.is_initializing():
            self.mtp_hidden_states(tokens, hidden)
        return self._logits(hidden)

    def hidden_states(
        self,
        tokens: Int[Array, "B S"],
        *,
        train: bool = False,
        positions: Int[Array, "B S"] | None = None,
        segment_ids: Int[Array, "B S"] | None = None,
        routing: RouterRows | None = None,
    ) -> Float[Array, "B S E"]:
        """The states that the head reads: after the final norm, times `scales.logits`.

        Args:
            tokens: ids below `vocab_size`.
            train: gates dropout, of which this decoder has none: both values compute the same.
            positions: of each token, for the rotation; None counts from 0 in every row.
            segment_ids: the document of each token; a token sees its own document alone.
            routing: what the routers of a mixture are told about the tokens, with the routes of every layer.

        Raises:
            ValueError: rows longer than `max_seq_len`, or that a sequence axis does not cut evenly.
        """
        length = tokens.shape[1]
        if length > self.max_seq_len:
            raise ValueError(
                f"tokens hold {length} positions, over max_seq_len={self.max_seq_len}; "
                "shorten the rows or build the model with a larger max_seq_len"
            )
        if not self.is_initializing():
            check_positions("tokens.shape[1]", length)
        if positions is None:
            positions = jnp.arange(length)[None]
        places = self._places(positions)
        stages = 1 if self.is_initializing() else active_stages()
        if stages > 1:
            x = self._entered(self.embed_tokens(tokens), positions)
            return self._left(self._through_stages(x, places, segment_ids, routing, stages))
        x = self._entered(split_lookup(self.embed_tokens(split_tokens(tokens))), positions)
        for index, layer in enumerate(self.layers):
            x = layer(x, places, segment_ids, None if routing is None else routing.at(index))
        return self._left(x)

    def mtp_hidden_states(
        self,
        tokens: Int[Array, "B S"],
        hidden: Float[Array, "B S E"],
        *,
        train: bool = False,
        positions: Int[Array, "B S"] | None = None,
        segment_ids: Int[Array, "B S"] | None = None,
        routing: RouterRows | None = None,
    ) -> tuple[Float[Array, "B S E"], ...]:
        """What the head reads of every prediction depth, first to last; see `causal_transformer.depths`.

        The state of depth k at token t predicts token t + 1, and means nothing at a document's first k.

        Args:
            tokens: as in `hidden_states`.
            hidden: what `hidden_states` returned for them.
            train: as in `hidden_states`.
            positions: as in `hidden_states`.
            segment_ids: as in `hidden_states`.
            routing: as in `hidden_states`; its routes are the decoder's own layers'.
        """
        if positions is None:
            positions = jnp.arange(tokens.shape[1])[None]
        embedded = self._entered(split_lookup(self.embed_tokens(split_tokens(tokens))), positions)
        counted = None if routing is None else routing.counted
        return all_depths(self.depths, embedded, hidden, self._places(positions), segment_ids, counted)

    def mtp_decode(
        self,
        depth: int,
        tokens: Int[Array, "B T"],
        previous: Float[Array, "B T E"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: LayerCache,
    ) -> tuple[Float[Array, "B T E"], LayerCache]:
        """One depth over new tokens: its states, and its cache with them in it.

        Args:
            depth: from 1.
            tokens: [B, T].
            previous: [B, T, E], at each token the state before it of the depth before.
            positions: [B, T] of the tokens in their rows.
            valid: [B, T]; a token that is not valid writes nothing. None of the first `depth` of a row is.
            cache: of this depth, from `init_mtp_cache` or an earlier call.
        """
        places = self._places(positions, capacity_of(cache))
        embedded = self._entered(split_lookup(self.embed_tokens(split_tokens(tokens))), positions)
        # Entries begin at the row's token number `depth`: its slot is the first, and none before it is empty.
        return self.depths[depth - 1].decode(embedded, previous, places, positions - depth, valid, cache)

    def init_mtp_cache(self, rows: int, capacity: int) -> LayerCache:
        """The cache of one prediction depth, without tokens."""
        return self._empty_layer(rows, capacity)

    def _places(self, positions: jax.Array, longest: int | None = None) -> Places:
        """Where tokens stand, with the rotary tables that the layers turn by."""
        named = {plan.angles for plan in self.plans}
        width, scaling = self.rotary.width(self._turning_width), self.rotary.scaling
        tables: dict[str, Table] = {}
        if "global" in named:
            tables["global"] = rotary_table(
                positions, width, self.rope_theta, scaling=scaling, longest=longest
            )
        if "local" in named:
            tables["local"] = rotary_table(positions, width, cast("float", self.rotary.local_theta))
        return Places(positions, tables)

    def _entered(self, x: jax.Array, positions: jax.Array) -> jax.Array:
        """The stream at the first layer, from the embedding's vectors."""
        if self.scales.embedding != 1.0:
            x = x * jnp.asarray(self.scales.embedding, x.dtype)
        if self.position == "learned":
            x = x + self.embed_positions(positions)
        return x

    def _left(self, x: jax.Array) -> jax.Array:
        """What the head reads of the stream behind the last layer."""
        x = self.norm(x)
        if self.scales.logits == 1.0:
            return x
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        return (wide * self.scales.logits).astype(x.dtype)

    def _through_stages(
        self,
        x: jax.Array,
        places: Places,
        segment_ids: jax.Array | None,
        routing: RouterRows | None,
        stages: int,
    ) -> jax.Array:
        """The layers over pipeline stages; what they sow stands where each alone would put it."""
        scope = self.scope
        assert scope is not None, "layers pass over stages in a bound module"
        x, reports = layers_over_stages(
            self.layers,
            self.variables,
            self.bank.view,
            stages,
            x=x,
            places=places,
            segment_ids=segment_ids,
            routing=routing,
            sown=sown_collections(scope.mutable, self.variables),
        )
        for collection, layers in reports.items():
            for name, report in layers.items():
                self.put_variable(collection, name, report)
        return x

    def decode(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: Cache,
    ) -> tuple[Float[Array, "B T E"], Cache]:
        """The states of new tokens that the head reads, and the cache with them in it.

        Args:
            tokens: [B, T], a whole prompt or one step.
            positions: [B, T], also the cache slot of each token.
            valid: [B, T]; a token that is not valid writes nothing, and its state means nothing.
            cache: from `init_cache` or an earlier call.
        """
        # Keys stay turned in the cache, so frequencies that depend on a row's length take its longest.
        capacity = capacity_of(next(iter(cache.values())))
        places = self._places(positions, capacity)
        x = self._entered(split_lookup(self.embed_tokens(split_tokens(tokens))), positions)
        written: Cache = {}
        for name, layer in zip(self.bank.view.names, self.layers, strict=True):
            x, written[name] = layer.decode(x, places, positions, valid, cache[name])
        return self._left(x), written

    def init_cache(self, rows: int, capacity: int) -> Cache:
        """A cache for `rows` rows of up to `capacity` tokens, without tokens.

        Raises:
            ValueError: a capacity over `max_seq_len`.
        """
        if capacity > self.max_seq_len:
            raise ValueError(f"capacity={capacity} is over max_seq_len={self.max_seq_len}")
        return {name: self._empty_layer(rows, capacity) for name in self.bank.view.names}

    def _empty_layer(self, rows: int, capacity: int) -> LayerCache:
        if self.mixer is not None:
            return empty_latent_layer(rows, capacity, self.mixer, self.dtype)
        return empty_layer(rows, capacity, self.kv_heads, self.head_width, self.dtype)

    def head_weight(self, params: Mapping[str, Any]) -> Float[Array, "E V"]:
        """The vocabulary matrix of a variables tree, or of its `params` collection."""
        inner = params.get("params", params)
        if self.tie_embeddings:
            return cast("jax.Array", unboxed(inner["embed_tokens"]["embedding"])).T
        return cast("jax.Array", unboxed(inner["lm_head"]["kernel"]))

    def _logits(self, hidden: jax.Array) -> jax.Array:
        if self.is_initializing() and not self.tie_embeddings:
            self.lm_head(hidden[:, :1])
        weight = self.head_weight(self.variables).astype(self.dtype)
        wide = jnp.promote_types(self.dtype, jnp.float32)
        logits = jnp.dot(hidden, weight, precision=self.precision, preferred_element_type=wide)
        if self.final_logit_softcap is None:
            return logits
        return self.final_logit_softcap * jnp.tanh(logits / self.final_logit_softcap)
