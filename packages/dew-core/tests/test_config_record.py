"""Configurations written to and read from `run.json`."""

import dataclasses
import json
import sys
import types
import typing
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dew.plugins.loader as loader
from dew.config import ModelConfig, OptimConfig, RunConfig, TrainerConfig
from dew.config.record import decode, differences, encode
from dew.config.trainer import Wandb
from dew.data.config import DatasetSpec, Loading
from dew.plugins import Component
from dew.registry import datasets, schedules
from dew.telemetry.config import ProfileWindow
from dew.training.config import Layout, MeshSpec
from dew.training.optim.config import Cosine, ParamGroup, Power

pytestmark = pytest.mark.alone


@dataclasses.dataclass(frozen=True)
class Crop:
    size: tuple[int, int] = (2, 3)
    mode: Literal["center", "random"] = "center"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Toy(DatasetSpec):
    path: str | None = None
    shards: tuple[str, ...] = ()
    crop: Crop | None = None
    weights: dict[str, float] = dataclasses.field(default_factory=dict)
    stride: int | Literal["full"] = "full"

    def load(self, *, batch, tokenize=None):
        raise NotImplementedError


@pytest.fixture(autouse=True)
def toy_dataset(monkeypatch):
    """Register `Toy` as the dataset `toy`."""
    module = types.ModuleType("toy_parts")
    module.Toy = Toy
    monkeypatch.setitem(sys.modules, "toy_parts", module)
    held = loader.installed()
    part = Component("dataset", "toy", "toy_parts:Toy", "Nothing.")
    catalog = dataclasses.replace(held, components={**held.components, ("dataset", "toy"): part})
    monkeypatch.setattr(loader, "installed", lambda: catalog)


def run(**fields):
    return RunConfig(**({"data": Toy(), "objective": "lm"} | fields))


def through_json(config):
    return type(config).from_dict(json.loads(json.dumps(config.to_dict())))


FULL = {
    "model": ModelConfig(
        "net", {"width": 4, "axes": (1, [2, None]), "nested": {"x": 1.5}}, param_dtype="float32"
    ),
    "data": Toy(
        path="p", shards=("a", "b"), crop=Crop((5, 6), "random"), weights={"a": 0.5}, stride=3, seed=7
    ),
    "optim": OptimConfig(
        schedule=Power(scale=4.0, tail_updates=3),
        param_groups=(ParamGroup("params/a/*", 0.5), ParamGroup("*", 1.0, 0.0)),
        optimizer_opts={"b2": 0.95},
    ),
    "trainer": TrainerConfig(
        steps=10,
        eval_every=None,
        mesh=MeshSpec(fsdp=2),
        layout=Layout(rules={"embed": None, "own": "tensor"}),
        profile=ProfileWindow(steps=2),
        wandb=Wandb("p", offline=True),
    ),
}


def test_a_full_configuration_survives_json():
    assert through_json(run(**FULL)) == run(**FULL)


def test_registered_members_are_written_as_name_and_fields():
    record = run(optim=OptimConfig(schedule=Cosine(5))).to_dict()
    assert record["data"]["name"] == "toy"
    assert record["data"]["loading"] == dataclasses.asdict(Loading())
    assert record["optim"]["schedule"] == {"name": "cosine", "warmup_updates": 5, "end_factor": 0.0}


def test_a_subclass_reads_its_own_fields_back():
    @dataclasses.dataclass(frozen=True)
    class Mine(RunConfig):
        depth: int | None = 3

    config = Mine(data=Toy(), objective="mine", depth=None)
    assert through_json(config) == config


def test_save_then_load_gives_the_same_configuration(tmp_path):
    path = run(**FULL).save(str(tmp_path / "a" / "run"))
    assert path == str(tmp_path / "a" / "run" / "run.json")
    assert RunConfig.load(str(tmp_path / "a" / "run")) == run(**FULL)
    assert [entry.name for entry in (tmp_path / "a" / "run").iterdir()] == ["run.json"]


def test_a_configuration_without_objective_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="objective=None cannot be saved"):
        run(objective=None).save(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_loading_from_a_folder_without_a_run_names_the_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"run\.json is not there"):
        RunConfig.load(str(tmp_path))


BROKEN = [
    (("optim", "learning_rat"), 1.0, r"optim\.learning_rat: unknown field; did you mean learning_rate\?"),
    (("optim", "learning_rate"), "fast", r"optim\.learning_rate='fast' must be a number"),
    (("optim", "optimizer"), "adamW", r"optim\.optimizer='adamW' must be one of .*did you mean adamw\?"),
    (("trainer", "steps"), True, r"trainer\.steps=True must be an integer"),
    (("trainer", "keep"), 2.5, r"trainer\.keep=2\.5 must be an integer"),
    (("trainer", "eval_every"), "epochs", r"trainer\.eval_every='epochs' fits none of its types"),
    (("trainer", "mesh"), {"fsdp": 1}, r"trainer\.mesh\.expert, .* missing"),
    (
        ("data", "crop"),
        {"size": [1, 2, 3], "mode": "center"},
        r"data\.crop\.size=.* must hold 2 values, not 3",
    ),
    (("data", "name"), "toys", r"no dataset is named 'toys'; did you mean toy\?"),
    (("data", "shards"), "ab", r"data\.shards='ab' must be a list"),
]


@pytest.mark.parametrize(("path", "value", "message"), BROKEN, ids=[".".join(each[0]) for each in BROKEN])
def test_a_record_that_does_not_fit_is_refused_by_path(path, value, message):
    record = run().to_dict()
    record[path[0]][path[1]] = value
    with pytest.raises(ValueError, match=message):
        RunConfig.from_dict(record)


def test_a_missing_field_is_refused_by_name():
    record = run().to_dict()
    del record["trainer"]["seed"]
    with pytest.raises(ValueError, match=r"trainer\.seed: missing"):
        RunConfig.from_dict(record)


def test_numbers_json_cannot_hold_are_refused():
    with pytest.raises(ValueError, match=r"data\.weights\.a=nan is not finite"):
        run(data=Toy(weights={"a": float("nan")})).to_dict()


def test_an_integer_under_int_or_float_stays_an_integer():
    assert type(decode(int | float, 3, "x")) is int
    assert type(decode(float, 3, "x")) is float


def test_differences_name_leaves_with_both_values():
    old, new = {"a": {"b": 1, "c": [1]}, "d": 1}, {"a": {"b": 2, "c": [1]}, "e": 1.0, "d": 1.0}
    assert differences(old, new) == {"a.b": (1, 2), "e": (None, 1.0)}


SCALARS = {
    int: st.integers(0, 9),
    float: st.floats(-1, 1),
    str: st.text(min_size=1, max_size=4),
    bool: st.booleans(),
    str | None: st.none() | st.text(max_size=4),
    tuple[str, ...]: st.lists(st.text(max_size=3), max_size=3).map(tuple),
    dict[str, float]: st.dictionaries(st.text(), st.floats(0, 1)),
    Crop | None: st.none() | st.builds(Crop, st.tuples(st.integers(), st.integers())),
}


def constructed(cls):
    """Instances of `cls`: each field at its default or drawn by its annotation, as the class accepts."""

    def attempt(fields):
        try:
            return cls(**fields)
        except ValueError:
            return None

    hints = typing.get_type_hints(cls)
    required, optional = {}, {}
    for field in dataclasses.fields(cls):
        drawn = SCALARS.get(hints[field.name])
        has_default = (
            field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        )
        if drawn is not None:
            (optional if has_default else required)[field.name] = drawn
    return (
        st.fixed_dictionaries(required, optional=optional)
        .map(attempt)
        .filter(lambda value: value is not None)
    )


REGISTERED = [
    (kind, name) for kind, names in (("dataset", datasets), ("schedule", schedules)) for name in names
]


@pytest.mark.parametrize(("kind", "name"), [*REGISTERED, ("dataset", "toy")])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_registered_configuration_survives_the_round_trip(kind, name, data):
    from dew.registry import registry_of

    value = data.draw(constructed(registry_of(kind).config(name)))
    base = DatasetSpec if kind == "dataset" else type(value).__mro__[1]
    assert decode(base, json.loads(json.dumps(encode(value, ""))), "x") == value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(config=st.dictionaries(st.text(), json_values))
def test_model_fields_of_any_json_survive(config):
    config = run(model=ModelConfig("net", config))
    assert through_json(config) == config
