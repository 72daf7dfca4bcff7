"""A run that is told to stop saves, says how to go on, and goes on; the status tells how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SMALL = '{"hidden_size": 16, "num_layers": 1, "num_heads": 2, "max_seq_len": 128}'
OPTIONS = [
    "--trainer.name",
    "run",
    "--data.val-windows",
    "8",
    "--sample-tokens",
    "0",
    "--trainer.log-every",
    "5",
]


def command(folder: Path, *words: str) -> list[str]:
    place = ["--trainer.checkpoint-dir", str(folder), "--model.config", SMALL]
    return [sys.executable, "-m", "dew", "train", "lm", *place, *OPTIONS, *words]


def wait_for(condition, process: subprocess.Popen[str], seconds: float = 120) -> None:
    """Return once `condition()` holds; fail when the process ends or time runs out first."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_run_saves_says_how_to_go_on_and_goes_on(tmp_path: Path, number: int, status: int):
    journal = tmp_path / "run/tracking/journal.jsonl"
    line = command(
        tmp_path, "--trainer.steps", "1000000", "--trainer.eval-every", "None", "--trainer.log-every", "5"
    )
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: journal.is_file() and "train/loss" in journal.read_text(), process)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == status, err
    assert f"Go on with: dew train lm --resume {tmp_path}/run" in out
    assert f"stopped by {signal.Signals(number).name}" in err and "Traceback" not in err

    saved = max(int(path.name) for path in (tmp_path / "run/checkpoints").iterdir() if path.name.isdigit())
    words = ["--resume", str(tmp_path / "run"), "--trainer.steps", str(saved + 5)]
    again = subprocess.run(
        [sys.executable, "-m", "dew", "train", "lm", *words], capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    assert (tmp_path / f"run/checkpoints/{saved + 5}").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data.path", "nowhere.txt"], "data.path=nowhere.txt is not there"),
        (["--model.config", '{"hiden_size": 3}'], "has no field 'hiden_size'; did you mean hidden_size?"),
        (["--model.architecture", "causal_transformr"], "did you mean causal_transformer?"),
    ],
)
def test_mistake_found_while_building_is_one_message_and_status_2(
    tmp_path: Path, words: list[str], message: str
):
    result = subprocess.run(
        [sys.executable, "-m", "dew", "train", "lm", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"DEW_CACHE": str(tmp_path)},
    )
    assert result.returncode == 2
    assert result.stderr.startswith("dew: ") and message in result.stderr and "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1
