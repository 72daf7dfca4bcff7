"""The commands report, list and doctor."""

import os
import subprocess
import sys

import pytest

from dew.cli import main
from dew.cli.commands import doctor
from dew.telemetry import JournalTracker


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two runs below `checkpoints`, one of them never started."""
    monkeypatch.chdir(tmp_path)
    first = tmp_path / "checkpoints" / "first"
    tracker = JournalTracker(str(first), record={"objective": "lm"})
    tracker.started(step=0, total_steps=20, unit="tokens")
    tracker.log({"train/loss": 1.25}, step=20)
    tracker.evaluated({"validation/perplexity": 4.5}, step=20)
    tracker.finished("completed", step=20)
    (first / "run.json").write_text('{"objective": "lm"}')
    second = tmp_path / "checkpoints" / "group" / "second"
    second.mkdir(parents=True)
    (second / "run.json").write_text('{"objective": "diffusion"}')
    os.utime(second / "run.json", (1e9, 1e9))
    return tmp_path / "checkpoints"


def test_the_list_shows_each_run_latest_first(runs, capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["first", "lm", "20/20", "finished", "perplexity", "4.5", "just", "now"]
    assert lines[2].split()[:6] == ["group/second", "diffusion", "-", "not", "started", "-"]
    assert max(map(len, lines)) <= 80


def test_a_run_that_cannot_be_read_does_not_hide_the_others(runs, capsys):
    (runs / "group" / "second" / "run.json").write_text("{")
    assert main(["list", str(runs)]) == 0
    out = capsys.readouterr().out
    assert "unreadable" in out and "finished" in out


def test_listing_a_folder_that_is_not_there_is_a_mistake(tmp_path, capsys):
    assert main(["list", str(tmp_path / "nowhere")]) == 2
    assert "nowhere is not a folder" in capsys.readouterr().err


def test_the_report_is_written_into_the_run_or_where_it_is_wanted(runs, capsys):
    assert main(["report", str(runs / "first")]) == 0
    assert main(["report", str(runs / "first"), "--out", "mine.html"]) == 0
    inside = (runs / "first" / "report.html").read_text()
    assert "4.5" in inside and (runs.parent / "mine.html").exists()
    assert "report.html" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "not the folder of a run"),
        (["checkpoints/first", "--out", "nowhere/x.html"], "its folder is not there"),
        (["checkpoints/first", "--out", "checkpoints"], "is a folder"),
    ],
)
def test_a_report_that_cannot_be_written_is_a_mistake(runs, capsys, words, message):
    assert main(["report", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_doctor_finds_nothing_wrong_here(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "Nothing is wrong" in out and "cpu" in out
    assert max(len(line) for line in out.splitlines() if " " in line.strip()) <= 80


def test_the_doctor_names_a_hanging_driver_and_fails(capsys, monkeypatch):
    def hang(*_, timeout, **__):
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(doctor.subprocess, "run", hang)
    assert main(["doctor"]) == 1
    assert "JAX_PLATFORMS=cpu" in capsys.readouterr().out


def test_the_doctor_names_a_full_disk(tmp_path, monkeypatch):
    usage = doctor.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage._replace(free=5_000_000))
    assert doctor.disk(tmp_path / "not" / "yet").problem.startswith("5 MB free is too little")


@pytest.mark.parametrize("words", [["list"], ["report", "checkpoints/first"]])
def test_reading_runs_needs_no_jax(runs, words):
    code = (
        "import sys; from dew.cli import main; main(sys.argv[1:]); "
        "print(sorted({'jax', 'numpy', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
