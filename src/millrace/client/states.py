"""The state of who reads an epoch."""

from __future__ import annotations

from millrace.client.consumer_progress import Tally
from millrace.client.job_session import Conversation
from millrace.errors import StateError
from millrace.planning.checkpoint import Checkpoint
from millrace.protocol.messages import EpochBegun


def state_of(conversation: Conversation, graph: str, begun: EpochBegun, tally: Tally) -> Checkpoint:
    """The state of who reads an epoch, without asking anybody.

    Raises:
        StateError: the job has no states.
    """
    if conversation.spec.sharding == "off":
        raise StateError("ShardingPolicy.OFF reads the data any number of times, so that there is no place to go on")
    if conversation.consumer and conversation.spec.num_consumers is None:
        raise StateError("which consumers there are is in their states: say num_consumers= in distribute()")
    done, parts = tally.now(conversation.feed, begun.epoch)
    return Checkpoint(
        seed=conversation.seed,
        epoch=begun.epoch,
        graph=graph,
        sources=begun.sources,
        tasks=begun.tasks,
        done=done.low,
        later=done.text(),
        begun=parts,
        ended=tally.ended,
        rank=conversation.consumer,
        ranks=conversation.spec.num_consumers or 1,
        reused=begun.reused,
        alone=(tally.alone.low, tally.alone.text()),
        shares=begun.shares,
        pieces=begun.pieces,
    )
