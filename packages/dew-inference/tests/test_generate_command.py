"""`dew.pipeline` and `dew generate` over the directory of a run."""

import json
import shutil
import subprocess
import sys
from fnmatch import fnmatch

import jax
import optax
import pytest
import tokenizers as hf

import dew
from dew.cli.entry import main
from dew.config import ModelConfig
from dew.data import DataPartition
from dew.data.text import load_tokenizer
from dew.data.text.config import TextFiles
from dew.inference.tasks import command
from dew.inference.text import TextGeneration
from dew.objectives.lm import LMRunConfig
from dew.sampling import Sampling
from dew.training import Checkpoints, Trainer

SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 64, "max_seq_len": 64}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory of a run that was saved before its first step."""
    directory = str(tmp_path_factory.mktemp("runs") / "tiny")
    config = LMRunConfig(
        model=ModelConfig("causal_transformer", config=SIZES, dtype="float32"),
        data=TextFiles(seq_len=32),
        ema_decay=None,
        sample_tokens=20,
        sampling=Sampling(temperature=0.8, top_k=40),
    )
    config.save(directory)
    state = Trainer(config.build(), optax.sgd(0.1), key=jax.random.key(0)).initial_state()
    checkpoints = Checkpoints(f"{directory}/checkpoints")
    checkpoints.save(1, state, None)
    checkpoints.wait()
    return directory


@pytest.fixture(scope="module")
def averaged_run(tmp_path_factory):
    """The directory of a run with two checkpoints, whose average differs from the live weights."""
    directory = str(tmp_path_factory.mktemp("runs") / "averaged")
    config = LMRunConfig(
        model=ModelConfig("causal_transformer", config=SIZES, dtype="float32"),
        data=TextFiles(seq_len=32),
        ema_decay=0.9,
        sample_tokens=20,
    )
    config.save(directory)
    state = Trainer(config.build(), optax.sgd(0.1), key=jax.random.key(0)).initial_state()
    checkpoints = Checkpoints(f"{directory}/checkpoints")
    for step, factor in ((1, 2.0), (2, 3.0)):
        grown = jax.tree.map(lambda leaf, factor=factor: factor * leaf, state.params)
        checkpoints.save(step, state.replace(params=grown), None)
        checkpoints.wait()
    return directory, state.params


def generate(*words):
    return main(["generate", *words])


def test_pipeline_opens_a_run_with_its_own_policy_and_length(run):
    task = dew.pipeline(run)
    assert isinstance(task, TextGeneration)
    assert (task.sampling, task.max_new_tokens) == (Sampling(temperature=0.8, top_k=40), 20)
    assert task("def ", seed=0).lengths.tolist() == [20]


def test_dtypes_are_those_asked_for(run):
    task = dew.pipeline(run, dtype="bfloat16", param_dtype="bfloat16")
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(task.variables)} == {"bfloat16"}
    drawn = task("def ", 4, seed=0)
    assert str(drawn.raw_log_probs.dtype) == "float32"
    with pytest.raises(ValueError, match="param_dtype='int8'"):
        dew.pipeline(run, param_dtype="int8")


@pytest.mark.parametrize(
    ("options", "factor"),
    [({}, 1.0), ({"ema": False}, 3.0), ({"ema": False, "step": 1}, 2.0), ({"step": 1}, 1.0)],
)
def test_the_average_and_the_checkpoint_are_those_asked_for(averaged_run, options, factor):
    """The stored average is the initial tree; the live weights are twice and three times it."""
    directory, initial = averaged_run
    task = dew.pipeline(directory, **options)
    assert jax.tree.structure(task.variables) == jax.tree.structure(initial)
    for opened, leaf in zip(jax.tree.leaves(task.variables), jax.tree.leaves(initial), strict=True):
        assert (opened == factor * leaf).all()


def test_a_bound_task_draws_as_the_task_opened_on_those_weights(averaged_run):
    directory, _ = averaged_run
    live = dew.pipeline(directory, ema=False)
    bound = dew.pipeline(directory).bind(live.variables)
    assert bound("def ", seed=0).text == live("def ", seed=0).text
    assert bound("def ", seed=0).text != dew.pipeline(directory)("def ", seed=0).text


def test_the_command_reads_the_checkpoint_and_the_weights_asked_for(averaged_run, capsys):
    directory, _ = averaged_run
    for words, options in ((["--no-ema", "--step", "1"], {"ema": False, "step": 1}), ([], {})):
        generate(directory, "def ", "--seed", "3", *words)
        expected = dew.pipeline(directory, **options)("def ", seed=3).text[0]
        assert capsys.readouterr().out == f"def {expected}\n"


def test_the_command_prints_prompt_and_response(run, capsys):
    assert generate(run, "def ", "--seed", "3", "--max-new-tokens", "24") == 0
    expected = dew.pipeline(run)("def ", 24, seed=3).text[0]
    assert capsys.readouterr().out == f"def {expected}\n"


def test_the_first_continuation_is_the_same_whatever_their_number(run, capsys):
    generate(run, "def ", "--seed", "3")
    one = capsys.readouterr().out
    generate(run, "def ", "--seed", "3", "--n", "3")
    several = capsys.readouterr().out
    assert several.startswith(f"--- 1 of 3\n{one}--- 2 of 3\n")
    assert len(set(several.split("---"))) == 4


def test_policy_options_reach_the_draws(run, capsys):
    generate(run, "def ", "--temperature", "0", "--seed", "1")
    first = capsys.readouterr().out
    generate(run, "def ", "--top-k", "1", "--seed", "2")
    assert capsys.readouterr().out == first


def test_an_empty_prompt_continues_a_newline(run, capsys):
    generate(run, "", "--seed", "3")
    expected = dew.pipeline(run)("\n", seed=3).text[0]
    assert capsys.readouterr().out == f"{expected}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["x", "--n", "0"], "n=0"),
        (["x", "--batch", "0"], "batch=0"),
        (["x", "--stop", ""], "empty string"),
        (["x", "--chat"], "no chat template"),
        (["x", "--prompts", "absent.txt"], "absent.txt"),
        (["--prompts", "absent.txt"], "absent.txt: No such file"),
        (["x", "--output", "absent/rows.jsonl"], "lies in no folder"),
        (["x", "--max-new-tokens", "0"], "max_new_tokens=0"),
        (["x", "--max-new-tokens", "100"], "max_seq_len=64"),
        (["x", "--top-p", "2"], "top_p=2.0"),
        (["x", "--step", "9"], "9"),
        (["x", "--tempratur", "2"], "--temperature"),
        (["a\udcff"], "UTF-8"),
        ([], "PROMPT"),
    ],
)
def test_a_mistake_is_one_message_and_exit_status_two(run, capsys, words, said):
    assert generate(run, *words) == 2
    captured = capsys.readouterr()
    assert said in captured.err + captured.out
    assert "Traceback" not in captured.err


@pytest.fixture
def unopened(monkeypatch):
    """A command that fails where it opens a model."""

    def opened(*_, **__):
        raise AssertionError("a model was opened")

    monkeypatch.setattr(command, "pipeline", opened)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "one\n\nthree\n", "line 2 holds no prompt"),
        ("a.txt", "", "a.txt holds no prompt"),
        ("a.jsonl", '{"prompt": "a", "messages": []}', "line 1 has both prompt and messages"),
        ("a.jsonl", '{"prompt": "a"}\n{"text": "b"}\n', "line 2 is no prompt"),
        ("a.jsonl", '{"prompt": "a"}\n{"prompt"\n', "line 2 is no JSON"),
        (
            "a.jsonl",
            '{"messages": [{"role": "user", "content": "a"}]}',
            "line 1: tokenizer 'byte' has no chat",
        ),
        ("a.json", '{"prompt": "a"}', "holds no list"),
        ("a.json", '["a", 5]', "entry 2 is no prompt"),
    ],
)
def test_a_file_that_holds_no_prompts_is_refused_before_a_model_is_opened(
    run, unopened, tmp_path, capsys, name, text, said
):
    (tmp_path / name).write_text(text)
    assert generate(run, "--prompts", str(tmp_path / name)) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["x", "--output", "{there}"], "is there already"),
        (["x", "--prompts", "{there}"], "give one of the two"),
        (["--prompts", "{latin}"], "not UTF-8 at byte 1"),
        ([], "give a PROMPT, or a file"),
    ],
)
def test_options_that_cannot_work_are_refused_before_a_model_is_opened(
    run, unopened, tmp_path, capsys, words, said
):
    (tmp_path / "there").write_text("x")
    (tmp_path / "latin").write_bytes(b"a\xe9")
    names = {each: str(tmp_path / each) for each in ("there", "latin")}
    assert generate(run, *(word.format(**names) for word in words)) == 2
    assert said in capsys.readouterr().err


def test_a_file_of_prompts_draws_what_its_prompts_draw_together(run, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("def \nclass X\nimport\n")
    generate(run, "--prompts", str(tmp_path / "prompts.txt"), "--seed", "3", "--batch", "2")
    told = capsys.readouterr().out
    texts = dew.pipeline(run)(["def ", "class X", "import"], seed=3).text
    assert told == "".join(
        f"--- {number} of 3\n{prompt}{text}\n"
        for number, (prompt, text) in enumerate(zip(["def ", "class X", "import"], texts, strict=True), 1)
    )


def test_responses_are_written_with_their_ids_and_both_likelihoods(run, tmp_path, capsys):
    record = {"prompt": "def ", "id": "first"}
    (tmp_path / "prompts.jsonl").write_text(f"{json.dumps(record)}\n\n{json.dumps('class X')}\n")
    rows = tmp_path / "rows.jsonl"
    words = ["--prompts", str(tmp_path / "prompts.jsonl"), "--output", str(rows), "--seed", "3", "--n", "2"]
    assert generate(run, *words) == 0
    assert capsys.readouterr().out == f"4 responses are in {rows}\n"
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    drawn = dew.pipeline(run)(["def ", "class X"], seed=3, n=2)
    assert [(each["request"], each["continuation"]) for each in lines] == [
        (record, 0),
        (record, 1),
        ("class X", 0),
        ("class X", 1),
    ]
    assert [each["text"] for each in lines] == list(drawn.text)
    for row, line in enumerate(lines):
        assert line["tokens"] == drawn.tokens[row, drawn.prompt_width :].tolist()
        for name in ("behavior_log_probs", "raw_log_probs"):
            assert line[name] == pytest.approx(getattr(drawn, name)[row].tolist(), abs=1e-5)
        assert line["terminated"] is False


def test_a_response_stops_before_a_string_and_says_so(run, capsys):
    whole = dew.pipeline(run)("def ", seed=3).text[0]
    # Bytes that are no text read as U+FFFD, which no bytes of theirs spell.
    string = next(pair for at in range(4, 20) if (pair := whole[at : at + 2]).isascii())
    generate(run, "def ", "--seed", "3", "--stop", string, "--stop", "never so")
    assert capsys.readouterr().out == f"def {whole[: whole.index(string)]}\n"
    generate(run, "def ", "--seed", "3", "--stop", string, "--output", "-")
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert (found["text"], found["terminated"]) == (whole[: whole.index(string)], True)
    assert bytes(found["tokens"]).decode(errors="replace").endswith(string)


def test_a_message_is_answered_in_the_runs_own_template(tmp_path, capsys):
    vocabulary = {character: number for number, character in enumerate("abcdefgh<>|: ")}
    tokenizer = hf.Tokenizer(hf.models.WordLevel(vocabulary, unk_token=" "))
    tokenizer.pre_tokenizer = hf.pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = hf.decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(
        "{% for message in messages %}<{{ message.role }}:{{ message.content }}>{% endfor %}"
        "{% if add_generation_prompt %}<a:{% endif %}"
    )
    (tmp_path / "text.txt").write_text("a b c\n" * 200)
    config = LMRunConfig(
        model=ModelConfig("causal_transformer", config=SIZES, dtype="float32"),
        data=TextFiles(path=str(tmp_path / "text.txt"), seq_len=32),
        tokenizer=str(tmp_path),
        ema_decay=None,
        sample_prompt="a",
        sample_tokens=6,
    )
    directory = str(tmp_path / "run")
    config.save(directory)
    state = Trainer(config.build(), optax.sgd(0.1), key=jax.random.key(0)).initial_state()
    checkpoints = Checkpoints(f"{directory}/checkpoints")
    checkpoints.save(1, state, None)
    checkpoints.wait()
    generate(directory, "abc", "--chat", "--seed", "3")
    answer = capsys.readouterr().out
    task = dew.pipeline(directory)
    assert answer == task("<user:abc><a:", seed=3).text[0] + "\n"
    assert answer == task([{"role": "user", "content": "abc"}], seed=3).text[0] + "\n"
    (tmp_path / "talk.json").write_text('[{"role": "user", "content": "abc"}]')
    generate(directory, "--prompts", str(tmp_path / "talk.json"), "--seed", "3")
    assert capsys.readouterr().out == answer


@pytest.fixture(scope="module")
def published(run, tmp_path_factory):
    """The run's model as a folder, whose policy has more than `Sampling` says."""
    folder = tmp_path_factory.mktemp("published") / "model"
    dew.inference.export_run(run, folder)
    file = folder / "generation_config.json"
    file.write_text(
        json.dumps({**json.loads(file.read_text()), "no_repeat_ngram_size": 1, "max_new_tokens": 9})
    )
    return str(folder)


def test_a_published_model_follows_its_own_generation_config(run, published, capsys):
    task = dew.pipeline(published)
    assert task.sampling == dew.pipeline(run).sampling
    assert generate(published, "def ", "--seed", "3") == 0
    expected = task("def ", seed=3)
    assert capsys.readouterr().out == f"def {expected.text[0]}\n"
    drawn = expected.tokens[0].tolist()
    assert len(set(drawn)) == len(drawn) == 13


def test_a_policy_from_the_command_line_replaces_a_published_models_chain(published, capsys):
    generate(published, "def ", "--temperature", "0", "--seed", "3")
    greedy = dew.pipeline(published)("def ", seed=3, sampling=Sampling(temperature=0, top_k=40)).text[0]
    assert capsys.readouterr().out == f"def {greedy}\n"


def test_a_length_of_prompt_and_response_leaves_the_same_whatever_is_drawn_together(
    published, tmp_path, capsys
):
    folder = tmp_path / "copy"
    shutil.copytree(published, folder)
    (folder / "generation_config.json").write_text('{"max_length": 12}')
    for batch in ("1", "3"):
        words = ["def run", "x", "if", "--batch", batch, "--seed", "3", "--output", "-"]
        generate(str(folder), *words)
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [len(each["tokens"]) for each in lines] == [5, 5, 5]


def test_what_a_published_model_cannot_do_is_refused_before_it_is_opened(
    published, unopened, tmp_path, capsys
):
    folder = tmp_path / "copy"
    shutil.copytree(published, folder)
    (folder / "generation_config.json").write_text('{"guidance_scale": 2.0}')
    assert generate(str(folder), "x") == 2
    assert "guidance_scale=2.0" in capsys.readouterr().err
    assert generate(published, "x", "--chat") == 2
    assert "no chat template" in capsys.readouterr().err


def test_arguments_of_runs_are_refused_for_a_published_model(published):
    with pytest.raises(ValueError, match="step=3 belongs to a run"):
        dew.pipeline(published, step=3)
    with pytest.raises(ValueError, match="ema=False belongs to a run"):
        dew.pipeline(published, ema=False)


def test_live_weights_of_a_published_model_are_refused_on_the_command_line(published, capsys):
    assert generate(published, "x", "--no-ema") == 2
    assert "ema=False belongs to a run" in capsys.readouterr().err


def test_a_folder_has_no_revision_whatever_it_holds(run, published):
    for folder in (run, published):
        with pytest.raises(ValueError, match=r"revision='main' is a repository's, and .* is a folder"):
            dew.pipeline(folder, revision="main")


def test_a_folder_that_is_no_run_is_named(tmp_path, capsys):
    assert generate(str(tmp_path), "x") == 2
    assert "run.json" in capsys.readouterr().err
    assert generate(str(tmp_path / "absent"), "x") == 2
    assert "absent" in capsys.readouterr().err


def hub(monkeypatch, folder):
    """Stand in for the Hub with `folder` as its one repository; returns what it is asked for."""
    asked = []

    def fetched(repository, revision, allow_patterns, ignore_patterns):
        asked.append((repository, revision, any(fnmatch("checkpoints/1/a", each) for each in allow_patterns)))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetched)
    return asked


def test_a_run_of_the_hub_is_fetched_with_its_checkpoints(run, monkeypatch):
    asked = hub(monkeypatch, run)
    task = dew.pipeline("someone/run", revision="v2")
    assert asked == [("someone/run", "v2", False), ("someone/run", "v2", True)]
    again = TextGeneration.from_pretrained("someone/run", step=1)
    assert asked[2:] == [("someone/run", None, False), ("someone/run", None, True)]
    assert task("def ", seed=0).text == again("def ", seed=0).text == dew.pipeline(run)("def ", seed=0).text


def test_a_published_model_of_the_hub_is_opened_by_its_name(published, monkeypatch):
    asked = hub(monkeypatch, published)
    assert dew.pipeline("someone/model")("def ", seed=3).text == dew.pipeline(published)("def ", seed=3).text
    assert asked == [("someone/model", None, False)]


def test_what_is_neither_a_folder_nor_a_repositorys_name_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is no folder, and not the name of a repository"):
        dew.pipeline(tmp_path / "absent")


def test_the_help_loads_nothing_numerical(run):
    code = (
        "import sys\n"
        "from dew.cli.entry import main\n"
        f"status = main(['generate', {run!r}, '--help'])\n"
        "print(status, [m for m in ('jax', 'numpy', 'flax') if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip().endswith("0 []")
    assert "--top-k" in told
    assert "default: 40" in told


def test_a_reader_that_leaves_early_is_no_failure(run):
    code = f"import sys; from dew.cli.entry import main; sys.exit(main(['generate', {run!r}, 'x']))"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read().decode()
        assert process.wait() == 0, said
    assert "BrokenPipe" not in said


def test_a_tokenizer_that_changed_since_the_training_is_refused(tmp_path):
    """Its file keeps its name and its size; two ids change places."""
    vocabulary = {"a": 0, "b": 1, "c": 2}

    def write(ids, folder):
        tokenizer = hf.Tokenizer(hf.models.WordLevel(ids, unk_token="a"))
        tokenizer.pre_tokenizer = hf.pre_tokenizers.Whitespace()
        tokenizer.save(str(folder / "tokenizer.json"))

    write(vocabulary, tmp_path)
    (tmp_path / "text.txt").write_text("a b c\n" * 200)
    config = LMRunConfig(
        model=ModelConfig("causal_transformer", config=SIZES, dtype="float32"),
        data=TextFiles(path=str(tmp_path / "text.txt"), seq_len=32),
        tokenizer=str(tmp_path / "tokenizer.json"),
        ema_decay=None,
        sample_prompt="a",
        sample_tokens=4,
    )
    directory = str(tmp_path / "run")
    config.save(directory)
    tokenizer = load_tokenizer(config.tokenizer)
    data = config.data.load(batch=2, tokenize=tokenizer).train(DataPartition())
    checkpoints = Checkpoints(f"{directory}/checkpoints")
    state = Trainer(config.build(), optax.sgd(0.1), key=jax.random.key(0)).initial_state()
    checkpoints.save(1, state, data.get_state(), share=DataPartition())
    checkpoints.wait()
    assert len(dew.pipeline(directory)("a b", seed=0).text) == 1
    write({"a": 0, "c": 1, "b": 2}, tmp_path)
    assert len(dew.pipeline(directory)("a b", seed=0).text) == 1, "the run keeps its own"
    write({"a": 0, "c": 1, "b": 2}, tmp_path / "run" / "tokenizer")
    with pytest.raises(ValueError, match=r"tokenizer' has changed since"):
        dew.pipeline(directory)
