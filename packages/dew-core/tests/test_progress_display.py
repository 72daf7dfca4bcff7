"""The progress display on a terminal, in a pipe and around hostile text."""

import io
import re

import pytest
from rich.console import Console

from dew.artifacts import ImageGrid, TextSamples
from dew.telemetry import ProgressTracker
from dew.telemetry.amounts import ago, duration, number, rate, size
from dew.telemetry.bar import LiveBar
from dew.telemetry.pace import Pace


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def piped(clock, encoding="utf-8"):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    tracker = ProgressTracker("mine", console=Console(file=file, width=80), clock=clock)
    return tracker, lambda: raw.getvalue().decode(encoding).splitlines()


def test_a_pipe_gets_plain_lines_at_a_modest_rate():
    clock = Clock()
    tracker, lines = piped(clock)
    tracker.started(step=0, total_steps=100, unit="tokens")
    for step in range(1, 101):
        clock.now += 1.0
        tracker.log({"train/loss": 2.5, "train/tokens_per_second": 61_240.0}, step=step)
    tracker.finished("completed", step=100)
    assert len(lines()) == 13
    assert lines()[:3] == [
        "training mine: step 0/100, compiling (of a large model, some minutes)",
        "step 1/100  loss 2.5  61.2k tokens/s",
        "step 11/100  loss 2.5  61.2k tokens/s  1:29 min left",
    ]
    assert lines()[-2:] == [
        "step 100/100  loss 2.5  61.2k tokens/s",
        "completed at step 100/100 after 1:40 min",
    ]


def test_a_pipe_gets_no_escape_even_from_a_model_that_writes_them():
    tracker, lines = piped(Clock())
    tracker.started(step=0, total_steps=10, unit="tokens")
    tracker.preview(TextSamples(prompts=["a"], texts=["\x1b[2J\r\u202e\tb"]), step=5)
    assert lines()[-1] == r"  | a\x1b[2J\r\u202e    b"


def test_a_pipe_that_takes_ascii_gets_ascii():
    tracker, lines = piped(Clock(), encoding="ascii")
    tracker.started(step=0, total_steps=10, unit="tokens")
    tracker.preview(TextSamples(prompts=["ä"], texts=["─"]), step=5)
    assert lines()[-1] == "  | ??"


def test_validation_and_pictures_are_lines_of_their_own():
    import numpy as np

    tracker, lines = piped(Clock())
    tracker.started(step=0, total_steps=10, unit="images")
    tracker.evaluated({"validation/perplexity": 4.4321, "validation/fid": 12345.6}, step=5)
    tracker.preview((ImageGrid(images=np.zeros((3, 2, 2, 1))),), step=5)
    tracker.evaluated({}, step=6)
    assert lines()[1:] == [
        "step 5/10  validation  perplexity 4.432  fid 12,346",
        "  3 pictures, shown by dew report",
    ]


@pytest.mark.parametrize("width", [12, 24, 40, 60, 80, 200])
def test_the_bar_never_exceeds_the_terminal(width):
    clock, pace = Clock(), Pace()
    bar = LiveBar(Console(file=io.StringIO()), clock, pace, 2200, 4.0)
    pace.tick(820, 0.0)
    pace.tick(840, 1.0)
    clock.now = 1.0
    bar.update(840, ["loss 1.532", "61.2k tokens/s"])
    line = bar.line(width)
    assert len(line.plain) <= width and "\n" not in line.plain
    assert line.plain.startswith("840/2200")
    pieces = [piece for piece in line.plain.split("  ") if "━" not in piece]
    assert pieces == ["840/2200", "loss 1.532", "61.2k tokens/s", "1:08 min left"][: len(pieces)]
    assert len(pieces) == {12: 1, 24: 2, 40: 3}.get(width, 4)


def test_a_terminal_without_colour_gets_a_bar_without_colour(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    tracker = ProgressTracker("mine", console=Console(file=out, force_terminal=True, width=60), clock=Clock())
    tracker.started(step=0, total_steps=10, unit="tokens")
    tracker.log({"train/loss": 2.5}, step=5)
    tracker.finished("completed", step=10)
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m|\x1b\[9[0-9]m", out.getvalue())
    assert "completed at step 10/10" in out.getvalue()


def test_time_left_counts_the_steps_after_the_first_tick():
    pace = Pace()
    pace.tick(20, 100.0)
    assert pace.left_s(220, 100.0) is None
    pace.tick(40, 110.0)
    assert pace.left_s(220, 110.0) == 90.0
    assert pace.left_s(220, 113.0) == 87.0


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (number(1.53249), "1.532"),
        (number(0.00031), "0.00031"),
        (number(61240.4), "61,240"),
        (number(9999.7), "10,000"),
        (number(2.9e-07), "2.9e-07"),
        (number(float("nan")), "nan"),
        (rate(812.4), "812"),
        (rate(999.9), "1k"),
        (rate(1_340_000), "1.34M"),
        (duration(41.6), "42 s"),
        (duration(187), "3:07 min"),
        (duration(8100), "2:15 h"),
        (duration(273_600), "3 d 4 h"),
        (ago(59), "just now"),
        (ago(7300), "2 h ago"),
        (size(812), "812 B"),
        (size(4_213_000), "4.21 MB"),
    ],
)
def test_amounts_read_as_people_write_them(written, expected):
    assert written == expected
