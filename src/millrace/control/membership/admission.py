"""May this client join, and which consumer is it? Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.control.state.settings import Settings
from millrace.control.state.state import Consumer, Job, State
from millrace.control.tasks.slots import missing
from millrace.errors import ProtocolError
from millrace.graph import serialize
from millrace.policies.scheduling.fair_share import MAX_PRIORITY, MIN_PRIORITY
from millrace.protocol.job_spec import MOST_ACCELERATORS, MOST_CONSUMERS, MOST_SLOTS, MOST_TASKS, MOST_WORKERS, JobSpec
from millrace.protocol.messages import Failure, JoinJob

SHARDINGS = ("dynamic", "static", "static_contiguous", "off", "custom")
VISITATIONS = ("exactly_once", "at_most_once", "zero_once_or_more")
TARGETS = ("auto", "local", "remote", "any")


class Refused(Exception):  # noqa: N818 - no error of ours but an answer on its way
    """The answer to a client that may not join."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure

    @classmethod
    def because(cls, kind: str, message: str) -> Refused:
        """With an error class of :mod:`millrace.errors` and a sentence."""
        return cls(Failure(kind, message))


def python_differs(settings: Settings, who: str, version: str, python: str) -> str:
    """Say how Python's minor version differs, naming both sides; empty if it doesn't (or a peer doesn't say).

    Functions travel between equal ones alone. Versions of millrace may differ within a protocol, which was compared
    before a peer could say anything.
    """
    if not (python and settings.python and python != settings.python):
        return ""
    theirs, ours = (f" (millrace {each})" if each else "" for each in (version, settings.version))
    return (
        f"{who} runs Python {python}{theirs}, the dispatcher Python {settings.python}{ours}; "
        "all processes of a service need the same minor version of Python"
    )


def check_spec(settings: Settings, message: JoinJob) -> None:
    """Refuse what cannot work, whatever jobs there are."""
    spec = message.spec
    differ = python_differs(settings, "this process", message.version, spec.python)
    if differ:
        raise Refused.because("VersionMismatchError", differ)
    wrong = ""
    if spec.sharding not in SHARDINGS:
        wrong = f"sharding is one of {', '.join(SHARDINGS)}, not {spec.sharding!r}"
    elif spec.visitation not in VISITATIONS:
        wrong = f"visitation is one of {', '.join(VISITATIONS)}, not {spec.visitation!r}"
    elif spec.sharding == "off" and spec.visitation != "zero_once_or_more":
        wrong = (
            "ShardingPolicy.OFF lets every worker walk through all data, so elements come any number of times; "
            "name visitation=Visitation.ZERO_ONCE_OR_MORE, or shard with ShardingPolicy.DYNAMIC"
        )
    elif spec.sharding == "off" and spec.deterministic:
        wrong = (
            "with ShardingPolicy.OFF what is read depends on the workers, so deterministic=True cannot be kept; "
            "shard with ShardingPolicy.DYNAMIC or STATIC"
        )
    elif spec.equal_steps and (spec.num_consumers is None or spec.visitation != "exactly_once"):
        wrong = (
            "equal_steps=True needs num_consumers, to know between whom, and Visitation.EXACTLY_ONCE, as elements that "
            "are lost would be missing from one of them"
        )
    wrong = wrong or _wrong_rounds(spec) or _wrong_sharing(message) or _wrong_value(spec)
    if message.consumer is not None and message.consumer >= MOST_CONSUMERS and not spec.sharing:
        wrong = f"consumer_index is below {MOST_CONSUMERS:,}, not {message.consumer:,}"
    if wrong:
        raise Refused.because("PipelineError", wrong)
    try:
        serialize.unpack(spec.structure)
    except ProtocolError as error:
        raise Refused.because("ProtocolError", str(error)) from error


def _wrong_rounds(spec: JobSpec) -> str:
    """Say why reads cannot be coordinated as the job wants; empty if they can, or are not to be."""
    if not spec.coordinated:
        return ""
    lacks = [
        text
        for met, text in (
            (spec.num_consumers is not None, "num_consumers, to know for how many ranks a round is"),
            (spec.deterministic, "deterministic=True, as all ranks read rounds in one order"),
            (spec.sharding == "dynamic", "ShardingPolicy.DYNAMIC, as tasks are dealt in turn"),
            (
                spec.visitation == ("at_most_once" if spec.sharing == "window" else "exactly_once"),
                "Visitation.EXACTLY_ONCE, as a lost round is lost to all ranks, or with Sharing.WINDOW AT_MOST_ONCE",
            ),
            (not spec.equal_steps, "no equal_steps, as all ranks get equally many rounds in any case"),
        )
        if not met
    ]
    return f"coordinated=True needs {'; and '.join(lacks)}" if lacks else ""


def _wrong_sharing(message: JoinJob) -> str:
    """Say why jobs cannot share as this one wants; empty if they can, or are not to."""
    spec = message.spec
    if spec.window_bytes < 0:
        return f"window_bytes is at least 1, or 0 for half of a worker's buffer or more, not {spec.window_bytes:,}"
    if spec.window_bytes and spec.sharing != "window":
        return "window_bytes is of windows that jobs share: say sharing=Sharing.WINDOW, or leave it out"
    if not spec.sharing:
        return ""
    if spec.sharing == "window" and spec.visitation == "exactly_once":
        return (
            "with Sharing.WINDOW a job that is slower than others skips elements, so Visitation.EXACTLY_ONCE cannot be "
            "kept: say Visitation.AT_MOST_ONCE, or Sharing.LOCKSTEP"
        )
    lacks = [
        text
        for met, text in (
            (
                spec.num_consumers in (None, 1) or bool(spec.coordinated),
                "jobs of one consumer each, or coordinated=True, so that each rank reads its batch of every round",
            ),
            (
                not (spec.coordinated and spec.window_bytes),
                "no window_bytes where reads are coordinated, as members that are behind skip whole tasks",
            ),
            (not spec.coordinated or _has_rank(message), "a name and a consumer_index below num_consumers"),
            (spec.sharding != "off", "a sharding, as with ShardingPolicy.OFF no two epochs are alike"),
            (spec.target_workers != "local", "workers of the service, as local ones are one job's alone"),
            (not message.states, "a beginning: a state is loaded by a job of its own"),
        )
        if not met
    ]
    return f"sharing needs {'; and '.join(lacks)}" if lacks else ""


def _has_rank(message: JoinJob) -> bool:
    """Whether a process says which rank of which member it is, or is one already."""
    if message.resume:
        return True
    return (
        bool(message.spec.name) and 0 <= (-1 if message.consumer is None else message.consumer) < message.spec.together
    )


def _wrong_value(spec: JobSpec) -> str:
    """Say what is wrong with a field, whatever the others are; empty if nothing is."""
    for name, value, most in (
        ("num_consumers", spec.num_consumers, MOST_CONSUMERS),
        ("tasks", spec.tasks, MOST_TASKS),
        ("accelerators", spec.accelerators, MOST_ACCELERATORS),
        ("cycle_length", spec.cycle_length, MOST_SLOTS),
        *(("workers", number, MOST_WORKERS) for number in spec.workers or ()),
    ):
        if value is not None and not 1 <= value <= most:
            return f"{name} is at least 1, not {value}" if value < 1 else f"{name} is at most {most:,}, not {value:,}"
    if not MIN_PRIORITY <= spec.priority <= MAX_PRIORITY:
        return f"priority is a number from {MIN_PRIORITY:g} to {MAX_PRIORITY:g}, not {spec.priority:g}"
    if spec.target_workers not in TARGETS:
        return f"target_workers is one of {', '.join(TARGETS)}, not {spec.target_workers!r}"
    if not spec.tenant:
        return 'tenant is a name, and this one is empty; leave it out to belong to "default"'
    return ""


def check_failed(job: Job, message: JoinJob) -> None:
    """Refuse to join a job that has failed, unless nobody is left of it and this is a new start."""
    if job.failure is not None and (message.resume or any(p.lost_at is None for p in job.consumers.values())):
        raise Refused(job.failure)


def check_new(settings: Settings, spec: JobSpec, message: JoinJob) -> None:
    """Refuse to go on with a job that isn't there."""
    if message.resume:
        why = (
            f"job {spec.name!r} is over: its consumers were away for too long"
            if settings.durable
            else "the dispatcher was restarted and has no journal (start it with --work-dir), "
            f"so it knows nothing of job {spec.name!r} any more"
        )
        raise Refused.because("JobFailedError", f"{why}; start the training loop again")


def check_generation(job: Job, message: JoinJob) -> None:
    """Refuse who comes back to a job that is over, though there is another one of its name."""
    if message.resume and message.generation != job.generation:
        raise Refused.because(
            "ConsumerConflictError",
            f"the job {job.name!r} that this process was reading is over: another one of that name was begun, "
            "from saved states perhaps; load the state of this consumer, or start the training loop again",
        )


def same_job(job: Job, spec: JobSpec) -> None:
    """Refuse a client whose pipeline or parameters are not the job's."""
    differ = []
    rounds = spec.coordinated and spec.num_consumers != job.spec.num_consumers  # which are part of the pipeline then
    if serialize.digest(spec.structure) != job.digest and not rounds:
        differ.append("the pipeline (its operators or their parameters)")
    for field in (
        "sharding",
        "visitation",
        "deterministic",
        "tasks",
        "num_consumers",
        "equal_steps",
        "priority",
        "tenant",
        "target_workers",
        "coordinated",
        "cycle_length",
    ):
        mine, theirs = getattr(spec, field), getattr(job.spec, field)
        if mine != theirs:
            differ.append(f"{field} ({mine!r} here, {theirs!r} there)")
    if spec.seed is not None and spec.seed != job.seed:
        differ.append(f"seed ({spec.seed} here, {job.seed} there)")
    if differ:
        loader = ""
        if spec.num_consumers != job.spec.num_consumers:
            loader = (
                ". Each worker process of a DataLoader is a consumer: if the main process has looked at the dataset, "
                "close() it there, or leave its with block, before the loader begins"
            )
        raise Refused.because(
            "JobConflictError",
            f"job {job.name!r} exists already and differs in {', '.join(differ)}; "
            f"use another job_name, or end the other job first{loader}",
        )


def known_place(places: Mapping[int, Consumer], message: JoinJob, why: str) -> int | None:
    """Find the consumer that a client is already; None if it is new.

    Raises:
        Refused: it was one, and is none any more; ``why``: what has become of its part.
    """
    for number, place in places.items():
        if place.client == message.client:
            return number
    if message.resume:
        text = f"this process was away from job {message.spec.name!r} for too long: {why} start its training loop again"
        raise Refused.because("JobFailedError", text)
    return None


def find_place(state: State, job: Job | None, spec: JobSpec, message: JoinJob, now: float) -> int:
    """Find the consumer that the client becomes: the one it was, the one it asks for, or the lowest that is free.

    A place is taken while its client's session lives, and for one heartbeat more, so that a client whose connection
    broke for a moment finds it free; after that a new client may have it, and goes on where the old one was. If nobody
    at all is left, whoever comes is the old one started again, and nobody's place is kept from it. Who lost its session
    because the dispatcher was restarted is given the time to come back. Who asks for a place by its index is taken for
    the old one started again, and gets it as soon as no session holds it.
    """
    count = spec.num_consumers
    if spec.deterministic and count is None:
        count = 1
    places = {} if job is None else job.consumers
    why = "others read what it had not yet read, or another process has its place;"
    known = known_place(places, message, why)
    if known is not None:
        return known
    wanted = message.consumer
    if wanted is not None:
        if wanted < 0 or (count is not None and wanted >= count):
            limit = (
                f"num_consumers={count}"
                if spec.num_consumers is not None
                else "one consumer, as no num_consumers was given"
            )
            raise Refused.because(
                "ConsumerConflictError", f"consumer_index {wanted} does not exist: job {spec.name!r} has {limit}"
            )
        holder = places.get(wanted)
        if holder is not None and holder.lost_at is None and not message.states:
            raise Refused.because(
                "ConsumerConflictError",
                f"consumer {wanted} of job {spec.name!r} is being read already by process {holder.pid} on "
                f"{holder.host or 'another host'}; give each process its own consumer_index, or close the other one",
            )
        return wanted
    free = _free_place(state, job, places, count, now)
    if free is not None:
        return free
    holders = ", ".join(f"{i}: process {p.pid} on {p.host or 'an unnamed host'}" for i, p in sorted(places.items()))
    hint = "give num_consumers=" if spec.num_consumers is None else "raise num_consumers"
    raise Refused.because(
        "ConsumerConflictError",
        f"all {count} consumers of job {spec.name!r} are taken ({holders}); {hint} if more processes are to read it",
    )


def _free_place(
    state: State, job: Job | None, places: Mapping[int, Consumer], count: int | None, now: float
) -> int | None:
    """Find the lowest place that a client which names none can have; None if all ``count`` are taken."""
    gone = {
        number: place.lost_at
        for number, place in places.items()
        if place.lost_at is not None and not state.may_return(place.lost_at, now)
    }
    deserted = len(gone) == len(places)
    # Who left in good order is not waited for as long as others are that were never seen.
    passed = job.left if job is not None and missing(job) else set[int]()
    number = 0
    while count is None or number < count:
        if number not in places and number not in passed:
            return number
        if number in gone and (deserted or now - gone[number] > state.settings.heartbeat_s):
            return number
        number += 1
    return None
