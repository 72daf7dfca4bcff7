"""One contract over every registered component here; one without an example fails by its name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict

from dew.artifacts import ImageGrid, TokenScores
from dew.config import RunConfig
from dew.data import TokenWindows
from dew.data.mixture import Part
from dew.lora import LoRA, adapted, factors_of, merged
from dew.objectives.base import Step
from dew.plugins.known import DISTRIBUTIONS
from dew.plugins.loader import installed
from dew.registry import presets, recipes
from dew.testing import (
    ComponentContract,
    DatasetExample,
    Example,
    FunctionExample,
    MetricExample,
    ModelExample,
    ObjectiveExample,
    RecipeExample,
    ScheduleExample,
    in_memory,
    registered,
)
from dew.training import Trainer

DECODER = {"vocab_size": 256, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "max_seq_len": 32}
VISION = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}
IMAGES = {"patch_size": 4, **VISION}
FLOAT32 = {"model.dtype": "float32"}


def draw(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Standard normal numbers; the first rows are the same whatever their number."""
    rows = [np.random.default_rng([seed, row]).standard_normal(shape[1:]) for row in range(shape[0])]
    return np.asarray(rows, np.float32)


def ids(rows: int, length: int, below: int = 256) -> np.ndarray:
    return (np.arange(rows * length).reshape(rows, length) * 37 % below).astype(np.int32)


def small(recipe: str, **fields: Any) -> Callable[[], RunConfig]:
    """The recipe's starting point with some fields of its record, by their dotted paths."""

    def config() -> RunConfig:
        config_class = recipes.config(recipe)
        record = config_class.starting_point().to_dict()
        for path, value in (FLOAT32 | fields).items():
            *above, last = path.split(".")
            place: Any = record
            for name in above:
                place = place[name]
            assert last in place, path
            place[last] = value
        return config_class.from_dict(record)

    return config


RUNS = {
    "lm": small("lm", **{"model.config": DECODER, "data.seq_len": 12, "sample_tokens": 0}),
    "diffusion": small("diffusion", **{"model.config": VISION, "sampling_steps": 2}),
    "jepa": small(
        "jepa",
        **{
            "model.config": {**VISION, "patch_size": 2},
            "predictor.config": VISION,
            "data.image_size": 16,
            "probe_rows": 0,
        },
    ),
    # Rows of 8 and 12 predictions, which a sequence axis of two or four divides.
    "grpo": small("grpo", **{"model.config": DECODER, "group_size": 4, "max_new_tokens": 5}),
    "dpo": small("dpo", **{"model.config": DECODER, "sample_prompts": [], "data.seq_len": 12}),
}


def responses(rows: int) -> dict[str, Any]:
    """What a rollout hands to a policy objective: prompts of four ids, answers of up to five."""
    mask = np.concatenate([np.zeros((rows, 3)), np.arange(5) < (1 + np.arange(rows) % 5)[:, None]], axis=1)
    log_probs = (-1 - 0.1 * np.arange(rows)[:, None]) * mask
    return {
        "text": ids(rows, 9),
        "loss_mask": mask.astype(np.float32),
        "behavior_log_probs": log_probs.astype(np.float32),
        "old_log_probs": log_probs.astype(np.float32),
        "advantages": (np.arange(rows) % 3 - 1.2).astype(np.float32),
        "rewards": (np.arange(rows) % 2).astype(np.float32),
        "no_spread": np.zeros(rows, np.float32),
        "singleton": np.zeros(rows, np.float32),
    }


def pairs(rows: int) -> dict[str, Any]:
    mask = np.concatenate([np.zeros((rows, 4)), np.ones((rows, 8))], axis=1).astype(np.int32)
    chosen, rejected = ids(rows, 13), ids(rows, 13, 251)
    return {"chosen": chosen, "rejected": rejected, "chosen_mask": mask, "rejected_mask": mask}


def pictures(rows: int, size: int) -> dict[str, Any]:
    images = np.clip(127 + 60 * draw((rows, size, size, 1)), 0, 255).astype(np.uint8)
    return {"image": images, "label": (np.arange(rows) % 3).astype(np.int32)}


BATCHES = {
    "lm": lambda rows: {"text": ids(rows, 13)},
    "diffusion": lambda rows: pictures(rows, 8),
    "jepa": lambda rows: pictures(rows, 16),
    "grpo": responses,
    "dpo": pairs,
}


def noisy(rows: int) -> dict[str, Any]:
    return {"x": draw((rows, 8, 8, 3)), "noise_level": 0.1 + np.arange(rows, dtype=np.float32) / 10}


def hidden_blocks(rows: int) -> dict[str, Any]:
    return {
        "context": draw((rows, 3, 8)),
        "context_positions": np.tile(np.arange(3, dtype=np.int32), (rows, 1)),
        "target_positions": np.tile(np.array([[[4, 5], [8, 9]]], np.int32), (rows, 1, 1)),
    }


MODELS = {
    "causal_transformer": ModelExample(fields=DECODER, inputs=lambda rows: {"tokens": ids(rows, 8)}),
    "simple_dit": ModelExample(fields={**VISION, "patch_size": 4, "output_channels": 3}, inputs=noisy),
    "unet": ModelExample(
        fields={"channels": [8], "blocks": 1, "num_heads": 2, "condition_size": 8, "norm_groups": 4},
        inputs=noisy,
    ),
    "vit_jepa": ModelExample(
        fields={**IMAGES, "image_size": [16, 16], "channels": 1},
        inputs=lambda rows: {"images": draw((rows, 16, 16, 1))},
    ),
    "vit_jepa_predictor": ModelExample(
        fields={**VISION, "grid": [4, 4], "features": 8}, inputs=hidden_blocks
    ),
}


def through(spec: Any) -> Callable[[Any, Any], Any]:
    """What a process makes of clean images, noise and a prediction."""
    process = spec.build()

    def function(_: Any, rows: Mapping[str, Any]) -> dict[str, Any]:
        times = process.draw_times(jax.random.key(0), rows["row"])
        noisy = process.corrupt(rows["x0"], rows["noise"], times)
        scaled, level = process.model_input(noisy, times)
        target = process.target(rows["x0"], rows["noise"], times)
        clean = process.clean(target, noisy, times)
        return {"noisy": noisy, "scaled": scaled, "level": level, "target": target, "clean": clean}

    return function


def walked(solver: Any) -> Callable[[Any, Any], Any]:
    """Samples of a solver under a denoiser that shrinks its input."""
    from dew.sampling.images import sample

    process = presets.build("edm").build()

    def function(_: Any, rows: Mapping[str, Any]) -> Any:
        denoise = process.denoiser(lambda x, noise_level: 0.5 * jnp.tanh(x))
        keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.key(0), row))(rows["row"])
        return sample(denoise, rows["x"], 4, solver=solver, key=keys)

    return function


def clean_and_noise(rows: int) -> dict[str, Any]:
    shape = rows, 4, 4, 1
    return {"row": np.arange(rows), "x0": draw(shape), "noise": draw(shape, 1)}


def pure_noise(rows: int) -> dict[str, Any]:
    return {"row": np.arange(rows), "x": 80 * draw((rows, 4, 4, 1))}


def scores() -> list[TokenScores]:
    return [TokenScores(losses=np.ones((rows, 2)) / rows, weights=np.ones((rows, 2))) for rows in (1, 2, 4)]


def grids() -> list[ImageGrid]:
    shapes = [(rows, 12, 12, 3) for rows in (1, 2, 4)]
    return [ImageGrid(images=draw(shape), references=draw(shape, 1)) for shape in shapes]


def features() -> list[Any]:
    from dew.objectives.jepa.representation import Representation

    return [
        Representation(
            features=draw((rows, 4), rows), labels=np.arange(rows) % 2, use=np.arange(rows) // 2 % 2
        )
        for rows in (4, 8, 12)
    ]


def rewarded() -> list[Any]:
    from dew.objectives.rl import RewardedTexts

    sizes = (1, 2, 4)
    return [RewardedTexts(prompts=["q"] * n, texts=["a"] * n, rewards=np.full(n, 1 / n)) for n in sizes]


def preferred() -> list[Any]:
    from dew.objectives.rl.preference_scores import PairScores

    names = ("losses", "chosen_log_probs", "rejected_log_probs", "divergence", "tokens", "rejected_rewards")
    return [
        PairScores(
            **{name: np.zeros(n) for name in names}, weights=np.ones(n), chosen_rewards=np.arange(n) - 0.5
        )
        for n in (1, 2, 4)
    ]


METRICS = {
    "perplexity": MetricExample(artifacts=scores, expected=float(np.exp(3 / 7))),
    "psnr": MetricExample(artifacts=grids),
    "ssim": MetricExample(artifacts=grids),
    "reward": MetricExample(artifacts=rewarded, expected=3 / 7),
    "preference_accuracy": MetricExample(artifacts=preferred, expected=4 / 7),
    **{
        name: MetricExample(artifacts=features)
        for name in ("feature_covariance", "feature_std", "knn_probe", "linear_probe", "rankme")
    },
}


def picture_files(folder: Path) -> Mapping[str, Any]:
    from PIL import Image

    for index in range(24):
        (folder / "ab"[index % 2]).mkdir(exist_ok=True)
        Image.new("RGB", (9, 9), (9 * index, 0, 0)).save(folder / "ab"[index % 2] / f"{index}.png")
    return {"path": str(folder)}


def flower_files(folder: Path) -> Mapping[str, Any]:
    import scipy.io
    from PIL import Image

    (folder / "jpg").mkdir()
    for number in range(1, 25):
        Image.new("RGB", (9, 9), (9 * number, 0, 0)).save(folder / "jpg" / f"image_{number:05d}.jpg")
    scipy.io.savemat(folder / "imagelabels.mat", {"labels": np.arange(24)[None] + 1})
    splits = {"trnid": np.arange(1, 17), "valid": np.arange(17, 21), "tstid": np.arange(21, 25)}
    scipy.io.savemat(folder / "setid.mat", splits)
    return {"path": str(folder)}


def text_file(folder: Path) -> Mapping[str, Any]:
    (folder / "words.txt").write_text("".join(f"line {number}\n" for number in range(400)))
    return {"path": str(folder / "words.txt")}


def id_files(folder: Path) -> Mapping[str, Any]:
    for name, count in (("train", 400), ("val", 80)):
        (np.arange(count) % 200).astype(np.uint8).tofile(folder / f"{name}.bin")
    return {"path": str(folder)}


def mixed_files(folder: Path) -> Mapping[str, Any]:
    fields = {"seq_len": 8, "dtype": "uint8", **id_files(folder)}
    parts = (Part(data=TokenWindows(**fields), weight=3.0), Part(data=TokenWindows(**fields, seed=1)))
    return {"parts": parts}


def json_lines(folder: Path, records: list[dict[str, Any]]) -> str:
    (folder / "train.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    return str(folder / "train.jsonl")


def chat_files(folder: Path) -> Mapping[str, Any]:
    turns = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    (folder / "turns.jinja").write_text(
        turns + "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    records = [
        {
            "messages": [
                {"role": "user", "content": f"{number}?"},
                {"role": "assistant", "content": "x" * (number % 5)},
            ]
        }
        for number in range(40)
    ]
    return {"path": json_lines(folder, records), "template": str(folder / "turns.jinja")}


def prompt_files(folder: Path) -> Mapping[str, Any]:
    return {"path": json_lines(folder, [{"prompt": f"{number}+1="} for number in range(40)])}


def pair_files(folder: Path) -> Mapping[str, Any]:
    pairs = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": str(n)} for n in range(40)]
    return {"path": json_lines(folder, pairs)}


def byte_tokenizer() -> object:
    from dew.data.text import ByteTokenizer

    return ByteTokenizer()


DATASETS = {
    "digits": DatasetExample(),
    "mnist5k": DatasetExample(fields={"image_size": 14}),
    "textures": DatasetExample(fields={"image_size": 8}),
    "image_folder": DatasetExample(fields={"image_size": 4, "val_fraction": 0.3}, files=picture_files),
    "oxford_flowers102": DatasetExample(fields={"image_size": 4}, files=flower_files),
    "text": DatasetExample(fields={"seq_len": 8}, files=text_file),
    "token_windows": DatasetExample(fields={"seq_len": 8, "dtype": "uint8"}, files=id_files),
    "packed_tokens": DatasetExample(
        fields={"seq_len": 8, "dtype": "uint8", "document_end": 6}, files=id_files
    ),
    "chat_messages": DatasetExample(
        fields={"seq_len": 63, "val_fraction": 0.3}, files=chat_files, tokenize=byte_tokenizer
    ),
    "prompts": DatasetExample(fields={"prompt_tokens": 8}, files=prompt_files, tokenize=byte_tokenizer),
    "preference_pairs": DatasetExample(fields={"seq_len": 9}, files=pair_files, tokenize=byte_tokenizer),
    "mixture": DatasetExample(files=mixed_files),
    "last_digit": DatasetExample(tokenize=byte_tokenizer),
    "sum_pairs": DatasetExample(fields={"rejections": 1}, tokenize=byte_tokenizer),
}
SCHEDULES = {
    "cosine": ScheduleExample(fields={"warmup_updates": 2, "end_factor": 0.1}),
    "linear": ScheduleExample(fields={"warmup_updates": 2}),
    "power": ScheduleExample(fields={"scale": 4.0, "warmup_updates": 2, "tail_updates": 4}),
}
PRESETS = {
    name: FunctionExample(function=through, rows=clean_and_noise)
    for name in ("edm", "karras", "cosine", "linear", "flow")
}
SAMPLERS = {
    name: FunctionExample(function=walked, rows=pure_noise)
    for name in ("ddpm", "ddim", "euler", "euler_ancestral", "heun", "dpmpp_2m")
}
EXAMPLES: dict[str, Mapping[str, Example]] = {
    "objective": {name: ObjectiveExample(config=RUNS[name], batch=BATCHES[name]) for name in RUNS},
    "recipe": {name: RecipeExample(config=config) for name, config in RUNS.items()},
    "model": MODELS,
    "metric": METRICS,
    "dataset": DATASETS,
    "schedule": SCHEDULES,
    "preset": PRESETS,
    "sampler": SAMPLERS,
}


class TestEveryComponent(ComponentContract):
    test_split_over_devices_it_equals_the_whole = pytest.mark.slow(
        ComponentContract.test_split_over_devices_it_equals_the_whole
    )

    def components(self):
        own = [plugin.name for plugin in installed().plugins if plugin.distribution in DISTRIBUTIONS]
        return registered(*own)

    def examples(self):
        return {(kind, name): each for kind, named in EXAMPLES.items() for name, each in named.items()}


def test_no_example_is_left_without_its_component():
    contract = TestEveryComponent()
    there = {(part.kind, part.name) for part in contract.components()}
    assert sorted(contract.examples().keys() - there) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_every_objective_trains_a_low_rank_adapter_beside_a_base_that_stays(name):
    """On every matrix of the model; the loss is that of the merged weights."""
    objective = RUNS[name]().build()
    base = flatten_dict(jax.eval_shape(lambda key: nn.unbox(objective.initializer(key)), jax.random.key(0)))
    kernels = ["/".join(path[1:-1]) for path, leaf in base.items() if path[-1] == "kernel" and leaf.ndim == 2]
    lora = LoRA(tuple(f"/{module}" for module in kernels), rank=2, alpha=1.0)
    twin, batch = adapted(objective, lora), BATCHES[name]
    trainer = Trainer(twin, optax.adamw(1e-2, weight_decay=0.1), key=jax.random.key(1))
    start = trainer.initial_state()
    state = trainer.fit(in_memory(batch(4), batch=2), steps=3)
    jax.tree.map(np.testing.assert_array_equal, start.params["frozen"], state.params["frozen"])
    factors = factors_of(state.params)
    assert sorted(factors) == sorted(kernels) and len(kernels) > 3
    unmoved = [module for module, (_, b) in factors.items() if not np.asarray(b).any()]
    assert unmoved == [], "these factors get no gradient"
    step = Step(step=0, key=jax.random.key(2), ema=None if state.ema is None else state.averaged)
    whole = merged(state.params, lora)
    average = None if step.ema is None else merged(step.ema, lora)
    found, expected = (
        one.reduce_loss(one.loss(params, batch(2), Step(step=0, key=step.key, ema=ema))[0])[0]
        for one, params, ema in ((twin, state.params, step.ema), (objective, whole, average))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
