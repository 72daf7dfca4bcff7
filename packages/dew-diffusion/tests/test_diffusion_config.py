"""The configuration of a diffusion run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dew.config import ModelConfig
from dew.data.images.config import Digits, ImageFolder, MNIST5k, OxfordFlowers
from dew.diffusion.presets import EDM, Cosine, Flow
from dew.objectives.diffusion import DiffusionRunConfig, StableDiffusionAutoencoder, TextCondition
from dew.objectives.diffusion.config import patch_size
from dew.registry import objectives, recipes
from dew.sampling.images.config import CFG
from dew.sampling.solvers import Heun
from dew.sampling.solvers.first_order import EulerAncestral
from dew.telemetry.png import encode_png
from dew.testing import ConfigContract

pytestmark = pytest.mark.alone


class TestDiffusionRunConfig(ConfigContract):
    def config(self):
        return dataclasses.replace(
            DiffusionRunConfig.starting_point(),
            preset=Cosine(predicts="x0"),
            sampler=Heun(),
            guidance=CFG(2.0, interval=(0.1, 5.0)),
            text=TextCondition("labels", field="label", classes=("a", "b")),
        )


class TestTrainedRecord(TestDiffusionRunConfig):
    def config(self):
        return DiffusionRunConfig.starting_point().resolved()


def test_plain_configuration_has_the_documented_values_and_round_trips():
    config = DiffusionRunConfig()
    assert config.model.architecture == "unet" and isinstance(config.data, OxfordFlowers)
    assert (config.preset, config.sampler, config.guidance) == (EDM(), EulerAncestral(), CFG(3.0))
    assert (config.sampling_steps, config.unconditional_prob, config.ema_decay) == (200, 0.12, 0.999)
    assert config.text == TextCondition() and config.text.encoder == "clip_text"
    assert config.autoencoder is None and config.val_metrics == ("clip",)
    assert DiffusionRunConfig.from_dict(config.to_dict()) == config


def starting(**fields):
    return dataclasses.replace(DiffusionRunConfig.starting_point(), **fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"text": TextCondition()}, "clip_text"),
        ({"autoencoder": StableDiffusionAutoencoder()}, "StableDiffusionAutoencoder"),
        ({"val_metrics": ("clip",)}, "clip"),
        ({"text": TextCondition("labels", field="label", checkpoint="mine")}, "text.checkpoint='mine'"),
        ({"text": TextCondition("labels", field="label", unconditional="x")}, "'x' is no class"),
        ({"model": ModelConfig("simple_dit", {"output_channels": 3})}, "output_channels=3"),
        ({"data": Digits(image_size=7)}, "7x7"),
    ],
)
def test_what_is_not_built_or_does_not_fit_the_data_is_refused_by_name(fields, named):
    with pytest.raises((ValueError, LookupError), match=named):
        starting(**fields).build()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"objective": "lm"}, "objective='lm'"),
        ({"sampling_steps": 0}, "sampling_steps=0"),
        ({"unconditional_prob": -1.0}, "unconditional_prob=-1.0"),
        ({"ema_decay": 2.0}, "ema_decay=2.0"),
        ({"val_metrics": ("pnsr",)}, "did you mean psnr"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields, named):
    with pytest.raises((ValueError, LookupError), match=named):
        starting(**fields)


def test_a_metric_that_does_not_fit_the_images_is_refused_before_training():
    with pytest.raises(ValueError, match="ssim: images of 8x8 do not hold its window of 11x11"):
        starting(val_metrics=("psnr", "ssim")).build_eval_metrics()
    fitting = starting(data=MNIST5k(), val_metrics=("psnr", "ssim")).build_eval_metrics()
    assert [metric.name for metric in fitting] == ["psnr", "ssim"]


@pytest.mark.parametrize(("side", "patch"), [(8, 2), (12, 2), (16, 2), (28, 4), (32, 4), (64, 8), (25, 5)])
def test_patch_is_the_least_divisor_that_leaves_eight_along_a_side(side, patch):
    assert patch_size(side, side) == patch


def test_a_record_holds_the_sizes_and_classes_that_came_from_the_data():
    for data, patch in ((Digits(), 2), (MNIST5k(), 4)):
        record = starting(data=data).resolved().to_dict()
        assert record["model"]["config"]["patch_size"] == patch
        assert record["model"]["config"]["output_channels"] == 1
        assert record["text"]["classes"] == list("0123456789")


def test_sizes_given_by_hand_stay():
    config = starting(model=ModelConfig("simple_dit", {"hidden_size": 16, "num_heads": 2, "patch_size": 4}))
    assert config.build().model.patch_size == 4


def test_images_without_classes_train_an_unconditional_model(tmp_path):
    (tmp_path / "one.png").write_bytes(encode_png(np.zeros((20, 20, 3), np.uint8)))
    config = starting(data=ImageFolder(path=str(tmp_path), image_size=16, labelled=False))
    assert config.resolved().text is None
    built = config.build()
    assert not built.inputs.conditions and built.guidance is None
    assert built.latent_shape == (16, 16, 3) and built.model.output_channels == 3


def test_build_hands_every_setting_to_the_objective():
    built = starting(sampler=Heun(), guidance=CFG(2.0), sampling_steps=7, unconditional_prob=0.3).build()
    assert (built.sampler, built.guidance, built.steps) == (Heun(), CFG(2.0), 7)
    assert built.unconditional_prob == 0.3 and built.process == Flow().build()
    assert float(built.ema.decay(0)) == pytest.approx(0.995)


def test_the_command_line_names_the_recipe_and_a_saved_run_finds_its_class():
    from dew.objectives.diffusion.recipe import train

    assert recipes["diffusion"] is train
    assert recipes.config("diffusion") is objectives.config("diffusion") is DiffusionRunConfig
