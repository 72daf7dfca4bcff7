"""`dew profile`: XProf's reports of a trace."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from dew.cli.errors import SUCCESS


def main(argv: list[str]) -> int:
    """Run the command and return its exit status."""
    from dew.telemetry.profile import TOOLS, sessions, write_reports

    request = parser(TOOLS).parse_args(argv)
    session = sessions(request.trace)[-1]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XProf tells of its every step otherwise
    for path in write_reports(session, request.out, tools=request.tools or TOOLS):
        print(path)
    print(f"XProf's own pages: xprof --logdir {Path(request.trace)}")
    return SUCCESS


def parser(tools: tuple[str, ...]) -> argparse.ArgumentParser:
    """What the command takes."""
    made = argparse.ArgumentParser(
        prog="dew profile",
        allow_abbrev=False,
        description="Write XProf's reports of a trace (trainer.profile records one): JSON as XProf gives it, "
        "and its tables as CSV.",
    )
    made.add_argument("trace", metavar="TRACE", help="folder of the trace; its latest session is read")
    made.add_argument("--out", metavar="DIR", help="where to; default reports in the session's folder")
    made.add_argument("--tools", nargs="+", choices=tools, metavar="TOOL", help=f"which: {', '.join(tools)}")
    return made
