"""`dew report`: a run or a sweep as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path

from dew.cli.errors import SUCCESS, UserError


def main(argv: list[str]) -> int:
    """Run the command and return its exit status."""
    from dew.report import write_report

    request = parser().parse_args(argv)
    if request.out is not None and not Path(request.out).absolute().parent.is_dir():
        raise UserError(f"--out {request.out}: its folder is not there; make it or choose another place")
    if request.out is not None and Path(request.out).is_dir():
        raise UserError(
            f"--out {request.out} is a folder; name a file in it, as in {request.out}/report.html"
        )
    path = write_report(request.run, request.out)
    print(f"{path} ({path.stat().st_size / 1000:,.0f} kB): open it in a browser")
    return SUCCESS


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    made = argparse.ArgumentParser(
        prog="dew report",
        allow_abbrev=False,
        description="Write a run's report: curves, samples, settings and checkpoints in one HTML file that "
        "loads nothing from elsewhere; of a sweep, its trials. It may still be going.",
    )
    made.add_argument("run", metavar="RUN", help="folder of a run or a sweep")
    made.add_argument("--out", metavar="FILE", help="where to write; default RUN/report.html")
    return made
