"""The configuration of a joint-embedding run, and the plugin that announces it."""

from __future__ import annotations

import dataclasses

import pytest

from dew.config import ModelConfig
from dew.data.images.config import Digits, Textures
from dew.objectives.jepa import JepaObjective, JepaRunConfig, MultiBlock
from dew.testing import ConfigContract, PluginContract

pytestmark = pytest.mark.alone


class TestConfig(ConfigContract):
    def config(self):
        return JepaRunConfig(
            model=ModelConfig("vit_jepa", config={"patch_size": 4, "hidden_size": 32}),
            data=Textures(image_size=64),
            predictor=ModelConfig("vit_jepa_predictor", config={"hidden_size": 16}),
            mask=MultiBlock(targets=2, target_scale=(0.1, 0.2), context_tokens=12),
            momentum=(0.9, 0.99),
            momentum_steps=7,
            label_key="kind",
            flip=True,
            probe_rows=100,
        )


class TestPlugin(PluginContract):
    def name(self):
        return "jepa"


def test_sizes_come_from_the_data_and_the_encoder():
    objective = JepaRunConfig.starting_point().build()
    assert isinstance(objective, JepaObjective)
    assert objective.encoder.image_size == (32, 32) and objective.encoder.channels == 1
    assert objective.predictor.grid == objective.mask.grid == (8, 8)
    assert objective.predictor.features == objective.encoder.hidden_size
    assert objective.sample.shape == (32, 32, 1)


def test_every_field_reaches_the_objective():
    config = dataclasses.replace(
        JepaRunConfig.starting_point(), momentum=(0.5, 0.75), momentum_steps=2, label_key="kind", flip=True
    )
    objective = config.build()
    assert [float(objective.ema.decay(update)) for update in range(3)] == [0.5, 0.625, 0.75]
    assert objective.label_key == "kind" and objective.flip and objective.mask.config == config.mask


def test_a_size_that_the_data_does_not_have_is_refused():
    config = JepaRunConfig.starting_point()
    sizes = {**config.model.config, "channels": 3}
    wrong = dataclasses.replace(config, model=dataclasses.replace(config.model, config=sizes))
    with pytest.raises(ValueError, match=r"model.config channels=3 is not the data's 1"):
        wrong.build()


def test_a_geometry_that_does_not_fit_is_refused_before_any_work():
    with pytest.raises(ValueError, match="grid of 2x2"):
        dataclasses.replace(JepaRunConfig.starting_point(), data=Digits()).build()


@pytest.mark.parametrize(
    ("field", "value"),
    [("objective", "lm"), ("probe_rows", -1), ("momentum", (0.9, 1.2)), ("momentum_steps", 0)],
)
def test_values_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field}="):
        JepaRunConfig(**{field: value})


def test_held_variables_are_refused():
    with pytest.raises(ValueError, match="variables"):
        JepaRunConfig.starting_point().build(variables={"params": {}})
