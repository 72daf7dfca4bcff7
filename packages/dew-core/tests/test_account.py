"""Where a process's time is booked, and what devices can do at best."""

import time

import pytest

from dew.telemetry.account import (
    COMPILE,
    DATA,
    EVALUATION,
    REDONE,
    SAVE,
    START,
    STEP,
    TimeAccount,
    goodput,
    process_start,
)
from dew.telemetry.peaks import peak_flops


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def passes(self, seconds):
        self.now += seconds


def test_every_second_is_booked_once():
    clock = Clock()
    account = TimeAccount(90.0, clock)
    account.turn(STEP)
    clock.passes(6)
    with account.spent(EVALUATION):
        clock.passes(2)
        with account.spent(DATA):
            clock.passes(1)
    clock.passes(1)
    seconds = account.seconds()
    assert {name: spent for name, spent in seconds.items() if spent} == {
        START: 10,
        STEP: 7,
        EVALUATION: 2,
        DATA: 1,
    }
    assert sum(seconds.values()) == clock.now - account.began
    assert account.goodput() == 7 / 20


def test_steps_done_again_are_no_goodput():
    clock = Clock()
    account = TimeAccount(None, clock)
    for step in range(5):
        account.turn(REDONE if step < 3 else STEP)
        clock.passes(1)
    assert account.seconds()[REDONE] == 3 and account.goodput() == 2 / 5


def test_compilation_leaves_the_category_it_happened_in():
    clock = Clock()
    account = TimeAccount(None, clock)
    with account.spent(EVALUATION):
        clock.passes(5)
        account.compiled(2)
        clock.passes(1)
    account.turn(SAVE)
    seconds = account.seconds()
    assert (seconds[EVALUATION], seconds[COMPILE], seconds[SAVE]) == (4, 2, 0)


def test_a_traced_function_within_another_is_counted_once():
    """The inner tracing of 2 s ends 1 s before the outer one of 4 s; a later compilation stands alone."""
    clock = Clock()
    account = TimeAccount(None, clock)
    account.turn(STEP)
    clock.passes(13)
    account.compiled(2)
    clock.passes(1)
    account.compiled(4)
    clock.passes(2)
    account.compiled(1)
    assert account.seconds()[COMPILE] == 5 and account.seconds()[STEP] == 11


def test_goodput_of_no_time_is_none_of_it():
    assert goodput({}) == 0.0


def test_the_process_began_before_now_and_after_the_machine():
    began = process_start()
    assert 0 < time.monotonic() - began < 24 * 3600


@pytest.mark.parametrize(
    ("kind", "dtype", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989e12),
        ("NVIDIA H100 PCIe", "bfloat16", 756e12),
        ("NVIDIA H200", "float16", 989e12),
        ("NVIDIA A100-SXM4-40GB", "bfloat16", 312e12),
        ("TPU v4", "bfloat16", 275e12),
        ("TPU v5 lite", "bfloat16", 197e12),
        ("TPU v5p", "bfloat16", 459e12),
        ("TPU v6 lite", "bfloat16", 918e12),
        ("TPU v4 lite", "bfloat16", None),
        ("NVIDIA A1000", "bfloat16", None),
        ("NVIDIA H100 80GB HBM3", "float32", None),
        ("cpu", "float32", None),
    ],
)
def test_peaks_are_those_of_the_data_sheets(kind, dtype, peak):
    assert peak_flops(kind, dtype) == peak
