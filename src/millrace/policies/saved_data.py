"""Policies about saved datasets: how large their files are, and whether what is there is still what is wanted. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from millrace.policies.decision import Decision
from millrace.policies.figures import counted, data_size, duration, percent

MOST_FILE_BYTES = 2 << 30
"""Largest file that is chosen, as OneAccess has them (section 4.1); less is lost of a save that is interrupted, and
fewer bytes wait in a temporary file for an object store."""
LEAST_FILE_BYTES = 64 << 20
"""Smallest file that is chosen: some blocks, so that a listing stays short whatever was measured."""
OPENING_SHARE = 0.01
"""Share of the time to read a file that opening it may take."""

SMALL_PROGRESS_BYTES = 64 << 10
"""Size in bytes of progress files up to which one is written after each complete file."""
PROGRESS_SHARE = 0.01
"""Share of what is written that larger progress files may be, each of which lists all files so far."""


def is_progress_due(progress_bytes: int, written_bytes: int) -> bool:
    """Decide whether a progress file is written again behind a complete file.

    Args:
        progress_bytes: size of the last one.
        written_bytes: of the files that have become complete since it was written.
    """
    return progress_bytes <= max(SMALL_PROGRESS_BYTES, PROGRESS_SHARE * written_bytes)


def choose_file_bytes(open_s: float, bytes_per_s: float) -> Decision[int]:
    """Choose the size in bytes of sequential files: the smallest of which opening costs next to nothing.

    Files are cut into ranges that are read by themselves, so that the number of files limits no one's parallelism; all
    that speaks for large files is what it takes to open one, and it is paid once a file.

    Args:
        open_s: seconds until the first bytes of a file come; 0 or more.
        bytes_per_s: that come from then on; above 0.
    """
    wanted = open_s * bytes_per_s / OPENING_SHARE
    chosen = int(min(max(wanted, LEAST_FILE_BYTES), MOST_FILE_BYTES))
    reading_s = chosen / bytes_per_s
    share = open_s / (open_s + reading_s)
    bound = ""
    if wanted > MOST_FILE_BYTES:
        bound = f", and no file is larger than {data_size(MOST_FILE_BYTES)}"
    elif wanted < LEAST_FILE_BYTES:
        bound = f", and none is chosen smaller than {data_size(LEAST_FILE_BYTES)}"
    return Decision(
        chosen,
        f"the first bytes of a file take {duration(open_s)} and {data_size(bytes_per_s)} come per second: of a file of "
        f"{data_size(chosen)} that is {percent(share)} of the time to read it{bound}",
        {"open_s": open_s, "bytes_per_s": bytes_per_s},
    )


class MadeOf(msgspec.Struct, frozen=True):
    """Facts about what made a saved dataset, or would make it now.

    Attributes:
        pipeline: expression of the pipeline, as the user wrote it.
        fingerprint: of its operators and functions, in hexadecimal digits; empty: nobody can tell.
        data: hash of what its sources were listed to hold, versions included; empty: nobody can tell.
        files: number of files or ranges in that listing; 0: the sources are no files.
        data_bytes: stored bytes of these.
        why: where something of it is empty, why.
    """

    pipeline: str = ""
    fingerprint: str = ""
    data: str = ""
    files: int = 0
    data_bytes: int = 0
    why: str = ""

    def judged(self, why: str) -> MadeOf:
        """Take back what was told, if there is a reason why nobody can tell."""
        return msgspec.structs.replace(self, fingerprint="", why=self.why or why) if why else self

    def same(self, other: MadeOf) -> bool:
        """Whether both are known to make the same elements."""
        known = bool(self.fingerprint and self.data)
        return known and (self.fingerprint, self.data) == (other.fingerprint, other.data)


def choose_refresh(
    found: MadeOf, here: MadeOf, age_s: float | None, max_age_s: float | None, damage: str = ""
) -> Decision[bool]:
    """Decide whether a saved dataset has to be made again.

    Args:
        found: what made the one that is there.
        here: what would make it now.
        age_s: seconds since it was made, where a clock that was set back makes it 0; None: nobody knows.
        max_age_s: seconds from which on it is too old; None: it never is.
        damage: what is wrong with its files; empty: nothing.
    """
    old = "nobody knows when it was made" if age_s is None else f"it was made {duration(max(0.0, age_s))} ago"
    inputs: Mapping[str, Any] = {"age_s": age_s, "max_age_s": max_age_s}
    if damage:
        return Decision(True, f"{old}, and it is damaged: {damage}", inputs)
    if not (found.fingerprint and found.data):
        return Decision(True, f"{old}, and nothing says by which pipeline from which data", inputs)
    if found.fingerprint != here.fingerprint:
        changed = (
            "a function of the pipeline, or what it refers to, has changed since"
            if found.pipeline == here.pipeline
            else f"the pipeline was {found.pipeline} then, and is {here.pipeline} now"
        )
        return Decision(True, f"{old}; {changed}", inputs)
    if found.data != here.data:
        return Decision(True, f"{old}; the data have changed since: {_data(found)} then, {_data(here)} now", inputs)
    if max_age_s is not None and (age_s is None or age_s > max_age_s):
        return Decision(True, f"{old}, and max_age is {duration(max_age_s)}", inputs)
    return Decision(False, f"{old} by the same pipeline from the same data", inputs)


def _data(of: MadeOf) -> str:
    return f"{counted(of.files, 'part')} of files with {data_size(of.data_bytes)}" if of.files else "other ones"
