"""Every transform with a class in transformers, on over a thousand random rows: kept sets and scores."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest

from dew.sampling import StepState, decoding

ROOT = Path(__file__).resolve().parents[3]
SPEC = importlib.util.spec_from_file_location(
    "make_transforms_golden", ROOT / "tools/make_transforms_golden.py"
)
assert SPEC is not None and SPEC.loader is not None
reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference)

FORCED = ("ForcedBOS", "ForcedEOS")
apply = jax.jit(lambda transform, state, logits: transform(state, logits))


@pytest.fixture(scope="module")
def stored():
    return np.load(reference.GOLDEN)


def state_of(rows):
    return StepState(
        tokens=rows.tokens,
        valid=rows.valid,
        step=rows.step,
        active=np.ones(len(rows.step), bool),
        keys=jax.random.split(jax.random.key(0), len(rows.step)),
        prompt_width=reference.PROMPT,
    )


@functools.cache
def transformed(name, index, setting):
    """What Dew's transform makes of the rows, and the rows."""
    rows = reference.case(name, index)
    return np.asarray(apply(getattr(decoding, name)(*setting), state_of(rows), rows.logits)), rows


def bits(stored, name, what, *shape):
    settings = len(reference.SETTINGS[name])
    count = settings * int(np.prod(shape))
    return np.unpackbits(stored[f"{name}/{what}"])[:count].reshape(settings, *shape).astype(bool)


@pytest.mark.parametrize("name", reference.SETTINGS)
def test_a_transform_keeps_the_tokens_that_transformers_keeps(stored, name):
    sets = bits(stored, name, "kept", reference.ROWS, reference.VOCAB)
    clear = bits(stored, name, "clear", reference.ROWS)
    assert clear.sum() > 1000
    for index, setting in enumerate(reference.SETTINGS[name]):
        scores, rows = transformed(name, index, setting)
        np.testing.assert_array_equal(reference.kept(scores)[clear[index]], sets[index][clear[index]])
        if name not in reference.CHANGES:
            left = reference.kept(scores) & (scores != 0 if name in FORCED else True)
            np.testing.assert_array_equal(scores[left], rows.logits[left])


@pytest.mark.parametrize("name", reference.CHANGES)
def test_a_transform_gives_the_scores_that_transformers_gives(stored, name):
    for index, setting in enumerate(reference.SETTINGS[name]):
        scores, _ = transformed(name, index, setting)
        np.testing.assert_allclose(
            reference.projected(scores), stored[f"{name}/sum"][index], rtol=2e-6, atol=2e-4
        )


@pytest.mark.oracle
@pytest.mark.parametrize("name", reference.SETTINGS)
def test_the_stored_values_are_those_of_the_installed_transformers(stored, name):
    pytest.importorskip("transformers")
    for key, value in reference.golden(name).items():
        np.testing.assert_array_equal(stored[key], value, err_msg=key)


@pytest.mark.oracle
@pytest.mark.parametrize("name", sorted(set(reference.SETTINGS) - set(reference.THRESHOLDS)))
def test_scores_equal_those_of_the_installed_transformers_one_by_one(name):
    pytest.importorskip("transformers")
    index = 2
    setting = reference.SETTINGS[name][index]
    scores, rows = transformed(name, index, setting)
    expected = reference.results(name, setting, rows)
    np.testing.assert_allclose(scores, expected, rtol=2e-6, atol=1e-6)
