"""Where a run's responses end: ids of the source, of the tokenizer, and of the template's turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dew.data.chat import ChatMessages, ChatTemplate
from dew.data.text import ByteTokenizer, HFTokenizer
from dew.objectives.lm.ends import turn_end, with_ends
from dew.objectives.lm.kept import source_controls
from dew.sampling import Sampling

CHAT = Path(__file__).parent / "golden" / "chat"
TOKENIZER = HFTokenizer(CHAT / "byte_level")
CHATML = str(CHAT / "chatml.jinja")
END, TURN = (TOKENIZER.backend.token_to_id(each) for each in ("</s>", "<|im_end|>"))


def ends(controls, *, chats=(), sampling=Sampling(), tokenizer=TOKENIZER):
    return with_ends(sampling, tokenizer, vocab_size=TOKENIZER.vocab_size, controls=controls, chats=chats)


def test_the_turns_end_is_the_token_behind_the_answer():
    assert turn_end(TOKENIZER, ChatTemplate(Path(CHATML).read_text())) == TURN


@pytest.mark.parametrize("template", ["{{ messages[1].content }} and on", "{{ raise_exception('no') }}"])
def test_a_template_that_marks_no_end_gives_none(template):
    assert turn_end(TOKENIZER, ChatTemplate(template)) is None


def test_the_sources_ids_come_before_the_tokenizers_and_the_turns_beside_them():
    assert ends({}).eos_ids == (END,)
    assert ends({"eos_token_id": 5, "pad_token_id": 6}) == Sampling(eos_id=5, pad_id=6)
    assert ends({"eos_token_id": [5, 7]}, chats=[ChatMessages(template=CHATML)]).eos_ids == (5, 7, TURN)


def test_ids_of_the_run_are_kept_and_bytes_have_none():
    assert ends({"eos_token_id": 5}, sampling=Sampling(eos_id=9)) == Sampling(eos_id=9)
    assert ends({}, tokenizer=ByteTokenizer(), chats=[ChatMessages()]) == Sampling()


def test_an_id_that_the_model_never_draws_ends_nothing():
    assert ends({"eos_token_id": [10**6, 5], "pad_token_id": -1}).eos_ids == (5,)
    assert ends({"eos_token_id": 5, "pad_token_id": -1}).pad_id == (TOKENIZER.pad_id or 5)


def test_ids_that_the_description_alone_names_are_a_sources_too(tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "pad_token_id": None}))
    (tmp_path / "config.json").write_text(
        json.dumps({"eos_token_id": 9, "pad_token_id": 3, "bos_token_id": 1})
    )
    assert source_controls(tmp_path) == {"eos_token_id": 2, "pad_token_id": 3, "bos_token_id": 1}
