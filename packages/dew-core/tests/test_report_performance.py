"""What journal, report and terminal make of a run's account."""

import html
import re

import pytest

from dew.report import render_report
from dew.telemetry import JournalTracker, read_journal
from dew.telemetry.progress import shares


class Clock:
    now = 1e9

    def __call__(self):
        return self.now


@pytest.fixture
def lives(tmp_path):
    """Journals processes of one run, each from a step and with an account, and reads the journal."""

    def make(*accounts, status=None):
        for first, account in accounts:
            tracker = JournalTracker(str(tmp_path), record={}, clock=Clock())
            tracker.started(step=first, total_steps=9, unit="tokens")
            tracker.log(
                {"train/loss": 1.0, "performance/mfu": 0.41, "performance/data_wait": 0.0}, step=first + 1
            )
            tracker.accounted(account, step=first + 1)
            tracker.log(
                {"train/loss": 1.0, "performance/mfu": 0.43, "performance/data_wait": 0.0}, step=first + 2
            )
            tracker._write_account()
            tracker._appender.close()
        return read_journal(tmp_path)

    return make


ACCOUNT = {
    "seconds": {"step": 60.0, "start": 30.0, "compile": 10.0},
    "first_step_s": 41.25,
    "compilations": 7,
    "step_compilations": 1,
    "devices": 8,
    "device_kind": "TPU v5 lite",
    "memory_peak_bytes": 12_300_000_000,
    "memory_limit_bytes": 16_000_000_000,
    "flops_per_step": 5.3e12,
    "counts": "the causal half",
    "dtype": "bfloat16",
    "peak_flops": 197e12,
}


def text_of(history):
    page = render_report(history, now=1e9)
    return html.unescape(
        re.sub(r"\s+", " ", re.sub(r"<(style|script).*?</\1>|<[^>]+>", " ", page, flags=re.S))
    )


def test_the_page_says_where_the_time_went_and_by_which_formula(lives):
    text = text_of(lives((0, ACCOUNT)))
    for figure in (
        "60.0%",
        "41.2 s",
        "train step 1 times",
        "8 x TPU v5 lite",
        "12.3 GB of 16 GB",
        "the causal half",
        "197TFLOP/s a device",
        "median 43.0%",
    ):
        assert figure in text, figure


def test_goodput_of_a_run_is_over_all_its_processes(lives):
    again = {**ACCOUNT, "seconds": {"step": 20.0, "redone": 40.0, "start": 40.0}}
    history = lives((0, ACCOUNT), (1, again))
    assert history.seconds == {"step": 80.0, "start": 70.0, "compile": 10.0, "redone": 40.0}
    assert "40.0% of the processes' wall time" in text_of(history)


def test_what_is_not_known_is_said_so(lives):
    unknown = {"seconds": {"step": 1.0}, "devices": 1, "device_kind": "cpu"}
    text = text_of(lives((0, unknown)))
    assert "not known: this model has no formula" in text and "not reported by this backend" in text
    no_peak = {**unknown, "flops_per_step": 1e9, "counts": "x", "dtype": "float32", "peak_flops": None}
    assert "no published peak of cpu in float32" in text_of(lives((0, no_peak)))


def test_a_run_is_accounted_every_few_seconds_and_at_its_end(tmp_path):
    clock = Clock()
    tracker = JournalTracker(str(tmp_path), record={}, clock=clock)
    tracker.started(step=0, total_steps=9, unit="tokens")
    for step in range(1, 8):
        clock.now += 1
        tracker.accounted({"seconds": {"step": float(step)}}, step=step)
    tracker.finished("completed", step=7)
    rows = (tmp_path / "tracking" / "journal.jsonl").read_text().splitlines()
    assert [row.count('"account"') > 0 for row in rows].count(True) == 3
    assert read_journal(tmp_path).seconds == {"step": 7.0}


def test_the_last_line_names_what_took_a_hundredth_or_more():
    seconds = {"step": 80.0, "compile": 15.0, "save": 4.5, "data": 0.5}
    assert shares(seconds) == "goodput 80% (compile 15%, save 4%)"
