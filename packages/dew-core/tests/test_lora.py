"""Adapters: an objective trains factors alone, through its own forward pass, and they merge exactly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from dew.lora import LoRA, adapt, adapted, factors_of, merged, with_factors, without_factors
from dew.lora.objective import merged_rollout
from dew.nn.dense import Dense
from dew.objectives.base import Aux, EMASpec, Mean, Objective, Step, thaw, under
from dew.testing import ObjectiveContract, in_memory
from dew.testing.devices import on_devices
from dew.training import Checkpoints, Trainer
from dew.training.runs import Run

KEY = jax.random.key(0)


class Block(nn.Module):
    """A residual layer with both kinds of dense layer."""

    @nn.compact
    def __call__(self, x):
        return x + Dense(6, ("mlp", "embed"), name="down")(jnp.tanh(nn.Dense(5, name="up")(x)))


class Net(nn.Module):
    """Two layers, recomputed in the backward pass where `remat` says so, and a head read as a matrix."""

    remat: bool = False

    @nn.compact
    def __call__(self, x, train=False):
        block = nn.remat(Block) if self.remat else Block
        for index in range(2):
            x = block(name=f"layers_{index}")(x)
        if self.is_initializing():
            Dense(3, ("embed", "vocab"), name="head")(x)
        return x


class Fit(Objective[Any, Any]):
    """Least squares of `Net(x) @ head` to y, with a random stream in training unless `plain`."""

    def __init__(self, remat=False, ema=None, plain=False):
        self.net, self.ema, self.plain = Net(remat), ema, plain

    def init(self, key, variables=None):
        return plain(self.net.init(key, jnp.zeros((1, 6)))) if variables is None else variables

    def loss(self, params, batch, step):
        error = self.outputs(params, batch["x"], None if self.plain else step.key) - batch["y"]
        return Mean(jnp.sum(error**2), jnp.asarray(error.size, jnp.float32)), Aux()

    def outputs(self, params, x, key=None):
        rngs = None if key is None else {"dropout": key}
        return (
            self.net.apply(params, x, train=key is not None, rngs=rngs) @ params["params"]["head"]["kernel"]
        )

    def evaluate(self, params, batch, step):
        return self.outputs(params if step.ema is None else step.ema, batch["x"])


def batch(rows=4):
    draw = np.random.default_rng(0)
    return {
        "x": draw.normal(size=(4, 6)).astype("f4")[:rows],
        "y": draw.normal(size=(4, 3)).astype("f4")[:rows],
    }


def randomized(variables):
    """`variables` with every factor drawn, so that deltas are not zero."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: 0.3 * jax.random.normal(KEY, leaf.shape) if "lora_" in str(path[-1]) else leaf,
        variables,
    )


def plain(tree):
    return nn.unbox(tree)


def started(objective, lora):
    """The adapted objective and its variables with drawn factors."""
    twin = adapted(objective, lora)
    return twin, randomized(plain(twin.initializer(KEY)))


STEP = Step(step=0, key=jax.random.key(5))
ALL = LoRA(("layers_*/*", "head"), rank=2, alpha=3.0)


class TestAdaptedContract(ObjectiveContract):
    def objective(self):
        return adapted(Fit(ema=EMASpec(lambda n: 0.5)), ALL)

    def batch(self, rows):
        return batch(rows)


def test_training_moves_the_factors_and_leaves_the_base_bit_identical():
    objective = Fit(ema=EMASpec(lambda n: 0.9))
    twin = adapted(objective, ALL)
    trainer = Trainer(twin, optax.adamw(0.1, weight_decay=0.5), key=KEY)
    start = trainer.initial_state().params
    state = trainer.fit(in_memory(batch(), batch=2), steps=5)
    jax.tree.map(np.testing.assert_array_equal, start["frozen"], state.params["frozen"])
    moved = jax.tree.map(lambda old, new: bool((old != new).any()), start["params"], state.params["params"])
    assert all(jax.tree.leaves(moved)) and len(jax.tree.leaves(moved)) == 10
    assert jax.tree.structure(state.ema["params"]) == jax.tree.structure(state.params["params"])
    assert isinstance(twin, Fit) and set(state.ema) == {"params"}


def test_a_new_adapter_changes_nothing_and_the_base_is_the_one_drawn_without_it():
    twin = adapted(Fit(), ALL)
    variables = plain(twin.initializer(KEY))
    base = plain(Fit().initializer(KEY))
    jax.tree.map(np.testing.assert_array_equal, without_factors(variables), base)
    assert float(twin.loss(variables, batch(), STEP)[0].total) == float(
        Fit().loss(base, batch(), STEP)[0].total
    )


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("rslora", [False, True])
def test_loss_and_gradient_are_those_of_the_weights_plus_scaled_products(remat, rslora):
    lora = LoRA(("up", "down", "head"), rank=2, alpha=3.0, rslora=rslora)
    scale = 3.0 / (2**0.5 if rslora else 2)
    twin, variables = started(Fit(remat), lora)

    def by_hand(factors):
        tree = {"params": {}}
        base = variables["frozen"]
        for module in ("layers_0/up", "layers_0/down", "layers_1/up", "layers_1/down", "head"):
            at, into, of = factors, tree["params"], base
            for name in module.split("/"):
                at, of, into = at[name], of[name], into.setdefault(name, {})
            into.update(of, kernel=of["kernel"] + scale * at["lora_a"] @ at["lora_b"])
        return Fit(remat).loss(tree, batch(), STEP)[0].total

    def adapted_loss(factors):
        return twin.loss({**variables, "params": factors}, batch(), STEP)[0].total

    expected = jax.value_and_grad(by_hand)(variables["params"])
    found = jax.jit(jax.value_and_grad(adapted_loss))(variables["params"])
    # Sums in another order: some units of rounding of the largest number.
    noise = 1e-6 * max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected))
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=0, atol=noise), found, expected)


def test_scanned_layers_are_adapted_slice_by_slice():
    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x):
            layer = nn.scan(
                lambda module, carry, _: (module(carry), None),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=2,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            return layer(Block(name="layers"), x, None)[0]

    from dew.lora.forward import adapted_pass

    drawn = plain(Stack().init(KEY, jnp.ones((1, 6))))["params"]["layers"]
    factors = {
        name: {"lora_a": jax.random.normal(KEY, (2, width, 2)), "lora_b": jax.random.normal(KEY, (2, 2, out))}
        for name, width, out in (("up", 6, 5), ("down", 5, 6))
    }
    held = {"params": {"layers": {name: drawn[name] | factors[name] for name in drawn}}}
    with adapted_pass(LoRA(("up", "down"), rank=2, alpha=4.0)):
        found = Stack().apply(held, batch()["x"])
    x = batch()["x"]
    for index in range(2):
        layer = jax.tree.map(lambda leaf, index=index: leaf[index], {"params": held["params"]["layers"]})
        x = Block().apply(merged(layer, LoRA(("up", "down"), rank=2, alpha=4.0)), x)
    np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-4)


class Derived(nn.Dense):
    """A dense layer whose call is its parent's."""

    @nn.compact
    def __call__(self, inputs):
        return super().__call__(inputs)


@pytest.mark.parametrize("kind", [Derived, nn.remat(nn.Dense)])
def test_a_layer_that_calls_a_dense_layer_gets_its_delta_once(kind):
    from dew.lora.forward import adapted_pass

    lora, layer = LoRA(("up",), rank=2, alpha=4.0), kind(5)
    base = layer.init(KEY, jnp.ones((1, 6)))["params"]
    factors = {"lora_a": jax.random.normal(KEY, (6, 2)), "lora_b": jax.random.normal(KEY, (2, 5))}
    with adapted_pass(lora):
        found = layer.apply({"params": base | factors}, batch()["x"])
    whole = merged({"params": {"up": base | factors}}, lora)["params"]["up"]
    np.testing.assert_allclose(found, nn.Dense(5).apply({"params": whole}, batch()["x"]), rtol=0, atol=1e-5)


def test_evaluation_previews_and_rollouts_read_the_merged_model():
    twin, variables = started(Fit(), ALL)
    whole = merged(variables, ALL)
    expected = Fit().outputs(whole, batch()["x"])
    np.testing.assert_array_equal(twin.evaluate(variables, batch(), STEP), expected)
    average = Step(step=0, key=KEY, ema=variables)
    np.testing.assert_array_equal(twin.evaluate(plain(twin.initializer(KEY)), batch(), average), expected)
    seen = merged_rollout(lambda params, data, step: params, ALL)(variables, batch(), STEP)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-6), seen, whole)


def test_merged_kernel_is_the_exact_sum_rounded_to_float32():
    draw = np.random.default_rng(3)
    kernel, a, b = (draw.normal(size=size).astype("f4") for size in ((64, 48), (64, 8), (8, 48)))
    tree = {"params": {"q": {"kernel": kernel, "lora_a": a, "lora_b": b}}}
    found = merged(jax.tree.map(jnp.asarray, tree), LoRA(("q",), rank=8, alpha=4.0))["params"]["q"]
    exact = kernel.astype("f8") + 0.5 * a.astype("f8") @ b.astype("f8")
    # One rounding of each of the 8 products' partial sums, of the scale and of the sum.
    bound = np.finfo("f4").eps * (np.abs(kernel) + 5 * np.abs(a).astype("f8") @ np.abs(b))
    assert list(found) == ["kernel"] and (np.abs(found["kernel"] - exact) <= bound).all()


def test_dropout_drops_inputs_of_the_delta_alone_and_keeps_their_mean():
    class One(Objective[Any, Any]):
        def init(self, key, variables=None):
            return nn.Dense(1, use_bias=False).init(key, jnp.ones((1, 1))) if variables is None else variables

        def loss(self, params, batch, step):
            tree = {"params": params["params"]["layer"]}
            return nn.Dense(1, use_bias=False).apply(tree, batch, rngs={"dropout": step.key}), Aux()

    held = {"params": {"layer": {"kernel": jnp.full((1, 1), 10.0)}}}
    twin = adapted(One(), LoRA(("layer",), rank=1, alpha=2.0, dropout=0.25))
    variables = twin.init(KEY, held)
    variables["params"]["layer"] = {"lora_a": jnp.ones((1, 1)), "lora_b": jnp.full((1, 1), 3.0)}
    values = np.asarray(twin.loss(variables, jnp.ones((4000, 1)), STEP)[0]).round(4)
    assert set(values.ravel().tolist()) == {10.0, 10.0 + 8.0}
    # Of 4000 draws kept with probability 3/4, the mean is within five standard deviations.
    assert abs(values.mean() - 16) < 5 * 8 * (3 / 16 / 4000) ** 0.5


def test_dropout_without_a_stream_or_a_called_layer_is_refused():
    lora = LoRA(("up",), rank=2, dropout=0.5)
    twin = adapted(Fit(plain=True), lora)
    with pytest.raises(
        ValueError, match=r"lora\.dropout=0\.5, and Fit trains its model without a random stream"
    ):
        twin.loss(plain(twin.initializer(KEY)), batch(), STEP)
    twin = adapted(Fit(), LoRA(("head",), rank=2, dropout=0.5))
    with pytest.raises(ValueError, match=r"the loss of Fit reads the kernel of head without calling"):
        twin.loss(plain(twin.initializer(KEY)), batch(), STEP)


def test_an_average_of_one_part_is_an_average_of_its_factors():
    twin = adapted(Fit(ema=EMASpec(lambda n: 0.5, under("params", "layers_0"))), ALL)
    state = Trainer(twin, optax.sgd(0.1), key=KEY).initial_state()
    assert set(factors_of(merged_tree := thaw(state.params))) > {"layers_0/up"} and merged_tree
    assert list(state.ema["params"]) == ["layers_0"]
    assert set(state.ema["params"]["layers_0"]["up"]) == {"lora_a", "lora_b"}


def test_held_factors_go_on_and_held_bases_get_new_ones():
    _, variables = started(Fit(), ALL)
    again = plain(adapted(Fit(), ALL).init(jax.random.key(9), variables))
    jax.tree.map(np.testing.assert_array_equal, again, variables)
    base = without_factors(variables)
    jax.tree.map(np.testing.assert_array_equal, with_factors(base, factors_of(variables)), thaw(variables))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (("layers_0/upp",), "lora.targets='layers_0/upp' names no module with a kernel; did you mean up"),
        (("layer_0/up",), "'layer_0/up' names no module with a kernel; did you mean layers_0, layers_1"),
        (("/up",), "names no module with a kernel; modules have the names down, head, up"),
        (("layers_0",), "names no module"),
    ],
)
def test_targets_that_name_nothing_are_refused(targets, message):
    with pytest.raises(ValueError, match=message):
        adapted(Fit(), LoRA(targets)).initializer(KEY)


def test_kernels_that_are_no_matrix_are_refused_by_their_shape():
    variables = {"params": {"conv": {"kernel": jnp.zeros((3, 3, 2, 4))}}}
    with pytest.raises(ValueError, match=r"names conv, whose kernel has the shape \(3, 3, 2, 4\)"):
        adapt(variables, LoRA(("conv",)), key=KEY)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"targets": ()}, r"lora\.targets=\(\) must name"),
        ({"targets": ("",)}, r"lora\.targets=\(''"),
        ({"rank": 0}, r"lora\.rank=0"),
        ({"alpha": float("nan")}, r"lora\.alpha=nan"),
        ({"alpha": 0.0}, r"lora\.alpha=0\.0 must be a finite number above 0"),
        ({"alpha": -1.0}, r"lora\.alpha=-1\.0 must be a finite number above 0"),
        ({"dropout": 1.0}, r"lora\.dropout=1\.0"),
    ],
)
def test_records_out_of_range_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        LoRA(**{"targets": ("q",), **fields})


@pytest.mark.parametrize(
    ("pattern", "hits"),
    [
        ("q_proj", ["layers_0/attn/q_proj", "layers_1/attn/q_proj"]),
        ("layers_*/attn/*", ["layers_0/attn/q_proj", "layers_0/attn/k_proj", "layers_1/attn/q_proj"]),
        ("layers_1/*/q_proj", ["layers_1/attn/q_proj"]),
        ("/layers_0/attn/q_proj", ["layers_0/attn/q_proj"]),
        ("/attn/q_proj", []),
        ("proj", []),
    ],
)
def test_patterns_are_compared_part_by_part_from_the_end(pattern, hits):
    modules = ["layers_0/attn/q_proj", "layers_0/attn/k_proj", "layers_1/attn/q_proj"]
    assert [module for module in modules if LoRA((pattern,)).adapts(module)] == hits


def test_restored_run_is_the_merged_model_or_keeps_its_factors(tmp_path):
    objective = Fit(ema=EMASpec(lambda n: 0.5))
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    trainer = Trainer(adapted(objective, ALL), optax.adam(0.1), key=KEY, checkpoints=checkpoints)
    state = trainer.fit(in_memory(batch(), batch=4), steps=3)
    config: Any = SimpleNamespace(lora=ALL, trainer=SimpleNamespace(keep=1), build=lambda: objective)
    config.rebuilt = lambda: config
    run = Run(directory=str(tmp_path), config=config, record={})
    jax.tree.map(np.testing.assert_array_equal, run.restore(), merged(state.averaged, ALL))
    live = run.restore(ema=False, adapter=True)
    jax.tree.map(np.testing.assert_array_equal, live, thaw(state.params))


def test_adapting_twice_is_refused():
    with pytest.raises(ValueError, match="Fit is adapted already"):
        adapted(adapted(Fit(), ALL), ALL)


SHARDED = """
import importlib.util, sys
import jax, numpy as np, optax
spec = importlib.util.spec_from_file_location("lora_under_test", sys.argv[1])
tests = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = tests
spec.loader.exec_module(tests)
from dew.testing import in_memory
from dew.training import Layout, MeshSpec, Trainer
from dew.lora import LoRA, adapted

def trained(mesh):
    twin = adapted(tests.Fit(), LoRA(("layers_*/*", "head"), rank=8, alpha=3.0))
    layout = Layout(min_shard=0, tolerance=1.0)
    trainer = Trainer(twin, optax.sgd(0.1), key=tests.KEY, mesh=mesh, layout=layout)
    rows = {name: np.concatenate([value, value]) for name, value in tests.batch().items()}
    return trainer.fit(in_memory(rows, batch=8), steps=4).params

whole, split = trained(MeshSpec()), trained(MeshSpec(fsdp=8))
assert not split["params"]["layers_0"]["up"]["lora_a"].sharding.is_fully_replicated
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), whole, split)
"""


@pytest.mark.slow
def test_factors_are_split_over_devices_and_train_alike():
    on_devices("-c", SHARDED, __file__)
