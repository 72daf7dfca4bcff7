"""The profiler's window of a run, under the name its reference page gives it."""

from dew.telemetry.config import ProfileWindow as ProfileWindow
