"""What the processes of the pools in the tests beside it run."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sys
import time
import warnings
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils

from dew.artifacts import ImageGrid
from dew.data.dataset import Dataset
from dew.nn.attention import scaled_dot_product_attention
from dew.objectives.base import Aux, EMASpec, Mean, Objective
from dew.telemetry import open_tracker
from dew.telemetry.tracker import Tracker
from dew.testing import in_memory
from dew.training import Checkpoints, Layout, MeshSpec, Trainer, board, build_mesh, data_partition, pool
from dew.training.distributed import to_host
from dew.training.mesh import replicated

RECORDS, BATCH = 20, 4


class Pair(Objective[Any, Any]):
    """A weighted regression through one hidden layer, with noise on the targets."""

    unit = "rows"
    ema = EMASpec(lambda updates: 0.9)

    def init(self, key, variables=None):
        one, other = jax.random.split(key)
        weights = {"in": jax.random.normal(one, (3, 16)), "out": jax.random.normal(other, (16,)) / 4}
        return {"params": weights}

    def loss(self, params, batch, step):
        weights = params["params"]
        noise = 0.1 * jax.random.normal(step.key, batch["y"].shape)
        error = jnp.tanh(batch["x"] @ weights["in"]) @ weights["out"] - batch["y"] + noise
        return Mean(jnp.sum(batch["m"] * error**2), jnp.sum(batch["m"])), Aux()


class Losses(Tracker):
    """Keeps the losses, on the process that hears of them."""

    def __init__(self):
        self.losses = {}

    def log(self, values, *, step):
        self.losses[step] = values["train/loss"]


def rows(count=RECORDS):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(count, 3)).astype(np.float32)
    m = draw.integers(0, 4, size=count).astype(np.float32)
    return {"x": x, "y": x.sum(1), "m": m, "id": np.arange(count, dtype=np.int32)}


def several(*, jobs):
    """What the named jobs of this file return, one after another in the same processes."""
    return [globals()[name](**arguments) for name, arguments in jobs]


def trainer(ids, *, directory=None, mesh=None, accumulation=2, objective=None, tracker=None, host=()):
    """A trainer that notes the ids of every global batch it consumes."""

    def note(params, batch, step):
        ids.append(to_host(batch["id"]).tolist())
        return batch

    return Trainer(
        objective or Pair(),
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.05)),
        key=jax.random.key(5),
        mesh=MeshSpec(**(mesh or {})),
        layout=Layout(min_shard=16, tolerance=1.0, host=host),
        accumulation=accumulation,
        checkpoints=None if directory is None else Checkpoints(directory, keep=3),
        tracker=tracker,
        rollout=note,
    )


def train(
    *, steps, directory=None, mesh=None, accumulation=2, checkpoint_every=None, batch=BATCH, devices=None
):
    """Ids of the global batches, losses by step (on process zero) and the devices seen."""
    ids, losses = [], Losses()
    made = trainer(ids, directory=directory, mesh=mesh, accumulation=accumulation, tracker=losses)
    if devices is not None:
        made.__dict__["mesh"] = build_mesh(made.mesh_spec, jax.devices()[:devices])
    data = in_memory(rows(), batch=batch, seed=3)
    state = made.fit(data, steps=steps, log_every=1, checkpoint_every=checkpoint_every)
    return {
        "ids": ids,
        "losses": losses.losses,
        "step": int(state.step),
        "weights": [to_host(leaf).tolist() for leaf in jax.tree.leaves(state.params)],
        "devices": jax.device_count(),
        "processes": jax.process_count(),
    }


def rest_elsewhere(*, steps):
    """Weights after a run with the state on the devices, in host memory, and on other devices."""
    found = []
    for host in ((), ("opt_state", "ema"), ("params",)):
        made = trainer([], mesh={"fsdp": 2}, host=host)
        if host == ("params",):  # in every process the devices in another order
            order = sorted(made.mesh.devices.flat, key=lambda each: (each.process_index, -each.id))
            made.__dict__["state_mesh"] = build_mesh(made.mesh_spec, order)
        state = made.fit(in_memory(rows(), batch=BATCH, seed=3), steps=steps)
        found.append([to_host(leaf).tolist() for leaf in jax.tree.leaves(state.params)])
    return found


class Began(Losses):
    """Keeps the step a run began at as well."""

    def started(self, *, step, total_steps, unit):
        self.begun = step


def copying(folder, *, steps=12, mesh=None, dies=False):
    """Train with emergency copies every 2 steps and checkpoints every 5.

    Returns what the run began at, warned of and came to. With `dies` the second process is killed in its
    ninth step, once the checkpoint of the fifth and its own copies are written.
    """
    tracker = Began()
    made = trainer([], mesh=mesh or {"fsdp": 2}, tracker=tracker)
    if folder is not None:
        place = {"local_directory": f"{folder}/local", "local_every": 2}
        made.checkpoints = Checkpoints(f"{folder}/run", keep=1, **place)

    def end(params, batch, step):
        if int(step.step) == 8 and dies and jax.process_index() == 1:
            made.checkpoints.wait()
            while made.checkpoints.steps() != (5,):
                time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    made.rollout = end
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        state = made.fit(in_memory(rows(), batch=BATCH, seed=3), steps=steps, log_every=1, checkpoint_every=5)
    held = jax.tree.leaves((state.params, state.opt_state, state.ema))
    return {
        "begun": getattr(tracker, "begun", None),
        "said": [str(each.message) for each in said if "passed over" in str(each.message)],
        "weights": [to_host(leaf).tolist() for leaf in held],
        "losses": tracker.losses,
    }


def copy_and_die(*, folder):
    """Train until the second process is killed."""
    copying(folder, dies=True)


def copies_go_on(*, folders, meshes):
    """The run left alone, and the killed one's going on from each of `folders` upon the mesh beside it."""
    whole = copying(None)
    return whole, [copying(folder, mesh=mesh) for folder, mesh in zip(folders, meshes, strict=True)]


class Troubled:
    """A source that on one process comes to grief at one of its batches."""

    def __init__(self, source, how, at=4):
        self._source, self._how, self._at = source, how, at

    def __iter__(self):
        return self

    def __next__(self):
        batch = next(self._source)
        self._at -= 1
        if self._at == 0:
            print(f"trouble at {time.monotonic()}", flush=True)
            batch = getattr(self, self._how)(batch)
        return batch

    def __getattr__(self, name):
        return getattr(self._source, name)

    def raises(self, batch):
        raise ValueError("record 13 is broken")

    def exits(self, batch):
        os._exit(3)

    def leaves(self, batch):
        sys.exit("enough")

    def killed(self, batch):
        os.kill(os.getpid(), signal.SIGKILL)

    def hangs(self, batch):
        time.sleep(1000)

    def short(self, batch):
        return {name: leaf[:-1] for name, leaf in batch.items()}

    def wide(self, batch):
        return {**batch, "x": batch["x"].astype(np.float64)[:, :2]}


def fail(*, how, who, steps=50, directory=None, checkpoint_every=None):
    """Train over data that comes to grief on process `who`."""
    held = in_memory(rows(), batch=BATCH, seed=3)

    def opened(share):
        source = held.train(share)
        return Troubled(source, how) if jax.process_index() == who else source

    made = trainer([], directory=directory)
    made.fit(dataclasses.replace(held, train=opened), steps=steps, checkpoint_every=checkpoint_every)


def vanish(*, who):
    """One process dies as soon as it has joined the others."""
    with pool.watched():
        if jax.process_index() == who:
            print(f"trouble at {time.monotonic()}", flush=True)
            os._exit(3)
        time.sleep(100)


def disagree(*, steps):
    """Every process is given another number of steps."""
    trainer([]).fit(in_memory(rows(), batch=BATCH), steps=steps + jax.process_index())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scored:
    """Ids and squared errors of rows."""

    ids: Any
    errors: Any


class Seen:
    """The mean squared error, and every id that was scored."""

    name, reads, higher_is_better = "error", Scored, False

    def __init__(self):
        self.ids = []

    def __call__(self, artifact):
        assert isinstance(artifact.ids, np.ndarray)
        self.ids += artifact.ids.tolist()
        return artifact.errors.sum(), len(artifact.errors)

    def merge(self, one, other):
        return one[0] + other[0], one[1] + other[1]

    def finalize(self, held):
        return held[0] / held[1]


class Judged(Pair):
    """Scores its rows, each on its own."""

    artifact = Scored

    def evaluate(self, params, batch, step):
        weights = params["params"]
        error = jnp.tanh(batch["x"] @ weights["in"]) @ weights["out"] - batch["y"]
        return Scored(ids=batch["id"], errors=error**2)


def validate(*, records, streams=False):
    """Score `records` rows after one step; with `streams` process zero holds most of them."""

    class Heard(Tracker):
        def evaluated(self, values, *, step):
            heard.append(values)

    def stream(share):
        first = records - share.count + 1
        mine = range(first) if share.index == 0 else range(first + share.index - 1, first + share.index)
        return grain.MapDataset.source(source)[mine.start : mine.stop].to_iter_dataset().batch(2)

    heard, held = [], rows(records)
    source = [{name: leaf[row] for name, leaf in held.items()} for row in range(records)]
    data = in_memory(rows(), batch=BATCH)
    if streams:
        opened = Dataset.from_grain(stream, batch=BATCH, validation=stream).val
    else:
        opened = in_memory(held, batch=BATCH).val
    data = dataclasses.replace(data, val=opened)
    metric = Seen()
    made = trainer([], objective=Judged(), tracker=Heard())
    made.fit(data, steps=1, eval_every=1, metrics=[metric])
    return {"ids": metric.ids, "heard": heard}


def elastic(*, folder, cut, steps):
    """A run of 8 devices, cut, continued on fewer and then on 8 again, beside the run that was never cut."""
    whole = train(steps=steps + 3, batch=8, accumulation=4, mesh={"fsdp": 4})
    start = train(steps=cut, batch=8, accumulation=4, mesh={"fsdp": 4}, directory=f"{folder}/8")
    found = {}
    for devices, mesh in ((1, {}), (2, {"fsdp": 2}), (4, {"fsdp": 2, "tensor": 2})):
        place = f"{folder}/{devices}"
        shutil.copytree(f"{folder}/8", place)
        fewer = train(steps=steps, batch=8, accumulation=4, mesh=mesh, devices=devices, directory=place)
        again = train(steps=steps + 3, batch=8, accumulation=4, mesh={"fsdp": 8}, directory=place)
        ids = [*start["ids"], *fewer["ids"], *again["ids"]]
        losses = {**start["losses"], **fewer["losses"], **again["losses"]}
        found[devices] = {"ids": ids, "losses": losses, "weights": again["weights"]}
    return {"whole": whole, **found}


class Heard:
    """A run's own trackers, told on process zero; notes where they wait for other processes."""

    def __init__(self, tracker):
        self.events, self.waits, self._tracker, self._inside = [], [], tracker, False
        for module, name in ((multihost_utils, "process_allgather"), (board, "exchange"), (jax, "jit")):
            setattr(module, name, self._noted(name, getattr(module, name)))

    def _noted(self, name, call):
        def noted(*arguments, **options):
            if self._inside:
                self.waits.append(name)
            return call(*arguments, **options)

        return noted

    def __getattr__(self, name):
        def told(*arguments, **options):
            self.events.append(name)
            self._inside = True
            getattr(self._tracker, name)(*arguments, **options)
            self._inside = False

        return told


class Shown(Judged):
    """Shows its rows as images."""

    def preview(self, params, batch, step, *, scored=None):
        return ImageGrid(images=jnp.tanh(batch["x"])[:, None, None, :] * jnp.ones((1, 8, 8, 1)))


def report(*, folder):
    """Events of a run with everything due, and what its trackers waited for in them."""
    heard = Heard(open_tracker(folder, record={"trainer": {"name": "a"}}))
    made = trainer([], objective=Shown(), tracker=heard, directory=f"{folder}/checkpoints")
    data = in_memory(rows(), batch=BATCH)
    made.fit(data, steps=4, log_every=1, eval_every=2, checkpoint_every=2, metrics=[Seen()], preview=True)
    return {"events": sorted(set(heard.events)), "waits": heard.waits}


def mesh_groups():
    """Which processes the lines of a hybrid mesh cross, and attention over positions that processes share."""
    mesh = build_mesh(MeshSpec(replicas=2, fsdp=2))
    owners = np.vectorize(lambda device: device.process_index)(mesh.devices)
    crossing = [
        name
        for index, name in enumerate(mesh.axis_names)
        if not np.array_equal(owners.min(axis=index), owners.max(axis=index))
    ]
    split = build_mesh(MeshSpec(sequence=4))
    keys = jax.random.split(jax.random.key(3), 3)
    drawn = [jax.random.normal(key, (2, 12, heads, 8)) for key, heads in zip(keys, (4, 4, 4), strict=True)]
    gaps = {}
    for name, heads in (("all-to-all", 4), ("gather", 2)):
        inputs = [drawn[0], drawn[1][:, :, :heads], drawn[2][:, :, :heads]]
        right = jax.grad(attended, argnums=(0, 1, 2))(*inputs)
        with jax.set_mesh(split):
            got = jax.jit(jax.grad(attended, argnums=(0, 1, 2)), out_shardings=replicated(split))(*inputs)
        gaps[name] = max(float(jnp.abs(a - to_host(b)).max()) for a, b in zip(right, got, strict=True))
    return {
        "crossing": crossing,
        "shares": [dataclasses.astuple(data_partition(each)) for each in (mesh, split)],
        "gaps": gaps,
    }


def attended(query, key, value):
    return jnp.sum(jnp.sin(scaled_dot_product_attention(query, key, value, causal=True)))
