"""Layers over pipeline stages: microbatches pass from stage to stage (GPipe, arXiv 1811.06965).

Of S stages each holds an equal run of the layers, and a batch is cut into M microbatches. At tick t, stage s
works on microbatch t - s, and the state it leaves goes to stage s + 1; after M + S - 1 ticks every microbatch
has met every layer. In the S - 1 ticks in which a stage has no microbatch it computes on rows whose results
nobody reads.

The loop runs manually over the stage axis alone (`jax.shard_map`), and the compiler partitions every other
axis as it does without a pipeline. What a stage keeps for the backward pass is then its own by construction,
the exchange is one permutation of neighbours a tick, and layers that are manual over other axes nest inside.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from dew.training.mesh import BATCH_AXES, STAGE_AXIS
from dew.training.widths import widened

type StageBody = Callable[[Any, jax.Array, Any, Any], tuple[jax.Array, Any]]
"""`(bank, x, rows, shared) -> (x, reports)`: the layers of one stage over one microbatch of b rows.

Every array in `reports` has b rows in front.
"""

FAVOURED = 4
"""Microbatches to a stage where nobody says: a fifth of the ticks is then idle at most (GPipe, section 3)."""


@dataclass(frozen=True)
class _Plan:
    """What a step says about its pipeline; `microbatches` None leaves it to `microbatch_count`."""

    microbatches: int | None


_plan = jax.make_user_context(None)


@contextmanager
def pipelined(microbatches: int | None) -> Generator[None]:
    """While traced inside, models pass their layers over the stages of the mesh in use.

    Outside of it a mesh's stages take rows as the data axis does: there is no backward pass whose
    activations would have to be split, and no idle tick.

    Args:
        microbatches: into how many a batch is cut; None takes what `microbatch_count` says.
    """
    with _plan(_Plan(microbatches)):
        yield


def active_stages() -> int:
    """How many stages the layers of a model are to pass over, here and now; 1 without a pipeline."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if _plan.value is None else mesh.shape.get(STAGE_AXIS, 1)


def microbatch_count(rows: int, *, shards: int, stages: int, asked: int | None) -> int:
    """Into how many microbatches `rows` are cut.

    Unasked, the largest multiple of the stages, up to `FAVOURED` times them, that leaves every row shard
    whole rows.

    Args:
        rows: of the batch.
        shards: into how many pieces the mesh's batch axes cut them.
        stages: of the pipeline.
        asked: `mesh.microbatches`.

    Raises:
        ValueError: the rows do not divide.
    """
    fitting = [
        count for count in range(stages, FAVOURED * stages + 1, stages) if rows % (count * shards) == 0
    ]
    if asked is None and fitting:
        return fitting[-1]
    if asked is not None and rows % (asked * shards) == 0:
        return asked
    unit = (stages if asked is None else asked) * shards
    fewer = f", or mesh.microbatches={fitting[-1]}" if fitting else ""
    raise ValueError(
        f"mesh.stage={stages} with mesh.microbatches={asked} cuts a batch into equal parts for each of "
        f"{shards} row shards, and {rows} rows are no multiple of {unit}; use a batch of "
        f"{max(1, round(rows / unit)) * unit} rows{fewer}"
    )


def stage_bank(layers: Sequence[Any]) -> Any:
    """Stack one layer of each stage, [S, ...], split over the stages: a device holds its own stage's alone.

    Every device picks its layer out of what it holds, so nothing moves; the gradient of each layer is added
    over the stages, all but one of which have zeros. The bank is in working precision, in which the gradients
    of all ticks add up; `dew.training.widths.like` brings it back to what the layers store.

    Args:
        layers: trees alike, one a stage, that no axis splits over the stages.
    """

    def own(*leaves: jax.Array) -> jax.Array:
        return jax.lax.select_n(jax.lax.axis_index(STAGE_AXIS), *leaves)[None]

    return jax.shard_map(
        lambda *layers: jax.tree.map(own, *layers),
        in_specs=P(),
        out_specs=P(STAGE_AXIS),
        axis_names={STAGE_AXIS},
        check_vma=False,
    )(*map(widened, layers))


def through_stages(
    body: StageBody, bank: Any, x: jax.Array, rows: Any = None, shared: Any = None
) -> tuple[jax.Array, Any]:
    """Pass rows through the layers of all stages, in order.

    Args:
        body: gets the stage's own part of `bank`, and a microbatch of `x` and `rows`.
        bank: arrays with a leading stage axis, as `stage_bank` makes them.
        x: [B, ...].
        rows: arrays [B, ...] that belong to the rows of `x` and come to every stage with them.
        shared: arrays that all rows share.

    Returns:
        The states after the last stage, [B, ...], and the reports of every stage, [S, B, ...] each.

    Raises:
        ValueError: the rows do not divide over microbatches and row shards.
    """
    mesh = jax.sharding.get_abstract_mesh()
    stages, shards = mesh.shape[STAGE_AXIS], 1
    for axis in BATCH_AXES:
        shards *= mesh.shape[axis]
    asked = None if _plan.value is None else _plan.value.microbatches
    count = microbatch_count(x.shape[0], shards=shards, stages=stages, asked=asked)
    run = jax.shard_map(
        partial(_run, body, stages, count),
        in_specs=(P(STAGE_AXIS), P(STAGE_AXIS), P(), P()),
        out_specs=P(STAGE_AXIS),
        axis_names={STAGE_AXIS},
        check_vma=False,
    )
    # In two steps, since the first may be an exchange: rows where they lie in a batch, then a part a stage.
    rests = [P.UNCONSTRAINED] * (x.ndim - 1)
    queue = _cut(jax.lax.with_sharding_constraint(x, P(BATCH_AXES, *rests)), count, (STAGE_AXIS,))
    rows = jax.tree.map(lambda leaf: _cut(leaf, count, ()), rows)
    queue, reports = run(bank, queue, rows, shared)
    return _joined(queue, (STAGE_AXIS,)), jax.tree.map(jax.vmap(lambda leaf: _joined(leaf, ())), reports)


def _run(
    body: StageBody, stages: int, count: int, bank: Any, queue: jax.Array, rows: Any, shared: Any
) -> tuple[jax.Array, Any]:
    """The ticks of one stage.

    `queue` holds M / S microbatches a stage, at first inputs and at last outputs. Stage 0 takes from the
    front; what it has taken is replaced by what the next stage would take, and at the last stage by what
    comes out.
    """
    stage, slots = jax.lax.axis_index(STAGE_AXIS), count // stages
    own = jax.tree.map(lambda leaf: leaf[0], bank)
    # A stage without a microbatch computes on rows that are real, so that no step of it is less finite.
    idle = queue[0]

    def tick(carry: tuple[jax.Array, jax.Array], time: jax.Array) -> tuple[tuple[jax.Array, jax.Array], Any]:
        state, queue = carry
        slot = time % slots
        front = jax.lax.dynamic_index_in_dim(queue, slot, keepdims=False)
        turn = time - stage
        x = jnp.where((turn >= 0) & (turn < count), jnp.where(stage == 0, front, state), idle)
        mine = jax.tree.map(
            lambda leaf: jax.lax.dynamic_index_in_dim(leaf, jnp.clip(turn, 0, count - 1), keepdims=False),
            rows,
        )
        x, reports = body(own, x, mine, shared)
        moved = jax.lax.ppermute(front, STAGE_AXIS, [(each + 1, each) for each in range(stages - 1)])
        queue = jax.lax.dynamic_update_index_in_dim(
            queue, jnp.where(stage == stages - 1, x, moved), slot, axis=0
        )
        state = jax.lax.ppermute(x, STAGE_AXIS, [(each, each + 1) for each in range(stages - 1)])
        return (state, queue), reports

    ticks = jnp.arange(count + stages - 1)
    (_, queue), reports = jax.lax.scan(tick, (idle, queue), ticks)
    # The first output came at tick S - 1, into that slot.
    queue = jnp.roll(queue, -(stages - 1), axis=0)
    own_ticks = partial(jax.lax.dynamic_slice_in_dim, start_index=stage, slice_size=count)
    return queue, jax.tree.map(lambda leaf: own_ticks(leaf)[None], reports)


def _cut(x: jax.Array, count: int, over: tuple[str, ...]) -> jax.Array:
    """[B, ...] as [M, B / M, ...] with M split over `over`; every device keeps the rows it has."""
    mesh = jax.sharding.get_abstract_mesh()
    held = count
    for axis in over:
        held //= mesh.shape[axis]
    return jax.shard_map(
        lambda rows: rows.reshape(held, -1, *rows.shape[1:]),
        in_specs=P((*BATCH_AXES, *over)),
        out_specs=P(over or None, BATCH_AXES),
        axis_names={*BATCH_AXES, *over},
    )(x)


def _joined(x: jax.Array, over: tuple[str, ...]) -> jax.Array:
    """Undo `_cut`."""
    return jax.shard_map(
        lambda rows: rows.reshape(-1, *rows.shape[2:]),
        in_specs=P(over or None, BATCH_AXES),
        out_specs=P((*BATCH_AXES, *over)),
        axis_names={*BATCH_AXES, *over},
    )(x)
