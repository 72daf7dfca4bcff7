"""Several trackers behind one, and the services they open."""

import logging

import pytest

from dew.telemetry import FanOut, JournalTracker, ProgressTracker, Tracker, open_tracker, read_journal


class Failing(Tracker):
    def __init__(self, event):
        self.event, self.calls = event, 0

    def log(self, values, *, step):
        self.calls += 1
        if self.event == "log":
            raise RuntimeError("no room")

    def finished(self, status, *, step):
        if self.event == "finished":
            raise RuntimeError("cannot close")


def drive(tracker):
    tracker.started(step=0, total_steps=2, unit="rows")
    tracker.log({"train/loss": 1.0}, step=1)
    tracker.log({"train/loss": 0.5}, step=2)
    tracker.finished("completed", step=2)


@pytest.mark.parametrize(("event", "reason"), [("log", "no room"), ("finished", "cannot close")])
def test_a_failing_tracker_is_reported_once_and_left_out(tmp_path, caplog, toys, event, reason):
    failing, recorder = Failing(event), toys.Recorder()
    with caplog.at_level(logging.WARNING):
        drive(FanOut([JournalTracker(str(tmp_path), record={}), failing, recorder]))
    assert [reason in message for message in caplog.messages] == [True]
    assert failing.calls == (1 if event == "log" else 2)
    assert recorder.of("finished") == {2: "completed"}
    history = read_journal(tmp_path)
    assert history.status == "completed" and reason in history.notices[0][1]


def test_a_journal_that_cannot_be_written_does_not_stop_the_run(tmp_path, caplog, toys):
    (tmp_path / "tracking").write_text("a file where the folder should be")
    recorder = toys.Recorder()
    with caplog.at_level(logging.WARNING):
        drive(FanOut([JournalTracker(str(tmp_path), record={}), recorder]))
    assert len(caplog.messages) == 1 and "JournalTracker" in caplog.messages[0]
    assert set(recorder.of("log")) == {1, 2}


def test_an_interrupt_is_not_taken_for_a_failing_tracker(toys):
    class Interrupting(Tracker):
        def log(self, values, *, step):
            raise KeyboardInterrupt

    fan = FanOut([Interrupting(), toys.Recorder()])
    with pytest.raises(KeyboardInterrupt):
        fan.log({}, step=1)


def test_a_run_is_told_to_the_journal_the_display_and_the_plugins(tmp_path):
    tracker = open_tracker(str(tmp_path / "mine"), record={"objective": "lm"})
    kinds = [type(each).__name__ for each in tracker.trackers]
    assert kinds == ["JournalTracker", "ProgressTracker", "LifecycleTracker"]
    assert not (tmp_path / "mine").exists()


def test_a_run_in_a_bucket_keeps_its_journal_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tracker = open_tracker("gs://bucket/runs/mine", record={})
    tracker.trackers = [each for each in tracker.trackers if not isinstance(each, ProgressTracker)]
    drive(tracker)
    assert read_journal(tmp_path / "tracking" / "mine").status == "completed"
