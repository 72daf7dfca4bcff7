"""Families of decoders against transformers itself: logits, gradients, files both ways, altered fields."""

from __future__ import annotations

import functools
import importlib.util
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.objectives.lm import LMObjective
from dew.sampling import Sampling

pytestmark = pytest.mark.oracle
transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

SPEC = importlib.util.spec_from_file_location("golden_families", Path(__file__).with_name("test_families.py"))
assert SPEC is not None and SPEC.loader is not None
families = importlib.util.module_from_spec(SPEC)
sys.modules["golden_families"] = families
SPEC.loader.exec_module(families)
cases, golden = families.cases, families.golden


@functools.cache
def floors(name):
    """What float32 loses in transformers here, of logits and of gradients."""
    return golden.floors(cases.CASES[name])


@pytest.mark.parametrize("name", cases.CASES)
def test_folders_pass_both_ways_with_equal_logits_and_gradients(name, tmp_path):
    case = cases.CASES[name]
    theirs = golden.torch_model(case)
    theirs.save_pretrained(tmp_path / "theirs")
    source = families.load_pretrained(tmp_path / "theirs")
    model = source.model.clone(precision="highest")
    ids = jnp.asarray(golden.token_ids(case))
    logits, gradients = families.value_and_gradients(model, source.variables, ids)
    expected, expected_gradients = golden.evaluated(theirs.double(), case)
    floor, gradient_floor = floors(name)
    assert np.abs(logits - expected).max() < families.MARGIN * floor
    expected_gradients = golden.by_file(case, theirs, expected_gradients)
    layout = families.layout_of(model, source.config["model_type"])
    leaves = families.leaves_of(gradients)
    for held in families.held_tensors(model, layout):
        wanted = expected_gradients[held.name]
        difference = np.abs(held.join(leaves) - wanted).max()
        assert difference <= families.MARGIN * gradient_floor * np.abs(wanted).max(), held.name
    source.save(tmp_path / "ours")
    again, told = golden.loaded(tmp_path / "ours")
    assert not any(told.values()), told
    assert np.abs(golden.torch_logits(again.double(), case) - expected).max() < families.MARGIN * floor


ALTERED = [
    pytest.param(name, fields, margin, id=f"{name}-{','.join(fields)}-{index}")
    for name, case in cases.CASES.items()
    for margin, group in ((100, (*case.altered, *case.refused)), (1, case.weak))
    for index, fields in enumerate(group)
    if name != "gemma3_text" or fields not in case.refused
]


@functools.cache
def base_logits(name):
    return golden.torch_logits(golden.torch_model(cases.CASES[name]).double(), cases.CASES[name])


@pytest.mark.parametrize(("name", "fields", "margin"), ALTERED)
def test_altering_a_field_moves_the_logits_of_transformers(name, fields, margin):
    """By at least 100 tolerances, where a tolerance is ten times the floor."""
    altered = golden.torch_logits(golden.torch_model(cases.CASES[name], **fields).double(), cases.CASES[name])
    moved = np.abs(altered - base_logits(name)).max()
    assert moved > margin * families.MARGIN * families.GOLDEN[name]["floor"], moved


def test_greedy_continuations_through_chunks_are_those_of_transformers_and_its_cache():
    """Prompts of 11 tokens and 60 more, over chunks of 8."""
    case = cases.CASES["llama4_text"]
    theirs, prompts = golden.torch_model(case), golden.token_ids(case)[:, :11]
    options = {"max_new_tokens": 60, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = theirs.generate(torch.from_numpy(prompts), **options).numpy()
    with tempfile.TemporaryDirectory() as where:
        theirs.save_pretrained(where)
        source = families.load_pretrained(where)
    model = source.model.clone(precision="highest")
    draw = LMObjective(model, 64, ema_decay=None).policy(source.variables)
    drawn = draw(prompts.tolist(), max_new_tokens=60, sampling=Sampling(temperature=0), key=jax.random.key(0))
    np.testing.assert_array_equal(drawn.tokens, expected)
