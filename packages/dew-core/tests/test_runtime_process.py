"""Process settings, each in a process of its own, since they must precede JAX's backend."""

import os
import subprocess
import sys

import pytest

from dew.config import TrainerConfig
from dew.training.runtime import append_xla_flags, prepare_process

PRELUDE = "import os, jax\nfrom dew.config import TrainerConfig\nfrom dew.training.runtime import *\n"


def run(program, **environment):
    """The last line a program prints in a fresh process."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    done = subprocess.run([sys.executable, "-c", PRELUDE + program], capture_output=True, text=True, env=env)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


def test_flags_are_appended_once_and_reach_the_backend():
    flags = "--xla_force_host_platform_device_count=3"
    program = f"""
config = TrainerConfig(xla_flags="{flags}", multi_host=False)
prepare_process(config); prepare_process(config)
print(jax.device_count(), os.environ["XLA_FLAGS"])
prepare_process(config); print(jax.device_count(), os.environ["XLA_FLAGS"])
"""
    first = "--xla_cpu_enable_fast_math=false"
    assert run(program, XLA_FLAGS=first) == f"3 {first} {flags}"


def test_flags_after_a_backend_is_open_are_refused():
    program = "jax.devices(); prepare_process(TrainerConfig(xla_flags='--xla_cpu_enable_fast_math=false'))"
    assert "trainer.xla_flags='--xla_cpu_enable_fast_math=false' comes too late" in run(program, XLA_FLAGS="")


def test_flags_that_are_set_already_need_no_fresh_process(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--a=1 --b=2")
    append_xla_flags("--b=2")
    assert os.environ["XLA_FLAGS"] == "--a=1 --b=2"


def test_compiled_programs_are_kept_in_the_folder_and_only_there(tmp_path):
    kept = tmp_path / "xla"
    program = """
use_compilation_cache(%r)
print(int(jax.jit(lambda x: x * 3 + 1)(2)), flush=True)
"""
    elsewhere = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "other")}
    assert run(program % str(kept), **elsewhere) == "7"
    assert any(kept.iterdir())
    assert run(program % None, **elsewhere) == "7"
    assert not (tmp_path / "other").exists()


def test_no_pool_goes_on_alone_unless_one_is_required():
    assert run("join_processes(None); join_processes(False); print(jax.process_count())") == "1"
    assert "trainer.multi_host=True, but nothing describes a pool" in run("join_processes(True)")


def test_a_pool_that_can_no_longer_be_joined_is_not_left_out_silently():
    told = run("jax.devices(); join_processes(None)", JAX_COORDINATOR_ADDRESS="127.0.0.1:1")
    assert "JAX_COORDINATOR_ADDRESS=127.0.0.1:1 names a pool of processes, and JAX has opened" in told


def test_two_processes_join_the_pool_the_environment_describes():
    """A pool as Open MPI describes it, with the coordinator's port set by hand."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_PLATFORMS": "cpu",
    }
    program = PRELUDE + "prepare_process(TrainerConfig()); print(jax.process_index(), jax.process_count())"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, **environment, "OMPI_COMM_WORLD_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    outputs = [worker.communicate(timeout=60)[0] for worker in workers]
    assert [f"{rank} 2" in output for rank, output in enumerate(outputs)] == [True, True], outputs


def test_preparing_an_open_process_without_settings_changes_nothing():
    import jax

    held = jax.config.jax_compilation_cache_dir
    jax.devices()
    prepare_process(TrainerConfig(compilation_cache_dir=held))
    assert jax.process_count() == 1
    assert jax.config.jax_compilation_cache_dir == held


@pytest.mark.parametrize("opened", [True, False])
def test_an_open_backend_is_told_from_a_closed_one(opened):
    program = (
        "jax.devices(); " if opened else ""
    ) + "print(backend_is_open(), jax.config.jax_num_cpu_devices)"
    assert run(program) == f"{opened} -1"
