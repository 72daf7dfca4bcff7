"""The contract over every component fails on the faults it is there for, naming the component."""

from __future__ import annotations

import textwrap
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import struct

from dew.plugins import Component
from dew.testing import ComponentContract, ModelExample, ScheduleExample, registered
from dew.testing.devices import result_on_devices
from dew.testing.trials import Trial, check_compiled, check_finite


def rows(count):
    return {"x": np.linspace(0.5, 1.5, 3 * count, dtype=np.float32).reshape(count, 3)}


def trial(function, **options):
    return Trial(function=function, rows=rows, held={"w": np.ones(3, np.float32)}, **options)


def sound(held, rows):
    return jnp.tanh(rows["x"] @ held["w"])


def test_sound_function_passes():
    check_compiled(trial(sound), trial(sound))
    check_finite(trial(sound))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda held, rows: jnp.sum(sound(held, rows)), "no row for each of 4"),
        (lambda held, rows: sound(held, rows).astype(jnp.float16), "float16, not float32"),
    ],
)
def test_result_of_another_shape_or_type_fails(function, message):
    with pytest.raises(AssertionError, match=message):
        check_compiled(trial(function), trial(function))


def test_result_of_a_shape_of_its_own_is_declared():
    summed = trial(lambda held, rows: jnp.sum(sound(held, rows)), rowwise=False)
    check_compiled(summed, summed)


@struct.dataclass
class Weights:
    """Parameters beside a setting that two equal builds do not share."""

    w: Any
    setting: Any = struct.field(pytree_node=False, default_factory=object)


def test_static_part_that_is_compared_by_identity_fails():
    def built():
        return Trial(
            function=lambda held, rows: rows["x"] @ held.w, rows=rows, held=Weights(np.ones(3, np.float32))
        )

    with pytest.raises(AssertionError, match="traced 2 times"):
        check_compiled(built(), built())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda held, rows: jnp.log(rows["x"] * 0), "result is not finite"),
        (lambda held, rows: jnp.sqrt(0 * held["w"]) * rows["x"], r"argument \[0\]\['w'\] is not finite"),
    ],
)
def test_what_is_not_finite_fails(function, message):
    with pytest.raises(AssertionError, match=message):
        check_finite(trial(function))


class Stored(nn.Module):
    """A layer; `leak` stores its weights in the type it computes in."""

    dtype: str = "float32"
    leak: bool = False

    @nn.compact
    def __call__(self, x):
        stored = self.dtype if self.leak else "float32"
        return nn.Dense(2, dtype=jnp.dtype(self.dtype), param_dtype=jnp.dtype(stored))(x)


@pytest.mark.parametrize("leak", [False, True])
def test_model_that_stores_what_it_computes_in_fails(monkeypatch, leak):
    from dew.registry import models

    def build(name, **fields):
        return Stored(leak=leak, dtype=jnp.dtype(fields.get("dtype", "float32")).name)

    monkeypatch.setattr(models, "build", build)
    example = ModelExample(inputs=rows)
    if not leak:
        return example.check_laws("model", "stored", None)
    with pytest.raises(AssertionError, match="stored as bfloat16"):
        example.check_laws("model", "stored", None)


def test_schedule_above_its_peak_fails(monkeypatch):
    from dew.registry import schedules

    spec = SimpleNamespace(build=lambda *, peak, total_updates: lambda update: peak * (1 + update))
    monkeypatch.setattr(schedules, "build", lambda name, **fields: spec)
    with pytest.raises(AssertionError):
        ScheduleExample().check_laws("schedule", "rising", None)


class Empty(ComponentContract):
    def components(self):
        return [Component("model", "lonely", "nowhere:Lonely", "Has no example.")]

    def examples(self):
        return {}


def test_component_without_an_example_is_named():
    with pytest.raises(AssertionError, match="model 'lonely' has no example"):
        Empty().test_it_has_an_example(("model", "lonely"))


def test_each_test_runs_once_a_component():
    asked = {}
    metafunc = SimpleNamespace(
        fixturenames=["component"], parametrize=lambda name, keys, ids: asked.update({name: (keys, ids)})
    )
    Empty().pytest_generate_tests(metafunc)
    assert asked == {"component": ([("model", "lonely")], ["model-lonely"])}


def test_only_kinds_with_a_contract_need_an_example():
    kinds = {part.kind for part in registered("core")}
    assert {"schedule", "dataset"} <= kinds and "command" not in kinds


SHARDED = """
import jax
import numpy as np
from dew.plugins import Component
from dew.testing import ComponentContract, FunctionExample

def example(function):
    class Named(FunctionExample):
        def part(self, kind, name):
            return None
    return Named(function=lambda part: function, rows=lambda n: np.arange(2.0 * n).reshape(n, 2))

class Here(ComponentContract):
    def components(self):
        return [Component("model", name, "x:y", "z") for name in ("even", "uneven")]

    def examples(self):
        return {
            ("model", "even"): example(lambda _, x: x - x.mean(0)),
            ("model", "uneven"): example(lambda _, x: x * (1 + jax.sharding.get_abstract_mesh().size)),
        }
"""


def test_result_that_depends_on_the_devices_fails_by_name(tmp_path):
    (tmp_path / "test_here.py").write_text(textwrap.dedent(SHARDED))
    results = result_on_devices("-m", "dew.testing.sharded", str(tmp_path / "test_here.py"), "Here")
    assert results["model-even"] == ""
    assert "the difference is" in results["model-uneven"]
