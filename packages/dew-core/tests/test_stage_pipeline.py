"""Layers over stages: what passes where. What needs several devices runs in a process that has eight."""

import jax
import jax.numpy as jnp
import optax
import pytest

from dew.lora import LoRA, adapted
from dew.nn.pipeline import active_stages, microbatch_count, pipelined
from dew.nn.stack import DecoderBank, StackView
from dew.testing.devices import on_devices
from dew.training import MeshSpec, Trainer
from dew.training.quantization import Quantization, quantized
from dew.training.stages import check_stages


@pytest.mark.parametrize(
    ("rows", "shards", "stages", "asked", "count"),
    [(64, 2, 4, None, 16), (24, 2, 4, None, 12), (8, 2, 4, None, 4), (64, 1, 2, 32, 32), (6, 1, 2, None, 6)],
)
def test_a_batch_is_cut_into_four_microbatches_a_stage_where_its_rows_allow(
    rows, shards, stages, asked, count
):
    assert microbatch_count(rows, shards=shards, stages=stages, asked=asked) == count


def test_rows_that_cannot_be_cut_are_refused_with_batches_that_can():
    with pytest.raises(ValueError, match=r"12 rows are no multiple of 8; use a batch of 16 rows$"):
        microbatch_count(12, shards=2, stages=4, asked=None)
    with pytest.raises(ValueError, match=r"multiple of 32; use a batch of 32 rows, or mesh.microbatches=8$"):
        microbatch_count(24, shards=1, stages=2, asked=32)


def test_without_a_mesh_there_is_one_stage():
    with pipelined(4):
        assert active_stages() == 1


def tree(*widths):
    return {f"layers_{index}": {"w": jnp.full(width, float(index))} for index, width in enumerate(widths)}


def test_stages_hold_runs_of_layers_in_order():
    places = StackView(6).staged(tree(1, 2, 3, 1, 2, 3), 2)
    assert [[int(layer["w"][0]) for layer in layers] for layers in places] == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize(
    ("view", "stages", "message"),
    [
        (StackView(6), 4, r"6 layers, which the stages do not divide; use mesh.stage=1 or 2 or 3 or 6"),
        (StackView(4, kinds=("a", "a", "b", "a")), 2, r"every stage: a, a, b, a; use mesh.stage=1$"),
        (StackView(8, kinds=("a", "b") * 4), 8, r"repeat in every stage.*use mesh.stage=1 or 2 or 4$"),
    ],
    ids=["indivisible", "no pattern", "longer pattern"],
)
def test_layers_that_do_not_fit_the_stages_are_refused_with_stages_that_fit(view, stages, message):
    with pytest.raises(ValueError, match=message):
        view.check_stages(stages)
    view.check_stages(1)


def test_an_objective_without_layers_is_refused_before_any_work(toys):
    with pytest.raises(ValueError, match=r"mesh.stage=2 .* Regression .*bank_sites.*use mesh.stage=1"):
        Trainer(toys.Regression(), optax.sgd(1.0), key=jax.random.key(0), mesh=MeshSpec(stage=2))


def test_an_adapter_with_dropout_is_refused_before_any_work(toys):
    class Layered(toys.Regression):
        bank_sites = (DecoderBank((), StackView(2)),)

    twin = adapted(Layered(), LoRA(("w",), rank=1, alpha=1.0, dropout=0.1))
    with pytest.raises(
        ValueError, match=r"lora.dropout=0.1 .* mesh.stage=2; set lora.dropout=0 or mesh.stage=1"
    ):
        Trainer(twin, optax.sgd(1.0), key=jax.random.key(0), mesh=MeshSpec(stage=2))


def test_a_choice_of_quantized_modules_is_refused_before_any_work(toys):
    class Layered(toys.Regression):
        bank_sites = (DecoderBank((), StackView(2)),)

    chosen, every = (quantized(Layered(), Quantization(modules=glob)) for glob in ("layers_0/*", "*"))
    with pytest.raises(ValueError, match=r"modules='layers_0/\*' .* mesh.stage=2; use modules='\*' or"):
        Trainer(chosen, optax.sgd(1.0), key=jax.random.key(0), mesh=MeshSpec(stage=2))
    Trainer(every, optax.sgd(1.0), key=jax.random.key(0), mesh=MeshSpec(stage=2))


def test_layers_that_differ_between_stages_are_refused_by_name(toys):
    class Layered(toys.Regression):
        bank_sites = (DecoderBank(("inner",), StackView(4)),)

    fitting, differing = ({"params": {"inner": tree(*widths)}} for widths in ((1, 2, 1, 2), (1, 2, 1, 3)))
    check_stages(Layered(), fitting, MeshSpec(stage=2))
    with pytest.raises(ValueError, match=r"'layers_3' differs from 'layers_1'"):
        check_stages(Layered(), differing, MeshSpec(stage=2))


EIGHT = """
import jax, jax.numpy as jnp, numpy as np
from dew.lora import LoRA, adapted
from dew.nn.pipeline import active_stages, pipelined, stage_bank, through_stages
from dew.training import MeshSpec, build_mesh

ROWS, WIDTH, STAGES = 32, 3, 4
draw = np.random.default_rng(0)
layers = [{"w": draw.normal(size=WIDTH).astype(np.float32)} for _ in range(STAGES)]
x = draw.normal(size=(ROWS, WIDTH)).astype(np.float32)
own = draw.normal(size=(ROWS, 1)).astype(np.float32)

def unit(layer, x, own):
    # Undefined at zero: a tick that computed on padding would poison every gradient.
    return layer["w"] * x / jnp.linalg.norm(x, axis=-1, keepdims=True) + own

def plain(layers, x):
    for layer in layers:
        x = unit(layer, x, own)
    return x

def body(bank, x, rows, shared):
    x = unit(bank, x, rows["own"])
    return x, {"stage": jnp.broadcast_to(shared["one"] * jax.lax.axis_index("stage"), x.shape[:1]),
               "own": rows["own"][:, 0]}

def staged(layers, x):
    return through_stages(body, stage_bank(layers), x, {"own": own}, {"one": jnp.ones(())})

def both(function):
    return jax.jit(jax.value_and_grad(lambda *args: jnp.sum(jnp.sin(function(*args))), argnums=(0, 1)))

def close(one, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), one, other)

expected = both(plain)(layers, x)
for microbatches in (4, 8, None):
    for spec in (MeshSpec(stage=4), MeshSpec(stage=4, fsdp=2)):
        with jax.set_mesh(build_mesh(spec)):
            def pipe(*args):
                with pipelined(microbatches):
                    assert active_stages() == 4
                    return staged(*args)
            states, reports = jax.jit(pipe)(layers, x)
            close(states, plain(layers, x))
            # Reports are the rows' own, in the batch's order, from every stage.
            np.testing.assert_array_equal(reports["own"], np.tile(own[:, 0], (STAGES, 1)))
            np.testing.assert_array_equal(reports["stage"], np.arange(STAGES)[:, None] * np.ones(ROWS))
            close(both(lambda *args: pipe(*args)[0])(layers, x), expected)
            assert active_stages() == 1

# One microbatch brings a gradient of 1 and 31 bring 2**-9 each: half a bfloat16's last bit at 1, together 8.
rows = np.full((32, 1), 2.0**-9, np.float32)
rows[-1] = 1
weights = [{"w": jnp.ones(1, jnp.bfloat16)}] * STAGES

def product(weights):
    with pipelined(32):
        scale = lambda bank, x, rows, shared: (x * bank["w"].astype(jnp.bfloat16).astype(x.dtype), None)
        return jnp.sum(through_stages(scale, stage_bank(weights), rows)[0])

with jax.set_mesh(build_mesh(MeshSpec(stage=4), jax.devices()[:4])):
    for gradient in jax.jit(jax.grad(product))(weights):
        assert gradient["w"].dtype == jnp.bfloat16 and gradient["w"] == 1.0625, gradient
print("equal")
"""


@pytest.mark.slow
def test_rows_meet_every_layer_once_and_idle_ticks_leave_no_trace():
    assert on_devices("-c", EIGHT).strip().endswith("equal")
