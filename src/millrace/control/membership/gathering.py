"""Gathering: ranks of a job that is to be a member of a group wait for one another before any of them is let in.

All begin with one epoch then, and none of a member's rounds has to be kept for a rank that may never come. Who waits is
no part of the state: a dispatcher that is started again is asked by all of them once more.
"""

from __future__ import annotations

from millrace.control.actions import SendToClient
from millrace.control.inputs import JoinRequested
from millrace.control.journal.transaction import Transaction
from millrace.control.membership.jobs import refuse
from millrace.control.membership.late_joins import named
from millrace.control.state.observed import GatheringRanks
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import Failure, Notice


def gather(tx: Transaction, spec: JobSpec, name: str, item: JoinRequested) -> list[JoinRequested]:
    """Add a rank of a member that is to join a group; give all of them once the last one is here, and none before.

    Args:
        tx: what follows goes there.
        spec: of the group.
        name: of the member.
        item: what the rank has said.
    """
    if spec.together == 1:
        return [item]
    rank = item.message.consumer or 0
    waiting = tx.observed.gathering.setdefault((spec.name, name), GatheringRanks({}, tx.now))
    older = waiting.ranks.pop(rank, None)
    if older is not None and older.message.client != item.message.client:
        text = f"another process has come as consumer {rank} of job {name!r}, which waits for all its ranks"
        refuse(tx, older.message.client, Failure("ConsumerConflictError", text))
    waiting.ranks[rank] = item
    if len(waiting.ranks) == spec.together:
        del tx.observed.gathering[spec.name, name]
        return [waiting.ranks[each] for each in range(spec.together)]
    tx.act(SendToClient(item.message.client, Notice(f"job {name!r} waits for {_absent(waiting, spec.together)}")))
    return []


def lost(tx: Transaction, client: str) -> None:
    """Wait no more for others on behalf of a rank whose session broke: it asks again if it lives."""
    for key, waiting in list(tx.observed.gathering.items()):
        waiting.ranks = {rank: each for rank, each in waiting.ranks.items() if each.message.client != client}
        if not waiting.ranks:
            del tx.observed.gathering[key]


def watch(tx: Transaction) -> None:
    """Refuse ranks whose others have not come for as long as is waited for one that was lost."""
    grace = tx.state.settings.job_gc_timeout_s
    for key, waiting in list(tx.observed.gathering.items()):
        if tx.now - waiting.since > grace:
            del tx.observed.gathering[key]
            count = next(iter(waiting.ranks.values())).message.spec.together
            text = (
                f"{_absent(waiting, count)} of job {key[1]!r} did not come within {grace:g} s, and a job joins those "
                "that share its computation with all its ranks: start all of them again"
            )
            for each in waiting.ranks.values():
                refuse(tx, each.message.client, Failure("JobFailedError", text))


def _absent(waiting: GatheringRanks, count: int) -> str:
    return named([rank for rank in range(count) if rank not in waiting.ranks])
