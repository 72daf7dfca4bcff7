"""Kill `dew tokenize` at random moments, start it again each time, and compare with a run nobody killed.

    uv run python tools/kill_tokenize.py [--kills 20] [--workers 2] [--seed 0]

The text is Python's library sources, a line of JSON for each of its functions and blocks, with a
byte-level BPE. Every kill is a SIGKILL of the command alone; what its workers leave and whether they end
is checked too. Prints a line for each kill and ends with 1 where the bytes differ.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dew.data.text.corpus import standard_library

ROOT = Path(__file__).resolve().parent.parent
TOKENIZER = ROOT / "packages/dew-lm/tests/golden/chat/byte_level"
FILES = ("train.bin", "val.bin", "meta.json")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    words = parser.parse_args()
    draw = random.Random(words.seed)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        write_text(place / "text.jsonl")
        began = time.monotonic()
        subprocess.run(command(place, "whole", 1), check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - began
        kills = finished = 0
        while kills < words.kills:
            if killed(place, words.workers, draw.uniform(0.3 * seconds, seconds)):
                kills += 1
                print(f"kill {kills}: {parts(place)} parts committed", flush=True)
            else:
                finished += 1
                compare(place)
        subprocess.run(command(place, "killed", words.workers), check=True, stdout=subprocess.DEVNULL)
        compare(place)
        print(f"{kills} kills over {finished + 1} corpora, each with the bytes of a run nobody killed")
        return 0


def compare(place: Path) -> None:
    """End where a finished corpus has other bytes; else take it away."""
    for file in FILES:
        if (place / "whole" / file).read_bytes() != (place / "killed" / file).read_bytes():
            sys.exit(f"{file} has other bytes")
    shutil.rmtree(place / "killed")


def write_text(path: Path) -> None:
    with path.open("w") as file:
        for span in standard_library():
            for block in span.path.read_text(encoding="utf-8", errors="replace").split("\n\n\n"):
                file.write(json.dumps({"text": block}) + "\n")


def command(place: Path, out: str, workers: int) -> list[str]:
    made = [sys.executable, "-m", "dew", "tokenize", str(place / "text.jsonl"), "--out", str(place / out)]
    return [*made, "--tokenizer", str(TOKENIZER), "--workers", str(workers)]


def killed(place: Path, workers: int, after_s: float) -> bool:
    """Start the command, kill it after so long, and see its workers end. False where it had finished."""
    process = subprocess.Popen(
        command(place, "killed", workers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        process.wait(after_s)
        return False
    except subprocess.TimeoutExpired:
        children = children_of(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{child}").exists() for child in children):
        if time.monotonic() > deadline:
            raise RuntimeError(f"workers {children} outlive the command")
        time.sleep(0.05)
    return True


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        found += [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    return found


def parts(place: Path) -> int:
    return len(list((place / "killed" / ".parts").glob("[0-9]*.json")))


if __name__ == "__main__":
    sys.exit(main())
