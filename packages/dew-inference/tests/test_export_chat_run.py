"""A fine-tune on conversations: what it keeps of the model it started from, and what it is exported with."""

from __future__ import annotations

import json
import shutil

import jax
import jax.numpy as jnp
import pytest
import tokenizers as hf
from flax import linen as nn

import dew
from dew.cli.entry import main
from dew.data.text import HFTokenizer
from dew.interop import save_pretrained_decoder
from dew.nn.backbones.causal_transformer import CausalTransformer

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MARKS = ["<s>", "</s>", "<unk>", "<|end|>", "<|user|>", "<|assistant|>"]
SIZES = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 24, "max_seq_len": 64}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A published chat model that samples at 0.6 and ends at </s>."""
    folder = tmp_path_factory.mktemp("published") / "model"
    model = CausalTransformer(vocab_size=40, **SIZES)
    save_pretrained_decoder(
        model, nn.unbox(model.init(jax.random.key(7), jnp.zeros((1, 1), jnp.int32))), folder
    )
    letters = {mark: number for number, mark in enumerate([*MARKS, *"abcdefghijkl \n?"])}
    tokenizer = hf.Tokenizer(hf.models.WordLevel(letters, unk_token="<unk>"))
    tokenizer.pre_tokenizer = hf.pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = hf.decoders.Fuse()
    tokenizer.add_special_tokens(MARKS)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    controls = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps({**controls, "temperature": 0.6}))
    return folder


@pytest.fixture(scope="module")
def run(source, tmp_path_factory):
    """A run on conversations whose source folder is gone since."""
    place = tmp_path_factory.mktemp("runs")
    moved = shutil.copytree(source, place / "moved")
    talk = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]
    (place / "talks.jsonl").write_text((json.dumps({"messages": talk}) + "\n") * 16)
    words = ["--pretrained", moved, "--tokenizer", moved, "--loss-role", "assistant", "--data.path"]
    words += [place / "talks.jsonl", "--data.seq-len", 32, "--data.val-fraction", 0, "--trainer.name", "chat"]
    words += ["--trainer.checkpoint-dir", place, "--trainer.steps", 1, "--trainer.batch-size", 1]
    words += ["--sample-tokens", 4, "--sample-prompt", "ab", "--trainer.eval-every", "None"]
    assert main(["train", "lm", "data:chat-messages", *map(str, words)]) == 0
    shutil.rmtree(moved)
    return place / "chat"


def test_responses_end_where_the_source_and_the_template_end_them(run):
    sampling = json.loads((run / "run.json").read_text())["sampling"]
    assert (sampling["eos_id"], sampling["pad_id"]) == ([1, 3], 1)
    assert dew.pipeline(run).sampling.eos_ids == (1, 3)


def test_the_run_answers_in_its_template_without_the_source(run, capsys):
    assert main(["generate", str(run), "ab", "--chat", "--output", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    drawn = dew.pipeline(run)([0, 4, 6, 7, 3, 5], seed=0)
    assert found["tokens"] == drawn.tokens[0, 6 : 6 + int(drawn.lengths[0])].tolist()


def test_the_export_has_the_sources_template_tokens_and_controls(run, source, tmp_path):
    assert main(["export", str(run), str(tmp_path / "out")]) == 0
    out = tmp_path / "out"
    assert (out / "chat_template.jinja").read_text() == TEMPLATE
    told = json.loads((out / "tokenizer_config.json").read_text())
    assert {**told, **json.loads((source / "tokenizer_config.json").read_text())} == told
    controls = json.loads((out / "generation_config.json").read_text())
    assert controls == {**json.loads((source / "generation_config.json").read_text()), "eos_token_id": [1, 3]}
    config = json.loads((out / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (0, [1, 3], 1)
    assert HFTokenizer(out).encode("ab") == [6, 7]


def test_a_run_goes_on_without_the_sources_folder(run):
    assert main(["train", "lm", "--resume", str(run), "--trainer.steps", "2"]) == 0


@pytest.mark.oracle
@pytest.mark.slow
def test_transformers_renders_and_stops_as_the_run_does(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    assert main(["export", str(run), str(tmp_path / "out")]) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    asked = [{"role": "user", "content": "ab"}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert ids == [0, 4, 6, 7, 3, 5]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    assert tokenizer("ab")["input_ids"] == [6, 7]
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.generation_config.eos_token_id == [1, 3]
