"""`Prompts` and `PreferencePairs`: rows from texts and from messages, and what does not fit."""

import json
from pathlib import Path

import numpy as np
import pytest

from dew.data import DataPartition, PreferencePairs, Prompts
from dew.data.text import ByteTokenizer, HFTokenizer
from dew.testing import DatasetContract

CHAT = Path(__file__).with_name("golden") / "chat"
TEMPLATE = str(CHAT / "chatml.jinja")
BYTE = ByteTokenizer()
ASKED = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DEW_CACHE", str(tmp_path / "cache"))


def jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def user(text):
    return [{"role": "user", "content": text}]


def assistant(text):
    return [{"role": "assistant", "content": text}]


def rows(spec, tokenizer=BYTE):
    data = spec.load(batch=1, tokenize=tokenizer)
    reader = data.train(DataPartition())
    return [{name: leaf[0] for name, leaf in next(reader).items()} for _ in range(data.records)]


def spelled(ids):
    return bytes(np.asarray(ids).astype(np.uint8).tolist()).decode()


def test_prompts_of_text_and_of_messages_stand_first_in_their_rows(tmp_path):
    path = jsonl(tmp_path / "p.jsonl", [{"prompt": "1+2="}, {"prompt": user("Hello")}])
    found = rows(Prompts(path=path, template=TEMPLATE, prompt_tokens=80, val_fraction=0))
    texts = sorted(spelled(row["prompt"][row["prompt_mask"] == 1]) for row in found)
    assert texts == sorted(["1+2=", ASKED.format("Hello")])
    for row in found:
        count = row["prompt_mask"].sum()
        assert row["prompt_mask"][:count].all() and not row["prompt"][count:].any()
        assert row["prompt"].shape == row["prompt_mask"].shape == (80,)


def test_a_prompt_that_does_not_fit_is_left_out_and_counted_or_refused(tmp_path):
    path = jsonl(tmp_path / "p.jsonl", [{"prompt": "short"}, {"prompt": "x" * 9}])
    spec = Prompts(path=path, prompt_tokens=8, val_fraction=0)
    assert spec.load(batch=1, tokenize=BYTE).description == (
        "train: 1 records; 1 of more than 8 ids left out",
    )
    with pytest.raises(
        ValueError, match=r"1 of 2 records .*more than 8 ids, up to 9; raise data\.prompt_tokens"
    ):
        Prompts(path=path, prompt_tokens=8, val_fraction=0, too_long="refuse").load(batch=1, tokenize=BYTE)
    empty = jsonl(tmp_path / "e.jsonl", [{"prompt": "a"}, {"prompt": ""}])
    with pytest.raises(ValueError, match="record 1 of the train split makes no id"):
        Prompts(path=empty, val_fraction=0).load(batch=1, tokenize=BYTE)
    with pytest.raises(ValueError, match="none of the 2 records fits 3 ids"):
        Prompts(path=path, prompt_tokens=3, val_fraction=0).load(batch=1, tokenize=BYTE)


def answered(row, name):
    """The text of a row, and that of its counted targets."""
    mask = row[f"{name}_mask"].astype(bool)
    return spelled(row[name]).rstrip("\0"), spelled(row[name][1:][mask])


def test_a_pairs_masks_count_its_answers_targets(tmp_path):
    path = jsonl(tmp_path / "p.jsonl", [{"prompt": "1+2=", "chosen": "3", "rejected": "12"}])
    (row,) = rows(PreferencePairs(path=path, seq_len=9, val_fraction=0))
    assert answered(row, "chosen") == ("1+2=3", "3") and answered(row, "rejected") == ("1+2=12", "12")
    assert {name: leaf.shape for name, leaf in row.items()} == {
        "chosen": (10,),
        "chosen_mask": (9,),
        "rejected": (10,),
        "rejected_mask": (9,),
    }


def test_a_text_answer_ends_with_the_end_of_text(tmp_path):
    tokenizer = HFTokenizer(CHAT / "byte_level")
    path = jsonl(tmp_path / "p.jsonl", [{"prompt": "What is", "chosen": " red", "rejected": " blue"}])
    (row,) = rows(PreferencePairs(path=path, seq_len=20, val_fraction=0), tokenizer)
    ids = [*tokenizer.encode("What is red"), tokenizer.eos_id]
    assert row["chosen"][: len(ids)].tolist() == ids and not row["chosen"][len(ids) :].any()
    assert row["chosen_mask"].sum() == len(tokenizer.encode(" red")) + 1


MESSAGES = [
    {"prompt": user("Hi"), "chosen": assistant("Hello."), "rejected": assistant("What?")},
    {"chosen": [*user("Hi"), *assistant("Hello.")], "rejected": [*user("Hi"), *assistant("What?")]},
]


@pytest.mark.parametrize("record", MESSAGES, ids=["prompt", "whole conversations"])
def test_answers_of_messages_follow_the_header_that_asks(tmp_path, record):
    path = jsonl(tmp_path / "p.jsonl", [record])
    (row,) = rows(PreferencePairs(path=path, template=TEMPLATE, seq_len=99, val_fraction=0))
    assert answered(row, "chosen") == (ASKED.format("Hi") + "Hello.<|im_end|>\n", "Hello.<|im_end|>\n")
    assert answered(row, "rejected")[1] == "What?<|im_end|>\n"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": "a", "chosen": "b"}, "line 1 of .* has no 'rejected' .*as data.rejected"),
        ({"prompt": "a", "chosen": "b", "rejected": user("c")}, "the prompt is a str and an answer a list"),
        ({"chosen": "b", "rejected": "c"}, "must be whole conversations"),
        ({"chosen": user("b"), "rejected": user("c")}, "must begin alike and then differ"),
        ({"prompt": user("a"), "chosen": assistant("b"), "rejected": assistant("c")}, "has no chat template"),
        ({"prompt": "", "chosen": "b", "rejected": "c"}, "line 1 of .* has an empty prompt or answer"),
        ({"prompt": "a", "chosen": "", "rejected": "c"}, "line 1 of .* has an empty prompt or answer"),
    ],
)
def test_records_that_are_no_pair_are_refused(tmp_path, record, message):
    path = jsonl(tmp_path / "p.jsonl", [record])
    with pytest.raises(ValueError, match=message):
        PreferencePairs(path=path, val_fraction=0).load(batch=1, tokenize=BYTE)


@pytest.mark.parametrize("absent", [{}, {"question": None}])
def test_a_named_prompt_that_a_record_lacks_is_refused_though_its_answers_begin_alike(tmp_path, absent):
    answers = {"chosen": assistant("Hello."), "rejected": assistant("What?")}
    path = jsonl(tmp_path / "p.jsonl", [{"question": user("Hi"), **answers}, {**MESSAGES[1], **absent}])
    with pytest.raises(ValueError, match=r"line 2 of .* has no .*'question'.*data\.prompt"):
        PreferencePairs(path=path, prompt="question", template=TEMPLATE, val_fraction=0).load(
            batch=1, tokenize=BYTE
        )


def test_a_prompt_of_another_name_is_read_there(tmp_path):
    path = jsonl(tmp_path / "p.jsonl", [{"question": "1+2=", "chosen": "3", "rejected": "12"}])
    (row,) = rows(PreferencePairs(path=path, prompt="question", seq_len=9, val_fraction=0))
    assert answered(row, "chosen") == ("1+2=3", "3")


class TestPrompts(DatasetContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = jsonl(tmp_path / "p.jsonl", [{"prompt": f"{n}+1="} for n in range(30)])

    def spec(self):
        return Prompts(path=self.path, prompt_tokens=8, val_fraction=0.2)

    def tokenize(self):
        return BYTE


class TestPreferencePairs(DatasetContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        pairs = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": str(n)} for n in range(30)]
        self.path = jsonl(tmp_path / "p.jsonl", pairs)

    def spec(self):
        return PreferencePairs(path=self.path, seq_len=9, val_fraction=0.2)

    def tokenize(self):
        return BYTE
