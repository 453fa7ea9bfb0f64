"""Lockstep: which member of a group that shares one computation is to go, as it holds up the others. Pure.

Nothing is let go of before all members have it, so that the buffers of workers fill up with what one lacks who stands
still, and the others wait. How long they have done so is counted up while they wait for it and down while they do not:
who is slow all the time is counted like one that stands still for a while, and who is last by chance is not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millrace.policies.decision import Decision


def count_waiting(
    counted: Mapping[int, float], members: Collection[int], holding: Collection[int], seconds: float
) -> dict[int, float]:
    """Count for each member the seconds in which others have waited for it.

    Args:
        counted: by member, up to now.
        members: that there are.
        holding: those for which others wait now.
        seconds: since the last look.
    """
    signs = {member: 1.0 if member in holding else -1.0 for member in members}
    found = {member: max(0.0, counted.get(member, 0.0) + sign * seconds) for member, sign in signs.items()}
    return {member: waited for member, waited in found.items() if waited > 0}


def detach(counted: Mapping[int, float], longest_s: float) -> Decision[list[int]]:
    """Choose the members that are to go: those that others have waited for longer than that."""
    found = sorted(member for member, waited in counted.items() if waited > longest_s)
    reason = f"held up the others for {longest_s:g} s" if found else f"nobody held up others for {longest_s:g} s"
    return Decision(found, reason, {"counted": dict(counted)})
