"""Keep the exact versions of `pyproject.toml` equal to what the workspace resolves to.

    uv run python tools/versions.py            rewrite the list
    uv run python tools/versions.py --check    fail when it differs

The list is `name==version` lines without hashes or addresses: a lock file would carry its registry's.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

MANIFEST = Path(__file__).resolve().parent.parent / "pyproject.toml"
BLOCK = re.compile(r"^constraint-dependencies = \[\n.*?^\]\n", re.DOTALL | re.MULTILINE)
EXPORT = (
    "uv export --all-packages --all-groups --all-extras "
    "--no-hashes --no-emit-workspace --no-annotate --no-header"
)


def resolved() -> list[str]:
    """`name==version` requirements of the whole workspace, markers kept, sorted."""
    output = subprocess.run(EXPORT.split(), capture_output=True, text=True, check=True, cwd=MANIFEST.parent)
    return sorted(line.strip() for line in output.stdout.splitlines() if line.strip())


def block(requirements: list[str]) -> str:
    lines = "".join(f"  {requirement!r},\n" for requirement in requirements)
    return f"constraint-dependencies = [\n{lines}]\n"


def main() -> int:
    text = MANIFEST.read_text()
    current = BLOCK.search(text)
    if current is None:
        print("pyproject.toml has no constraint-dependencies list", file=sys.stderr)
        return 1
    wanted = block(resolved())
    if current.group() == wanted:
        return 0
    if "--check" in sys.argv[1:]:
        have, want = set(current.group().splitlines()), set(wanted.splitlines())
        for line in sorted(want - have):
            print("missing:", line.strip())
        for line in sorted(have - want):
            print("stale:", line.strip())
        print("rewrite it with: uv run python tools/versions.py", file=sys.stderr)
        return 1
    MANIFEST.write_text(text[: current.start()] + wanted + text[current.end() :])
    return 0


if __name__ == "__main__":
    sys.exit(main())
