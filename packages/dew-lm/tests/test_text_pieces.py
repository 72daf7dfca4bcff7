"""Text cut in pieces has the ids of the whole, under each family of word splitting."""

import sysconfig
from pathlib import Path

import pytest
import tokenizers as hf
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

from dew.data.text import pieces as cutting
from dew.data.text.pieces import after_line, before_space, pieces, safe_cuts

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LIBRARY = Path(sysconfig.get_paths()["stdlib"])
SOURCE = "\n".join((LIBRARY / name).read_text() for name in ("argparse.py", "calendar.py", "this.py"))
PROSE = (
    "Über 12 000 Wörter, viele\tTabs  und\r\nCRLF.\n\n\n«Цитата»  ещё раз\n日本語の文。\n次の行 x y z\n" * 60
)


def byte_level(**_):
    return None, pre_tokenizers.ByteLevel(add_prefix_space=False)


def llama3():
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return None, pre_tokenizers.Sequence([split, level])


def metaspace():
    return None, pre_tokenizers.Metaspace(prepend_scheme="always")


def metaspace_first():
    return None, pre_tokenizers.Metaspace(prepend_scheme="first")


def bert():
    return normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()


def unsplit():
    return normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None


def encoder(family):
    tokenizer = hf.Tokenizer(models.BPE(unk_token="?"))
    normalizer, splitter = family()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if splitter is not None:
        tokenizer.pre_tokenizer = splitter
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["?"], show_progress=False)
    sample = (SOURCE[:60_000] + PROSE).split("\n" if splitter is None else "\0")
    tokenizer.train_from_iterator(sample, trainer)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def blocks(text, size=5000):
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(cutting, "PIECE", 300)


@pytest.mark.parametrize("family", [byte_level, llama3, metaspace, metaspace_first, bert])
@pytest.mark.parametrize(
    "text", [SOURCE, PROSE, SOURCE.replace("\n", " ")], ids=["code", "prose", "one-line"]
)
def test_pieces_have_the_ids_of_the_whole(small, family, text):
    encode = encoder(family)
    cuts = safe_cuts(encode, text)
    parts = list(pieces(blocks(text), cuts))
    assert "".join(parts) == text
    assert len(parts) > len(text) / 3000
    assert [each for part in parts for each in encode(part)] == encode(text)


def test_byte_level_families_are_cut_at_lines_and_spaces():
    assert safe_cuts(encoder(llama3), SOURCE) == (after_line, before_space)


def test_a_tokenizer_that_merges_over_spaces_is_not_cut(small):
    encode = encoder(unsplit)
    assert safe_cuts(encode, SOURCE) == ()
    assert list(pieces(blocks("some text " * 900), ())) == ["some text " * 900]


def test_cuts_keep_runs_of_space_and_punctuation_together():
    assert before_space("ab  cd, ef\tgh (i) ", 0, 18) == -1
    assert before_space("ab cd ef", 0, 8) == 5
    assert after_line("ab\n\ncd\n ef\r\ngh\n", 0, 15) == -1
    assert after_line("ab\ncd.\nef", 0, 9) == 7


def test_a_text_without_a_place_to_cut_is_refused(monkeypatch):
    monkeypatch.setattr(cutting, "LONGEST", 20_000)
    with pytest.raises(ValueError, match="no place to cut the text"):
        list(pieces(["x" * 10_000] * 4, (after_line, before_space)))


def test_the_size_of_the_blocks_does_not_matter(small):
    cuts = (after_line, before_space)
    encode = encoder(byte_level)
    ids = [[i for part in pieces(blocks(SOURCE, size), cuts) for i in encode(part)] for size in (700, 9999)]
    assert ids[0] == ids[1]
