"""The options of `dew generate` for a diffusion run, over a run of two steps."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dew.inference.images import ImageOptions, TextToImage
from dew.objectives.diffusion import DiffusionRunConfig
from dew.objectives.diffusion.recipe import train
from dew.sampling import CFG

TINY = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "patch_size": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's folder and its recorded configuration."""
    folder = tmp_path_factory.mktemp("runs")
    preset = DiffusionRunConfig.starting_point()
    trainer = dataclasses.replace(
        preset.trainer, checkpoint_dir=str(folder), name="tiny", steps=2, batch_size=8, eval_every=None
    )
    data = dataclasses.replace(preset.data, val_batches=1)
    model = dataclasses.replace(preset.model, config={**preset.model.config, **TINY})
    train(
        dataclasses.replace(
            preset, model=model, data=data, trainer=trainer, sampling_steps=3, guidance=CFG(2.0, (0.1, 50.0))
        )
    )
    return folder / "tiny", DiffusionRunConfig.load(str(folder / "tiny"))


def paths(options, task, seed=0):
    return [Path(line.strip()) for line in options.respond(task, seed=seed)]


def test_options_start_at_the_run_s_own_sampling(run):
    options = ImageOptions.of_run(run[1])
    assert (options.steps, options.guidance, options.interval) == (3, 2.0, (0.1, 50.0))


def test_run_without_conditions_starts_unguided(run):
    assert ImageOptions.of_run(dataclasses.replace(run[1], text=None)).guidance == 1.0


def test_opened_run_samples_as_the_run_does(run):
    task = TextToImage.from_run(run[0])
    assert (task.steps, task.guidance, task.sampler) == (3, CFG(2.0, (0.1, 50.0)), run[1].sampler)
    live = TextToImage.from_run(run[0], ema=False)
    assert not np.array_equal(task("7", seed=0).images, live("7", seed=0).images)


def test_run_opens_in_other_dtypes(run):
    import jax

    task = TextToImage.from_run(run[0], dtype="bfloat16", param_dtype="bfloat16")
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(task.variables)} == {"bfloat16"}
    narrow, wide = task("7", seed=0).images, TextToImage.from_run(run[0])("7", seed=0).images
    assert narrow.dtype == "float32"
    np.testing.assert_allclose(narrow, wide, atol=0.1)
    with pytest.raises(ValueError, match="dtype='int8' must be"):
        TextToImage.from_run(run[0], dtype="int8")


def test_without_prompts_one_of_every_class_is_written(run, tmp_path):
    options = dataclasses.replace(ImageOptions.of_run(run[1]), out=str(tmp_path / "all"))
    written = paths(options, TextToImage.from_run(run[0]))
    assert [path.name for path in written] == [f"000{digit}-{digit}.png" for digit in range(10)]
    assert Image.open(written[3]).size == (8, 8)


def test_first_image_of_a_prompt_stays_when_more_are_asked_for(run, tmp_path, monkeypatch):
    monkeypatch.setattr("dew.inference.images.options.TOGETHER", 4)
    task = TextToImage.from_run(run[0])
    start = ImageOptions.of_run(run[1])
    one = paths(dataclasses.replace(start, prompts=("7", "1"), out=str(tmp_path / "one")), task)
    many = paths(dataclasses.replace(start, prompts=("7", "1"), n=3, out=str(tmp_path / "many")), task)
    assert [path.name for path in many] == [f"000{i}-{digit}.png" for i, digit in enumerate("777111")]
    for few, lot in zip(one, (many[0], many[3]), strict=True):
        difference = np.asarray(Image.open(few), int) - np.asarray(Image.open(lot), int)
        assert np.abs(difference).max() <= 1


def test_run_of_another_kind_is_refused(tmp_path, run):
    record = (run[0] / "run.json").read_text().replace('"objective": "diffusion"', '"objective": "none"')
    (tmp_path / "run.json").write_text(record)
    with pytest.raises(ValueError, match="none"):
        TextToImage.from_run(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 0}, "n=0"),
        ({"steps": 0}, "steps=0"),
        ({"out": ""}, "out=''"),
        ({"guidance": float("inf")}, "guidance.scale=inf"),
        ({"sampler": "huen"}, "did you mean heun"),
    ],
)
def test_option_out_of_range_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        ImageOptions(**fields)
