"""Publish a trained run in a layout that other programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(__name__, {"export_run": "dew.inference.export.writing:dew-inference"})

if TYPE_CHECKING:
    from dew.inference.export.writing import export_run as export_run
