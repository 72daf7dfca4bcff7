"""Loading a published decoder: seconds and peak memory, Dew against transformers, in turns.

Each load is a process of its own; imports come before the clock and the memory they hold is subtracted. The
files are read once before, so that both sides find them in memory. transformers maps them and reads nothing,
so one number of every page of its weights is added up before its clock stops.

    uv run --group oracle python tools/smollm2.py FOLDER
    uv run python benchmarks/load_published.py FOLDER --torch-python PYTHON [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from results import report, spread

DEW = """
import jax
from dew.interop import load_pretrained
from dew.interop.decoders import read_decoder
jax.devices()
def load(folder):
    return jax.block_until_ready(load_pretrained(folder).variables)
"""
TORCH = """
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM
def load(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.detach().flatten()[::1024].sum()
    return model
"""
MEASURE = """
import json, sys, time
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
before, start = peak(), time.perf_counter()
held = load(sys.argv[1])
print(json.dumps({"seconds": time.perf_counter() - start, "bytes": peak() - before}))
"""


def loaded(python: str, program: str, folder: str) -> dict[str, float]:
    """Seconds and bytes of one load."""
    done = subprocess.run(
        [python, "-c", program + MEASURE, folder], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--torch-python", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    files = list(options.folder.glob("*.safetensors"))
    stored = sum(len(file.read_bytes()) for file in files)
    sides = {"dew": (sys.executable, DEW), "transformers": (options.torch_python, TORCH)}
    turns: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(options.rounds):
        for side, (python, program) in sides.items():
            turns[side].append(loaded(python, program, str(options.folder)))
    report(
        "load_published",
        stored_bytes=stored,
        **{side: spread([turn["seconds"] for turn in taken]) for side, taken in turns.items()},
        peak_over_stored={
            side: round(max(turn["bytes"] for turn in taken) / stored, 3) for side, taken in turns.items()
        },
    )


if __name__ == "__main__":
    main()
