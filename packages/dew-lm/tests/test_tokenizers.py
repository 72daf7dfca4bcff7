"""Byte and tokenizer.json tokenizers."""

import json

import pytest
import tokenizers as hf
from tokenizers import decoders, models, pre_tokenizers, trainers

from dew.data.text import ByteTokenizer, HFTokenizer, load_tokenizer


def trained(specials=()):
    tokenizer = hf.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["def area(width):\n    return width * width\n"] * 4, trainer)
    return tokenizer


@pytest.fixture
def folder(tmp_path):
    trained(["<|endoftext|>"]).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_bytes_are_their_own_ids():
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("aé") == [97, 0xC3, 0xA9]
    assert tokenizer.decode([97, 0xC3, 0xA9]) == "aé"
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.pad_id) == (256, None, None)


def test_a_cut_character_decodes_to_the_replacement_mark():
    assert ByteTokenizer().decode([97, 0xC3]) == "a\ufffd"


def test_text_survives_the_round_trip(folder):
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.decode(tokenizer.encode("def größe(x): 日本")) == "def größe(x): 日本"


def test_file_and_folder_are_the_same_tokenizer(folder):
    assert HFTokenizer(folder).fingerprint() == HFTokenizer(folder / "tokenizer.json").fingerprint()


def test_other_merges_have_another_fingerprint(folder, tmp_path):
    other = tmp_path / "other.json"
    trained(["<s>"]).save(str(other))
    assert HFTokenizer(folder).fingerprint() != HFTokenizer(other).fingerprint()


def test_saved_padding_and_truncation_do_not_touch_the_ids(folder):
    plain = HFTokenizer(folder).encode("def area")
    backend = trained(["<|endoftext|>"])
    backend.enable_truncation(1)
    backend.enable_padding(length=50)
    backend.save(str(folder / "tokenizer.json"))
    assert HFTokenizer(folder).encode("def area") == plain
    assert HFTokenizer(folder).fingerprint()


def test_special_tokens_are_not_added_to_text(folder):
    backend = trained(["<|endoftext|>"])
    end = backend.token_to_id("<|endoftext|>")
    backend.post_processor = hf.processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", end)]
    )
    backend.save(str(folder / "tokenizer.json"))
    assert end not in HFTokenizer(folder).encode("def area")


def test_end_id_is_found_by_spelling_or_by_the_config_beside(folder):
    assert HFTokenizer(folder).eos_id == 0
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "a"}, "pad_token": "b"})
    )
    tokenizer = HFTokenizer(folder)
    assert tokenizer.decode([tokenizer.eos_id, tokenizer.pad_id]) == "ab"


def test_vocabulary_spans_gaps_between_ids(tmp_path):
    hf.Tokenizer(models.WordLevel({"a": 0, "b": 9}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    assert HFTokenizer(tmp_path).vocab_size == 10


def test_batches_encode_as_single_texts(folder):
    tokenizer = HFTokenizer(folder)
    texts = ["def area", "", "return width"]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_a_missing_tokenizer_says_what_can_be_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gpt2 is not there; write byte, or the path"):
        load_tokenizer("gpt2")
    with pytest.raises(FileNotFoundError, match=r"is a folder without tokenizer\.json"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("content", [b"{}", b"plain words", b"\xff\xfe\x00"])
def test_another_kind_of_file_is_refused_by_name(tmp_path, content):
    file = tmp_path / "notes.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"notes\.json is no tokenizer\.json"):
        load_tokenizer(str(file))


def test_another_end_token_is_another_tokenizer(tmp_path):
    """Its ids differ: the end id stands behind every document."""
    trained(["<one>", "<two>"]).save(str(tmp_path / "tokenizer.json"))
    found = set()
    for end in ("<one>", "<two>", None):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
        found.add(HFTokenizer(tmp_path).fingerprint())
    assert len(found) == 3
