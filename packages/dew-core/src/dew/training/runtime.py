"""Process setup that must come before JAX opens a backend: compiler flags, the compile cache, the process
pool."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dew.training.host_memory import keep_freed_memory

if TYPE_CHECKING:
    from dew.config.trainer import TrainerConfig

NO_CLUSTER = "coordinator_address should be defined."
"""What JAX says when nothing in the environment describes a pool of processes."""


def prepare_process(config: TrainerConfig) -> None:
    """Apply the process settings of a run. A recipe calls it first; calling it again changes nothing.

    Args:
        config: `xla_flags`, `compilation_cache_dir` and `multi_host` are read.

    Raises:
        ValueError: `xla_flags` after JAX has opened a backend, or `multi_host=True` where no pool is
            described.
        RuntimeError: the pool cannot be joined.
    """
    append_xla_flags(config.xla_flags)
    keep_freed_memory()
    use_compilation_cache(config.compilation_cache_dir)
    join_processes(config.multi_host)


def append_xla_flags(flags: str | None) -> None:
    """Append to XLA_FLAGS what it does not hold yet.

    Raises:
        ValueError: there is something to append and JAX has opened a backend, which reads the flags once.
    """
    present = os.environ.get("XLA_FLAGS", "").split()
    fresh = [flag for flag in (flags or "").split() if flag not in present]
    if not fresh:
        return
    if backend_is_open():
        raise ValueError(
            f"trainer.xla_flags={flags!r} comes too late: JAX has opened a backend; call "
            "dew.training.runtime.prepare_process before anything runs on a device, or set XLA_FLAGS"
        )
    os.environ["XLA_FLAGS"] = " ".join([*present, *fresh])


def backend_is_open() -> bool:
    """Whether JAX has opened a backend in this process, told by a setting it then refuses to change."""
    import jax

    held: int = jax.config.jax_num_cpu_devices
    try:
        jax.config.update("jax_num_cpu_devices", max(held, 0) + 1)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", held)
    return False


def use_compilation_cache(directory: str | None) -> None:
    """Keep compiled programs in `directory`, those that compile quickly included; None keeps none."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if jax.config.jax_compilation_cache_dir != directory:
        compilation_cache.reset_cache()
        jax.config.update("jax_compilation_cache_dir", directory)
    if directory is not None:
        if "://" not in directory:
            os.makedirs(directory, exist_ok=True)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def join_watch() -> None:
    """Begin to watch over the other processes of the pool that was joined."""
    import jax

    from dew.training.pool import joined

    if jax.process_count() > 1:
        joined()


def join_processes(multi_host: bool | None) -> None:
    """Join JAX's process pool.

    Args:
        multi_host: None joins a pool that the environment describes, and goes on alone where it describes
            none; a process that has opened a backend before counts as alone unless JAX_COORDINATOR_ADDRESS
            is set. True requires a pool; False does not ask.

    Raises:
        ValueError: True and no pool is described, an incomplete description, or None with a pool that
            JAX_COORDINATOR_ADDRESS names and an open backend.
        RuntimeError: the pool cannot be joined, or True after JAX has opened a backend.
    """
    import jax

    if multi_host is False or jax.distributed.is_initialized():
        return
    if multi_host is None and backend_is_open():
        address = os.environ.get("JAX_COORDINATOR_ADDRESS")
        if address is None:
            return
        raise ValueError(
            f"JAX_COORDINATOR_ADDRESS={address} names a pool of processes, and JAX has opened a backend, so "
            "this process cannot join it any more; call dew.training.runtime.prepare_process before anything "
            "runs on a device, or set trainer.multi_host=False to train alone"
        )
    try:
        jax.distributed.initialize()
        join_watch()
    except ValueError as error:
        if str(error) != NO_CLUSTER:
            raise
        if multi_host:
            raise ValueError(
                "trainer.multi_host=True, but nothing describes a pool of processes; start under a scheduler "
                "that JAX knows, call jax.distributed.initialize yourself, or leave multi_host unset"
            ) from error
