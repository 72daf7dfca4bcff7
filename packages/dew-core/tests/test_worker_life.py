"""Loader workers do not outlive a trainer that was killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

READER = """
import grain, sys
from dew.data.config import Loading
from dew.data.dataset import DataPartition, Dataset

if __name__ == "__main__":
    rows = grain.MapDataset.range(1000).map(lambda n: {"id": n})
    data = Dataset.from_grain(rows, batch=2, loading=Loading(workers=2, threads=0))
    reader = data.train(DataPartition())
    next(reader)
    print("reading", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_workers_end_when_their_reader_is_killed(tmp_path):
    script = tmp_path / "reader.py"
    script.write_text(READER)
    reader = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert reader.stdout is not None and reader.stdout.readline() == b"reading\n"
    os.kill(reader.pid, signal.SIGKILL)
    reader.wait()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            os.killpg(reader.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(reader.pid, signal.SIGKILL)
    pytest.fail("a worker outlives its reader")
