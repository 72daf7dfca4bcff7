"""What the processes of the pools in `test_elastic_tokens.py` run: packed rows of two corpora, mixed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dew.data import DataMixture, PackedTokens, Ramp
from dew.data.mixture import Part
from dew.data.tokens import CorpusWriter
from dew.objectives.base import Aux, EMASpec, Mean, Objective
from dew.objectives.lm.scores import target_weights
from dew.telemetry.tracker import Tracker
from dew.training import Checkpoints, Layout, MeshSpec, Trainer, build_mesh
from dew.training.distributed import to_host

VOCABULARY, SEQ_LEN = 512, 15
LENGTHS = {"a": (9, 4, 16, 3, 7, 30, 5, 12, 6, 11, 8, 2, 14), "b": (5, 13, 8, 20, 4, 3, 10)}
RUNS: dict[str, dict[str, Any]] = {
    "window": {"batch": 8, "accumulation": 4},
    "ramp": {"batch": 24, "ramp": (8, 8, 40)},
}
"""Windows of four microbatches; stages of 8, 16 and 24 rows that begin after steps 3 and 4."""


class Bigrams(Objective[Any, Any]):
    """Next-token scores from the token before alone, with noise; the targets are those of packed rows."""

    unit = "rows"
    ema = EMASpec(lambda updates: 0.9)

    def init(self, key, variables=None):
        one, other = jax.random.split(key)
        shape = (VOCABULARY, 8)
        weights = {"in": jax.random.normal(one, shape), "out": jax.random.normal(other, shape) / 4}
        return {"params": weights}

    def loss(self, params, batch, step):
        weights, text = params["params"], batch["text"]
        noise = 0.1 * jax.random.normal(step.key, (*text[:, 1:].shape, 8))
        logits = (weights["in"][text[:, :-1]] + noise) @ weights["out"].T
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:])
        counted = target_weights(text, pad_id=None, segment_ids=batch["text_segment_ids"])
        return Mean(jnp.sum(losses * counted), jnp.sum(counted)), Aux()


class Losses(Tracker):
    """Keeps the losses, on the process that hears of them."""

    def __init__(self):
        self.losses = {}

    def log(self, values, *, step):
        self.losses[step] = values["train/loss"]


def write_corpora(folder):
    """Two corpora in which no id but the documents' end comes twice, so that its first id names a row."""
    ids = iter(range(1, VOCABULARY))
    for name, lengths in LENGTHS.items():
        place = f"{folder}/{name}"
        os.makedirs(place)
        options = {"tokenizer": "t", "tokenizer_fingerprint": "f", "vocab_size": VOCABULARY}
        with CorpusWriter(Path(place), **options, document_end=0) as writer:
            for length in lengths:
                writer.append("train", [*(next(ids) for _ in range(length - 1)), 0])
            writer.finish()


def mixture(folder, batch, ramp):
    parts = [Part(data=PackedTokens(path=f"{folder}/{name}", seq_len=SEQ_LEN)) for name in LENGTHS]
    spec = DataMixture(parts=(Part(data=parts[0].data, weight=2.0), parts[1]), seed=5)
    data = spec.load(batch=batch)
    return data if ramp is None else data.ramped(Ramp(*ramp))


def one(*, folder, steps, batch, directory=None, mesh=None, accumulation=1, ramp=None, devices=None):
    """First ids of the rows of every global batch, losses by step (on process zero) and the weights."""
    ids, losses = [], Losses()

    def note(params, batch, step):
        ids.append(to_host(batch["text"])[:, 0].tolist())
        return batch

    trainer = Trainer(
        Bigrams(),
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.05)),
        key=jax.random.key(5),
        mesh=MeshSpec(**(mesh or {})),
        layout=Layout(min_shard=16, tolerance=1.0),
        accumulation=accumulation,
        checkpoints=None if directory is None else Checkpoints(directory, keep=3),
        tracker=losses,
        rollout=note,
    )
    if devices is not None:
        trainer.__dict__["mesh"] = build_mesh(trainer.mesh_spec, jax.devices()[:devices])
    state = trainer.fit(mixture(folder, batch, ramp), steps=steps, log_every=1)
    weights = [np.asarray(to_host(leaf)).sum(0).tolist() for leaf in jax.tree.leaves(state.params)]
    return {"ids": ids, "losses": losses.losses, "weights": weights}


def every(*, folder, steps, place=None, **options):
    """Each of `RUNS`, to step `steps`."""
    return {
        name: one(folder=folder, steps=steps, directory=place and f"{place}/{name}", **run, **options)
        for name, run in RUNS.items()
    }


def joined(*parts):
    """One run out of its parts, one after another."""
    return {
        name: {
            "ids": [batch for part in parts for batch in part[name]["ids"]],
            "losses": {step: loss for part in parts for step, loss in part[name]["losses"].items()},
            "weights": parts[-1][name]["weights"],
        }
        for name in parts[0]
    }


def over_devices(*, folder, cut, steps):
    """Runs of 8 devices, cut, continued on fewer and then on 8 again, beside those that were never cut."""
    whole = every(folder=folder, steps=steps + 2)
    start = every(folder=folder, steps=cut, place=f"{folder}/8")
    found = {}
    for devices, mesh in ((1, {}), (2, {"fsdp": 2}), (4, {"fsdp": 2})):
        place = f"{folder}/on-{devices}"
        shutil.copytree(f"{folder}/8", place)
        fewer = every(folder=folder, steps=steps, place=place, mesh=mesh, devices=devices)
        again = every(folder=folder, steps=steps + 2, place=place, mesh={"fsdp": 4})
        found[devices] = joined(start, fewer, again)
    return {"whole": whole, **found}


def over_processes(*, folder, steps, place, whole=False):
    """The runs on this pool's processes; with `whole` those without checkpoints beside them."""
    runs = every(folder=folder, steps=steps, place=place, mesh={"fsdp": 2})
    return {"runs": runs, "whole": every(folder=folder, steps=steps) if whole else None}
