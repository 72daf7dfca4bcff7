"""The fields and defaults of the configuration records, as the reference documents them."""

import dataclasses
import subprocess
import sys
import typing

import pytest

from dew.config import ModelConfig, OptimConfig, RunConfig, TrainerConfig, Wandb
from dew.config.cache import default_compilation_cache_dir
from dew.training.config import DEFAULT_RULES, Layout, MeshSpec

DOCUMENTED = {
    ModelConfig: {
        "architecture": "simple_dit",
        "config": {},
        "dtype": "bfloat16",
        "param_dtype": None,
        "matmul_precision": None,
        "attention_impl": "auto",
    },
    OptimConfig: {
        "optimizer": "adamw",
        "optimizer_opts": {},
        "learning_rate": 0.00027,
        "schedule": None,
        "weight_decay": None,
        "param_groups": (),
        "clip_grads": 0.0,
        "state_dtype": "float32",
    },
    TrainerConfig: {
        "name": None,
        "checkpoint_dir": "./checkpoints",
        "keep": 2,
        "batch_size": 32,
        "seed": 0,
        "steps": None,
        "epochs": None,
        "log_every": 100,
        "eval_every": "epoch",
        "checkpoint_every": "epoch",
        "accumulation": 1,
        "batch_ramp": None,
        "dynamic_scale": False,
        "mesh": MeshSpec(),
        "layout": Layout(),
        "profile": None,
        "compilation_cache_dir": default_compilation_cache_dir(),
        "wandb": None,
        "multi_host": None,
        "xla_flags": None,
        "quantization": None,
    },
    MeshSpec: {
        "fsdp": 1,
        "expert": 1,
        "tensor": 1,
        "sequence": 1,
        "stage": 1,
        "microbatches": None,
        "replicas": 1,
    },
    Layout: {
        "rules": DEFAULT_RULES,
        "min_shard": 65536,
        "tolerance": 0.02,
        "host": (),
        "host_parameters": (),
    },
}


@pytest.mark.parametrize("cls", DOCUMENTED, ids=lambda cls: cls.__name__)
def test_fields_their_order_and_defaults_are_the_documented_ones(cls):
    built = cls()
    assert {field.name: getattr(built, field.name) for field in dataclasses.fields(cls)} == DOCUMENTED[cls]
    assert [field.name for field in dataclasses.fields(cls)] == list(DOCUMENTED[cls])


def test_run_config_has_the_documented_fields_in_order():
    names = [field.name for field in dataclasses.fields(RunConfig)]
    assert names == ["model", "data", "optim", "trainer", "objective", "lora"]


def test_wandb_needs_a_project_and_reports_online():
    assert Wandb("mine") == Wandb(project="mine", entity=None, offline=False)
    with pytest.raises(ValueError, match=r"wandb\.project"):
        Wandb("")


def test_default_dataset_is_the_flowers():
    assert type(RunConfig().data).__name__ == "OxfordFlowers"


def test_every_annotation_resolves_at_run_time():
    for cls in (*DOCUMENTED, RunConfig):
        assert typing.get_type_hints(cls, include_extras=True)


@pytest.mark.parametrize(
    "module",
    ["dew.config", "dew.training.config", "dew.training.optim.config", "dew.lora", "dew.telemetry.config"],
)
def test_importing_a_configuration_loads_no_numerical_library(module):
    heavy = ("jax", "numpy", "tyro", "optax", "flax", "jaxtyping")
    program = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [("DEW_CACHE", "/c/dew", "/c/dew"), ("XDG_CACHE_HOME", "/x", "/x/dew"), ("HOME", "/h", "/h/.cache/dew")],
)
def test_cache_folder_follows_the_environment(monkeypatch, variable, value, expected):
    from dew.config.cache import dew_cache_dir

    for name in ("DEW_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    assert str(dew_cache_dir()) == expected
