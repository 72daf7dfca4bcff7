"""A published folder is read one tensor after another, so that it needs little more memory than it holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from dew.interop import save_pretrained_decoder
from dew.nn.backbones.causal_transformer import CausalTransformer

SIZES = {"vocab_size": 2048, "hidden_size": 512, "num_heads": 8, "max_seq_len": 64}
STATUS = Path("/proc/self/clear_refs")


def write(folder, **fields):
    model = CausalTransformer(**{**SIZES, **fields}, param_dtype=jnp.bfloat16)
    shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    save_pretrained_decoder(
        model, jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), shapes), folder
    )


@pytest.mark.skipif(not STATUS.exists(), reason="the peak of a process is read from Linux' /proc")
def test_loading_peaks_at_no_more_than_1_3_times_the_stored_bytes(tmp_path):
    write(tmp_path / "small", num_layers=1, hidden_size=64)
    write(tmp_path / "large", num_layers=12)
    script = Path(__file__).with_name("load_in_memory.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, check=True, timeout=120
    )
    stored, grown = map(int, done.stdout.split())
    assert stored > 70e6
    # Far below the bytes themselves the measurement would be wrong.
    assert 0.8 * stored < grown <= 1.3 * stored, grown / stored
