"""The program's first stage: what it prints, what it imports and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from dew.cli import entry, errors, main
from dew.cli.errors import UserError, report
from dew.failure import StatedFailure
from dew.plugins.known import SHIPPED_BY
from dew.training.rejections import RejectedSteps

pytestmark = pytest.mark.alone

HEAVY = ("jax", "numpy", "tyro", "flax", "optax", "rich", "jaxtyping")
PROBE = f"""
import json, sys
from dew.cli import main
status = main(json.loads(sys.argv[1]))
print(json.dumps([status, [name for name in {HEAVY!r} if name in sys.modules]]))
"""


@pytest.mark.parametrize(
    "words", [["--help"], ["train", "--help"], ["plugins"], ["plugins", "--help"], ["--version"]]
)
def test_help_and_lists_import_no_numerics(words: list[str]):
    result = subprocess.run([sys.executable, "-c", PROBE, json.dumps(words)], capture_output=True, text=True)
    assert json.loads(result.stdout.splitlines()[-1]) == [0, []], result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plugin"], "dew: 'plugin' is no command; did you mean plugins?"),
        (["rubbish"], "dew: 'rubbish' is no command; dew --help lists them"),
        (["plugins", "chek"], "dew: 'chek' is no subcommand of dew plugins; did you mean check?"),
        (
            ["train", "sorcery"],
            "dew: 'sorcery' is no recipe here: it ships in dew-sorcery; pip install",
        ),
        (["train", "--resume"], "dew: the recipe comes before its options"),
    ],
)
def test_mistake_is_one_line_with_a_way_out_and_status_2(
    words: list[str], message: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(SHIPPED_BY, ("recipe", "sorcery"), "dew-sorcery")
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(message) and shown.err.count("\n") == 1 and shown.out == ""


@pytest.mark.parametrize("words", [[], ["train"]])
def test_nothing_to_do_shows_the_help_and_ends_with_2(words: list[str], capsys: Any):
    assert main(words) == 2
    assert "usage: dew" in capsys.readouterr().out


def raised(error: BaseException) -> int:
    """The status of a command that raises `error`."""
    try:
        raise error
    except Exception as caught:
        return report(caught)


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (UserError("depth=0 must be 1 or more"), 2, "dew: depth=0 must be 1 or more\n"),
        (
            FileNotFoundError(2, "No such file or directory", "a.txt"),
            2,
            "dew: a.txt: No such file or directory\n",
        ),
        (ImportError("metric 'fid' needs x: pip install x"), 2, "dew: metric 'fid' needs x: pip install x\n"),
    ],
)
def test_mistake_is_its_message_alone(error: Exception, status: int, text: str, capsys: Any):
    assert raised(error) == status
    assert capsys.readouterr().err == text


@pytest.mark.parametrize("error", [RuntimeError("bug"), TypeError("bug"), ModuleNotFoundError("bug")])
def test_failure_comes_with_its_traceback(error: Exception, capsys: Any):
    assert raised(error) == 1
    assert "Traceback" in capsys.readouterr().err


class TooHot(StatedFailure, FloatingPointError):
    """A condition that a plugin states."""


@pytest.mark.parametrize("error", [TooHot("loss=nan; cool it"), RejectedSteps("loss=nan; cool it")])
def test_stated_failure_is_its_message_and_ends_with_1(error: Exception, capsys: Any):
    assert raised(error) == 1
    assert capsys.readouterr().err == "dew: loss=nan; cool it\n"


def test_traceback_of_a_stated_failure_on_request(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.setenv("DEW_TRACEBACK", "1")
    assert raised(TooHot("loss=nan")) == 1
    assert "Traceback" in capsys.readouterr().err


def test_traceback_of_a_mistake_on_request(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.setenv("DEW_TRACEBACK", "1")
    assert raised(UserError("field")) == 2
    assert "Traceback" in capsys.readouterr().err


def test_value_error_inside_the_training_loop_is_a_failure(capsys: Any):
    module, function = errors.STEPPING
    owner, name = function.split(".")
    loop = compile(f"class {owner}:\n    def {name}():\n        raise ValueError('shape')", "fit.py", "exec")
    scope: dict[str, Any] = {"__name__": module}
    exec(loop, scope)
    try:
        getattr(scope[owner], name)()
    except ValueError as error:
        assert report(error) == 1
    assert "Traceback" in capsys.readouterr().err


def command(action: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """The status of a program whose command does `action`."""
    monkeypatch.setattr(entry, "dispatch", lambda words: action())
    return main(["anything"])


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch):
    def action() -> int:
        raise KeyboardInterrupt

    assert command(action, monkeypatch) == 130


@pytest.mark.parametrize(("code", "status"), [(None, 0), (2, 2), ("words", 1)])
def test_exit_inside_a_command_keeps_its_status(code: Any, status: int, monkeypatch: pytest.MonkeyPatch):
    assert command(lambda: sys.exit(code), monkeypatch) == status


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_run_that_saved_and_stopped_ends_with_its_signal(number: int, status: int, capsys: Any):
    from dew.training.preemption import Preempted

    assert raised(Preempted(number, 7)) == status
    assert "Traceback" not in capsys.readouterr().err


def test_reader_that_leaves_is_no_failure():
    line = f"{sys.executable} -m dew --help | head -1; echo ${{PIPESTATUS[0]}}"
    noisy = os.environ | {"PYTHONUNBUFFERED": "1"}
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=noisy)
    assert result.stdout.splitlines()[-1] == "0" and result.stderr == ""
