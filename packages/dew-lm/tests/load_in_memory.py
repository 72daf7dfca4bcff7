"""Load the folder argv[1] and print its stored bytes and by how much the process grew at its largest."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import jax.numpy as jnp

from dew.interop import load_pretrained


def resident(name: str) -> int:
    """A line of /proc/self/status in bytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def main() -> None:
    """Measure one load; what a first, small one needs is there before."""
    folder = Path(sys.argv[1])
    load_pretrained(folder / "small", param_dtype="auto")
    jnp.ones(1).block_until_ready()
    Path("/proc/self/clear_refs").write_text("5")  # the largest size counts from here
    before = resident("VmRSS")
    source = load_pretrained(folder / "large", param_dtype="auto")
    grown = resident("VmHWM") - before
    stored = (folder / "large/model.safetensors").stat().st_size
    assert source.model.num_layers == 12
    print(stored, grown)


if __name__ == "__main__":
    main()
