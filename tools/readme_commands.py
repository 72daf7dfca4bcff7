"""Run the commands of a README as they are written, so that none of them rots.

    uv run python tools/readme_commands.py README.md packages/dew-lm/README.md ...

Every line of a fenced `sh` block is one command, run from the repository's root; the first failure ends
the file. `RUN` stands for the newest directory under `checkpoints`. Commands that CI runs as steps of their
own (the test suite and, in the root README, the main job) are skipped here and named; a `dew train` in a
package's README gets `--trainer.steps 20`, since what is checked there is the command, not the result.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
STEPS_OF_THEIR_OWN = ("uv run pytest", "uv run dew train lm", ".ci/run")
SHORT = " --trainer.steps 20"


def commands(text: str) -> list[str]:
    """The command lines of the `sh` fences, comments and continuation lines resolved."""
    blocks = (block.replace("\\\n", " ") for block in FENCE.findall(text))
    lines = (line.strip() for block in blocks for line in block.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def newest_run() -> str:
    runs = sorted((ROOT / "checkpoints").glob("*/run.json"), key=lambda path: path.stat().st_mtime)
    return str(runs[-1].parent.relative_to(ROOT)) if runs else "checkpoints/none"


def adapted(command: str, readme: Path) -> str:
    if "dew train" in command and readme.parent != ROOT:
        command += SHORT
    return re.sub(r"\bRUN\b", newest_run(), command)


def check(readme: Path) -> bool:
    for command in commands(readme.read_text()):
        if command in STEPS_OF_THEIR_OWN and readme.parent == ROOT:
            print(f"{readme.name}: {command}: a step of its own")
            continue
        line = adapted(command, readme)
        print(f"{readme.relative_to(ROOT)}: {line}", flush=True)
        done = subprocess.run(["bash", "-c", line], cwd=ROOT, env=os.environ, stdin=subprocess.DEVNULL)
        if done.returncode:
            print(f"exit status {done.returncode}: {line}", file=sys.stderr)
            return False
    return True


def main() -> int:
    results = [check(Path(name).resolve()) for name in sys.argv[1:]]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
