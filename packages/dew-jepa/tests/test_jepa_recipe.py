"""`dew train jepa` on a few textures, its record, its resume, and the task that opens the run."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest

from dew.config import ModelConfig, OptimConfig, TrainerConfig
from dew.data.dataset import DataPartition
from dew.data.images.config import Textures
from dew.inference.embeddings import EmbeddingOptions, ImageEmbedding
from dew.objectives.jepa import JepaRunConfig, KnnProbe, LinearProbe, MultiBlock, Representation
from dew.objectives.jepa.probe_rows import with_probe_rows
from dew.objectives.jepa.recipe import train
from dew.objectives.jepa.references import random_convolutions, references, represented, scored
from dew.registry import recipes, tasks
from dew.training.placement import INIT_STREAM
from dew.training.runs import load_run

pytestmark = pytest.mark.alone

PROBES = {"linear_probe", "knn_probe"}
KINDS = ("", ".random_init", ".raw_pixels", ".random_convolutions")
METERS = {"feature_std", "feature_covariance", "rankme"}


def configuration(place, name="tiny", steps=4):
    sizes = {"num_layers": 1, "num_heads": 2}
    return JepaRunConfig(
        model=ModelConfig("vit_jepa", config={**sizes, "patch_size": 2, "hidden_size": 8}, dtype="float32"),
        data=Textures(image_size=16),
        optim=OptimConfig(learning_rate=1e-2),
        trainer=TrainerConfig(
            name=name,
            checkpoint_dir=str(place),
            batch_size=8,
            steps=steps,
            log_every=1,
            eval_every=2,
            checkpoint_every=2,
            compilation_cache_dir=None,
        ),
        predictor=ModelConfig("vit_jepa_predictor", config={**sizes, "hidden_size": 4}, dtype="float32"),
        mask=MultiBlock(targets=2, context_tokens=8),
        momentum=(0.5, 1.0),
        momentum_steps=10,
        probe_rows=64,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    return train(configuration(place)), place / "tiny"


def journal(directory, kind):
    lines = (directory / "tracking/journal.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def test_validation_reports_probes_beside_what_needs_no_learning_and_the_meters(run):
    values = journal(run[1], "validation")[-1]["values"]
    expected = {f"validation/{probe}{kind}" for probe in PROBES for kind in KINDS}
    assert set(values) == expected | {f"validation/{name}" for name in METERS}


def test_the_probe_sees_the_target_encoder_over_the_whole_split(run):
    state, directory = run
    config = JepaRunConfig.load(str(directory))
    objective = config.build()
    dataset = with_probe_rows(config.data.load(batch=8), 64)
    pass_ = list(represented(objective, dataset, lambda x: objective.features(state.averaged, x).mean(1)))
    assert sum(int((artifact.use == 0).sum()) for artifact in pass_) == 600
    values = journal(directory, "validation")[-1]["values"]
    assert values["validation/linear_probe"] == pytest.approx(scored(LinearProbe(), pass_))
    assert values["validation/knn_probe"] == pytest.approx(scored(KnnProbe(), pass_))


def test_the_references_are_those_of_the_runs_own_start_and_of_the_pixels(run):
    config = configuration(run[1])
    objective, dataset = config.build(), with_probe_rows(config.data.load(batch=8), 64)
    root = jax.random.fold_in(jax.random.key(config.trainer.seed), INIT_STREAM)
    found = {
        one.name: one.finalize(None) for one in references(objective, dataset, [LinearProbe()], key=root)
    }
    values = journal(run[1], "validation")
    for record in values:
        for name, value in found.items():
            assert record["values"][f"validation/{name}"] == value
    with_pixels = [
        Representation(
            features=batch["image"].reshape(8, -1) / 127.5 - 1, labels=batch["label"], use=batch["probe"]
        )
        for batch in dataset.val(DataPartition())
    ]
    assert found["linear_probe.raw_pixels"] == pytest.approx(scored(LinearProbe(), with_pixels), abs=0.002)


def test_a_run_that_goes_on_equals_one_that_was_not_stopped(run, tmp_path):
    train(configuration(tmp_path, steps=2))
    again = train(configuration(tmp_path, steps=4))
    for name in ("params", "ema", "opt_state"):
        jax.tree.map(np.testing.assert_array_equal, getattr(run[0], name), getattr(again, name))


def test_data_without_probe_rows_is_measured_by_the_meters_alone(tmp_path):
    train(dataclasses.replace(configuration(tmp_path, steps=2), probe_rows=0))
    values = journal(tmp_path / "tiny", "validation")[-1]["values"]
    assert set(values) == {f"validation/{name}" for name in METERS}


def test_the_preview_shows_pictures(run):
    items = journal(run[1], "preview")[-1]["items"]
    assert items and all((run[1] / "tracking" / item["file"]).is_file() for item in items)


# The embedding task.


def test_the_recipe_and_the_task_are_found_by_name():
    assert recipes["jepa"] is train and recipes.config("jepa") is JepaRunConfig
    assert tasks["jepa"] is ImageEmbedding and tasks.config("jepa") is EmbeddingOptions


def test_an_opened_run_embeds_with_its_target_encoder(run):
    state, directory = run
    images = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 1), np.uint8)
    objective = configuration(directory).build()
    scaled = images.astype(np.float32) / 127.5 - 1
    for ema, variables, source in (
        (True, state.averaged, "target encoder, average-pooled"),
        (False, state.params, "context encoder, average-pooled"),
    ):
        task = ImageEmbedding.from_run(directory, ema=ema)
        found = task(images, batch=2, standardize=False)
        tree = {"params": variables["params"]["context_encoder"]}
        expected = np.asarray(objective.encoder.apply(tree, scaled)).mean(1)
        np.testing.assert_allclose(found.features, expected, atol=1e-6)
        assert found.source == source and found.features.dtype == np.float32
        own = objective.pipeline(state, ema=ema)(images)
        np.testing.assert_allclose(own.features, expected, atol=1e-6)
        assert own.source == source


def test_an_image_does_not_depend_on_the_others_and_bind_takes_other_weights(run):
    state, directory = run
    task = ImageEmbedding.from_run(directory)
    images = np.random.default_rng(1).integers(0, 256, (5, 16, 16, 1), np.uint8)
    whole = task(images, batch=4).features
    np.testing.assert_allclose(task(images[3]).features, whole[3:4], atol=1e-6)
    live = task.bind(state.params)(images).features
    np.testing.assert_allclose(live, ImageEmbedding.from_run(directory, ema=False)(images).features)
    assert np.abs(live - whole).max() > 1e-6


def test_floats_are_taken_as_they_are_and_bytes_are_scaled(run):
    task = ImageEmbedding.from_run(run[1])
    images = np.random.default_rng(2).integers(0, 256, (2, 16, 16, 1), np.uint8)
    scaled = (images / 127.5 - 1).astype(np.float32)
    plain = task(images, standardize=False).features
    np.testing.assert_allclose(task(scaled, standardize=False).features, plain, atol=1e-5)


def test_pictures_from_files_are_standardized_as_the_runs_data_was(run, tmp_path):
    from PIL import Image

    spec = JepaRunConfig.load(str(run[1])).data
    batch = next(iter(spec.load(batch=4).val(DataPartition())))
    paths = []
    for index, image in enumerate(batch["image"]):
        faint = np.rint(90 + 0.3 * image[..., 0].astype(float)).astype(np.uint8)
        paths.append(tmp_path / f"{index}.png")
        Image.fromarray(faint).save(paths[-1])
    task = ImageEmbedding.from_run(run[1])
    assert task.standardize
    exact = task(batch["image"], standardize=False).features
    assert np.abs(task(paths).features - exact).max() < 0.1 * np.abs(exact).max()
    assert np.abs(task(paths, standardize=False).features - exact).max() > 0.1 * np.abs(exact).max()


def test_the_options_write_the_features_and_name_them(run, tmp_path):
    from PIL import Image

    Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).save(tmp_path / "ramp.png")
    task = ImageEmbedding.from_run(run[1])
    start = EmbeddingOptions.of_run(load_run(run[1]).config)
    assert start.standardize
    out = tmp_path / "features.npy"
    options = dataclasses.replace(start, images=(str(tmp_path / "ramp.png"),) * 2, out=str(out))
    said = "".join(options.respond(task, seed=0))
    assert said == f"{out}: 2 x 8 features (target encoder, average-pooled)\n"
    np.testing.assert_array_equal(np.load(out), task([tmp_path / "ramp.png"] * 2).features)


def test_a_folder_that_is_not_there_is_refused_before_anything_is_computed(tmp_path):
    options = EmbeddingOptions(("ramp.png",), out=str(tmp_path / "none/features.npy"))
    with pytest.raises(FileNotFoundError, match=r"out='.*there is no folder .*none"):
        next(options.respond(None, seed=0))


def test_random_convolutions_of_images_smaller_than_their_window_are_finite():
    featurize = random_convolutions(jax.random.key(0), (4, 12, 1))
    images = jax.random.normal(jax.random.key(1), (3, 4, 12, 1))
    features = np.asarray(featurize(images))
    assert features.shape == (3, 64) and np.isfinite(features).all()


def test_what_cannot_be_embedded_is_refused_by_name(run, tmp_path):
    task = ImageEmbedding.from_run(run[1])
    (tmp_path / "notes.png").write_text("no picture")
    with pytest.raises(ValueError, match=r"notes.png"):
        task(tmp_path / "notes.png")
    with pytest.raises(FileNotFoundError, match=r"missing.png"):
        task(tmp_path / "missing.png")
    with pytest.raises(ValueError, match="no image"):
        task([])
    with pytest.raises(ValueError, match=r"\(2, 8, 8, 1\).*\(16, 16, 1\)"):
        task(np.zeros((2, 8, 8, 1), np.uint8))
    with pytest.raises(TypeError, match=r"holds ndarray; give .* one array of images \['B', 16, 16, 1\]"):
        task([np.zeros((16, 16, 1), np.uint8)])
    with pytest.raises(ValueError, match="int32"):
        task(np.zeros((2, 16, 16, 1), np.int32))
    with pytest.raises(ValueError, match="batch=0"):
        task(np.zeros((2, 16, 16, 1), np.uint8), batch=0)
    with pytest.raises(ValueError, match=r"dtype='int8'"):
        ImageEmbedding.from_run(run[1], dtype="int8")
    with pytest.raises(ValueError, match=r"out='features.csv'"):
        EmbeddingOptions((), out="features.csv")


def test_a_dtype_computes_and_another_stores(run):
    task = ImageEmbedding.from_run(run[1], dtype="bfloat16", param_dtype="bfloat16")
    assert task.encoder.dtype == jax.numpy.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(task.variables)} == {jax.numpy.dtype("bfloat16")}
    assert task(np.zeros((1, 16, 16, 1), np.uint8), standardize=False).features.dtype == np.float32
