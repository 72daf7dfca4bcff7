"""Freed memory stays in the process: page faults of a second allocation, counted in a fresh process."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from dew.training.host_memory import keep_freed_memory

PAGES = 25_000

SCRIPT = f"""
import resource, sys, threading
import numpy as np
from dew.training.host_memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

def faults_of_an_allocation():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty({PAGES} * 4096, np.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def work():
    faults_of_an_allocation()
    print(faults_of_an_allocation())

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""

gnu_only = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"),
    reason="needs the GNU C library",
)


def second_allocation(mode: str) -> int:
    command = [sys.executable, "-c", SCRIPT, mode]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@gnu_only
def test_a_second_allocation_in_a_thread_touches_no_new_pages():
    assert second_allocation("keep") < PAGES // 50


@gnu_only
def test_without_the_settings_every_allocation_is_faulted_in_again():
    assert second_allocation("leave") > PAGES // 1000


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert keep_freed_memory() is False
