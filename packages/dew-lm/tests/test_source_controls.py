"""A source's generation controls: one by one as transformers reads them, refusals by name, precedence."""

import dataclasses
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import dew.interop
from dew.data.text import ByteTokenizer
from dew.inference.text import RunProcessor, TextGeneration
from dew.inference.text.controls import CONTROLS
from dew.inference.text.source import source_task
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.sampling import Beam, Sampling, Speculative, StepState, decoding

ROOT = Path(__file__).resolve().parents[3]
SPEC = importlib.util.spec_from_file_location("make_controls_golden", ROOT / "tools/make_controls_golden.py")
assert SPEC is not None and SPEC.loader is not None
reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference)

CLASSES = {
    "Temperature": "TemperatureLogitsWarper",
    "TopK": "TopKLogitsWarper",
    "TopP": "TopPLogitsWarper",
    "MinP": "MinPLogitsWarper",
    "Typical": "TypicalLogitsWarper",
    "EpsilonCutoff": "EpsilonLogitsWarper",
    "EtaCutoff": "EtaLogitsWarper",
    "TopH": "TopHLogitsWarper",
    "Renormalize": "LogitNormalization",
    "RemoveInvalidValues": "InfNanRemoveLogitsProcessor",
    "RepetitionPenalty": "RepetitionPenaltyLogitsProcessor",
    "PromptRepetitionPenalty": "EncoderRepetitionPenaltyLogitsProcessor",
    "NoRepeatNGram": "NoRepeatNGramLogitsProcessor",
    "PromptNoRepeatNGram": "EncoderNoRepeatNGramLogitsProcessor",
    "SuppressTokens": "SuppressTokensLogitsProcessor",
    "BeginSuppressTokens": "SuppressTokensAtBeginLogitsProcessor",
    "Partial": "SuppressTokensAtBeginLogitsProcessor",
    "ForcedBOS": "ForcedBOSTokenLogitsProcessor",
    "ForcedEOS": "ForcedEOSTokenLogitsProcessor",
    "MinLength": "MinLengthLogitsProcessor",
    "MinNewTokens": "MinNewTokensLengthLogitsProcessor",
    "ExponentialDecayLengthPenalty": "ExponentialDecayLengthPenalty",
}
MODEL = SimpleNamespace(vocab_size=256, max_seq_len=64, causal=True)


def task(generation=(), config=(), *, model=MODEL, tokenizer=None, sampling=None):
    return source_task(
        model,
        {},
        tokenizer=tokenizer or ByteTokenizer(),
        generation_config=dict(generation),
        config=dict(config),
        sampling=sampling,
    )


def reference_names(chain):
    """The chain under transformers' names; the best token of a greedy source is no processor there."""
    names = []
    for part in chain:
        if isinstance(part, decoding.SequenceBias):
            banned = bool(np.isneginf(part.biases).all())
            names.append("NoBadWordsLogitsProcessor" if banned else "SequenceBiasLogitsProcessor")
        elif not isinstance(part, decoding.Greedy):
            names.append(CLASSES[type(part).__name__])
    return names


@pytest.fixture(scope="module")
def stored():
    return json.loads(reference.GOLDEN.read_text())


def test_every_control_of_transformers_is_classified(stored):
    extra = {"tokenizer_name"}
    assert set(stored["controls"]) | extra == set(CONTROLS)


def test_a_chain_is_transformers_own_list_in_its_order(stored):
    chains = [entry["processors"] for entry in stored["chains"]]
    assert len({name for each in chains for name in each}) == 23
    for entry in stored["chains"]:
        expected = entry["processors"]
        if entry["config"].get("min_new_tokens") is not None:
            # There it is rewritten as a least length beside itself, which says the same.
            expected = [name for name in expected if name != "MinLengthLogitsProcessor"]
        if "top_k" not in entry["config"]:
            # There `generate()` fills it in with 50; here an unset control does nothing.
            expected = [name for name in expected if name != "TopKLogitsWarper"]
        assert reference_names(task(entry["config"]).logits) == expected, entry["config"]


def test_a_sampling_source_is_a_policy_and_its_chain():
    made = task(
        {
            "do_sample": True,
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.95,
            "min_p": 0.02,
            "eos_token_id": [3, 4],
            "pad_token_id": 9,
            "repetition_penalty": 1.1,
        }
    )
    assert made.sampling == Sampling(0.6, 20, (3, 4), 9, 0.95, 0.02)
    assert made.logits == (
        decoding.RepetitionPenalty(1.1),
        decoding.Temperature(0.6),
        decoding.TopK(20),
        decoding.TopP(0.95),
        decoding.MinP(0.02),
    )


def test_a_source_that_does_not_sample_takes_the_best_token():
    made = task({"temperature": 0.6, "top_p": 0.5, "top_k": 3, "eos_token_id": 3})
    assert made.sampling == Sampling(temperature=0.0, eos_id=3, pad_id=3)
    assert made.logits == (decoding.Greedy(),)


@pytest.mark.parametrize("given", [{}, {"top_k": 0}, {"top_k": None}])
def test_a_sampling_source_that_sets_no_top_k_keeps_every_token(given):
    made = task({"do_sample": True, **given})
    assert made.sampling == Sampling(temperature=1.0)
    assert not any(isinstance(part, decoding.TopK) for part in made.logits)


def test_the_budget_and_the_count_are_the_tasks():
    made = task({"max_length": 30, "max_new_tokens": 12, "num_return_sequences": 3})
    assert (made.max_length, made.max_new_tokens, made.n) == (30, 12, 3)
    assert (task().max_length, task().max_new_tokens, task().n) == (None, None, 1)


def test_values_come_from_the_generation_file_then_the_config_then_its_text_part():
    text = {"eos_token_id": 7, "repetition_penalty": 2.0}
    config = {"eos_token_id": 5, "pad_token_id": 6, "text_config": text}
    made = task({"pad_token_id": 8}, config)
    assert (made.sampling.eos_ids, made.sampling.pad_id) == ((5,), 8)
    assert made.logits[0] == decoding.RepetitionPenalty(2.0)
    assert task({"eos_token_id": None}, config).sampling.eos_ids == ()


def test_a_forced_end_is_that_of_the_request():
    forced = task({"forced_eos_token_id": [1, 2]}).logits[0]
    assert forced.max_length is None
    assert forced.eos.tolist() == [1, 2]


def test_tokens_kept_from_the_beginning_wait_for_a_forced_one():
    part = task({"begin_suppress_tokens": [1], "forced_bos_token_id": 0}).logits[1]
    suppressed = []
    for prompt, step in ((1, 0), (1, 1), (2, 0), (2, 1)):
        state = StepState(
            tokens=jnp.zeros((1, 4), jnp.int32),
            valid=jnp.arange(4)[None] < prompt + step,
            step=jnp.full(1, step),
            active=jnp.ones(1, bool),
            keys=jax.random.split(jax.random.key(0), 1),
            prompt_width=prompt,
        )
        suppressed.append(bool(jnp.isneginf(part(state, jnp.zeros((1, 3)))[0, 1])))
    assert suppressed == [False, True, True, False]


def test_least_lengths_without_an_end_id_do_nothing():
    assert task({"min_length": 9, "min_new_tokens": 3}).logits == (decoding.Greedy(),)
    made = task({"min_length": 9, "min_new_tokens": 0, "eos_token_id": 1})
    assert made.logits == (decoding.Greedy(),)


def test_stop_strings_are_a_criterion_over_the_models_ids():
    (criterion,) = task({"stop_strings": ["ab", "\n"]}, tokenizer=ByteTokenizer()).stopping
    assert criterion.strings == ("ab", "\n")
    assert len(criterion.classes) == MODEL.vocab_size
    with pytest.raises(ValueError, match=r"stop_strings='x' need its tokenizer"):
        source_task(MODEL, {}, tokenizer=None, generation_config={"stop_strings": "x"}, config={})


def test_beams_are_a_search_whose_chain_ends_after_the_processors():
    made = task(
        {
            "num_beams": 4,
            "length_penalty": 0.5,
            "early_stopping": "never",
            "num_return_sequences": 2,
            "eos_token_id": [3, 4],
            "no_repeat_ngram_size": 2,
            "temperature": 0.3,
        }
    )
    assert made.strategy == Beam(4, 0.5, "never", stop_ids=2)
    assert made.logits == (decoding.NoRepeatNGram(2),)
    assert made.n == 2


@pytest.mark.parametrize(
    ("generation", "block", "confidence"),
    [
        ({}, 3, 0.0),
        ({"num_assistant_tokens": 1}, 2, 0.0),
        ({"assistant_confidence_threshold": 0.4, "num_assistant_tokens_schedule": "constant"}, 3, 0.4),
    ],
)
def test_prediction_depths_draft_as_many_tokens_as_the_source_says(generation, block, confidence):
    model = SimpleNamespace(**vars(MODEL), num_nextn_predict_layers=2)
    made = task({"use_mtp": True, **generation}, model=model)
    assert made.strategy == Speculative(block, confidence)
    assert task(generation, model=model).strategy is None


def test_drafting_without_prediction_depths_is_refused():
    with pytest.raises(ValueError, match="prediction depths"):
        task({"use_mtp": True})


def test_a_policy_of_the_callers_replaces_the_chain_and_nothing_else():
    source = {
        "do_sample": True,
        "temperature": -1.0,
        "guidance_scale": 3.0,
        "watermarking_config": {},
        "sequence_bias": "broken",
        "stop_strings": "x",
        "num_return_sequences": 2,
        "max_new_tokens": 7,
        "pad_token_id": -1,
    }
    made = task(source, sampling=Sampling(temperature=0.5, eos_id=1))
    assert made.sampling == Sampling(temperature=0.5, eos_id=1)
    assert made.logits is None
    assert (made.n, made.max_new_tokens, made.stopping[0].strings) == (2, 7, ("x",))
    with pytest.raises(ValueError, match="guidance_scale"):
        task(source)
    with pytest.raises(ValueError, match="max_time"):
        task({**source, "max_time": 2.0}, sampling=Sampling())


REFUSED = {
    "use_cache": False,
    "cache_implementation": "quantized",
    "cache_config": {"nbits": 4},
    "prefill_chunk_size": 64,
    "continuous_batching_config": {},
    "compile_config": {},
    "disable_compile": True,
    "output_attentions": True,
    "output_hidden_states": True,
    "output_scores": True,
    "output_logits": True,
    "low_memory": True,
    "max_time": 3.0,
    "token_healing": True,
    "guidance_scale": 1.5,
    "penalty_alpha": 0.6,
    "dola_layers": "high",
    "watermarking_config": {"bias": 2.0},
    "speculation_type": "dflash",
    "num_assistant_tokens_schedule": "heuristic",
    "assistant_ensemble_weight": 0.5,
    "assistant_early_exit": 4,
    "assistant_lookbehind": 5,
    "target_lookbehind": 5,
    "prompt_lookup_num_tokens": 3,
    "max_matching_ngram_size": 2,
    "is_assistant": True,
    "constraints": [],
    "force_words_ids": [[1]],
}
"""Control -> a value that is refused by its name."""
BEAM_ONLY = {"num_beam_groups": 2, "diversity_penalty": 0.5}


@pytest.mark.parametrize("name", REFUSED)
def test_a_control_that_is_not_done_here_is_refused_by_its_name(name):
    with pytest.raises(ValueError, match=rf"{name}=.* \(\w+"):
        task({name: REFUSED[name]})


@pytest.mark.parametrize("name", BEAM_ONLY)
def test_a_control_of_searches_is_judged_where_there_is_one(name):
    assert task({name: BEAM_ONLY[name]}).logits == (decoding.Greedy(),)
    with pytest.raises(ValueError, match=name):
        task({name: BEAM_ONLY[name], "num_beams": 2})


def test_every_refusal_of_the_table_is_tried():
    assert {name for name, each in CONTROLS.items() if each.refused} == {*REFUSED, *BEAM_ONLY}


@pytest.mark.parametrize(
    ("generation", "named"),
    [
        ({"num_beams": 2, "do_sample": True}, "do_sample=True with num_beams=2"),
        ({"num_beams": 2, "use_mtp": True}, "a request runs one strategy"),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences=3 with num_beams=2"),
        ({"max_cache_len": 65}, "max_cache_len=65 is above"),
        ({"temperatur": 1.0}, "temperatur: no control"),
        ({"do_sample": "yes"}, "true or false"),
        ({"num_beams": "4"}, "at least 1"),
        ({"do_sample": True, "top_k": "many"}, "top_k='many'"),
        ({"do_sample": True, "top_k": -1}, "top_k=-1"),
        ({"do_sample": True, "typical_p": -0.5}, "typical_p=-0.5"),
        ({"no_repeat_ngram_size": -2}, "no_repeat_ngram_size=-2"),
        ({"bad_words_ids": [1, 2]}, "list of lists"),
        ({"exponential_decay_length_penalty": [3, 1.5]}, "no eos_token_id"),
        ({"max_time": 1.0, "dola_layers": "low"}, "max_time.*dola_layers|dola_layers.*max_time"),
    ],
)
def test_a_control_that_cannot_be_followed_is_named(generation, named):
    with pytest.raises(ValueError, match=named):
        task(generation)


@pytest.mark.parametrize(
    "generation",
    [
        {"penalty_alpha": 0.6, "top_k": 1},
        {"penalty_alpha": 0.6, "do_sample": True},
        {"cache_implementation": "static", "use_cache": True, "max_cache_len": 64},
        {"transformers_version": "4.40.0", "_from_model_config": True, "bos_token_id": 1},
        {"num_assistant_tokens": 5, "assistant_confidence_threshold": 0.4, "early_stopping": True},
        {"assistant_ensemble_weight": 1.0, "guidance_scale": 1, "return_dict_in_generate": True},
        {name: None for name in CONTROLS},
    ],
)
def test_a_control_without_effect_changes_nothing(generation):
    made, plain = task(generation), task({"do_sample": generation.get("do_sample")})
    assert made.logits == plain.logits
    assert (made.sampling, made.stopping, made.strategy) == (plain.sampling, (), None)


def test_a_written_policy_is_read_back(tmp_path):
    model = CausalTransformer(
        vocab_size=256, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32, max_seq_len=32
    )
    variables = nn.unbox(model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))
    policy = Sampling(temperature=0.7, top_k=20, top_p=0.9, min_p=0.05, eos_id=(10, 0), pad_id=1)
    folder = str(tmp_path / "written")
    dew.interop.save_pretrained_decoder(
        model, variables, folder, tokenizer=ByteTokenizer(), sampling=policy, max_new_tokens=6
    )
    read = dew.interop.load_pretrained(folder).text_generation()
    assert (read.sampling, read.max_new_tokens) == (policy, 6)
    written = TextGeneration(model, variables, RunProcessor(ByteTokenizer()), sampling=policy)
    assert read("abc", seed=2).text == written("abc", 6, seed=2).text
    greedy = dataclasses.replace(policy, temperature=0.0)
    own = dew.interop.load_pretrained(folder).text_generation(sampling=greedy)
    assert own("abc", seed=2).text == written("abc", 6, seed=2, sampling=greedy).text


@pytest.mark.oracle
def test_the_stored_controls_and_chains_are_those_of_the_installed_transformers(stored):
    pytest.importorskip("transformers")
    assert reference.inventory() == stored["controls"]
    assert reference.golden() == stored["chains"]
