"""Whether every registered objective trains the same on every layout of eight devices.

    uv run python tools/layout_parity.py [--only NAME ...] [--layouts NAME ...] [--accumulation 1 4]

Each objective trains five updates over eight virtual CPU devices, laid out in one way after another, and on
one device. Compared are the losses of every attempt, the gradient norm and the clipped update of every
commit, and parameters and averages at the end. The tolerance is what the one device says itself: its own
program with all products and sums in another order, several times over, deviates by at most D, and a layout
may deviate by `MARGIN` D.

A line each is printed: `equal` with the largest deviation and the tolerance, and how much of the parameters
was split; `refused` with the reason; or `DIFFERS`, which makes the exit status 1. An objective whose loss
draws no random numbers is also compared between one batch and the same batch in parts.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from dew.config import RunConfig
from dew.objectives.base import Batch, Objective, Step
from dew.testing.reordered import reordered
from dew.testing.sharded import load
from dew.training import Layout, MeshSpec, Trainer, build_mesh
from dew.training.distributed import shard_batch

EXAMPLES = Path(__file__).resolve().parent.parent / "tests/test_every_component.py"
DEVICES = 8
UPDATES, ROWS, MARGIN, ORDERS = 5, 32, 4.0, 3
CLIP, RATE = 1e-2, 1e-2
FLOOR = 1e-6
"""No tolerance is below this: a program whose sums are too short to reorder still rounds elsewhere."""
LAYOUTS: Mapping[str, MeshSpec] = {
    "data 8": MeshSpec(),
    "fsdp 8": MeshSpec(fsdp=8),
    "fsdp 2 x tensor 2 x data 2": MeshSpec(fsdp=2, tensor=2),
    "expert 4 x fsdp 2": MeshSpec(expert=4, fsdp=2),
    "replicas 2 x data 4": MeshSpec(replicas=2),
    "sequence 2 x data 4": MeshSpec(sequence=2),
    "sequence 4 x data 2": MeshSpec(sequence=4),
    "sequence 2 x fsdp 2 x tensor 2": MeshSpec(sequence=2, fsdp=2, tensor=2),
    "sequence 2 x expert 4": MeshSpec(sequence=2, expert=4),
    "replicas 2 x sequence 2 x fsdp 2": MeshSpec(replicas=2, sequence=2, fsdp=2),
    "stage 2 x data 4": MeshSpec(stage=2),
    "stage 4 x data 2": MeshSpec(stage=4, microbatches=4),
    "stage 2 x fsdp 2 x tensor 2": MeshSpec(stage=2, fsdp=2, tensor=2),
    "stage 2 x expert 2 x data 2": MeshSpec(stage=2, expert=2),
    "stage 2 x sequence 2 x data 2": MeshSpec(stage=2, sequence=2),
    "stage 2 x sequence 2 x tensor 2": MeshSpec(stage=2, sequence=2, tensor=2),
}
type Case = tuple[Callable[[], RunConfig], Callable[[int], Batch]]
"""A run and the first so many rows of its data."""
SPREAD = Layout(min_shard=16, tolerance=1.0)
"""Splits even the parameters of a tiny model; what stays whole is reported instead of refused."""


MIXTURE = {"num_experts": 4, "top_k": 2, "intermediate_size": 32, "bias": True}
TERMS = {"aux_loss_alpha": 0.01, "router_z_loss": 0.001, "balance_rate": 0.01}


class Kept(NamedTuple):
    """The updates that passed a `keep`, and their norm."""

    norm: jax.Array
    updates: Any


def keep() -> optax.GradientTransformation:
    """Passes updates on and keeps them."""

    def update(updates: Any, state: Kept, params: Any = None) -> tuple[Any, Kept]:
        return updates, Kept(optax.tree.norm(updates), updates)

    return optax.GradientTransformation(
        lambda params: Kept(jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)), update
    )


def optimizer() -> optax.GradientTransformation:
    """Adam on clipped gradients; its epsilon is of their size, so that a zero gradient has no sign."""
    return optax.chain(keep(), optax.clip_by_global_norm(CLIP), keep(), optax.adamw(RATE, eps=CLIP / 10))


class Placed(Trainer):
    """A Trainer over given devices."""

    devices: Sequence[Any] | None = None

    @cached_property
    def mesh(self) -> Mesh:
        return build_mesh(self.mesh_spec, self.devices)


@dataclasses.dataclass(frozen=True)
class Course:
    """What a training did: trees of host arrays under the names of `compared`."""

    losses: list[float]
    norms: list[float]
    clipped: list[Any]
    parameters: Any
    split: float


def trained(
    objective: Objective[Any, Any],
    batches: Sequence[Batch],
    accumulation: int,
    *,
    mesh: MeshSpec = MeshSpec(),  # noqa: B008 - frozen
    devices: Sequence[Any] | None = None,
    order: int | None = None,
) -> Course:
    """Train over `batches`, an update each `accumulation`; with `order`, all sums in that order."""
    trainer = Placed(
        objective, optimizer(), key=jax.random.key(1), mesh=mesh, layout=SPREAD, accumulation=accumulation
    )
    trainer.devices = devices
    state, shardings, _ = trainer.place()
    compiled = trainer.compile(state, shard_batch(batches[0], trainer.mesh))
    if order is not None:
        compiled.jitted = jax.jit(reordered(compiled.jitted, order))
    losses: list[float] = []
    norms: list[float] = []
    clipped: list[Any] = []
    for index, batch in enumerate(batches):
        result = compiled(state, shard_batch(batch, trainer.mesh))
        assert bool(result.accepted), f"attempt {index} was rejected"
        state = result.state
        losses.append(float(result.loss))
        if (index + 1) % accumulation == 0:
            before, after = state.opt_state[0], state.opt_state[2]
            norms.append(float(before.norm))
            clipped.append(jax.device_get(after.updates))
    assert min(norms) > CLIP, f"the smallest gradient norm {min(norms)} is not clipped at {CLIP}"
    kept = jax.device_get((state.params, state.ema))
    return Course(losses, norms, clipped, kept, split_share(state.params, shardings.params))


def split_share(params: Any, shardings: Any) -> float:
    """The fraction of the parameter elements that no device holds whole."""
    pairs = list(zip(jax.tree.leaves(params), jax.tree.leaves(shardings), strict=True))
    split = sum(leaf.size for leaf, sharding in pairs if not sharding.is_fully_replicated)
    return split / sum(leaf.size for leaf, _ in pairs)


def deviations(one: Course, other: Course) -> dict[str, float]:
    """The largest differences: of losses and norms relative, of the rest relative to the largest entry."""
    return {
        name: largest(getattr(one, name), getattr(other, name))
        for name in ("losses", "norms", "clipped", "parameters")
    }


def largest(one: Any, other: Any) -> float:
    """The largest absolute difference of two trees over the largest absolute entry of the first."""
    pairs = list(zip(floats(one), floats(other), strict=True))
    scale = max(float(np.abs(first).max()) for first, _ in pairs)
    return max(float(np.abs(first - second).max()) for first, second in pairs) / scale


def floats(tree: Any) -> list[np.ndarray]:
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return [array.astype(np.float64) for array in arrays if array.dtype.kind == "f"]


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table."""

    objective: str
    accumulation: int
    layout: str
    outcome: str
    said: str

    def __str__(self) -> str:
        return f"{self.objective:12} {self.accumulation:>2}  {self.layout:28} {self.outcome:8} {self.said}"


def batches_of(batch: Callable[[int], Batch], accumulation: int) -> list[Batch]:
    """The microbatches of `UPDATES` windows over the same rows, whatever the accumulation."""
    rows = ROWS // accumulation
    whole = batch(ROWS * UPDATES)
    return [
        jax.tree.map(lambda leaf, start=start: leaf[start : start + rows], whole)
        for start in range(0, ROWS * UPDATES, rows)
    ]


def draws(objective: Objective[Any, Any], batch: Batch) -> bool:
    """Whether two keys give two losses."""
    variables = jax.jit(objective.initializer)(jax.random.key(0))

    @jax.jit
    def value(key: jax.Array) -> jax.Array:
        average = None if objective.ema is None else variables
        return objective.reduce_loss(objective.loss(variables, batch, Step(step=0, key=key, ema=average))[0])[
            0
        ]

    return float(value(jax.random.key(1))) != float(value(jax.random.key(2)))


def judged(course: Course, whole: Course, tolerances: Mapping[str, float]) -> tuple[str, str]:
    """`equal` or `DIFFERS`, and the deviations beside their tolerances."""
    found = deviations(whole, course)
    over = any(found[name] > tolerances[name] for name in found)
    said = ", ".join(f"{name} {found[name]:.0e} of {tolerances[name]:.0e}" for name in found)
    return "DIFFERS" if over else "equal", f"{said}; split {course.split:.0%}"


def rows_of(
    name: str, objective: Objective[Any, Any], batch: Callable[[int], Batch], plan: argparse.Namespace
) -> Iterator[Row]:
    """The table's lines for one objective."""
    one = jax.devices()[:1]
    in_parts: dict[int, Course] = {}
    for accumulation in plan.accumulation:
        batches = batches_of(batch, accumulation)
        whole = trained(objective, batches, accumulation, devices=one)
        orders = [
            deviations(whole, trained(objective, batches, accumulation, devices=one, order=order))
            for order in range(plan.orders)
        ]
        tolerances = {each: max(FLOOR, MARGIN * max(found[each] for found in orders)) for each in orders[0]}
        for layout in plan.layouts:
            try:
                course = trained(objective, batches, accumulation, mesh=LAYOUTS[layout])
            except (NotImplementedError, ValueError) as error:
                yield Row(name, accumulation, layout, "refused", str(error))
            else:
                yield Row(name, accumulation, layout, *judged(course, whole, tolerances))
        # Losses of parts of a batch are no losses of the batch: only the last of a window is the window's.
        in_parts[accumulation] = dataclasses.replace(
            whole, losses=whole.losses[accumulation - 1 :: accumulation]
        )
        if len(in_parts) > 1:
            first = next(iter(in_parts))
            where = f"as accumulation {first}"
            if draws(objective, batches[0]):
                yield Row(name, accumulation, where, "refused", "the loss draws by attempt: other numbers")
            else:
                yield Row(
                    name, accumulation, where, *judged(in_parts[accumulation], in_parts[first], tolerances)
                )


def cases(only: Sequence[str], stages: int = 1) -> Mapping[str, Case]:
    """Every registered objective's example, and a language model with experts and all their terms.

    Args:
        only: names of these; all of them where it is empty.
        stages: layers that each model has at least, if its objective can pass them over stages.

    Raises:
        SystemExit: an objective without an example, or a name that is none of them.
    """
    contract = load(str(EXAMPLES), "TestEveryComponent")
    examples = {name: each for (kind, name), each in contract.examples().items() if kind == "objective"}
    for part in contract.components():
        if part.kind == "objective" and part.name not in examples:
            raise SystemExit(f"objective {part.name!r} has no example in {EXAMPLES}")
    found = {name: (partial(deep, each.config(), stages), each.batch) for name, each in examples.items()}
    found["lm-experts"] = (lambda: with_experts(deep(examples["lm"].config(), stages)), examples["lm"].batch)
    unknown = sorted(set(only) - set(found))
    if unknown:
        raise SystemExit(f"--only {unknown[0]} is none of {', '.join(found)}")
    return {name: case for name, case in found.items() if not only or name in only}


def deep(config: RunConfig, stages: int) -> RunConfig:
    """A run with a layer for every stage, where its objective names layers that pass over stages."""
    if stages == 1 or not config.build().bank_sites:
        return config
    model = dataclasses.replace(config.model, config={**config.model.config, "num_layers": stages})
    return dataclasses.replace(config, model=model)


def with_experts(config: Any) -> RunConfig:
    """A run of `lm` with a mixture of experts in its model, and heads that four devices share evenly."""
    fields = {**config.model.config, "num_heads": 4, "mixture": MIXTURE}
    model = dataclasses.replace(config.model, config=fields)
    return dataclasses.replace(config, model=model, **TERMS)


def main() -> int:
    """Print the table; 1 where something differs."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these objectives")
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS), metavar="NAME")
    parser.add_argument("--accumulation", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--orders", type=int, default=ORDERS, help="reorderings of the reference")
    plan = parser.parse_args()
    differs = 0
    print(f"tolerance: {MARGIN:g} x the largest of {plan.orders} reorderings on one device, or {FLOOR:g}")
    with jax.default_matmul_precision("highest"):
        stages = max(LAYOUTS[name].stage for name in plan.layouts)
        for name, (config, batch) in cases(plan.only, stages).items():
            for row in rows_of(name, config().build(), batch, plan):
                print(row, flush=True)
                differs += row.outcome == "DIFFERS"
    return int(differs > 0)


if __name__ == "__main__":
    sys.exit(main())
