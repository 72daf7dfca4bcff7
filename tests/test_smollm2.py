"""A published model with its real weights: read, decoded, trained on, and taken back to transformers."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.config import ModelConfig, OptimConfig, TrainerConfig
from dew.data.text.config import TextFiles
from dew.inference import TextGeneration, export_run
from dew.interop import load_pretrained
from dew.lora import LoRA
from dew.objectives.lm import LMRunConfig
from dew.objectives.lm.recipe import train
from dew.sampling import Sampling, generate

pytestmark = pytest.mark.oracle
TOOLS = Path(__file__).resolve().parent.parent / "tools"
CONTINUED = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("transformers")
    sys.path.insert(0, str(TOOLS))
    import smollm2

    folder = tmp_path_factory.mktemp("smollm2") / "model"
    smollm2.write(folder)
    return folder


def reference(folder, dtype="float32"):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    return model.eval().to(getattr(torch, dtype))


def logits_of(model, ids):
    import torch

    with torch.no_grad():
        return model(torch.as_tensor(np.asarray(ids))).logits.double().numpy()


def real_text():
    """The beginning of a module's source."""
    return Path(json.__file__).read_text(encoding="utf-8")[:1000]


def test_logits_and_greedy_continuations_are_those_of_transformers(folder):
    read = load_pretrained(folder)
    ids = np.asarray([read.tokenizer.encode(real_text())[:160]], np.int32)
    narrow, wide = reference(folder), reference(folder, "float64")
    theirs, exact = logits_of(narrow, ids), logits_of(wide, ids)
    with jax.default_matmul_precision("highest"):
        ours = np.asarray(jax.jit(read.model.apply)(read.variables, ids), np.float64)
    floor = np.abs(theirs - exact).max()
    assert np.abs(ours - exact).max() < 10 * floor
    assert np.sqrt(np.square(ours - exact).mean()) < 2 * np.sqrt(np.square(theirs - exact).mean())

    import torch

    prompt = ids[:, :40]
    wanted = narrow.generate(
        torch.as_tensor(prompt), do_sample=False, max_new_tokens=CONTINUED, min_new_tokens=CONTINUED
    )[0].numpy()
    bare = Sampling(temperature=0.0)
    # As `min_new_tokens` does: the end token cannot be drawn.
    ended = int(read.config["eos_token_id"])

    def unending(state, logits):
        return logits.at[:, ended].set(-jnp.inf)

    from dew.sampling import decoding

    chain = (unending, decoding.Greedy())
    drawn = generate(read.model, read.variables, prompt, CONTINUED, seed=0, sampling=bare, logits=chain)
    found = np.asarray(drawn.tokens)[0]
    differs = np.flatnonzero(found != wanted)
    if differs.size:  # a choice nearer than what rounding decides
        at = int(differs[0])
        choices = logits_of(wide, wanted[None, :at])[0, -1, [found[at], wanted[at]]]
        assert at > 50 and abs(choices[0] - choices[1]) < 10 * floor


def run_config(folder, tmp_path, **fields):
    text = tmp_path / "text.txt"
    text.write_text(real_text() * 6)
    return LMRunConfig(
        model=ModelConfig("causal_transformer", dtype="float32"),
        data=TextFiles(path=str(text), seq_len=32, val_windows=4),
        optim=OptimConfig(learning_rate=fields.pop("learning_rate"), clip_grads=1.0),
        trainer=TrainerConfig(
            name="tuned",
            checkpoint_dir=str(tmp_path),
            batch_size=4,
            steps=4,
            log_every=1,
            checkpoint_every=4,
            keep=1,
            compilation_cache_dir=None,
        ),
        tokenizer=str(folder),
        sample_tokens=0,
        ema_decay=None,
        pretrained=str(folder),
        **fields,
    )


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_it_is_tuned_resumed_and_taken_back(folder, tmp_path, kind):
    fields = {
        "full": {"learning_rate": 3e-5},
        "lora": {"learning_rate": 2e-3, "lora": LoRA(("self_attn/*", "mlp/*"))},
    }[kind]
    config = run_config(folder, tmp_path, **fields)
    train(config)
    longer = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, steps=12))
    assert int(train(longer).step) == 12
    run = tmp_path / "tuned"
    losses = [
        record["values"]["train/loss"]
        for record in map(json.loads, (run / "tracking/journal.jsonl").read_text().splitlines())
        if record["kind"] == "metrics" and "train/loss" in record["values"]
    ]
    assert len(losses) == 12 and np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.3
    out = export_run(run, tmp_path / "out", ema=False)
    task = TextGeneration.from_run(run, ema=False)
    ids = np.asarray([task.processor.encode(real_text())[:60]], np.int32)
    with jax.default_matmul_precision("highest"):
        ours = np.asarray(jax.jit(task.model.apply)(task.variables, ids), np.float64)
    theirs, exact = logits_of(reference(out), ids), logits_of(reference(out, "float64"), ids)
    assert np.abs(ours - exact).max() < 10 * np.abs(theirs - exact).max()
    started = logits_of(reference(folder), ids)
    assert np.abs(started - exact).max() > 1
