"""A run's tokenizer as files of the tokenizers library: they encode and decode as the run does."""

from __future__ import annotations

import json

import pytest
import tokenizers as hf
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from dew.data.text import ByteTokenizer, HFTokenizer
from dew.interop.decoders.tokens import byte_level, write_tokenizer

BYTES = byte_level()


@given(st.text())
def test_any_text_has_the_ids_of_its_bytes(text):
    assert BYTES.encode(text).ids == list(text.encode())


@given(st.binary())
def test_any_bytes_decode_as_the_run_decodes_them(data):
    assert BYTES.decode(list(data)) == ByteTokenizer().decode(list(data))


def test_every_byte_is_its_own_id():
    assert BYTES.get_vocab_size() == 256
    assert [BYTES.decode([byte]) for byte in range(128)] == [chr(byte) for byte in range(128)]


def test_alphabet_is_the_one_of_the_library():
    assert set(BYTES.get_vocab()) == set(pre_tokenizers.ByteLevel.alphabet())


def test_byte_file_is_read_back_equal(tmp_path):
    write_tokenizer(tmp_path, ByteTokenizer(), longest=64)
    text = "def größe(x):\r\n\treturn '日本' \N{GRINNING FACE}\0"
    read = HFTokenizer(tmp_path)
    assert read.encode(text) == ByteTokenizer().encode(text) and read.decode(read.encode(text)) == text
    assert (read.vocab_size, read.eos_id, read.pad_id) == (256, None, None)


@pytest.fixture
def framed(tmp_path):
    """A tokenizer file that puts a token in front of every text it is asked to encode."""
    backend = hf.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["def area(width):\n    return width * width\n"] * 4, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    backend.save(str(tmp_path / "tokenizer.json"))
    return HFTokenizer(tmp_path)


def test_tokenizer_file_encodes_without_asking_as_the_run_did(framed, tmp_path):
    (tmp_path / "out").mkdir()
    write_tokenizer(tmp_path / "out", framed, longest=64)
    text = "def area(width): return 'größe'"
    written = hf.Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    assert written.encode(text).ids == framed.encode(text)
    assert HFTokenizer(tmp_path / "out").decode(framed.encode(text)) == text


def test_special_tokens_and_length_stand_beside_the_file(framed, tmp_path):
    (tmp_path / "out").mkdir()
    write_tokenizer(tmp_path / "out", framed, longest=64)
    told = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    assert (told["eos_token"], told["pad_token"], told["model_max_length"]) == ("</s>", "<pad>", 64)


def test_unknown_tokenizer_is_refused_by_its_class(tmp_path):
    with pytest.raises(ValueError, match=r"tokenizer object has no tokenizer\.json"):
        write_tokenizer(tmp_path, object(), longest=64)
    assert list(tmp_path.iterdir()) == []
