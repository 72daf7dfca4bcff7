"""Published folders as transformers reads them: every tensor, equal logits, equal ids.

Weights are drawn wide (standard deviation 0.3) and the rows are longer than the window, so that a wrong field
moves the logits by far more than the tolerance.
"""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dew.data.text import ByteTokenizer
from dew.interop.decoders import save_pretrained_decoder
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.sampling import Sampling

pytestmark = pytest.mark.oracle
transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

BASE = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_layers": 3,
    "num_heads": 4,
    "num_kv_heads": 2,
    "intermediate_size": 96,
    "max_seq_len": 128,
    "norm_eps": 1e-2,
    "rope_theta": 20000.0,
    "precision": "highest",
}
PATTERN = {"sliding_window": 5, "sliding_layers": (True, False)}
CASES = {
    "LlamaForCausalLM": {},
    "LlamaForCausalLM-tied": {"tie_embeddings": True},
    "LlamaForCausalLM-geglu": {"activation": "geglu"},
    "ArceeForCausalLM": {"activation": "relu2"},
    "MistralForCausalLM": {"sliding_window": 5, "head_dim": 24},
    "MistralForCausalLM-relu2": {"sliding_window": 5, "activation": "relu2"},
    "MistralForCausalLM-undivided": {"hidden_size": 66, "head_dim": 16},
    "MinistralForCausalLM": PATTERN,
    "Qwen3ForCausalLM": {"qk_norm": True, "head_dim": 24},
    "Qwen3ForCausalLM-windows": {"qk_norm": True, "activation": "relu2", **PATTERN},
}
ROWS = (2, 40)
# Ten times the largest difference between float32 and float64 inside transformers at these settings.
LOGITS = 1e-3
ALTERED = [
    ("LlamaForCausalLM", "rope_theta", 10000.0),
    ("LlamaForCausalLM", "rms_norm_eps", 2e-2),
    ("LlamaForCausalLM", "hidden_act", "gelu_pytorch_tanh"),
    ("ArceeForCausalLM", "hidden_act", "relu"),
    ("MistralForCausalLM", "sliding_window", 4),
    ("MistralForCausalLM", "sliding_window", None),
    ("MistralForCausalLM-relu2", "hidden_act", "silu"),
    ("MinistralForCausalLM", "layer_types", ["full_attention", "sliding_attention", "full_attention"]),
    ("Qwen3ForCausalLM-windows", "layer_types", ["full_attention"] * 3),
]


def published(case, folder, **options):
    """A decoder with wide weights, saved in `folder`."""
    model = CausalTransformer(**{**BASE, **CASES[case]})
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    draw = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda leaf: jnp.asarray(0.3 * draw.standard_normal(leaf.shape) + (leaf.ndim == 1), jnp.float32),
        nn.unbox(shapes),
    )
    save_pretrained_decoder(model, variables, folder, tokenizer=ByteTokenizer(), **options)
    return model, variables


def read(folder):
    model, told = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values()), told
    return model


def logits(model):
    with torch.no_grad():
        return model(torch.from_numpy(ids())).logits.numpy()


def ids():
    return np.random.default_rng(1).integers(0, 256, ROWS)


@pytest.mark.parametrize("case", CASES)
def test_transformers_reads_every_tensor_and_computes_our_logits(tmp_path, case):
    model, variables = published(case, tmp_path)
    theirs = read(tmp_path)
    assert type(theirs).__name__ == case.split("-")[0]
    ours = np.asarray(jax.jit(model.apply)(variables, jnp.asarray(ids())))
    expected = logits(theirs.double())
    assert np.abs(ours - expected).max() < LOGITS
    # What transformers loses in float32 itself bounds what the tolerance has to allow.
    assert np.abs(logits(theirs.float()) - expected).max() < LOGITS / 10


@pytest.mark.parametrize(("case", "field", "value"), ALTERED, ids=str)
def test_altering_a_written_field_moves_the_logits_far_beyond_the_tolerance(tmp_path, case, field, value):
    model, variables = published(case, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    ours = np.asarray(jax.jit(model.apply)(variables, jnp.asarray(ids())))
    assert np.abs(logits(read(tmp_path)) - ours).max() > 100 * LOGITS


def test_files_split_by_size_are_read_as_one(tmp_path):
    model, variables = published("LlamaForCausalLM", tmp_path, max_shard_bytes=60_000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    ours = np.asarray(jax.jit(model.apply)(variables, jnp.asarray(ids())))
    assert np.abs(logits(read(tmp_path)) - ours).max() < LOGITS


def test_auto_tokenizer_is_the_bytes_in_every_layout(tmp_path):
    text = "  def größe(x):\r\n\treturn '日本' \N{GRINNING FACE} n't .\0"
    for case in CASES:
        published(case, tmp_path / case)
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / case)
        assert tokenizer(text).input_ids == list(text.encode()), case
        assert tokenizer.decode(list(text.encode())) == text, case


def test_policy_arrives_as_it_was_stated(tmp_path):
    policy = Sampling(temperature=0.7, top_k=None, top_p=0.9, min_p=0.05, eos_id=(3, 4), pad_id=9)
    published("LlamaForCausalLM", tmp_path, sampling=policy, max_new_tokens=12)
    told = read(tmp_path).generation_config
    assert (told.do_sample, told.temperature, told.top_p, told.min_p) == (True, 0.7, 0.9, 0.05)
    assert (told.top_k, told.max_new_tokens) == (0, 12)
    assert (told.eos_token_id, told.pad_token_id, told.bos_token_id) == ([3, 4], 9, None)
