"""Meshes, layouts and shares. What needs several devices runs in a process that has eight of them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from dew.data.dataset import DataPartition
from dew.testing.devices import on_devices
from dew.training import Layout, MeshSpec, Trainer, build_mesh, data_partition
from dew.training.distributed import agree_process_phase, minimum_across_processes, shard_batch, to_host
from dew.training.layout import leaf_spec
from dew.training.mesh import AXES


def pretend(**sizes):
    """A mesh of shapes alone."""
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    return AbstractMesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def test_data_parallelism_fills_what_is_left():
    mesh = build_mesh(MeshSpec(), jax.devices()[:1])
    assert mesh.axis_names == AXES and mesh.size == 1
    assert set(mesh.axis_types) == {AxisType.Auto}


def test_factors_that_do_not_divide_the_devices_are_refused():
    with pytest.raises(ValueError, match=r"fsdp=3 .* groups of 6, which do not divide 1"):
        build_mesh(MeshSpec(fsdp=3, tensor=2), jax.devices()[:1])


def test_an_axis_larger_than_a_replica_is_refused_with_one_that_fits():
    with pytest.raises(ValueError, match=r"the 4 devices of each of replicas=2; fsdp=4 works"):
        build_mesh(MeshSpec(replicas=2, fsdp=8), jax.devices()[:1] * 8)


def test_one_process_reads_every_row():
    assert data_partition(build_mesh(MeshSpec())) == DataPartition()


@pytest.mark.parametrize(
    ("shape", "names", "mesh", "expected"),
    [
        ((64, 64), ("embed", "mlp"), {"fsdp": 2, "tensor": 2}, P("fsdp", "tensor")),
        ((63, 64), ("embed", "mlp"), {"fsdp": 2, "tensor": 2}, P(None, "tensor")),
        ((64, 64), ("heads", "mlp"), {"tensor": 2}, P(None, "tensor")),
        ((64, 64), ("unknown", None), {"fsdp": 2}, P()),
        ((64, 64), None, {"fsdp": 4}, P(None, "fsdp")),
        ((128, 63), None, {"fsdp": 4}, P("fsdp", None)),
        ((8, 8), ("embed", "mlp"), {"fsdp": 2}, P()),
        ((64, 64), ("embed", "mlp"), {"data": 8}, P()),
    ],
    ids=["both", "indivisible", "rule order", "unnamed", "largest", "divisible", "small", "whole"],
)
def test_rules_place_a_parameter(shape, names, mesh, expected):
    assert leaf_spec(Layout(min_shard=100), pretend(**mesh), shape, names) == expected


def test_mapping_overrides_one_rule():
    layout = Layout(rules={"mlp": "fsdp", "embed": None}, min_shard=1)
    assert leaf_spec(layout, pretend(fsdp=2), (4, 4), ("embed", "mlp")) == P(None, "fsdp")


def test_too_much_replication_is_refused_with_the_largest_leaf():
    mesh = pretend(fsdp=2)
    layout = Layout(min_shard=100)
    params = {"even": jnp.zeros((64, 64)), "odd": jnp.zeros((63, 63))}
    shardings = layout.shardings(mesh, params)
    with pytest.raises(ValueError, match=r"49\.2% .*tolerance=2\.0%; largest: odd"):
        layout.check(params, shardings, mesh)
    Layout(min_shard=100, tolerance=0.5).check(params, shardings, mesh)


@pytest.mark.parametrize(
    ("shape", "names", "sizes", "reason", "works"),
    [
        (
            (60, 8),
            ("embed", "mlp"),
            {"fsdp": 8},
            "embed of 60 is no multiple of fsdp=8",
            "mesh.fsdp=4 in",
        ),
        (
            (8, 6),
            ("embed", "heads"),
            {"tensor": 4},
            "heads of 6 is no multiple of tensor=4",
            "tensor=2 in",
        ),
        (
            (9, 9),
            None,
            {"fsdp": 2},
            "fsdp=2 divides none",
            "Data parallelism alone .*mesh.fsdp.*=1",
        ),
        ((8, 8), ("here", None), {"fsdp": 2}, "no rule sends here or None to fsdp", "layout.rules"),
        ((8, 8), None, {"tensor": 2}, "without axis names fsdp alone", "Data parallelism alone"),
    ],
)
def test_a_refused_placement_names_axis_parameter_and_what_works(shape, names, sizes, reason, works):
    mesh, layout = pretend(**sizes), Layout(min_shard=1)
    leaf = jnp.zeros(shape)
    params = {"block": {"w": leaf if names is None else nn.Partitioned(leaf, names=names)}}
    with pytest.raises(ValueError, match=rf"largest: block/w \[.*\({reason}.*{works}"):
        layout.check(params, layout.shardings(mesh, params), mesh)


def test_refused_factors_come_with_factors_that_work():
    devices = jax.devices()[:1] * 8
    with pytest.raises(ValueError, match=r"divide 8 devices; fsdp=2 x tensor=4 works"):
        build_mesh(MeshSpec(fsdp=3, tensor=4), devices)


def test_boxed_names_are_read_and_the_boxes_left_behind(toys):
    class Named(toys.Regression):
        def init(self, key, variables=None):
            return {"params": {"w": nn.Partitioned(super().init(key)["params"]["w"], names=("embed",))}}

    trainer = Trainer(Named(), optax.adam(0.1), key=jax.random.key(0))
    state, _, _ = trainer.place()
    assert isinstance(state.params["params"]["w"], jax.Array)
    assert isinstance(trainer.initial_state().params["params"]["w"], jax.Array)


def test_batch_is_placed_and_comes_back():
    mesh = build_mesh(MeshSpec())
    batch = {"x": np.arange(6).reshape(3, 2), "scale": np.float32(2)}
    placed = shard_batch(batch, mesh)
    jax.tree.map(np.testing.assert_array_equal, batch, to_host(placed))


def test_agreement_of_one_process_is_its_own():
    assert minimum_across_processes(7) == 7
    agree_process_phase("reading")
    with pytest.raises(OSError, match="mine"):
        agree_process_phase("reading", OSError("mine"))


EIGHT = """
import jax, numpy as np, optax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from dew.objectives.base import Aux, EMASpec, Mean, Objective
from dew.testing import in_memory
from dew.training import Checkpoints, Layout, MeshSpec, Trainer
import sys, tempfile

class Tiny(Objective):
    ema = EMASpec(lambda n: 0.9)
    def init(self, key, variables=None):
        one, two = jax.random.split(key)
        return {"params": {"in": jax.random.normal(one, (16, 32)) * 0.2, "out": jax.random.normal(two,
        (32,))}}
    def loss(self, params, batch, step):
        hidden = jnp.tanh(batch["x"] @ params["params"]["in"])
        keep = jax.random.bernoulli(step.key, 0.8, hidden.shape)
        error = (hidden * keep) @ params["params"]["out"] - batch["y"]
        return Mean(jnp.sum(batch["m"] * error**2), jnp.sum(batch["m"])), Aux()

draw = np.random.default_rng(0)
rows = {"x": draw.normal(size=(64, 16)).astype(np.float32), "y": draw.normal(size=64).astype(np.float32),
        "m": draw.integers(0, 3, size=64).astype(np.float32)}

def fit(mesh, steps=6, devices=None, directory=None, accumulation=2):
    trainer = Trainer(Tiny(), optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.01)),
    key=jax.random.key(1),
                      mesh=mesh, layout=Layout(min_shard=16), accumulation=accumulation,
                      checkpoints=None if directory is None else Checkpoints(directory))
    if devices is not None:
        from dew.training import build_mesh
        trainer.__dict__["mesh"] = build_mesh(mesh, devices)
    state = trainer.fit(in_memory(rows, batch=16, seed=0), steps=steps,
                        checkpoint_every=None if directory is None else 3)
    return state

def gap(one, other):
    flat = [jax.tree.leaves((s.params, s.opt_state, s.ema)) for s in (one, other)]
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in zip(*flat, strict=True))

with jax.default_matmul_precision("highest"):
    single = fit(MeshSpec(), devices=jax.devices()[:1])
    for spec in (MeshSpec(), MeshSpec(fsdp=8), MeshSpec(fsdp=2, tensor=2)):
        state = fit(spec)
        assert gap(single, state) <= 1e-6, (spec, gap(single, state))
    sharded = fit(MeshSpec(fsdp=8))
    kernel = sharded.params["params"]["in"]
    moment = sharded.opt_state[1][0].mu["in"]
    for leaf in (kernel, moment, sharded.ema["params"]["in"]):
        assert leaf.sharding.spec == P(None, "fsdp"), leaf.sharding
        assert leaf.addressable_data(0).shape == (16, 4)
    with tempfile.TemporaryDirectory() as directory:
        fit(MeshSpec(fsdp=8), steps=3, directory=directory)
        moved = fit(MeshSpec(fsdp=2), devices=jax.devices()[:4], directory=directory)
    assert gap(single, moved) <= 1e-6, gap(single, moved)
    assert len(moved.params["params"]["in"].sharding.device_set) == 4
print("equal")
"""


@pytest.mark.slow
def test_eight_devices_train_what_one_does_and_restore_on_four():
    assert on_devices("-c", EIGHT).strip().endswith("equal")
