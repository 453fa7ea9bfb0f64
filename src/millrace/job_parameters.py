"""Parameters of a job, as they follow from the arguments of ``distribute``; what contradicts itself is refused."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from millrace import validation
from millrace.errors import PipelineError, SourceError
from millrace.graph.nodes import Node, WithOptions
from millrace.guarantees import ShardingPolicy, check, check_coordinated, check_equal, check_sharing
from millrace.planning.checkpoint import Checkpoint
from millrace.planning.epoch_cursor import Share
from millrace.protocol.job_spec import MOST_ACCELERATORS, MOST_TASKS
from millrace.validation import one_of

if TYPE_CHECKING:
    from millrace.pipeline import Pipeline
    from millrace.policies.saved_data import MadeOf


def chosen_parameters(
    choice: SimpleNamespace, pipeline: Pipeline, service: str | None, token: str | None
) -> tuple[int | None, dict[str, Any]]:
    """Check the arguments of :meth:`millrace.Dataset.distribute`; give the consumer's index and the job's parameters.

    Raises:
        PipelineError: they contradict each other, or one of them is not what it should be.
    """
    num_consumers, consumer_index = validation.consumers(choice.num_consumers, choice.consumer_index)
    validation.asker(service, choice.job_name, token, num_consumers, consumer_index)
    one_of("distribute", "progress", choice.progress, (False, True))
    seed = validation.seed("distribute", choice.seed)
    check(choice.sharding, choice.visitation, choice.deterministic)
    check_equal(choice.equal_steps, num_consumers, choice.visitation)
    coordinated, cycle_length = check_coordinated(choice, num_consumers)
    validation.place(choice.target_workers, choice.local_workers, service)
    sharing = check_sharing(choice, service, num_consumers, consumer_index)
    validation.claim(choice.priority, choice.tenant)
    one_of("distribute", "untrusted_cache", choice.untrusted_cache, ("recompute", "refuse"))
    one_of("distribute", "compression", choice.compression, (None, "lz4", "zstd"))
    window_bytes = choice.window_bytes
    if window_bytes is not None:
        window_bytes = validation.positive("distribute", "window_bytes", window_bytes)
    tasks = choice.tasks
    if tasks is not None:
        tasks = validation.positive("distribute", "tasks", tasks, MOST_TASKS)
    # Processes that share a job would each draw another seed, so there the dispatcher draws it.
    drawn = pipeline.seed if choice.job_name is None and not sharing else pipeline.graph.seed()
    return consumer_index, {
        "name": choice.job_name or f"job-{secrets.token_hex(4)}",
        "visitation": choice.visitation.value,
        "deterministic": bool(choice.deterministic or coordinated),
        "num_consumers": None if sharing and not coordinated else num_consumers,
        "equal_steps": choice.equal_steps,
        "seed": drawn if seed is None else seed,
        "tasks": tasks,
        "workers": validation.workers(choice.workers),
        "cheapest": bool(choice.workers == "cheapest"),
        "accelerators": validation.positive("distribute", "accelerators", choice.accelerators, MOST_ACCELERATORS),
        "sharding": choice.sharding.value if isinstance(choice.sharding, ShardingPolicy) else "custom",
        "priority": float(choice.priority),
        "tenant": choice.tenant,
        "untrusted_cache": choice.untrusted_cache,
        "target_workers": "any" if service is None else choice.target_workers,
        "coordinated": coordinated,
        "cycle_length": cycle_length,
        "sharing": sharing,
        "window_bytes": window_bytes or 0,
    }


def why_no_whole_epoch(parameters: Mapping[str, Any], *, named: bool) -> str:
    """Say why one consumer may not get each element of an epoch once; empty: it does.

    Args:
        parameters: of the job.
        named: whether others may read the job by its name.
    """
    if parameters["num_consumers"] != 1 and (named or parameters["num_consumers"] is not None):
        return (
            "what comes to one of several consumers of a job is another part in each run; where there is one alone, "
            "say num_consumers=1"
        )
    if parameters["sharding"] == "off" or parameters["visitation"] != "exactly_once":
        return "an epoch may lack elements, or have some of them twice"
    return ""


def served_made_of(node: Node, parameters: Mapping[str, Any], shown: str, named: bool) -> MadeOf:
    """Identify what an epoch that comes from a service is made of, by listing its data here.

    Args:
        node: the last of the pipeline, operators behind ``distribute()`` included.
        parameters: of the job.
        shown: expression of the whole.
        named: whether others may read the job by its name.
    """
    from millrace.pipeline import Pipeline
    from millrace.policies.saved_data import MadeOf

    why = why_no_whole_epoch(parameters, named=named)
    if why:
        return MadeOf(shown, why=why)
    chosen = Pipeline(node).graph.seed() is not None or named
    try:
        found = Pipeline(WithOptions(inputs=(node,), seed=parameters["seed"] if chosen else None)).made_of()
    except SourceError as error:  # workers may reach what this process doesn't
        return MadeOf(shown, why=str(error))
    return msgspec.structs.replace(found, pipeline=shown)


def fresh_state(parameters: Mapping[str, Any], consumer: int | None, graph: str, epoch: int) -> Checkpoint:
    """Make the state of a consumer that has read nothing of an epoch.

    Args:
        parameters: of the job.
        consumer: its index; None: the dispatcher chooses it.
        graph: digest of the pipeline.
        epoch: its number.
    """
    seed, ranks = parameters["seed"], parameters["num_consumers"]
    if not parameters["coordinated"]:  # who begins the job anew may do that with any number of consumers
        return Checkpoint(seed=seed, epoch=epoch, graph=graph)
    rank, ranks = (0, 1) if consumer is None else (consumer, ranks)
    return Checkpoint(
        seed=seed, epoch=epoch, graph=graph, rank=rank, ranks=ranks, cycle_length=parameters["cycle_length"]
    )


def check_helpers(parameters: Mapping[str, Any], share: Share | None) -> None:
    """Refuse processes of a DataLoader where each would get what one is to have.

    Raises:
        PipelineError: says with how many processes it works.
    """
    if parameters["coordinated"] and share is not None and share[1] > 1:
        raise PipelineError(
            f"coordinated=True gives each rank's batches to one process, and this DataLoader has {share[1]}: make "
            "it with num_workers=0 or 1"
        )
    if parameters["sharing"] and share is not None:
        raise PipelineError(
            f"sharing=Sharing.{parameters['sharing'].upper()} gives all elements to one process of this job, and a "
            "DataLoader reads in processes of its own: make it with num_workers=0"
        )
