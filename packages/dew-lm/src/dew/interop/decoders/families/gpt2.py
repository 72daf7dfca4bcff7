"""GPT-2 (Radford et al. 2019): layer norms, learned positions, GELU, biases everywhere."""

from __future__ import annotations

from dew.interop.decoders.family import Family, Field, Row, fused, linear, norm
from dew.interop.decoders.forms import COLUMNS
from dew.interop.decoders.llama_parts import PLAIN, activation, epsilon, tied

LAYER, OWN = "transformer.h.{layer}", "layers_{layer}"
QKV = tuple(f"{OWN}/self_attn/{name}_proj" for name in "qkv")

FAMILY = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    precedence=210,
    fields=(
        Field("vocab_size", "vocab_size"),
        Field("n_positions", "max_seq_len"),
        Field("n_embd", "hidden_size"),
        Field("n_layer", "num_layers"),
        Field("n_head", "num_heads"),
        Field("n_inner", "intermediate_size", None),
        activation(PLAIN, name="activation_function", default="gelu_new"),
        epsilon(1e-5, "layer_norm_epsilon"),
        tied(True),
        Field(
            "scale_attn_weights",
            "scales.attention",
            True,
            lambda scaled: None if scaled else 1.0,
            lambda scale: scale != 1.0,
        ),
        Field("scale_attn_by_inverse_layer_idx", "scales.attention_by_layer", False),
    ),
    rows=(
        Row("transformer.wte.weight", ("embed_tokens/embedding",)),
        Row("transformer.wpe.weight", ("embed_positions/embedding",)),
        *norm("transformer.ln_f", "norm"),
        *linear("lm_head", "lm_head"),
        *norm(f"{LAYER}.ln_1", f"{OWN}/input_layernorm"),
        *fused(f"{LAYER}.attn.c_attn", QKV, COLUMNS),
        *linear(f"{LAYER}.attn.c_proj", f"{OWN}/self_attn/o_proj", COLUMNS),
        *norm(f"{LAYER}.ln_2", f"{OWN}/post_attention_layernorm"),
        *linear(f"{LAYER}.mlp.c_fc", f"{OWN}/mlp/up_proj", COLUMNS),
        *linear(f"{LAYER}.mlp.c_proj", f"{OWN}/mlp/down_proj", COLUMNS),
    ),
    always={
        "position": "learned",
        "norm_kind": "layer",
        "bias.qkv": True,
        "bias.output": True,
        "bias.mlp": True,
    },
    off={"add_cross_attention": False},
    ignored=(
        "attn_pdrop",
        "embd_pdrop",
        "n_ctx",
        "reorder_and_upcast_attn",
        "resid_pdrop",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "task_specific_params",
    ),
    gated=False,
    prefix="transformer.",
    buffers=(".attn.bias", ".attn.masked_bias"),
)
