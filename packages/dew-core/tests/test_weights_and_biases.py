"""Reporting to Weights & Biases, read back from the file its own package writes offline."""

import importlib.util
import json
import struct
import subprocess
import sys

import pytest

from dew.config import Wandb
from dew.telemetry import WandbTracker, open_tracker

RUN = """
import sys
import numpy as np
from dew.artifacts import ImageGrid, TextSamples
from dew.config import Wandb
from dew.telemetry import WandbTracker

def life(first, last, status):
    tracker = WandbTracker(Wandb("project", offline=True), sys.argv[1], name="some/run", record={"seed": 3})
    tracker.started(step=first, total_steps=14, unit="tokens")
    for step in range(first + 1, last + 1):
        tracker.log({"train/loss": 1.0 / step}, step=step)
    grid = ImageGrid(images=np.zeros((1, 2, 2, 3)))
    tracker.preview((TextSamples(prompts=["p"], texts=["t"]), grid), step=last)
    tracker.checkpointed(sys.argv[2], step=last)
    tracker.finished(status, step=last)

life(0, 12, "interrupted")
life(8, 14, "completed")
"""
BLOCK, HEADER = 32768, 7


def records(path):
    """The payloads of W&B's transaction log: LevelDB's log format after a header of 7 bytes."""
    data, position, parts = path.read_bytes(), HEADER, b""
    while position + HEADER <= len(data):
        if BLOCK - position % BLOCK < HEADER:
            position += BLOCK - position % BLOCK
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + HEADER])
        parts += data[position + HEADER : position + HEADER + length]
        position += HEADER + length
        if kind in (1, 4):
            yield parts
            parts = b""


def logged(path):
    from wandb.proto import wandb_internal_pb2 as internal

    for payload in records(path):
        record = internal.Record()
        record.ParseFromString(payload)
        yield record


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_a_resumed_run_keeps_every_row_over_its_own_step(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "leaf").write_text("x")
    command = [sys.executable, "-c", RUN, str(tmp_path / "run"), str(checkpoint)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    files = sorted((tmp_path / "run" / "tracking").rglob("*.wandb"), key=lambda path: path.stat().st_mtime)
    lives = [list(logged(path)) for path in files]
    assert [losses(life) for life in lives] == [
        {step: 1.0 / step for step in range(1, 13)},
        {step: 1.0 / step for step in range(9, 15)},
    ]
    assert {metric.metric.step_metric for metric in lives[1] if metric.metric.glob_name == "*"} == {"step"}
    assert len({record.run.run_group for life in lives for record in life if record.run.run_id}) == 1
    artifacts = [[r.artifact.name for r in life if r.artifact.type == "model"] for life in lives]
    assert artifacts == [[], ["some-run"]]


def losses(life):
    rows = [{(i.key or "/".join(i.nested_key)): i.value_json for i in r.history.item} for r in life]
    return {json.loads(row["step"]): json.loads(row["train/loss"]) for row in rows if "train/loss" in row}


def test_a_missing_package_is_named_before_the_run(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'dew-core\[wandb\]'"):
        WandbTracker(Wandb("project"), str(tmp_path), name="mine", record={})


def test_a_configured_service_is_among_the_trackers(tmp_path):
    tracker = open_tracker(str(tmp_path), record={}, wandb=Wandb("project", offline=True))
    assert "WandbTracker" in [type(each).__name__ for each in tracker.trackers]
