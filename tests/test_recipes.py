"""What every registered recipe must do: resume exactly after a kill, accumulate, and train on eight devices.

The recipes are those of the registry; one without tiny settings here fails by its name. Each runs in
processes of its own: six microbatches in windows of two, with a checkpoint inside the second window.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dew.inference import export_run
from dew.registry import recipes, writers
from dew.telemetry.history import read_journal

PROCESS = Path(__file__).with_name("recipe_process.py")
STEPS, CUT = 6, 3
COMMON = {
    "trainer.name": "run",
    "trainer.steps": STEPS,
    "trainer.batch_size": 8,
    "trainer.accumulation": 2,
    "trainer.log_every": 1,
    "trainer.eval_every": None,
    "trainer.checkpoint_every": CUT,
}
DECODER = {"hidden_size": 16, "num_layers": 2, "num_heads": 2}
TINY: dict[str, dict[str, Any]] = {
    "lm": {"model.config": {**DECODER, "max_seq_len": 32}, "data.seq_len": 32, "sample_tokens": 0},
    "diffusion": {"model.config": DECODER},
    "jepa": {
        "model.config": {"patch_size": 4, "hidden_size": 16, "num_layers": 1, "num_heads": 2},
        "predictor.config": {"hidden_size": 16, "num_layers": 1, "num_heads": 2},
        "probe_rows": 0,
    },
    "grpo": {
        "model.config": {**DECODER, "hidden_size": 32},
        "group_size": 16,
        "warm_start.steps": 60,
        "warm_start.batch_size": 32,
    },
    "dpo": {
        "model.config": {**DECODER, "max_seq_len": 32},
        "warm_start.steps": 2,
        "warm_start.batch_size": 8,
        "sample_prompts": [],
    },
}
"""Recipe -> fields that make it small, by their dotted paths in its record."""
LOSSES = 1e-6
"""How far a loss on eight devices may be from the one on a single device, relative to it."""
CANCELS = {"grpo": 1e-7}
"""Recipe -> the rounding of a loss that is small because its terms cancel: the advantages of a group, each of
order one, sum to zero."""


@dataclass(frozen=True)
class Outcome:
    """How a process ended.

    Attributes:
        status: of the process.
        result: what it printed, or nothing.
        directory: of the run.
        losses: by step, from the journal.
        error: its standard error.
    """

    status: int
    result: dict[str, Any]
    directory: Path
    losses: dict[int, float]
    error: str


def run(
    recipe: str, place: Path, *, devices: int = 1, kill_after: int | None = None, **fields: Any
) -> Outcome:
    """Train `recipe` in `place` with its tiny settings."""
    request = {
        "recipe": recipe,
        "fields": {**COMMON, **TINY[recipe], "trainer.checkpoint_dir": str(place), **fields},
        **({} if kill_after is None else {"kill_after": kill_after}),
    }
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, str(PROCESS), json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    printed = [
        line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")
    ]
    begun = (place / "run").is_dir()
    losses = read_journal(place / "run").metrics.get("train/loss", {}) if begun else {}
    return Outcome(
        done.returncode, json.loads(printed[0]) if printed else {}, place / "run", losses, done.stderr[-2000:]
    )


@pytest.fixture(scope="module", params=recipes.names())
def recipe(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def whole(recipe: str, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The recipe's uninterrupted run."""
    outcome = run(recipe, tmp_path_factory.mktemp("whole"))
    assert outcome.status == 0, outcome.error
    return outcome


def test_recipe_has_tiny_settings(recipe: str):
    assert recipe in TINY, f"recipe {recipe!r} has no entry in TINY: say which fields make it small"


@pytest.mark.slow
def test_recipe_trains_in_windows(whole: Outcome):
    assert whole.result["clocks"] == {"step": STEPS, "microstep": STEPS, "updates": STEPS // 2}
    assert sorted(whole.losses) == list(range(1, STEPS + 1))
    assert all(math.isfinite(loss) for loss in whole.losses.values())
    assert max(map(abs, whole.losses.values())) > 1e-3, "a loss of nothing proves nothing"


@pytest.mark.slow
def test_recipe_killed_inside_a_window_ends_bit_for_bit_as_if_it_had_not_been(
    recipe: str, whole: Outcome, tmp_path: Path
):
    killed = run(recipe, tmp_path, kill_after=CUT)
    assert killed.status == -signal.SIGKILL, killed.error
    assert not (tmp_path / f"run/checkpoints/{STEPS}").exists()
    resumed = run(recipe, tmp_path)
    assert resumed.status == 0, resumed.error
    assert resumed.result == whole.result
    assert {step: resumed.losses[step] for step in range(CUT + 1, STEPS + 1)} == {
        step: whole.losses[step] for step in range(CUT + 1, STEPS + 1)
    }


@pytest.mark.slow
def test_run_of_a_recipe_is_published_or_refused_by_the_name_of_its_model(whole: Outcome, tmp_path: Path):
    architecture = json.loads((whole.directory / "run.json").read_text())["model"]["architecture"]
    if architecture in writers:
        assert (export_run(whole.directory, tmp_path / "out") / "model.safetensors").is_file()
    else:
        with pytest.raises(ValueError, match=f"trained the model '{architecture}'.*no published layout"):
            export_run(whole.directory, tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_recipe_on_eight_devices_has_the_losses_of_one(recipe: str, whole: Outcome, tmp_path: Path):
    """Four pieces of the batch, the parameters of each in two."""
    layout = {"trainer.layout.min_shard": 256, "trainer.layout.tolerance": 1.0}
    spread = run(recipe, tmp_path, devices=8, **{"trainer.mesh.fsdp": 2, **layout})
    assert spread.status == 0, spread.error
    assert spread.result["devices"] == 8
    assert spread.losses == pytest.approx(whole.losses, rel=LOSSES, abs=CANCELS.get(recipe, 0))
