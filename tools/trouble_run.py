"""What a run makes of trouble that is no kill, and that it then still ends as the run that was left alone.

    uv run python tools/trouble_run.py [CASE ...]

- full-disk: the disk fills up between two saves. The run fails naming the step it could not write; with room
  again it goes on from the last complete step.
- unwritable: the checkpoints' folder stops taking files in a run, and before one. The first fails like a full
  disk; the second is refused before training.
- sigterm: SIGTERM arrives in the middle of a save, early and late. The status is 143 and the step is saved.
- two-runs: a second process on the same run is refused, the first does not notice; after a SIGKILL of the
  first, which had loader workers, the next starts at once.

Each goes on to the end and is compared bit for bit, as `kill_run.py` does. The first two mount file systems
in a name space of their own (`unshare --mount --map-root-user`); where that is not allowed they are skipped
by name.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kill_run import NAME, SAVE_EVERY, WORDS, Broken, Child, committed, compare, journal, outcome

INSIDE = "DEW_TROUBLE_INSIDE"
STEPS = 20
NAMESPACE = ("unshare", "--mount", "--map-root-user")


class Bench:
    """A folder for runs and the outcome of the one that was left alone."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.words = [*WORDS, "--trainer.compilation-cache-dir", str(root / "cache")]
        self.words += ["--trainer.steps", str(STEPS)]
        (root / "alone").mkdir()
        alone = Child(root / "alone", self.words)
        expect(alone, 0)
        self.reference: Mapping[str, Any] = outcome(root / "alone")

    def folder(self, name: str) -> Path:
        """A new folder."""
        (self.root / name).mkdir()
        return self.root / name

    def finish(self, folder: Path, at_least: int, *words: str) -> None:
        """Go on from the newest complete step, which must be `at_least`, and compare the end."""
        held = committed(folder) or 0
        if held < at_least:
            raise Broken(f"checkpoint {at_least} was complete, and the newest now is {held}")
        child = Child(folder, [*self.words, *words])
        expect(child, 0)
        began = next(row["step"] for _, row in child.rows() if row["kind"] in ("run", "resumed"))
        if began != held:
            raise Broken(f"the run went on at step {began} and not at {held}")
        compare(self.reference, folder)


def expect(child: Child, status: int, *words: str) -> None:
    """See that `child` ends with `status`, after saying `words`."""
    found, said = child.end(), child.log.read_text()
    if found != status or not all(word in said for word in words):
        raise Broken(f"status {found}, where {status} and {words} were expected; {child.said()}")


def saved_once(child: Child) -> int:
    """Wait until a checkpoint is announced and return its step."""
    if child.wait_for(lambda row: row["kind"] == "checkpoint") is None:
        raise Broken(f"the run ended before its first checkpoint; {child.said()}")
    return max(row["step"] for _, row in child.rows() if row["kind"] == "checkpoint")


def full_disk(bench: Bench) -> None:
    """Fill a small disk after the first checkpoint."""
    folder = bench.folder("full-disk")
    mount("-t", "tmpfs", "-o", "size=8m", "none", str(folder))
    child = Child(folder, bench.words)
    step = saved_once(child)
    filler = folder / "filler"
    while child.process.is_alive():  # deletions make room again
        fill(filler)
        time.sleep(0.002)
    expect(child, 1, "checkpoint", "could not be written", "space")
    filler.unlink()
    bench.finish(folder, step)
    subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    """Let the file at `path` take all that is left."""
    with path.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


def unwritable(bench: Bench) -> None:
    """Make the checkpoints' folder read-only, before a run and in one."""
    before = bench.folder("unwritable-before")
    place = before / NAME / "checkpoints"
    place.mkdir(parents=True)
    read_only(place)
    expect(Child(before, bench.words), 1, "checkpoints cannot be kept in")
    if any(row["kind"] == "metrics" for row in journal(before)):
        raise Broken("a run that cannot save has trained")
    folder = bench.folder("unwritable")
    child = Child(folder, bench.words)
    step = saved_once(child)
    read_only(folder / NAME / "checkpoints")
    expect(child, 1, "checkpoint", "could not be written")
    subprocess.run(["umount", str(folder / NAME / "checkpoints")], check=True)
    bench.finish(folder, step)


def read_only(folder: Path) -> None:
    """Mount `folder` over itself, read-only."""
    mount("--bind", str(folder), str(folder))
    mount("-o", "remount,bind,ro", str(folder))


def mount(*words: str) -> None:
    """Mount something in this name space."""
    subprocess.run(["mount", *words], check=True)


def sigterm(bench: Bench) -> None:
    """Send SIGTERM into a save, at once and a little later."""
    for delay in (0.0, 0.05, 0.3):
        folder = bench.folder(f"sigterm-{delay}")
        child = Child(folder, bench.words)
        child.wait_for(lambda row: row["kind"] == "metrics" and row["step"] % SAVE_EVERY == 0)
        time.sleep(delay)
        os.kill(child.process.pid or 0, signal.SIGTERM)
        expect(child, 143, "its checkpoint is saved", "Go on with: dew train lm --resume")
        last = max(row["step"] for _, row in child.rows() if row["kind"] == "metrics")
        bench.finish(folder, last)


def two_runs(bench: Bench) -> None:
    """Start a second process on a run, then kill the first and start another at once."""
    folder = bench.folder("two-runs")
    first = Child(folder, bench.words)
    first.wait_for(lambda row: row["kind"] == "metrics")
    os.kill(first.process.pid or 0, signal.SIGSTOP)
    try:
        second = Child(folder, bench.words)
        expect(second, 2, "is being trained by another process")
    finally:
        os.kill(first.process.pid or 0, signal.SIGCONT)
    expect(first, 0)
    compare(bench.reference, folder)
    folder = bench.folder("two-runs-killed")
    workers = ("--data.loading.workers", "2")
    killed = Child(folder, [*bench.words, *workers])
    step = saved_once(killed)
    os.kill(killed.process.pid or 0, signal.SIGKILL)
    killed.process.join()
    bench.finish(folder, step, *workers)
    killed.kill()


CASES: dict[str, Callable[[Bench], None]] = {
    "full-disk": full_disk,
    "unwritable": unwritable,
    "sigterm": sigterm,
    "two-runs": two_runs,
}
MOUNTING = ("full-disk", "unwritable")


def can_mount() -> bool:
    """Whether this user may have a name space with mounts of its own."""
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def run_inside(names: Sequence[str]) -> int:
    """Run these cases in a name space of their own and return the exit status."""
    again = [*NAMESPACE, sys.executable, __file__, *names]
    return subprocess.run(again, env={**os.environ, INSIDE: "1"}).returncode


def main() -> int:
    """Run the cases and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    names = parser.parse_args().cases or [*CASES]
    if unknown := set(names) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    if INSIDE not in os.environ and can_mount():
        return run_inside(names)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        bench = Bench(Path(folder))
        for name in names:
            if name in MOUNTING and INSIDE not in os.environ:
                print(f"{name}: skipped, since no file system may be mounted here", flush=True)
                continue
            began = time.perf_counter()
            CASES[name](bench)
            print(f"{name}: holds ({time.perf_counter() - began:.1f} s)", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
