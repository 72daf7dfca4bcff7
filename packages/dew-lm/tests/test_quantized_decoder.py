"""A decoder that trains through quantized products: what is narrow, and how its loss falls."""

import dataclasses
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.data.dataset import DataPartition
from dew.data.text import load_tokenizer
from dew.data.text.config import TextFiles
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.moe import Mixture
from dew.nn.sharding import unboxed
from dew.objectives.base import Step
from dew.objectives.lm import LMObjective, LMRunConfig
from dew.testing.devices import result_on_devices
from dew.training import Trainer
from dew.training.launch import launch
from dew.training.quantization import Quantization, quantized
from dew.training.quantization.objective import quantized_pass

KINDS = {"int8": Quantization(), "fp8": Quantization("float8_e4m3fn", "float8_e4m3fn")}


def objective(**fields):
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "max_seq_len": 16}
    return LMObjective(CausalTransformer(**{**sizes, **fields}), 16, ema_decay=None)


def narrow_modules(of):
    """The modules whose products are quantized in the loss."""
    variables = jax.eval_shape(of.initializer, jax.random.key(0))
    batch, step = {"text": jnp.zeros((2, 17), jnp.int32)}, Step(step=0, key=jax.random.key(1))
    with quantized_pass(Quantization()) as record:
        jax.eval_shape(lambda v: of.loss(v, batch, step)[0], variables)
    return {name.removeprefix("layers_0/") for name in record.narrow}


ATTENTION = {f"self_attn/{name}_proj" for name in "qkvo"}


def test_projections_are_narrow_and_embedding_head_and_norms_are_not():
    assert narrow_modules(objective()) == ATTENTION | {f"mlp/{name}_proj" for name in ("gate", "up", "down")}


def test_experts_are_narrow_and_their_router_is_not():
    assert narrow_modules(objective(mixture=Mixture(num_experts=4, top_k=2))) == ATTENTION | {"mlp"}


def test_recomputed_layers_are_quantized_alike():
    batch, step = (
        {"text": jax.random.randint(jax.random.key(2), (2, 17), 0, 32)},
        Step(step=0, key=jax.random.key(1)),
    )

    def gradient(remat):
        of = quantized(objective(remat=remat), Quantization())
        variables = unboxed(of.init(jax.random.key(0)))
        return jax.jit(jax.value_and_grad(lambda v: of.loss(v, batch, step)[0].total))(variables)

    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), gradient(True), gradient(False))


def test_flops_are_of_the_narrow_type():
    batch = {"text": np.zeros((2, 17), np.int32)}
    plain = objective().step_cost(batch)
    narrow = quantized(objective(), Quantization()).step_cost(batch)
    assert (plain.dtype, narrow.dtype, narrow.flops) == ("float32", "int8", plain.flops)
    assert quantized(objective(), Quantization(activations=None)).step_cost(batch) == plain


def test_a_rollout_from_the_full_model_is_refused():
    config = LMRunConfig.starting_point()
    config = dataclasses.replace(
        config, trainer=dataclasses.replace(config.trainer, quantization=Quantization())
    )
    with pytest.raises(ValueError, match=r"trainer\.quantization with a rollout"):
        launch(config, objective(), None, name="x", metrics=(), summary=None, rollout=lambda *_: {})


@pytest.mark.slow
def test_loss_falls_as_in_bfloat16():
    """On 300 batches of real text the mean of the last 100 losses differs by under 0.01 nats."""
    steps, tokenizer = 300, load_tokenizer("byte")
    data = TextFiles(seq_len=64, val_windows=64).load(batch=16, tokenize=tokenizer)
    stream = iter(data.train(DataPartition()))
    batches = [next(stream) for _ in range(steps)]
    model = CausalTransformer(
        vocab_size=tokenizer.vocab_size,
        hidden_size=64,
        num_layers=2,
        num_heads=2,
        activation="relu2",
        max_seq_len=64,
        dtype=jnp.bfloat16,
    )
    rate = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 20, steps)

    def final(of):
        trainer = Trainer(of, optax.adamw(rate, b2=0.98, weight_decay=0.1), key=jax.random.key(0))
        state, _, _ = trainer.place()
        step, losses = trainer.compile(state, batches[0]), []
        for batch in batches:
            result = step(state, batch)
            state = result.state
            losses.append(float(result.loss))
        return np.mean(losses[-100:])

    plain = LMObjective(model, 64, ema_decay=None)
    full = final(plain)
    narrow = {name: final(quantized(plain, spec)) for name, spec in KINDS.items()}
    assert full < 2.4, full
    assert all(abs(each - full) < 0.01 for each in narrow.values()), (full, narrow)


@pytest.mark.slow
def test_meshes_train_what_one_device_does():
    gaps = result_on_devices(str(Path(__file__).with_name("quantized_on_eight.py")))
    assert len(gaps) == 2 and max(gaps) < 1e-12, gaps
