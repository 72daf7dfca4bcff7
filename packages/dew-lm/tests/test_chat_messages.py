"""`ChatMessages`: conversations from files to packed rows with roles, and what an objective learns from
them."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dew.config import TrainerConfig
from dew.data import ChatMessages, DataMixture, DataPartition, PackedTokens, TokenWindows
from dew.data.chat import Role
from dew.data.mixture import Part
from dew.data.text import ByteTokenizer, HFTokenizer
from dew.data.tokens import CorpusWriter
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.base import Step
from dew.objectives.lm import LMObjective, LMRunConfig
from dew.objectives.lm.recipe import train
from dew.testing import DatasetContract
from dew.training.launch import plan_run

CHAT = Path(__file__).with_name("golden") / "chat"
TEMPLATE = str(CHAT / "chatml.jinja")
BYTE = ByteTokenizer()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DEW_CACHE", str(tmp_path / "cache"))


def talk(question, answer):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


TALKS = [talk("a" * (n % 7 + 1), chr(97 + n) * (3 * n % 11 + 1)) for n in range(20)]


def jsonl(path, talks=TALKS, **more):
    path.write_text("".join(json.dumps({"messages": each, **more}) + "\n" for each in talks))
    return path


def spec(path, **fields):
    return ChatMessages(
        **{"path": str(path), "template": TEMPLATE, "seq_len": 127, "val_fraction": 0, **fields}
    )


def epoch(spec, tokenizer=BYTE):
    data = spec.load(batch=1, tokenize=tokenizer)
    reader = data.train(DataPartition())
    return [{name: leaf[0] for name, leaf in next(reader).items()} for _ in range(data.records)]


def texts(rows, role=None):
    """The conversations of the rows, or of each what one role said."""
    found = []
    for row in rows:
        for segment in range(1, row["text_segment_ids"].max() + 1):
            inside = row["text_segment_ids"] == segment
            inside &= True if role is None else row["text_roles"] == role
            found.append(bytes(row["text"][inside].astype(np.uint8).tolist()).decode())
    return sorted(found)


def test_every_conversation_stands_once_in_an_epoch_and_says_who_speaks(tmp_path):
    rows = epoch(spec(jsonl(tmp_path / "talks.jsonl")))
    wholes = [
        f"<|im_start|>user\n{t[0]['content']}<|im_end|>\n<|im_start|>assistant\n{t[1]['content']}<|im_end|>\n"
        for t in TALKS
    ]
    assert texts(rows) == sorted(wholes)
    assert texts(rows, Role.ASSISTANT) == sorted(f"{t[1]['content']}<|im_end|>\n" for t in TALKS)
    assert len(rows) < len(TALKS)
    for row in rows:
        assert {name: leaf.shape for name, leaf in row.items()} == dict.fromkeys(row, (128,))
        assert (row["text_roles"][row["text_segment_ids"] == 0] == 0).all()


def write_parquet(folder):
    table = pa.Table.from_pylist([{"messages": each} for each in TALKS])
    pq.write_table(table.slice(0, 9), folder / "train-00000-of-00002.parquet")
    pq.write_table(table.slice(9), folder / "train-00001-of-00002.parquet")


def arrow(file, talks):
    table = pa.Table.from_pylist([{"messages": each} for each in talks])
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def write_saved(folder):
    """As `datasets` 5 writes one split: the stream, and a `state.json` that names it."""
    arrow(folder / "data-00000-of-00001.arrow", TALKS)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_format_type": None}
    (folder / "state.json").write_text(json.dumps(state))


def write_saved_splits(folder):
    for split in ("train", "test"):
        (folder / split).mkdir()
        write_saved(folder / split)
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')


@pytest.mark.parametrize("write", [write_parquet, write_saved, write_saved_splits])
def test_every_kind_of_file_gives_the_same_rows(tmp_path, write):
    folder = tmp_path / "talks"
    folder.mkdir()
    write(folder)
    assert texts(epoch(spec(folder))) == texts(epoch(spec(jsonl(tmp_path / "talks.jsonl"))))
    data = spec(folder).load(batch=1, tokenize=BYTE)
    assert (data.val is not None) == (write is write_saved_splits)


def test_a_saved_folder_may_name_no_file_outside(tmp_path):
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "../secret.arrow"}]}')
    with pytest.raises(ValueError, match="which lies outside its folder"):
        spec(tmp_path).load(batch=1, tokenize=BYTE)


def test_conversations_are_held_out_by_their_hash(tmp_path):
    held = spec(jsonl(tmp_path / "talks.jsonl"), val_fraction=0.3)
    data = held.load(batch=1, tokenize=BYTE)
    rows = [{name: leaf[0] for name, leaf in batch.items()} for batch in data.val(DataPartition())]
    train = texts(epoch(held))
    assert sorted(train + texts(rows)) == texts(epoch(spec(tmp_path / "talks.jsonl")))
    again = epoch(spec(jsonl(tmp_path / "turned.jsonl", TALKS[::-1]), val_fraction=0.3))
    assert texts(again) == train and 0 < len(texts(rows)) < 12


@pytest.mark.parametrize(("too_long", "fate"), [("leave_out", "left out"), ("cut", "cut after 8")])
def test_a_text_without_a_target_is_counted_and_left_out(tmp_path, too_long, fate):
    plain = tmp_path / "plain.jinja"
    plain.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    said = [[{"role": "assistant", "content": text}] for text in ("too long a text", "fits", "x", "")]
    path = jsonl(tmp_path / "talks.jsonl", said)
    data = spec(path, template=str(plain), seq_len=7, too_long=too_long).load(batch=1, tokenize=BYTE)
    assert f"1 of more than 8 ids {fate}; 2 of fewer than 2 left out" in data.description[0]


def test_what_does_not_fit_is_counted_and_left_out_cut_or_refused(tmp_path):
    long = [*TALKS, talk("x", "y" * 200)]
    path = jsonl(tmp_path / "talks.jsonl", long)
    data = spec(path).load(batch=1, tokenize=BYTE)
    assert "21 conversations in 21 texts" in data.description[0]
    assert "1 of more than 128 ids left out" in data.description[0]
    assert len(texts(epoch(spec(path)))) == 20
    cut = [each for each in texts(epoch(spec(path, too_long="cut"))) if "y" * 50 in each]
    assert [len(each) for each in cut] == [128]
    with pytest.raises(ValueError, match=r"text 20 of the train split has \d+ ids, .*1 of 21 are too long"):
        spec(path, too_long="refuse").load(batch=1, tokenize=BYTE)
    with pytest.raises(ValueError, match="none of the 21 texts has 2 to 5 ids"):
        spec(path, seq_len=4).load(batch=1, tokenize=BYTE)


def test_the_second_load_renders_nothing(tmp_path, monkeypatch):
    path = jsonl(tmp_path / "talks.jsonl")
    first = epoch(spec(path))
    monkeypatch.setattr("dew.data.chat.store.spoken", lambda *_, **__: pytest.fail("rendered again"))
    np.testing.assert_array_equal(epoch(spec(path))[0]["text"], first[0]["text"])
    with pytest.raises(pytest.fail.Exception):
        epoch(spec(path, today="2026-01-31"))


def test_the_tokenizers_own_template_is_used(tmp_path):
    folder = shutil.copytree(CHAT / "byte_level", tmp_path / "tokenizer")
    shutil.copy(CHAT / "headers.jinja", folder / "chat_template.jinja")
    tokenizer = HFTokenizer(folder)
    row = epoch(spec(jsonl(tmp_path / "talks.jsonl", TALKS[:1]), template=None), tokenizer)[0]
    text = tokenizer.backend.decode(
        row["text"][row["text_segment_ids"] == 1].tolist(), skip_special_tokens=False
    )
    assert text == "<s><|start|>user<|end|>\n\na<|eot|><|start|>assistant<|end|>\n\na<|eot|>"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", r"line 1 of .*must be a JSON object"),
        ("{", r"line 1 of .* is no JSON"),
        ('{"text": "x"}', r"line 1 of .* has no 'messages' \(it has text\); .*data\.column"),
        ('{"messages": [{"role": "boss", "content": "x"}]}', r"line 1 of .*role='boss'"),
        (
            '{"messages": [{"role": "user", "content": 3}]}',
            r"line 1 of .*: message 1 \(user\): content=3 must",
        ),
    ],
)
def test_lines_that_hold_no_conversation_are_named(tmp_path, line, message):
    (tmp_path / "talks.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        spec(tmp_path / "talks.jsonl").load(batch=1, tokenize=BYTE)


def test_paths_that_hold_none_are_refused(tmp_path):
    (tmp_path / "talks.txt").write_text("hello")
    for path, error, message in (
        (tmp_path / "talks.txt", ValueError, r"must be one of \.jsonl"),
        (tmp_path / "nowhere", FileNotFoundError, "is not there"),
        (tmp_path, ValueError, r"holds no file of \.jsonl"),
    ):
        with pytest.raises(error, match=message):
            spec(path).load(batch=1, tokenize=BYTE)
    with pytest.raises(TypeError, match="must be the run's tokenizer"):
        spec(jsonl(tmp_path / "a.jsonl")).load(batch=1)


def test_a_conversation_is_held_out_alike_as_objects_as_json_and_with_null_fields(tmp_path):
    nulls = [[{**message, "name": None} for message in each] for each in TALKS]
    found = []
    for number, talks in enumerate((TALKS, [json.dumps(each, indent=1) for each in TALKS], nulls)):
        path = jsonl(tmp_path / f"{number}.jsonl", talks)
        found.append(texts(epoch(spec(path, val_fraction=0.3))))
    assert found[0] == found[1] == found[2] and 0 < len(found[0]) < len(TALKS)


def test_a_share_that_no_conversation_falls_into_is_told_where_validation_is_asked_for(tmp_path):
    data = spec(jsonl(tmp_path / "talks.jsonl"), val_fraction=1e-9).load(batch=1, tokenize=BYTE)
    assert data.val is None
    assert (
        data.description[1]
        == "val: data.val_fraction holds out none of 20 records, by their hashes; raise it"
    )
    with pytest.raises(
        ValueError, match=r"no validation data \(val: data\.val_fraction holds out none of 20"
    ):
        plan_run(LMRunConfig(trainer=TrainerConfig(batch_size=1, steps=1, eval_every=1)), data)


def test_a_template_that_writes_next_to_nothing_is_told_from_texts_that_do_not_fit(tmp_path):
    (tmp_path / "one.jinja").write_text("a")
    with pytest.raises(ValueError, match="each of the 20 texts has fewer than 2 ids"):
        spec(jsonl(tmp_path / "t.jsonl"), template=str(tmp_path / "one.jinja")).load(batch=1, tokenize=BYTE)


class TestContract(DatasetContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = jsonl(tmp_path / "talks.jsonl")

    def spec(self):
        return spec(self.path, seq_len=79, val_fraction=0.2)

    def tokenize(self):
        return BYTE


def test_two_shares_go_on_as_one_and_as_four(tmp_path):
    data = spec(jsonl(tmp_path / "talks.jsonl")).load(batch=4, tokenize=BYTE)
    whole = data.train(DataPartition())
    expected = [next(whole)["text_roles"].tolist() for _ in range(6)]
    halves = [data.train(DataPartition(index, 2)) for index in range(2)]
    for _ in range(3):
        for half in halves:
            next(half)
    for count in (1, 4):
        shares = [data.train(DataPartition(index, count)) for index in range(count)]
        for share in shares:
            share.set_state(halves[1].get_state())
        found = [[row for share in shares for row in next(share)["text_roles"].tolist()] for _ in range(3)]
        assert found == expected[3:]


def objective(**fields):
    model = CausalTransformer(vocab_size=256, hidden_size=16, num_layers=1, num_heads=2, max_seq_len=256)
    return LMObjective(model, 255, ema_decay=None, **fields)


def first_batch(path):
    batch = next(spec(path, seq_len=255).load(batch=2, tokenize=BYTE).train(DataPartition()))
    return {name: jnp.asarray(leaf) for name, leaf in batch.items()}


def test_only_the_assistants_targets_train(tmp_path):
    batch = first_batch(jsonl(tmp_path / "talks.jsonl"))
    learner = objective(loss_role=Role.ASSISTANT)
    variables = learner.init(jax.random.key(0))
    step = Step(step=jnp.asarray(0), key=jax.random.key(1), ema=None)
    stats, _ = learner.loss(variables, batch, step)
    scores = objective().token_scores(
        variables,
        batch["text"],
        segment_ids=batch["text_segment_ids"],
        positions=batch["text_positions"],
    )
    spoken = np.asarray(batch["text_roles"][:, 1:] == Role.ASSISTANT)
    assert float(stats.mass) == spoken.sum() > 0
    np.testing.assert_allclose(stats.total, np.asarray(scores.losses)[spoken].sum(), rtol=1e-5)


def test_a_packed_row_trains_what_its_conversations_train_alone(tmp_path):
    batch = first_batch(jsonl(tmp_path / "talks.jsonl"))
    learner = objective(loss_role=Role.ASSISTANT)
    variables = learner.init(jax.random.key(0))
    step = Step(step=jnp.asarray(0), key=jax.random.key(1), ema=None)
    packed, _ = learner.loss(variables, batch, step)
    rows = [{name: np.asarray(leaf[row]) for name, leaf in batch.items()} for row in range(2)]
    alone = [talk for row in rows for talk in unpacked(row)]
    padded = {name: jnp.stack([talk[name] for talk in alone]) for name in batch}
    apart, _ = learner.loss(variables, padded, step)
    assert len(alone) > 2 and float(apart.mass) == float(packed.mass)
    np.testing.assert_allclose(apart.total, packed.total, rtol=1e-5)


def unpacked(row):
    """Each conversation of a packed row in a row of its own."""
    for segment in range(1, row["text_segment_ids"].max() + 1):
        inside = row["text_segment_ids"] == segment
        found = {name: np.zeros(256, np.int32) for name in row}
        for name, leaf in row.items():
            found[name][: inside.sum()] = leaf[inside]
        found["text_segment_ids"][: inside.sum()] = 1
        yield found


def test_a_role_without_rows_that_say_it_is_refused(tmp_path):
    learner = objective(loss_role=Role.ASSISTANT)
    step = Step(step=jnp.asarray(0), key=jax.random.key(1), ema=None)
    with pytest.raises(ValueError, match=r"loss_role=assistant needs batch\['text_roles'\]"):
        learner.loss({}, {"text": jnp.zeros((1, 256), jnp.int32)}, step)
    with pytest.raises(ValueError, match="loss_role='assistant' needs data that says whose each token is"):
        LMRunConfig(loss_role="assistant")


def lm(data, role, **trainer):
    trainer = TrainerConfig(**{"batch_size": 2, "steps": 1, "eval_every": None, **trainer})
    return LMRunConfig(data=data, loss_role=role, trainer=trainer, sample_tokens=0)


def test_a_role_that_nobody_of_the_conversations_has_is_refused_before_the_run(tmp_path):
    config = lm(spec(jsonl(tmp_path / "talks.jsonl")), "tool", checkpoint_dir=str(tmp_path / "runs"))
    with pytest.raises(
        ValueError, match=r"'tool' has no target in the train split: .* by assistant, user; set"
    ):
        train(config)
    assert not (tmp_path / "runs").exists()


def test_a_role_that_speaks_in_texts_that_are_left_out_alone_has_no_target(tmp_path):
    talks = [*TALKS, [{"role": "system", "content": "s" * 200}, *TALKS[0]]]
    path = jsonl(tmp_path / "talks.jsonl", talks)
    roles = {
        fate: spec(path, too_long=fate).load(batch=2, tokenize=BYTE).kinds for fate in ("leave_out", "cut")
    }
    assert roles["leave_out"] == {"train": {"user", "assistant"}}
    assert roles["cut"] == {"train": {"user", "assistant", "system"}}


def test_a_run_that_evaluates_needs_the_role_in_the_validation_split(tmp_path):
    folder = tmp_path / "talks"
    folder.mkdir()
    jsonl(folder / "train.jsonl"), jsonl(folder / "val.jsonl", [TALKS[0][:1]])
    with pytest.raises(
        ValueError, match=r"'assistant' has no target in the val split: .* by user; hold out others"
    ):
        train(lm(spec(folder), "assistant", eval_every=1, checkpoint_dir=str(tmp_path / "runs")))


@pytest.mark.parametrize("kind", [PackedTokens, TokenWindows])
def test_token_data_of_another_role_is_refused_by_its_configuration(kind):
    with pytest.raises(ValueError, match=r"loss_role='assistant' trains nothing .* of data\.role='user'"):
        lm(kind(path="x", role="user"), "assistant")


def test_a_part_of_another_role_is_refused_by_its_configuration(tmp_path):
    with pytest.raises(
        ValueError, match=r"data\.parts\[1\]\.data\.role='user'; set .* or leave the part out"
    ):
        lm(mixture("talks.jsonl", "book", role="user"), "assistant")


def test_a_mixture_holds_the_roles_of_its_parts(tmp_path):
    path, folder = jsonl(tmp_path / "talks.jsonl"), corpus(tmp_path / "book")
    data = mixture(path, folder, role="tool").load(batch=4, tokenize=BYTE)
    assert data.kinds == {"train": {"user", "assistant", "tool"}}


def corpus(folder):
    folder.mkdir()
    names = {"tokenizer": "byte", "tokenizer_fingerprint": "byte", "vocab_size": 256}
    with CorpusWriter(folder, **names, document_end=0) as writer:
        writer.append("train", [*b"some text of a book", 0, *b"and another", 0] * 9)
        writer.finish()
    return folder


def mixture(path, folder, **fields):
    text = PackedTokens(path=str(folder), seq_len=127, **fields)
    return DataMixture(parts=(Part(data=spec(path), weight=3.0), Part(data=text)))


def test_conversations_mix_with_documents_that_are_given_a_role(tmp_path):
    path, folder = jsonl(tmp_path / "talks.jsonl"), corpus(tmp_path / "book")
    data = mixture(path, folder, role="assistant").load(batch=4, tokenize=BYTE)
    batch = next(data.train(DataPartition()))
    book = [row for row in range(4) if b"book" in bytes(batch["text"][row].astype(np.uint8).tolist())]
    assert len(book) == 1 and set(batch["text_roles"][book[0]].tolist()) <= {0, int(Role.ASSISTANT)}
    assert [line[:13] for line in data.description] == ["part 0, train", "part 1, train"]
    with pytest.raises(
        ValueError, match=r"data\.parts\[1\] has records of .*mix datasets of the same fields"
    ):
        mixture(path, folder).load(batch=4, tokenize=BYTE)
