"""The model, data and optimizer that the training benchmarks share: 4 layers of 256, batch 8 x 256 bytes."""

from __future__ import annotations

import grain
import numpy as np
import optax

from dew.data import Loading
from dew.data.dataset import Dataset
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.lm import LMObjective

LAYERS, WIDTH, HEADS, INNER = 4, 256, 8, 1024
ROWS, LENGTH, VOCAB = 8, 256, 256
LEARNING_RATE, DECAY = 1e-3, 0.1
CONFIG = {
    "layers": LAYERS,
    "width": WIDTH,
    "heads": HEADS,
    "inner": INNER,
    "batch": [ROWS, LENGTH],
    "vocab": VOCAB,
    "dtype": "float32",
    "optimizer": "adamw",
}


def objective() -> LMObjective:
    """Next-token loss of the benchmark's decoder, without a moving average or further metrics."""
    model = CausalTransformer(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        intermediate_size=INNER,
        max_seq_len=LENGTH,
    )
    return LMObjective(model, LENGTH, ema_decay=None, token_accuracy=False)


def optimizer() -> optax.GradientTransformation:
    """AdamW, as torch.optim.AdamW has it."""
    return optax.adamw(LEARNING_RATE, weight_decay=DECAY)


def ids(seed: int = 0) -> np.ndarray:
    """A batch of random ids, [ROWS, LENGTH + 1]."""
    return np.random.default_rng(seed).integers(0, VOCAB, (ROWS, LENGTH + 1)).astype(np.int32)


def dataset(batches: int = 16) -> Dataset:
    """The rows of `batches` batches, over and over, through the pipeline that runs use."""
    rows = [{"text": row} for seed in range(batches) for row in ids(seed)]
    return Dataset.from_grain(grain.MapDataset.source(rows), batch=ROWS, loading=Loading(workers=0))
