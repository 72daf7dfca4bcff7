"""What a device holds on every layout of eight: parameters, layer bank and saved activations.

    uv run python tools/layout_memory.py [--layouts NAME ...] [--layers 8] [--microbatches 16]

Every figure is the compiler's own (`compiled.memory_analysis()`), in bytes of one device:

- parameters: as they lie between steps;
- bank: the layers' parameters that a device computes with, its own stage's alone under a pipeline;
- step: the temporary memory of the whole train step, most of it what the forward pass saves for the backward
  pass;
- activations: the part of it that grows with the layers, from the difference to a model of half as many.

Beside each stands its share of what one device holds alone, and the ideal share: one over the factors that
split it. A pipeline of S stages and M microbatches saves for its S - 1 idle ticks too, so its activations are
`(M + S - 1) / M` of the ideal.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.pipeline import stage_bank
from dew.objectives.lm import LMObjective
from dew.training import Layout, MeshSpec, Trainer, build_mesh
from dew.training.distributed import shard_batch

DEVICES, ROWS, TOKENS = 8, 128, 32
MODEL = CausalTransformer(
    vocab_size=64, hidden_size=32, num_heads=4, intermediate_size=128, max_seq_len=TOKENS, num_layers=8
)
LAYOUTS = {
    "data 8": MeshSpec(),
    "fsdp 8": MeshSpec(fsdp=8),
    "fsdp 2 x tensor 2 x data 2": MeshSpec(fsdp=2, tensor=2),
    "stage 2 x data 4": MeshSpec(stage=2),
    "stage 4 x data 2": MeshSpec(stage=4),
    "stage 2 x fsdp 2 x tensor 2": MeshSpec(stage=2, fsdp=2, tensor=2),
    "stage 4 x fsdp 2": MeshSpec(stage=4, fsdp=2),
}


@dataclass(frozen=True)
class Held:
    """Bytes of one device."""

    parameters: int
    bank: int
    activations: int
    step: int


class Placed(Trainer):
    """A Trainer over given devices."""

    devices: Sequence[Any] | None = None

    @cached_property
    def mesh(self) -> Mesh:
        return build_mesh(self.mesh_spec, self.devices)


@dataclass(frozen=True)
class Measured:
    """One model on one layout."""

    trainer: Placed
    objective: LMObjective
    batch: Any

    @property
    def spec(self) -> MeshSpec:
        return self.trainer.mesh_spec

    @cached_property
    def variables(self) -> Any:
        """Shapes and places of the variables."""
        abstract, shardings = self.trainer.described
        return jax.tree.map(
            lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at),
            abstract.params,
            shardings.params,
        )

    def analysis(self, function: Callable[..., Any], *args: Any) -> Any:
        with jax.set_mesh(self.trainer.mesh):
            return jax.jit(function).lower(*args).compile().memory_analysis()

    def parameters(self) -> int:
        return self.analysis(lambda tree: tree, self.variables).argument_size_in_bytes

    def bank(self) -> int:
        """Of the layers that a device computes with."""
        (site,) = self.objective.bank_sites

        def made(variables: Any) -> Any:
            places = site.view.staged(variables["params"], self.spec.stage)
            return [stage_bank(layers) for layers in places]

        return self.analysis(made, self.variables).output_size_in_bytes

    @cached_property
    def step(self) -> jax.stages.Compiled:
        """The train step."""
        state, _, _ = self.trainer.place()
        return self.trainer.compile(state, self.batch).lower(state, self.batch).compile()

    def temporary(self) -> int:
        """What a step needs besides its arguments and results."""
        return self.step.memory_analysis().temp_size_in_bytes


def measured(spec: MeshSpec, model: CausalTransformer, devices: Sequence[Any] | None = None) -> Measured:
    """`model`, to be trained on `spec`."""
    objective = LMObjective(model, TOKENS, ema_decay=None)
    layout = Layout(min_shard=256, tolerance=1.0)
    trainer = Placed(objective, optax.sgd(0.1), key=jax.random.key(0), mesh=spec, layout=layout)
    trainer.devices = devices
    batch = shard_batch({"text": np.zeros((ROWS, TOKENS + 1), np.int32)}, trainer.mesh)
    return Measured(trainer, objective, batch)


def held(deep: Measured) -> Held:
    """What one device holds of a model, which is also compiled with half its layers."""
    model = cast("CausalTransformer", deep.objective.model)
    half = model.clone(num_layers=model.num_layers // 2)
    step = deep.temporary()
    growth = step - measured(deep.spec, half, deep.trainer.devices).temporary()
    return Held(deep.parameters(), deep.bank(), 2 * growth, step)


def ideals(spec: MeshSpec) -> Held:
    """One over how often each kind is split: parameters not over stages, activations not over data alone."""
    split = spec.fsdp * spec.expert * spec.tensor
    return Held(split, split * spec.stage, DEVICES, DEVICES)


def share(bytes_held: int, whole: int, ideal: int) -> str:
    """Bytes, which part of the whole they are, and the ideal part."""
    return f"{bytes_held:,} 1/{whole / bytes_held:.2f} of 1/{ideal}"


def main() -> None:
    """Print the table."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS), metavar="NAME")
    parser.add_argument("--layers", type=int, default=8, help="a multiple of twice the stages")
    parser.add_argument("--microbatches", type=int, help="of every pipeline; default what its rows allow")
    parser.add_argument("--remat", action="store_true", help="recompute each layer in the backward pass")
    plan = parser.parse_args()
    model = MODEL.clone(num_layers=plan.layers, remat=plan.remat)
    whole = held(measured(MeshSpec(), model, jax.devices()[:1]))
    names = [field.name for field in dataclasses.fields(Held)]
    print(f"{'bytes a device':28} " + " ".join(f"{name:>26}" for name in names))
    print(f"{'one device':28} " + " ".join(f"{getattr(whole, name):>26,}" for name in names), flush=True)
    for name in plan.layouts:
        spec = LAYOUTS[name]
        if spec.stage > 1 and plan.microbatches:
            spec = dataclasses.replace(spec, microbatches=plan.microbatches)
        found, ideal = held(measured(spec, model)), ideals(spec)
        cells = (share(getattr(found, each), getattr(whole, each), getattr(ideal, each)) for each in names)
        print(f"{name:28} " + " ".join(f"{cell:>26}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
