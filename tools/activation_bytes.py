"""What a device holds while a decoder trains, beside what a sequence axis promises.

    uv run python tools/activation_bytes.py [--shards 1 2 4 8] [--positions 1024] [--kernel auto]

One training step is compiled for so many virtual CPU devices, all of them on the sequence axis, and asked for
its temporary memory by the compiler's own analysis: activations kept for the gradient, and buffers. The
weights are small and whole on every device. A line each is printed for both exchanges: bytes, their share of
what one device needs, and the ideal share. One device runs a kernel that skips what causality forbids where
`auto` finds it; a device that gathers keys cannot, so compare the gather exchange with `--kernel xla`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import cached_property
from typing import Literal, cast

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.lm import LMObjective
from dew.training import MeshSpec, Trainer, build_mesh
from dew.training.distributed import shard_batch

DEVICES, ROWS, HEADS = 8, 2, 8
KEY_HEADS: Mapping[str, int] = {"all-to-all": HEADS, "gather": 1}
"""Key heads with which a call takes each exchange, whatever the size of the axis."""


class Few(Trainer):
    """A Trainer over as many devices as its sequence axis has."""

    @cached_property
    def mesh(self) -> Mesh:
        return build_mesh(self.mesh_spec, jax.devices()[: self.mesh_spec.sequence])


def temporary_bytes(exchange: str, shards: int, positions: int, kernel: Literal["auto", "xla"]) -> int:
    """Bytes of temporary memory on one device in one step."""
    model = CausalTransformer(
        vocab_size=512,
        hidden_size=64,
        num_layers=4,
        num_heads=HEADS,
        num_kv_heads=KEY_HEADS[exchange],
        max_seq_len=positions,
        attention_impl=kernel,
    )
    trainer = Few(
        LMObjective(model, positions, ema_decay=None),
        optax.sgd(0.1),
        key=jax.random.key(0),
        mesh=MeshSpec(sequence=shards),
    )
    state, _, _ = trainer.place()
    batch = shard_batch({"text": np.zeros((ROWS, positions + 1), np.int32)}, trainer.mesh)
    compiled = trainer.compile(state, batch).lower(state, batch).compile()
    return int(compiled.memory_analysis().temp_size_in_bytes)


def main() -> None:
    """Print the table."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--positions", type=int, default=1024)
    parser.add_argument("--kernel", choices=["auto", "xla"], default="auto")
    plan = parser.parse_args()
    print("exchange    sequence       bytes   share   ideal")
    for exchange in KEY_HEADS:
        whole = temporary_bytes(exchange, 1, plan.positions, plan.kernel)
        for shards in cast("list[int]", plan.shards):
            found = temporary_bytes(exchange, shards, plan.positions, plan.kernel) if shards > 1 else whole
            print(f"{exchange:11} {shards:8} {found:11} {found / whole:7.3f} {1 / shards:7.3f}", flush=True)


if __name__ == "__main__":
    main()
