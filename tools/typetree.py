"""Merge the distributions' sources into one tree of links, so that editors and type checkers see one `dew`.

    uv run python tools/typetree.py [DESTINATION]

A folder that one distribution ships alone becomes a link to it; a folder that several contribute to becomes
a real folder of links. The same walk finds a path that two distributions ship, which would clash.
"""

from __future__ import annotations

import shutil
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def sources(root: Path = ROOT) -> list[Path]:
    """The `src` folders of the workspace's distributions."""
    return sorted(path for path in root.glob("packages/*/src") if path.is_dir())


def collisions(folders: list[Path]) -> list[str]:
    """Relative paths of files that more than one source folder holds."""
    owners: defaultdict[str, list[Path]] = defaultdict(list)
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                owners[str(path.relative_to(folder))].append(folder)
    return sorted(name for name, holders in owners.items() if len(holders) > 1)


def link(folders: list[Path], destination: Path) -> None:
    """Fill `destination` with links to what `folders` hold, level by level."""
    destination.mkdir(parents=True, exist_ok=True)
    entries: defaultdict[str, list[Path]] = defaultdict(list)
    for folder in folders:
        for path in folder.iterdir():
            if path.name != "__pycache__":
                entries[path.name].append(path)
    for name, paths in entries.items():
        if len(paths) == 1:
            (destination / name).symlink_to(paths[0])
        else:
            link(paths, destination / name)


def main() -> int:
    destination = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".typetree"
    folders = sources()
    clashes = collisions(folders)
    if clashes:
        print("shipped by more than one distribution: " + ", ".join(clashes), file=sys.stderr)
        return 1
    if destination.exists():
        shutil.rmtree(destination)
    link(folders, destination)
    return 0


if __name__ == "__main__":
    sys.exit(main())
