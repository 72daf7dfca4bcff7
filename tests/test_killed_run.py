"""A run that is killed at random moments, or meets trouble, ends as the run left alone: short forms."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch):
    """Load a script of `tools/` by its name, as its own processes do."""
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module


@pytest.mark.slow
def test_run_killed_in_every_phase_ends_as_the_run_left_alone(tool, tmp_path: Path):
    tally = tool("kill_run").sweep(tmp_path, kills=8, seed=2, steps=20)
    assert set(tally.kills.values()) == {2} and tally.resumed and tally.rounds


@pytest.mark.slow
@pytest.mark.parametrize("case", ["sigterm", "two-runs"])
def test_run_in_trouble_goes_on_as_the_run_left_alone(tool, tmp_path: Path, case: str):
    trouble = tool("trouble_run")
    trouble.CASES[case](trouble.Bench(tmp_path))


@pytest.mark.slow
def test_run_on_a_full_or_unwritable_disk_fails_by_name_and_goes_on(tool):
    trouble = tool("trouble_run")
    if not trouble.can_mount():
        pytest.skip("no file system may be mounted here")
    assert trouble.run_inside(["full-disk", "unwritable"]) == 0


def test_moments_of_a_seed_are_always_the_same(tool):
    moments = tool("kill_run").moments
    first, again, other = moments(3), moments(3), moments(4)
    drawn = [next(first) for _ in range(8)]
    assert drawn == [next(again) for _ in range(8)] != [next(other) for _ in range(8)]
    assert [moment.phase for moment in drawn] == ["start", "step", "save", "evaluation"] * 2
