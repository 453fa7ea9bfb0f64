"""Figures in sentences: three significant digits, thousands apart, no powers of ten. Pure."""

from __future__ import annotations

import math


def number(value: float, digits: int = 3) -> str:
    """Format a number, ``0.0312``, ``3.14``, ``1,480``: so many digits, and all of those before the point."""
    if not math.isfinite(value):
        return "?"
    if not value:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    rounded = round(value, places)
    if rounded and places and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        places -= 1  # 0.9996 has become 1.00
    text = f"{rounded:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(seconds: float) -> str:
    """Format seconds: ``85 µs``, ``12.3 ms``, ``1.48 s``, ``2 min 5 s``, ``3 h 12 min``, ``2 d 4 h``."""
    size = abs(seconds)
    if not math.isfinite(seconds):
        return "?"
    if size < 0.09995e-3:
        return f"{number(seconds * 1e6)} µs" if seconds else "0 s"
    if size < 0.9995:
        return f"{number(seconds * 1e3)} ms"
    if size < 59.95:
        return f"{number(seconds)} s"
    whole = round(seconds)
    for large, small, unit, less in ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large:,} {unit} {rest} {less}" if rest else f"{whole // large:,} {unit}"
    return f"{whole} s"


def percent(share: float) -> str:
    """Format a share: ``0.04 %``, ``3.2 %``, ``62 %``; two digits below ten, so that little is not read as nothing."""
    value = 100 * share
    return f"{number(value, 2) if abs(value) < 9.95 else f'{value:,.0f}'} %"


def rounded(share: float) -> str:
    """Format a share: ``0 %``, ``3 %``, ``62 %``, where less than one in a hundred is nothing."""
    return f"{100 * share:.0f} %"


def counted(count: int, noun: str = "worker") -> str:
    """Format a number of things: ``1 worker``, ``3 workers``, ``1,480 workers``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def data_size(count: float) -> str:
    """Format bytes: ``512 B``, ``1.5 KiB``, ``20 MiB``."""
    value, unit = float(count), 0
    while abs(value) >= 1023.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{number(value)} {_UNITS[unit]}"


def label(value: str) -> str:
    """Escape the value of a label, in the text format that Prometheus reads."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
