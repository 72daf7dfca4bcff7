"""GPT-NeoX (arXiv 2204.06745) and Pythia: parallel attention and feed-forward, a quarter of a head turns."""

from __future__ import annotations

from dew.interop.decoders.family import Family, Field, Row, fused, linear, norm
from dew.interop.decoders.forms import BY_HEAD
from dew.interop.decoders.llama_parts import PLAIN, SIZES, activation, epsilon, tied
from dew.interop.decoders.rotary_fields import rotary

LAYER, OWN = "gpt_neox.layers.{layer}", "layers_{layer}"
QKV = tuple(f"{OWN}/self_attn/{name}_proj" for name in "qkv")

FAMILY = Family(
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    precedence=220,
    fields=(
        *SIZES,
        activation(PLAIN, default="gelu"),
        epsilon(1e-5, "layer_norm_eps"),
        rotary(fraction=0.25, names={"theta": "rotary_emb_base", "fraction": "rotary_pct"}),
        tied(False),
        Field("attention_bias", ("bias.qkv", "bias.output"), True),
        Field(
            "use_parallel_residual",
            "block",
            True,
            lambda parallel: "parallel" if parallel else "pre",
            lambda block: block == "parallel",
        ),
    ),
    rows=(
        Row("gpt_neox.embed_in.weight", ("embed_tokens/embedding",)),
        *norm("gpt_neox.final_layer_norm", "norm"),
        *linear("embed_out", "lm_head"),
        *norm(f"{LAYER}.input_layernorm", f"{OWN}/input_layernorm"),
        *norm(f"{LAYER}.post_attention_layernorm", f"{OWN}/post_attention_layernorm"),
        *fused(f"{LAYER}.attention.query_key_value", QKV, BY_HEAD),
        *linear(f"{LAYER}.attention.dense", f"{OWN}/self_attn/o_proj"),
        *linear(f"{LAYER}.mlp.dense_h_to_4h", f"{OWN}/mlp/up_proj"),
        *linear(f"{LAYER}.mlp.dense_4h_to_h", f"{OWN}/mlp/down_proj"),
    ),
    always={"norm_kind": "layer", "bias.mlp": True},
    off={},
    ignored=("classifier_dropout", "hidden_dropout", "is_decoder"),
    gated=False,
    buffers=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
    also={"lm_head.weight": "embed_out.weight"},
)
