"""Train states that rest in host memory, or that the processor owns: the same numbers in other places."""

from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest

from dew.objectives.base import EMASpec, Mean
from dew.testing import in_memory
from dew.testing.devices import result_on_devices
from dew.training import Checkpoints, Layout, MeshSpec, Trainer, build_mesh
from dew.training.companion import companion
from dew.training.distributed import shard_batch

EIGHT = """
import json
import jax, jax.numpy as jnp, numpy as np, optax
from dew.objectives.base import Aux, EMASpec, Mean, Objective
from dew.testing import in_memory
from dew.training import Layout, MeshSpec, Trainer, build_mesh

class Tiny(Objective):
    ema = EMASpec(lambda n: 0.9)
    def init(self, key, variables=None):
        one, two = jax.random.split(key)
        return {"params": {"in": jax.random.normal(one, (16, 32)) * 0.2,
                           "out": jax.random.normal(two, (32,))}}
    def loss(self, params, batch, step):
        hidden = jnp.tanh(batch["x"] @ params["params"]["in"])
        keep = jax.random.bernoulli(step.key, 0.8, hidden.shape)
        error = (hidden * keep) @ params["params"]["out"] - batch["y"]
        return Mean(jnp.sum(error**2), error.size), Aux()

draw = np.random.default_rng(0)
rows = {"x": draw.normal(size=(64, 16)).astype(np.float32), "y": draw.normal(size=64).astype(np.float32)}

def fit(host, accumulation, dynamic_scale=False, other=False):
    trainer = Trainer(Tiny(), optax.adamw(0.01), key=jax.random.key(1), accumulation=accumulation,
                      mesh=MeshSpec(fsdp=2), layout=Layout(min_shard=16, host=host),
                      dynamic_scale=dynamic_scale)
    trainer.__dict__["mesh"] = build_mesh(MeshSpec(fsdp=2), jax.devices()[:4])
    if other:
        trainer.__dict__["state_mesh"] = build_mesh(MeshSpec(fsdp=2), jax.devices()[4:])
    return trainer.fit(in_memory(rows, batch=16, seed=0), steps=6)

def leaves(state):
    return [np.asarray(leaf) for leaf in jax.tree.leaves((state.params, state.opt_state, state.ema))]

found = {}
for accumulation, scaled in ((1, False), (2, False), (1, True)):
    device = leaves(fit((), accumulation, scaled))
    for host in (("opt_state", "ema"), ("params",)):
        state = fit(host, accumulation, scaled, other=host == ("params",))
        gap = max(np.abs(a - b).max() for a, b in zip(device, leaves(state), strict=True))
        kernel = state.params["params"]["in"]
        moment = state.opt_state[0].mu["in"]
        found[f"{'+'.join(host)} {accumulation} {scaled}"] = {
            "gap": float(gap),
            "memory": [leaf.sharding.memory_kind for leaf in (kernel, moment, state.ema["params"]["in"])],
            "devices": sorted(device.id for device in kernel.sharding.device_set),
            "piece": kernel.addressable_data(0).shape,
        }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def eight():
    return result_on_devices("-c", EIGHT)


def test_every_placement_trains_the_same_numbers(eight):
    assert len(eight) == 6
    assert {name: each["gap"] for name, each in eight.items() if each["gap"] > 1e-7} == {}


def test_moments_and_average_rest_in_pinned_memory(eight):
    for name, each in eight.items():
        resting = ["device", "pinned_host", "pinned_host"] if name.startswith("opt") else ["device"] * 3
        assert each["memory"] == resting, name


def test_the_companion_owns_the_state_split_as_on_the_accelerators(eight):
    for name, each in eight.items():
        assert each["devices"] == ([0, 1, 2, 3] if name.startswith("opt") else [4, 5, 6, 7]), name
        assert each["piece"] == [16, 16]


def rows(count=32):
    draw = np.random.default_rng(3)
    return {
        "x": draw.normal(size=(count, 3)).astype(np.float32),
        "y": draw.normal(size=count).astype(np.float32),
        "m": np.ones(count, np.float32),
    }


def fit(objective, host, steps, directory=None, **options):
    trainer = Trainer(
        objective,
        optax.adam(0.1),
        key=jax.random.key(0),
        layout=Layout(host=host),
        checkpoints=None if directory is None else Checkpoints(str(directory)),
        **options,
    )
    return trainer.fit(in_memory(rows(), batch=8, seed=0), steps=steps, checkpoint_every=directory and 3)


@pytest.mark.parametrize("first", [(), ("opt_state", "ema"), ("params",)])
@pytest.mark.parametrize("second", [(), ("opt_state", "ema"), ("params",)])
def test_a_run_is_resumed_under_another_placement(toys, tmp_path, first, second):
    objective = toys.Regression(ema=EMASpec(lambda updates: 0.5), noise=0.1)
    fit(objective, first, 3, tmp_path)
    resumed = fit(objective, second, 6, tmp_path)
    straight = fit(objective, (), 6)
    for name in ("params", "opt_state", "ema", "microstep"):
        jax.tree.map(np.testing.assert_array_equal, getattr(straight, name), getattr(resumed, name))


def test_the_average_is_read_in_the_memory_of_the_device(toys):
    state = fit(toys.Regression(ema=EMASpec(lambda updates: 0.5)), ("ema",), 2)
    assert state.ema["params"]["w"].sharding.memory_kind == "pinned_host"
    assert state.averaged["params"]["w"].sharding.memory_kind == "device"


@pytest.mark.parametrize("host", [("ema",), ("params",)])
def test_a_loss_reads_the_resting_average(toys, host):
    class Pulled(toys.Regression):
        def loss(self, params, batch, step):
            gap = params["params"]["w"] - step.ema["params"]["w"]
            mean, aux = super().loss(params, batch, step)
            return Mean(mean.total + mean.mass * (gap**2).sum(), mean.mass), aux

    objective = Pulled(ema=EMASpec(lambda updates: 0.5))
    one, other = fit(objective, (), 5), fit(objective, host, 5)
    np.testing.assert_array_equal(one.params["params"]["w"], other.params["params"]["w"])


def test_the_step_computes_on_nothing_that_rests_in_host_memory(toys):
    spaces = set()

    def see(tree):
        spaces.update(jax.typeof(leaf).memory_space for leaf in jax.tree.leaves(tree))

    class Seeing(toys.Regression):
        def loss(self, params, batch, step):
            see(step.ema)
            return super().loss(params, batch, step)

    def update(gradient, state, params):
        see(state)
        return adam.update(gradient, state, params)

    adam = optax.adam(0.1)
    trainer = Trainer(
        Seeing(ema=EMASpec(lambda updates: 0.5)),
        optax.GradientTransformation(adam.init, update),
        key=jax.random.key(0),
        layout=Layout(host=("opt_state", "ema")),
    )
    state = trainer.fit(in_memory(rows(), batch=8, seed=0), steps=1)
    assert state.opt_state[0].mu["w"].sharding.memory_kind == "pinned_host"
    assert spaces == {jax.memory.Space.Device}


def test_weights_and_key_are_copied_and_an_average_that_nobody_reads_is_not(toys, monkeypatch):
    copied = []
    monkeypatch.setattr("dew.training.companion.moved", lambda tree, mesh: copied.append(tree) or tree)
    objective = toys.Regression(ema=EMASpec(lambda updates: 0.5), noise=0.1)
    trainer = Trainer(objective, optax.sgd(0.1), key=jax.random.key(0), layout=Layout(host=("params",)))
    state, _, _ = trainer.place()
    batch = shard_batch(rows(8), trainer.mesh)
    trainer.compile(state, batch)(state, batch)
    assert len(jax.tree.leaves(copied[0])) == len(["w", "key", "step"])


def test_a_window_that_replays_its_passes_is_refused_with_the_way_out(toys):
    with pytest.raises(ValueError, match=r"layout\.host names params with accumulation=2.*accumulation=1"):
        fit_spread(toys, ("params",))
    fit_spread(toys, ("opt_state",))


def fit_spread(toys, host):
    trainer = Trainer(
        toys.Spread(), optax.sgd(0.1), key=jax.random.key(0), layout=Layout(host=host), accumulation=2
    )
    draw = np.random.default_rng(0)
    data = {"x": draw.normal(size=(16, 3)).astype(np.float32)}
    return trainer.fit(in_memory(data, batch=4), steps=2)


def test_an_average_that_is_not_kept_is_refused(toys):
    with pytest.raises(ValueError, match=r"layout\.host=.* names ema, and Regression keeps no average"):
        fit(toys.Regression(), ("ema",), 1)


def test_a_field_that_is_named_twice_is_refused():
    with pytest.raises(ValueError, match=r"layout\.host=\('ema', 'ema'\) names a field twice"):
        Layout(host=("ema", "ema"))


def test_a_step_that_cannot_be_built_leaves_no_trace_of_a_run(toys):
    tracker = toys.Recorder()
    trainer = Trainer(
        toys.Spread(),
        optax.sgd(0.1),
        key=jax.random.key(0),
        layout=Layout(host=("params",)),
        accumulation=2,
        tracker=tracker,
    )
    with pytest.raises(ValueError, match="use accumulation=1"):
        trainer.fit(in_memory({"x": np.zeros((16, 3), np.float32)}, batch=4), steps=2)
    assert tracker.events == []


def test_a_step_factory_keeps_its_own_optimizer(toys):
    with pytest.raises(ValueError, match=r"layout\.host=\('params',\) runs the optimizer on the CPU"):
        fit(toys.Regression(), ("params",), 1, step=lambda objective, optimizer: None)


def test_as_many_processors_as_accelerators_are_needed(monkeypatch):
    def pretended(count, platform):
        return [SimpleNamespace(id=i, process_index=0, platform=platform) for i in range(count)]

    mesh = SimpleNamespace(devices=np.array(pretended(4, "gpu")), axis_names=("data",), axis_types=())
    monkeypatch.setattr(jax, "devices", lambda kind: pretended(1, "cpu"))
    with pytest.raises(ValueError, match=r"4 accelerators beside 1 CPU devices; set trainer\.xla_flags=.*=4"):
        companion(mesh)


def test_processors_are_their_own_companion():
    mesh = build_mesh(MeshSpec())
    assert companion(mesh) is mesh
