"""The journal on disk: what survives a crash, a second life and a stuck disk."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dew.artifacts import TextSamples
from dew.telemetry import JournalTracker, read_journal
from dew.telemetry.appender import Appender

WRITER = """
import sys, time
from dew.telemetry import JournalTracker
tracker = JournalTracker(sys.argv[1], record={})
tracker.started(step=0, total_steps=100, unit="rows")
for step in range(1, 4):
    tracker.log({"train/loss": float(step)}, step=step)
time.sleep(0.5)
print("ready", flush=True)
time.sleep(60)
"""


def journal(run):
    return run / "tracking" / "journal.jsonl"


def start(run, *, step=0, record=None):
    tracker = JournalTracker(str(run), record=record or {"objective": "lm"}, clock=lambda: 100.0)
    tracker.started(step=step, total_steps=10, unit="tokens")
    return tracker


def test_rows_come_back_as_they_were_logged(tmp_path):
    tracker = start(tmp_path)
    tracker.log({"train/loss": 1.5}, step=2)
    tracker.evaluated({"validation/perplexity": 4.25}, step=2)
    tracker.preview(TextSamples(prompts=["a"], texts=["b\n\x00"]), step=2)
    tracker.finished("completed", step=2)
    history = read_journal(tmp_path)
    assert history.metrics == {"train/loss": {2: 1.5}}
    assert history.validation == {"validation/perplexity": {2: 4.25}}
    assert history.previews[0].items == [{"kind": "text", "prompt": "a", "text": "b\n\x00"}]
    assert (history.status, history.record, history.unit) == ("completed", {"objective": "lm"}, "tokens")


def test_values_json_has_no_number_for_survive(tmp_path):
    tracker = start(tmp_path)
    tracker.log({"train/loss": float("nan"), "train/low": float("-inf")}, step=1)
    tracker.finished("failed", step=1)
    row = json.loads(journal(tmp_path).read_text().splitlines()[1])
    assert row["values"] == {"train/loss": None, "train/low": None}
    history = read_journal(tmp_path)
    assert history.metrics["train/low"][1] == float("-inf")
    assert history.metrics["train/loss"][1] != history.metrics["train/loss"][1]


def test_a_torn_last_line_is_cut_off_before_the_next_row(tmp_path):
    start(tmp_path).finished("interrupted", step=4)
    whole = journal(tmp_path).read_bytes()
    journal(tmp_path).write_bytes(whole + b'{"kind":"metrics","st')
    assert read_journal(tmp_path).damaged == 0
    start(tmp_path, step=4).finished("completed", step=10)
    rows = [json.loads(line)["kind"] for line in journal(tmp_path).read_bytes().splitlines()]
    assert rows == ["run", "finished", "resumed", "finished"]


def test_a_last_row_without_its_line_end_is_kept(tmp_path):
    start(tmp_path).finished("interrupted", step=4)
    journal(tmp_path).write_bytes(journal(tmp_path).read_bytes().rstrip(b"\n"))
    start(tmp_path, step=4).finished("completed", step=10)
    assert [life.status for life in read_journal(tmp_path).lives] == ["interrupted", "completed"]


def test_a_damaged_line_in_the_middle_is_counted(tmp_path):
    tracker = start(tmp_path)
    tracker.log({"train/loss": 1.0}, step=1)
    tracker.finished("completed", step=1)
    lines = journal(tmp_path).read_bytes().splitlines(keepends=True)
    journal(tmp_path).write_bytes(lines[0] + b"\0\0\0\n" + b"".join(lines[1:]))
    history = read_journal(tmp_path)
    assert (history.damaged, history.metrics["train/loss"]) == (1, {1: 1.0})


def test_what_lies_beyond_the_resume_step_belongs_to_a_lost_life(tmp_path):
    first = start(tmp_path)
    for step in (2, 4, 6):
        first.log({"train/loss": float(step), "train/gone": 1.0}, step=step)
    first.evaluated({"validation/perplexity": 9.0}, step=6)
    first.finished("failed", step=6)
    second = start(tmp_path, step=4)
    second.log({"train/loss": 60.0}, step=6)
    second.finished("completed", step=6)
    history = read_journal(tmp_path)
    assert history.metrics["train/loss"] == {2: 2.0, 4: 4.0, 6: 60.0}
    assert history.metrics["train/gone"] == {2: 1.0, 4: 1.0}
    assert history.validation["validation/perplexity"] == {}


def test_a_killed_process_leaves_its_rows_and_is_seen_as_interrupted(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    alive = read_journal(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    dead = read_journal(tmp_path)
    assert (alive.status, dead.status) == ("running", "interrupted")
    assert dead.metrics["train/loss"] == {1: 1.0, 2: 2.0, 3: 3.0}


def test_a_second_writer_is_refused(tmp_path):
    tracker = start(tmp_path)
    with pytest.raises(BlockingIOError, match="another process"):
        start(tmp_path)
    tracker.finished("completed", step=0)


def test_a_reader_that_looks_in_just_then_keeps_no_writer_out(tmp_path):
    journal(tmp_path).parent.mkdir()
    journal(tmp_path).touch()
    reader = os.open(journal(tmp_path), os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    threading.Timer(0.2, os.close, [reader]).start()
    JournalTracker(str(tmp_path), record={}).started(step=0, total_steps=1, unit="rows")


def test_a_stuck_disk_does_not_hold_up_the_caller(tmp_path):
    appender = Appender(tmp_path / "journal.jsonl")
    release = threading.Event()
    appender.do(lambda: release.wait(10) and None)
    appender.append(b"{}\n")
    with pytest.raises(TimeoutError, match=r"0\.1 s"):
        appender.close(timeout_s=0.1)
    release.set()


def test_a_burst_faster_than_the_disk_loses_no_line(tmp_path, monkeypatch):
    monkeypatch.setattr("dew.telemetry.appender.PENDING", 2)
    appender = Appender(tmp_path / "journal.jsonl")
    appender.do(lambda: time.sleep(0.1))
    for number in range(20):
        appender.append(f"{number}\n".encode())
    appender.close()
    assert (tmp_path / "journal.jsonl").read_text().split() == [str(number) for number in range(20)]


def test_a_full_queue_on_a_stuck_disk_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("dew.telemetry.appender.PENDING", 2)
    monkeypatch.setattr("dew.telemetry.appender.STUCK_AFTER_S", 0.1)
    appender = Appender(tmp_path / "journal.jsonl")
    release = threading.Event()
    appender.do(lambda: release.wait(10) and None)
    with pytest.raises(OSError, match="takes none"):
        for _ in range(4):
            appender.append(b"{}\n")
    release.set()


def test_a_failed_write_is_raised_by_the_next_call(tmp_path):
    appender = Appender(tmp_path / "journal.jsonl")
    appender.do(lambda: (tmp_path / "missing" / "file").write_bytes(b""))
    with pytest.raises(OSError, match="No such file"):
        appender.close()


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="not the folder of a run"):
        read_journal(tmp_path)


def test_a_run_that_has_not_started_is_empty(tmp_path):
    (tmp_path / "run.json").write_text('{"objective": "lm"}')
    history = read_journal(tmp_path)
    assert (history.status, history.record["objective"], history.step) == ("empty", "lm", 0)


@pytest.mark.parametrize("text", ['{"obj', "[]"])
def test_a_damaged_record_is_named(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ValueError, match=r"run\.json .*restore it"):
        read_journal(tmp_path)
