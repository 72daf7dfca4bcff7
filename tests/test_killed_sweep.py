"""A sweep on real text that is killed in the middle ends with the trials and values of one left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dew.config.sweep import Trial
from dew.config.sweep.ledger import read_ledger

TINY = '{"hidden_size": 16, "num_layers": 1, "num_heads": 2}'
WORDS = [
    *("--model.config", TINY, "--data.val-windows", "4", "--trainer.batch-size", "2"),
    *("--sample-tokens", "0", "--trainer.steps", "60", "--trainer.eval-every", "30"),
    *("--trainer.checkpoint-every", "10", "--trainer.log-every", "5"),
]
SPACE = ["--space", "optim.learning_rate=1e-4..1e-1:log", "--method", "random", "--trials", "2"]


def dew(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "dew", "sweep", *words], cwd=folder)


def outcome(folder: Path) -> list[tuple[int, dict, str, float | None]]:
    return [(each.number, each.point, each.status, each.value) for each in read_ledger(folder)]


def saved(run: Path) -> list[int]:
    folder = run / "checkpoints"
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())


def until(condition, process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the sweep ended before it could be killed"
        assert time.monotonic() < end, "what the kill waits for did not come"
        time.sleep(0.005)


def trials(folder: Path) -> list[Trial]:
    return read_ledger(folder) if folder.exists() else []


@pytest.mark.slow
def test_a_killed_sweep_ends_like_one_left_alone(tmp_path):
    assert dew(tmp_path, "lm", *SPACE, "--out", "alone", *WORDS).wait() == 0
    killed = tmp_path / "killed"
    process = dew(tmp_path, "lm", *SPACE, "--out", "killed", *WORDS)
    until(lambda: len(trials(killed)) == 2 and 10 in saved(killed / "trials" / "trial-0001"), process)
    process.kill()
    process.wait()
    before = read_ledger(killed)
    assert [trial.done for trial in before] == [True, False]
    first = os.stat(killed / "trials" / "trial-0000" / "run.json").st_mtime_ns
    assert dew(tmp_path, "--resume", "killed").wait() == 0
    assert outcome(killed) == outcome(tmp_path / "alone")
    assert os.stat(killed / "trials" / "trial-0000" / "run.json").st_mtime_ns == first, "a trial was repeated"


@pytest.mark.slow
def test_a_terminated_sweep_saves_its_trial_and_names_the_way_on(tmp_path):
    process = dew(tmp_path, "lm", *SPACE, "--out", "stopped", *WORDS)
    run = tmp_path / "stopped" / "trials" / "trial-0000"
    until(lambda: 10 in saved(run), process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert [trial.done for trial in trials(tmp_path / "stopped")] == [False]
    assert saved(run)[-1] > 10, "the trial saved where it was asked to stop"
