"""A sweep's ledger: what a kill leaves is what was said to be durable."""

import json

import pytest

from dew.config.sweep.ledger import LEDGER, Ledger, read_ledger


def test_trials_come_back_as_they_ended(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.complete(ledger.start(0, {"x": 1}), 2.5, 1.0, {"metric": "loss", "higher_is_better": False})
    ledger.fail(ledger.start(1, {"x": 2}), "ValueError: boom", 0.5)
    ledger.start(2, {"x": 3})
    ledger.close()
    first, second, third = read_ledger(tmp_path)
    assert (first.status, first.value, first.facts["metric"]) == ("completed", 2.5, "loss")
    assert (second.status, second.error, second.done) == ("failed", "ValueError: boom", True)
    assert (third.point, third.done, third.name) == ({"x": 3}, False, "trial-0002")


def test_a_line_torn_by_a_kill_is_taken_off_wherever_it_broke(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.complete(ledger.start(0, {"x": 1}), 2.5, 1.0, {})
    ledger.close()
    whole = (tmp_path / LEDGER).read_bytes()
    line = json.dumps({"kind": "started", "trial": 1, "point": {"x": 2}}).encode()
    for length in range(len(line)):
        (tmp_path / LEDGER).write_bytes(whole + line[:length])
        assert [trial.number for trial in read_ledger(tmp_path)] == [0]
    opened = Ledger(tmp_path)
    opened.start(1, {"x": 2})
    opened.close()
    assert [trial.number for trial in read_ledger(tmp_path)] == [0, 1]


def test_damage_inside_is_refused_with_its_line(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.start(0, {"x": 1})
    ledger.close()
    path = tmp_path / LEDGER
    path.write_bytes(b"{torn\n" + path.read_bytes())
    with pytest.raises(ValueError, match="line 1 is damaged"):
        Ledger(tmp_path)


def test_one_sweep_at_a_time(tmp_path):
    first = Ledger(tmp_path)
    with pytest.raises(BlockingIOError, match="is being swept by another process"):
        Ledger(tmp_path)
    first.close()
    Ledger(tmp_path).close()
