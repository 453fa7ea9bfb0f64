"""Calls by which users ask the dispatcher what it is doing, and have blocks removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from millrace.control import inputs as inp
from millrace.control.membership.access import check_removal, lacking
from millrace.control.membership.admission import Refused
from millrace.control.reasons import why_nothing
from millrace.control.state.observed import Observed
from millrace.control.state.state import State
from millrace.dispatcher.status_view import shown_to
from millrace.protocol.caller import Caller
from millrace.protocol.messages import Failure
from millrace.wire.control.control_server import CallHandler
from millrace.wire.error_codec import error_of

STATUS = "Status"
"""Call: seconds to let pass, or None -> :func:`millrace.dispatcher.status_report.status`, as the caller may see it."""
MOST_WAIT_S = 60.0
WHY = "Why"
"""Call: a consumer's client -> what it waits for, in a sentence."""
REMOVE_BLOCKS = "RemoveBlocks"
"""Call: points as the status lists them -> bytes of their blocks, which are deleted as soon as nobody reads them."""


def service_calls(
    now: Callable[[], tuple[State, Observed, float]],
    status: Callable[[], dict[str, Any]],
    feed: Callable[[inp.Input], None],
    refused: Callable[[Caller, Failure], None],
) -> dict[str, CallHandler]:
    """Make the calls.

    Args:
        now: returns the state, what was observed, and the time.
        status: reports everything.
        feed: decides about an input.
        refused: notes that a caller was refused something.
    """

    async def remove_blocks(places: list[str], caller: Caller) -> int:
        state, _, _ = now()
        points = state.caches.points
        try:
            check_removal(caller, state, places)
        except Refused as refusal:
            refused(caller, refusal.failure)
            raise error_of(refusal.failure) from None
        size = sum(points[place].bytes for place in places if place in points)
        feed(inp.RemovalAsked(places, caller))
        return size

    async def answer_why(client: str, _: Caller) -> str:
        state, observed, at = now()
        return why_nothing(state, observed, client, at)

    async def report(after_s: float | None, caller: Caller) -> dict[str, Any]:
        if caller.rights.status == "none" and not caller.admin:
            failure = lacking(caller, 'status = "own"', "see the status").failure
            refused(caller, failure)
            raise error_of(failure)
        await asyncio.sleep(min(max(after_s or 0.0, 0.0), MOST_WAIT_S))
        return shown_to(caller, now()[0], status())

    return {
        WHY: CallHandler(str, answer_why),
        STATUS: CallHandler(float | None, report),
        REMOVE_BLOCKS: CallHandler(list[str], remove_blocks),
    }
