"""What a mesh of eight virtual devices costs against one device, for the same batches of the same decoder.

Virtual devices share this machine's cores, so that no split can be faster: what is above 1 is the price of
partitioning and of its exchanges. The layouts take turns.

    uv run python benchmarks/virtual_devices.py [--rounds 7] [--steps 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping

DEVICES = 8
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"

import decoder  # noqa: E402 - the flag comes before JAX
import jax  # noqa: E402
from results import report, spread  # noqa: E402

from dew.training import MeshSpec, Trainer, build_mesh  # noqa: E402
from dew.training.distributed import shard_batch  # noqa: E402
from dew.training.host_memory import keep_freed_memory  # noqa: E402

LAYOUTS: Mapping[str, MeshSpec] = {
    "data 8": MeshSpec(),
    "fsdp 8": MeshSpec(fsdp=8),
    "fsdp 2 x tensor 2 x data 2": MeshSpec(fsdp=2, tensor=2),
    "sequence 2 x data 4": MeshSpec(sequence=2),
    "stage 2 x data 4": MeshSpec(stage=2),
}


def stepper(spec: MeshSpec, devices: int) -> Callable[[int], float]:
    """A function that takes so many steps, and returns the seconds of one."""
    trainer = Trainer(decoder.objective(), decoder.optimizer(), key=jax.random.key(0), mesh=spec)
    trainer.__dict__["mesh"] = build_mesh(spec, jax.devices()[:devices])
    state, _, _ = trainer.place()
    batch = shard_batch({"text": decoder.ids()}, trainer.mesh)
    compiled = trainer.compile(state, batch)
    held = [compiled(state, batch).state]

    def run(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            result = compiled(held[0], batch)
            held[0] = result.state
        jax.block_until_ready(held[0])
        return (time.perf_counter() - start) / steps

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    keep_freed_memory()
    one = stepper(MeshSpec(), 1)
    for name, spec in LAYOUTS.items():
        eight = stepper(spec, DEVICES)
        pairs = [(one(options.steps), eight(options.steps)) for _ in range(options.rounds)]
        ratios = [many / single for single, many in pairs]
        report(
            "virtual_devices",
            config={**decoder.CONFIG, "layout": name, "devices": DEVICES},
            one=spread([single for single, _ in pairs]),
            eight=spread([many for _, many in pairs]),
            ratio_median=round(statistics.median(ratios), 3),
            ratio_range=[round(min(ratios), 3), round(max(ratios), 3)],
        )


if __name__ == "__main__":
    main()
