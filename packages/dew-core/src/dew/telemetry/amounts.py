"""Numbers, times and sizes as people read them."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """Four significant digits: `1.532`, `0.00031`, `61,240`, `2.9e-07`; `nan` and `inf` as such."""
    if not math.isfinite(value):
        return str(value)
    if 9999.5 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    small = 0 < abs(value) < 1e-4
    return f"{value:.3g}" if small or abs(value) >= 1e9 else f"{value:.4g}"


def rate(value: float) -> str:
    """Three digits and a thousands letter: `812`, `61.2k`, `1.34M`."""
    for letter, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """`42 s`, `3:07 min`, `2:15 h`, `3 d 4 h`."""
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    if whole < 86400:
        return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def ago(seconds: float) -> str:
    """How long ago something was: `just now`, `5 min ago`, `3 h ago`, `12 d ago`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return "just now"


def size(count: float) -> str:
    """Bytes in decimal units: `812 B`, `4.21 MB`."""
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * least:
            return f"{count / least:.3g} {unit}"
    return f"{count:.0f} B"
