"""Package versions: the release that a module belongs to stands for installed code, in place of the code."""

from __future__ import annotations

import functools
import importlib.metadata
import sys

from millrace.functions.user_modules import is_users
from millrace.version import __version__


@functools.cache
def release(module: str) -> str | None:
    """Release that a module comes from, e.g. ``pillow 11.0.0``; None if its code itself has to be looked at.

    The latter holds for the user's own modules, and for files among installed packages that no package installed.
    Python's own modules are of a minor version, for patch releases compute the same.

    Args:
        module: full name; it need not be imported.
    """
    top = module.partition(".")[0]
    if top == "millrace":
        return f"millrace {__version__}"
    if is_users(module):
        return None
    if top in sys.stdlib_module_names:
        return f"python {sys.version_info.major}.{sys.version_info.minor}"
    return _distributions(top)


@functools.cache
def _distributions(top: str) -> str | None:
    """Distributions that have files of this package: the one of its name, or else all that list such files."""
    try:
        found = [importlib.metadata.distribution(top)]
    except importlib.metadata.PackageNotFoundError:
        found = [each for each in importlib.metadata.distributions() if _holds(each, top)]
    return ", ".join(sorted(f"{each.name} {each.version}" for each in found)) or None


def _holds(distribution: importlib.metadata.Distribution, top: str) -> bool:
    listed = distribution.read_text("top_level.txt")
    if listed is not None:
        return top in listed.split()
    files = "\n" + (distribution.read_text("RECORD") or "")
    return f"\n{top}/" in files or f"\n{top}." in files
