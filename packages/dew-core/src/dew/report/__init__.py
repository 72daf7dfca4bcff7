"""A run's report: one HTML file that holds all it shows."""

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {"render_report": "dew.report.page:dew-core", "write_report": "dew.report.page:dew-core"},
)

if TYPE_CHECKING:
    from dew.report.page import render_report as render_report
    from dew.report.page import write_report as write_report
