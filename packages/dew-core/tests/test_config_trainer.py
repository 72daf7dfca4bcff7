"""Run length, cadences, names and the settings that are refused."""

import re
from types import SimpleNamespace

import pytest

from dew.config import ModelConfig, RunConfig, TrainerConfig
from dew.config.names import fresh_name, run_directory
from dew.data.config import DatasetSpec, Ramp
from dew.training.config import Layout, MeshSpec


class Nowhere(DatasetSpec):
    def load(self, *, batch, tokenize=None):
        raise NotImplementedError


def data(records=100, batch=10):
    """The part of a dataset that lengths read."""
    per_epoch = None if records is None else records // batch
    return SimpleNamespace(
        records=records, steps_per_epoch=per_epoch, epoch_steps=lambda epochs=1: epochs * (records // batch)
    )


def test_length_is_the_steps_or_the_epochs_over_the_data():
    assert TrainerConfig(steps=7).total_steps(data()) == 7
    assert TrainerConfig(epochs=3).total_steps(data()) == 30


def test_both_lengths_and_neither_are_refused():
    with pytest.raises(ValueError, match=r"trainer\.steps=1 and trainer\.epochs=2 both"):
        TrainerConfig(steps=1, epochs=2)
    with pytest.raises(ValueError, match=r"set trainer\.steps, or trainer\.epochs"):
        TrainerConfig().total_steps(data())


def test_epochs_over_an_endless_stream_are_refused():
    with pytest.raises(ValueError, match=r"trainer\.epochs=2 needs data that knows"):
        TrainerConfig(epochs=2).total_steps(data(records=None))


@pytest.mark.parametrize("name", ["eval", "checkpoint"])
def test_cadences_are_steps_an_epoch_or_never(name):
    def interval(value, dataset):
        return getattr(TrainerConfig(**{f"{name}_every": value}), f"{name}_interval")(dataset)

    assert [interval(value, data()) for value in (3, "epoch", None)] == [3, 10, None]
    with pytest.raises(ValueError, match=rf"trainer\.{name}_every='epoch' needs data that knows"):
        interval("epoch", data(records=None))
    with pytest.raises(ValueError, match=rf"trainer\.{name}_every=0 must be at least 1"):
        interval(0, data())


@pytest.mark.parametrize("name", ["keep", "batch_size", "steps", "epochs", "log_every", "accumulation"])
def test_counts_below_one_are_refused(name):
    with pytest.raises(ValueError, match=rf"trainer\.{name}=0 must be at least 1"):
        TrainerConfig(**{name: 0})


def test_a_ramp_with_accumulation_is_refused():
    with pytest.raises(ValueError, match=r"trainer\.batch_ramp with trainer\.accumulation=2"):
        TrainerConfig(batch_ramp=Ramp(1, 1, 10), accumulation=2)


UNSUPPORTED = [
    ("trainer.layout.host_parameters", {"trainer": TrainerConfig(layout=Layout(host_parameters=("*",)))}),
]


@pytest.mark.parametrize(("path", "fields"), UNSUPPORTED, ids=[each[0] for each in UNSUPPORTED])
def test_settings_without_their_function_are_refused_by_name(path, fields):
    with pytest.raises(ValueError, match=rf"^{re.escape(path)}=.* is not supported in this version; "):
        RunConfig(data=Nowhere(), **fields)


def test_pipeline_microbatches_need_stages_and_their_multiple():
    with pytest.raises(ValueError, match=r"mesh\.microbatches=4 needs a pipeline"):
        MeshSpec(microbatches=4)
    with pytest.raises(ValueError, match=r"mesh\.microbatches=3 must be a multiple of mesh\.stage=2; use 2"):
        MeshSpec(stage=2, microbatches=3)
    assert MeshSpec(stage=2, microbatches=4).microbatches == 4


def test_a_mapping_of_rules_updates_the_default_table_in_place_and_at_its_end():
    table = dict(Layout(rules={"mlp": None, "own": "expert"}).table)
    default = dict(Layout().table)
    assert table == {**default, "mlp": None, "own": "expert"}
    assert list(table) == [*default, "own"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rules": (("a", "data"),)}, "sends 'a' to 'data'; parameters are split over fsdp, expert, tensor"),
        ({"rules": (("a", None), ("a", "fsdp"))}, "names 'a' twice"),
        ({"tolerance": 1.5}, r"layout\.tolerance=1\.5"),
        ({"min_shard": -1}, r"layout\.min_shard=-1"),
        ({"host": ("step",)}, r"layout\.host='step' must be one of params, opt_state, ema"),
    ],
)
def test_a_layout_that_means_nothing_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Layout(**fields)


def test_fresh_names_begin_with_the_recipe_and_do_not_repeat(tmp_path):
    first = fresh_name(str(tmp_path), "lm")
    (tmp_path / first).mkdir()
    second = fresh_name(str(tmp_path), "lm")
    assert re.fullmatch(r"lm-\d{8}-\d{6}", first)
    assert second != first


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a/../b", "a//b", ".hidden", "a b"])
def test_names_that_are_no_folder_below_are_refused(name):
    with pytest.raises(ValueError, match=r"trainer\.name="):
        run_directory("runs", name)


def test_run_directories_are_below_the_checkpoint_directory():
    assert run_directory("runs", "a/b-1") == "runs/a/b-1"
    assert run_directory("gs://bucket/runs", "a") == "gs://bucket/runs/a"


def test_model_fields_carry_the_precision_the_model_declares(monkeypatch):
    def declares(dtype=None, precision=None, width=1):
        return dtype, precision, width

    monkeypatch.setattr("dew.config.model.models", SimpleNamespace(get=lambda name: declares))
    model = ModelConfig("any", {"width": 3}, param_dtype="float32", matmul_precision="highest")
    assert model.fields() == {"dtype": "bfloat16", "precision": "highest", "width": 3}
    assert model.precision_settings() == {"dtype", "precision"}


def test_a_model_field_in_config_wins_over_the_runs_precision(monkeypatch):
    monkeypatch.setattr(
        "dew.config.model.models", SimpleNamespace(get=lambda name: lambda dtype=None, attention_impl=None: 0)
    )
    model = ModelConfig("any", {"dtype": "float32"})
    assert model.fields() == {"dtype": "float32", "attention_impl": "auto"}
    assert model.precision_settings() == {"attention_impl"}


def test_a_seed_beyond_64_bits_is_refused():
    with pytest.raises(ValueError, match=r"trainer\.seed=18446744073709551616 must fit 64 bits"):
        TrainerConfig(steps=1, seed=2**64)


def test_an_empty_name_is_refused():
    with pytest.raises(ValueError, match=r"trainer\.name=''"):
        TrainerConfig(steps=1, name="")
