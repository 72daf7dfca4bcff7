"""Traces of a process and XProf's reports of them."""

import csv
import json
import sys

import jax
import jax.numpy as jnp
import pytest

from dew.cli import main
from dew.telemetry.profile import TOOLS, capture, sessions, write_reports


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    step = jax.jit(lambda x: jnp.tanh(x @ x).sum())
    x = jnp.ones((64, 64))
    step(x).block_until_ready()
    with capture(str(folder)) as place:
        assert place == str(folder)
        step(x).block_until_ready()
    return folder


def test_a_capture_is_one_session(trace):
    assert len(sessions(trace)) == 1


def test_a_second_capture_within_one_is_refused(tmp_path):
    with (
        capture(str(tmp_path)),
        pytest.raises(RuntimeError),
        capture(str(tmp_path)),
    ):
        raise AssertionError("two traces at once")


def test_reports_are_xprofs_own_and_the_trace_is_left_alone(trace, tmp_path):
    pytest.importorskip("xprof")
    from xprof.convert import raw_to_tool_data

    session = sessions(trace)[-1]
    before = {path.name: path.stat().st_mtime_ns for path in session.iterdir()}
    written = write_reports(session, tmp_path, tools=("overview_page", "hlo_stats"))
    assert [path.name for path in written] == ["overview_page.json", "hlo_stats.json", "hlo_stats.csv"]
    assert {path.name: path.stat().st_mtime_ns for path in session.iterdir()} == before
    own, _ = raw_to_tool_data.xspace_to_tool_data([str(next(session.glob("*.xplane.pb")))], "hlo_stats", {})
    columns = [column["label"] for column in json.loads(own)["cols"]]
    assert json.loads(written[1].read_bytes()) == json.loads(own)
    with written[2].open(newline="") as file:
        assert next(csv.reader(file)) == columns


def test_without_xprof_the_report_says_what_to_install(trace, monkeypatch):
    monkeypatch.setitem(sys.modules, "xprof.convert", None)
    with pytest.raises(ImportError, match=r"pip install 'dew-core\[profile\]'"):
        write_reports(sessions(trace)[-1])


def test_a_tool_and_a_folder_that_do_not_exist_are_refused(trace, tmp_path):
    with pytest.raises(ValueError, match=f"'op_stats', which is no report.*{TOOLS[0]}"):
        write_reports(sessions(trace)[-1], tools=("op_stats",))
    with pytest.raises(FileNotFoundError, match="holds no trace"):
        sessions(tmp_path)


def test_the_command_writes_reports_beside_the_trace(trace, capsys):
    pytest.importorskip("xprof")
    assert main(["profile", str(trace), "--tools", "op_profile"]) == 0
    written = sessions(trace)[-1] / "reports" / "op_profile.json"
    assert str(written) in capsys.readouterr().out and "byProgram" in json.loads(written.read_bytes())
