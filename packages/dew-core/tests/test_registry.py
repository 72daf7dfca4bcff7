"""Names to parts: what is found, what is built, and what a wrong name says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from dew.plugins import Component, Run
from dew.plugins.known import SHIPPED_BY
from dew.registry import Registry, UnknownComponent, name_of, registry_of, schedules
from dew.registry.build import FieldError, construct


@dataclass(frozen=True)
class Inner:
    """A nested record."""

    size: int = 1


@dataclass(frozen=True)
class Part:
    """A part to build."""

    width: int
    shape: tuple[int, ...] = ()
    inner: Inner | None = None
    rows: tuple[Inner, ...] = field(default=())
    dtype: Any = None


def build(**fields: Any) -> Part:
    return construct("part 'p'", Part, fields)


def test_names_are_those_of_the_plugins_and_import_on_use():
    assert schedules.names() == ("cosine", "linear", "power")
    assert schedules["linear"] is schedules.linear is schedules.get("linear")
    assert "linear" in schedules and "linaer" not in schedules


def test_wrong_name_offers_the_close_one():
    with pytest.raises(UnknownComponent, match="no schedule is named 'cosin'; did you mean cosine"):
        schedules["cosin"]


def test_name_of_a_missing_package_names_it(monkeypatch):
    monkeypatch.setitem(SHIPPED_BY, ("model", "elsewhere"), "dew-elsewhere")
    with pytest.raises(UnknownComponent, match="it ships in dew-elsewhere; pip install dew-elsewhere"):
        registry_of("model").get("elsewhere")


def test_name_far_from_all_lists_what_is_installed():
    with pytest.raises(UnknownComponent, match="installed: cosine, linear, power"):
        schedules["zzz"]


def test_wrong_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="did you mean cosine"):
        _ = schedules.cosin


def test_unknown_name_reads_as_a_sentence_although_it_is_a_key_error():
    error = UnknownComponent("no such thing")
    assert isinstance(error, KeyError) and str(error) == "no such thing"


def test_class_finds_its_registered_name():
    assert name_of("schedule", schedules["power"]) == "power"
    with pytest.raises(ValueError, match=r"Inner of .* is registered as no schedule"):
        name_of("schedule", Inner)


def test_name_of_a_class_imports_no_other_plugin_that_has_a_class_of_that_name(
    monkeypatch: pytest.MonkeyPatch,
):
    parts = {
        "a": Component("schedule", "a", "module_that_is_nowhere:Run", "Broken."),
        "b": Component("schedule", "b", "dew.plugins.hooks:Run", "Here."),
    }
    monkeypatch.setattr(Registry, "_components", lambda self: parts)
    assert name_of("schedule", Run) == "b"


def test_kind_of_a_plugins_own_is_empty_until_registered():
    assert isinstance(registry_of("policy"), Registry) and registry_of("policy").names() == ()


def test_values_that_json_cannot_write_and_undeclared_nulls_are_not_judged():
    import numpy as np

    def factory(rate: float, shape: tuple[int, ...] = None, call: Any = None):  # pyright: ignore[reportArgumentType] # noqa: RUF013
        return rate, shape, call

    assert construct("f", factory, {"rate": np.float32(2), "shape": None, "call": len}) == (2, None, len)
    assert construct("f", factory, {"rate": 3}) == (3, None, None)


def test_fields_are_narrowed_to_their_declared_types():
    import jax.numpy as jnp

    part = build(width=2, shape=[1, 2], inner={"size": 3}, rows=[{"size": 4}], dtype="bfloat16")
    assert part == Part(2, (1, 2), Inner(3), (Inner(4),), jnp.dtype("bfloat16"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"widht": 1}, "part 'p' has no field 'widht'; did you mean width?"),
        ({}, "part 'p' needs width; give it a value"),
        ({"width": 1, "inner": {"sise": 1}}, "part 'p': inner has no field 'sise'; did you mean size?"),
        ({"width": 1, "dtype": "bfloat"}, "part 'p': dtype='bfloat' is no dtype"),
        ({"width": "2"}, "part 'p': width='2' must be an integer"),
        ({"width": 2.0}, "part 'p': width=2.0 must be an integer"),
        ({"width": True}, "part 'p': width=True must be an integer"),
        ({"width": None}, "part 'p': width=None must be an integer"),
        ({"width": [2]}, "part 'p': width=[2] must be an integer"),
        ({"width": 2, "shape": 3}, "part 'p': shape=3 must be a list, each an integer"),
        ({"width": 2, "shape": [3, "4"]}, "part 'p': shape=[3, '4'] must be a list, each an integer"),
        ({"width": 2, "inner": 3}, "part 'p': inner=3 must be an object of fields or null"),
        ({"width": 2, "inner": {"size": "3"}}, "part 'p': inner: size='3' must be an integer"),
        ({"width": 2, "rows": [{"size": 1.5}]}, "part 'p': rows: size=1.5 must be an integer"),
    ],
)
def test_wrong_field_is_refused_by_name(fields: dict[str, Any], message: str):
    with pytest.raises(FieldError) as refused:
        build(**fields)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    "part",
    [{"name": ""}, {"name": "a b"}, {"aliases": ("-x",)}, {"ref": "json.dumps"}, {"config": "json"}],
)
def test_component_with_a_malformed_name_or_reference_is_refused(part: dict[str, Any]):
    good = {"kind": "metric", "name": "m", "ref": "json:dumps", "summary": "A metric."}
    assert Component(**good).name == "m"
    with pytest.raises(ValueError, match="must"):
        Component(**(good | part))


def test_missing_requirement_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    part = Component("metric", "m", "module_that_is_nowhere:M", "A metric.", requires="dew-core[images]")
    monkeypatch.setattr(Registry, "component", lambda self, name: part)
    with pytest.raises(
        ImportError, match=r"metric 'm' needs module_that_is_nowhere: pip install 'dew-core\[images\]'"
    ):
        registry_of("metric").get("m")


def test_name_of_a_package_whose_plugin_is_off_does_not_say_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dew.plugins.known.metadata.version", lambda distribution: "0.1.0")
    monkeypatch.setitem(SHIPPED_BY, ("model", "sorcery"), "dew-sorcery")
    with pytest.raises(UnknownComponent, match="its plugin is not loaded: dew plugins says why"):
        registry_of("model").get("sorcery")
