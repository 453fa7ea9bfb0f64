"""The consumer's decisions, whatever threads, sockets and users there are. Pure: times come in, callers hold a lock.

:meth:`ConsumerCore.handle` takes what happened and says what to do. Elements pass through it by message only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from millrace.client import consumer_io as io
from millrace.client.arrival_flows import ArrivalFlows
from millrace.client.consumer_progress import EpochProgress
from millrace.client.credit import CreditPool, too_large
from millrace.client.epoch_buffer import Decode, EpochBuffer, Rerun, RerunOutcome, Source, buffer_of
from millrace.client.read_rate import Rates
from millrace.client.rerun_check import Reruns
from millrace.client.weight_requests import WeightRequests, note
from millrace.elements import codec
from millrace.errors import MillraceError, PipelineError, ServiceError
from millrace.protocol import data_messages
from millrace.protocol import messages as msg
from millrace.protocol.group_messages import TasksGone
from millrace.protocol.reports import Told
from millrace.protocol.weight_messages import WeightsSet
from millrace.wire.error_codec import error_of

_INTERRUPTED = "this iterator was interrupted while it took elements: iterate anew, or go on from its state"


class ConsumerCore:
    """One consumer's place in one job, from its first word to its last.

    A connection to a worker is wanted from the first :class:`~millrace.client.consumer_io.Connect` on until
    :class:`~millrace.client.consumer_io.Disconnected` is not answered with another one.

    Args:
        who: what the consumer says as it joins; ``spec``, ``told`` and what has become of it are kept up to date.
        buffer_bytes: bound on what is held and granted.
        decode: gives the elements of a payload, anew each time.

    Attributes:
        spec: of the job; with its name and seed once the consumer has joined.
        consumer: index among the job's consumers; None: not known yet.
        joined: what the dispatcher said as it let the consumer in first; None: it has not.
        heartbeat_s: seconds between two reports.
        following: the first epoch that was not begun at this place; None: the states of other ranks are awaited.
        wanted: the epoch that the dispatcher was asked to begin, and ``begun``: what it said has begun.
        ended: the last epoch that nobody reads any more, and ``read_to``: that was read to its end; -1: none.
        reading: progress of the epoch that was begun last.
        inbox: what is held of an epoch; None between two.
        allowed: (elements of the epoch that may be used in all, never more than these); None: any.
        failure: why the job cannot go on.
        closed: the user has left.
        left_out: elements, over all epochs, that were not used as other consumers had no more.
        flows: what came so far; ``weights``: those of mixtures that the user sets.
        actions: to do; all that :meth:`handle` said and nobody has taken away.
    """

    def __init__(self, who: msg.JoinJob, buffer_bytes: int, *, decode: Decode = codec.decode) -> None:
        self.spec, self.consumer = who.spec, who.consumer
        self.joined: msg.JobJoined | None = None
        self.heartbeat_s = 5.0
        self.following: int | None = None
        self.wanted = self.ended = self.read_to = -1
        self.begun: msg.EpochBegun | None = None
        self.reading: EpochProgress | None = None
        self.inbox: EpochBuffer | None = None
        self.allowed: tuple[int, bool] | None = None
        self.failure: MillraceError | None = None
        self.closed = False
        self.left_out = 0
        self.flows, self.weights = ArrivalFlows(), WeightRequests()
        self._who, self._decode = who, decode
        self._pool = CreditPool(buffer_bytes)
        self._session = self._untold = self._waits = False
        self._heard = Told()
        self._before: EpochProgress | None = None  # of the epoch that ended last
        self._left: tuple[int, list[msg.TaskProgress]] = -1, []  # all that was read of it
        self._unused = 0
        self._unread = -1, ""
        self._reruns = Reruns()
        self._workers: dict[str, bool] = {}  # those that a connection to is wanted, by whether there is one
        self.actions: deque[io.Action] = deque()

    def handle(self, item: io.Input, now: float) -> deque[io.Action]:
        """Decide what to do. Whoever does an action takes it away then, so that Ctrl-C leaves it to the next one.

        Args:
            item: what happened.
            now: seconds, of a clock that never goes back.

        Raises:
            ProtocolError: a worker left something out.
        """
        match item:
            case io.Delivered():
                self._deliver(item)
            case io.MoreWanted():
                self._ask(item, now)
            case io.Decoded(ask=ask, arrival=arrival, elements=elements):
                if self.reading is not None and self.reading.pending is arrival:
                    self.reading.surplus = elements
                self._ask(ask, now)
            case io.TooSmall(address=address, header=header):
                self._grant_short(address, header)
            case io.OutputsMissed(address=address, header=skipped):
                self._miss(address, skipped)
            case msg.ReadTasks(epoch=epoch, reads=reads, alone=alone):
                self._heard = self._heard.hears_of(max((read.lease for read in reads), default=0))
                self._assign(epoch, reads, alone)
            case io.Beat() | io.Used():
                self._report(now)
            case msg.StepsReady():
                self._steps_ready(item)
            case io.Connected(address=address):
                self._connected(address)
            case io.Disconnected(address=address):
                self._disconnected(address)
            case _:
                self._handle_rare(item, now)
        return self.actions

    def _handle_rare(self, item: io.Input, now: float) -> None:
        """Handle an input that comes once in an epoch or less."""
        match item:
            case io.EpochWanted(number=number, reading=reading):
                self._begin(number, reading or EpochProgress(number), now)
            case io.End(number=number):
                self._end(number, now)
            case io.Broke(error=error):
                self.failure = self.failure or error
            case io.Leave():
                self._leave(now)
            case io.SessionLost():
                self._session = False
            case io.WeightsWanted(epoch=epoch, weights=weights):
                self._tell(self.weights.ask(epoch, weights))
            case _:
                self._hear(item, now)

    def _hear(self, item: io.Input, now: float) -> None:
        """Handle what the dispatcher says once in an epoch or less."""
        match item:
            case msg.JobJoined():
                self._let_in(item, now)
            case WeightsSet():
                self.weights.hear(item, self.reading)
            case msg.Resumed(epoch=epoch):
                self.following = epoch if self.following is None else self.following
            case msg.EpochBegun():
                self._epoch_begun(item)
            case msg.EpochEnds() | TasksGone():
                self._less_to_come(item)
            case msg.JobFailed(failure=failure):
                self.failure = self.failure or error_of(failure)
            case msg.Notice(text=text):
                self.actions.append(io.Warn(text))

    # -- the session ---------------------------------------------------------------------------------------------------

    def join(self, age_s: float) -> msg.JoinJob:
        """First message of a session.

        Args:
            age_s: seconds since the process was started; negative: unknown.
        """
        told = replace(self._heard, epoch=-1 if self.begun is None else self.begun.epoch)
        who = replace(self._who, spec=self.spec, consumer=self.consumer, age_s=age_s, told=told)
        if self.joined is None:
            return who
        return replace(who, states=[], resume=True, generation=self.joined.generation)

    def _let_in(self, joined: msg.JobJoined, now: float) -> None:
        again = self.joined is not None
        self._session = True
        self.heartbeat_s, self._heard = joined.heartbeat_s, self._heard.let_in(joined.told)
        if self.following is None and not joined.waits:
            self.following = joined.epoch + 1
        if not again:
            self.joined, self.consumer = joined, joined.consumer
            self.spec = replace(self.spec, name=joined.job, seed=joined.seed)
            return
        # In this order: what was not read of an epoch is dropped as the next one begins.
        self._report(now, everything=True)
        if self.wanted >= 0:
            self._tell(msg.BeginEpoch(self.wanted))
        if self.weights.pending is not None:
            self._tell(self.weights.pending)

    def _tell(self, message: msg.FromConsumer) -> None:
        if self._session:  # who comes back says all of it again
            self.actions.append(io.Tell(message))

    def _report(self, now: float, *, everything: bool = False) -> None:
        """Say how far reading has come and how fast it is; all that is here if part of it was kept from being said."""
        everything = everything or self._untold
        self._untold, missed = True, 0
        epoch, tasks = self._left if everything else (-1, [])
        if self.inbox is not None:
            epoch, tasks, missed = self.inbox.number, self.inbox.progress(everything=everything), self.inbox.missed
        report, measured = msg.ConsumerReport(max(self.wanted, 0)), self.measure(epoch, now)
        if measured is not None:
            (handed, rates), (came, here) = measured, self.arrived
            report = msg.ConsumerReport(epoch, tasks, handed, *rates[:3], arrived=came, all_here=here, pace=rates.pace)
        reruns, differed, impure = self._reruns.told
        known = {"reruns": reruns, "differed": differed, "impure": impure, "ended": report.epoch == self.read_to}
        self._tell(
            replace(report, left_out=self.left_out, came=self.flows.came, waits=self._waits, missed=missed, **known)
        )
        self._untold = False

    def _leave(self, now: float) -> None:
        self._report(now)
        if not self._who.lingers:
            self._tell(msg.LeaveJob(self._unused or self._count_unused(now)))
        self.closed, self.inbox = True, None
        self._hang_up()

    # -- epochs --------------------------------------------------------------------------------------------------------

    def _begin(self, number: int, reading: EpochProgress, now: float) -> None:
        if self.begun is not None:
            self._end(self.begun.epoch, now)  # if it was dropped, and who is to end it has not come to that
        before = self.reading
        self._before = before if before is not None and before.number == self.ended else None
        self.following, self.wanted, self._unused = number + 1, number, 0
        self.reading = reading
        self._tell(msg.BeginEpoch(number))

    def _epoch_begun(self, begun: msg.EpochBegun) -> None:
        if begun.epoch != self.wanted or self.reading is None:
            return
        over = self.closed or self.ended == begun.epoch
        if not (self._is_here(begun.epoch) or over):  # else it is said again after the dispatcher was lost
            self.inbox = buffer_of(begun, self.spec, self._decode)
            self.allowed = (0, False) if begun.held else None
            self._grant(self._pool.clear())
        self.begun = begun
        note(self.reading, begun)
        if self.reading.begun is None:
            self.reading.begun = begun
            if begun.anew:
                self.reading.forget()
            if self.spec.coordinated:
                self.reading.go_on(begun)

    def _less_to_come(self, told: msg.EpochEnds | TasksGone) -> None:
        """Note which tasks are all of an epoch, or that nothing more will come of some."""
        if isinstance(told, msg.EpochEnds):
            self._lacks(told.epoch, told.unread)
        if self.inbox is not None and self._is_here(told.epoch):
            self.inbox.less_to_come(told)
            if self.reading is not None:
                self.reading.ends(told.epoch, self.inbox.ended(), self.inbox.left_out_tasks)
        self.actions.append(io.ReportSoon())

    def _steps_ready(self, ready: msg.StepsReady) -> None:
        if self._is_here(ready.epoch) and self.allowed is not None and not self.allowed[1]:
            self.allowed = max(self.allowed[0], ready.steps), ready.last
        if ready.last:
            self._lacks(ready.epoch, ready.unread)
        if self.inbox is not None and self._is_here(ready.epoch) and self.inbox.wanted(ready.awaited):
            self._grant(self._pool.force(self._source(self.inbox.address_of(ready.awaited), ready.awaited)))

    def _lacks(self, epoch: int, unread: str) -> None:
        """Keep what nobody reads of an epoch for the user who comes to its end, or is there already."""
        known, self._unread = self._unread, (epoch, unread)
        if unread and epoch == self.read_to and known != self._unread:
            self.actions.append(io.Warn(unread))

    def _end(self, number: int, now: float) -> None:
        reading = self.reading
        if self.begun is None or self.begun.epoch != number or self.ended == number or reading is None:
            return
        self.read_to = number if reading.ended else self.read_to
        self._unused = self._count_unused(now)
        reading.seen = handed, rates = reading.measure(now)  # from here on what is read is let go of
        self._report(now)
        missed, members = (0, 0) if self.inbox is None else (self.inbox.missed, self.inbox.members)
        if self.inbox is not None:
            self._left = self.inbox.number, self.inbox.progress(everything=True)
            if not self.inbox.finished:  # what is still to come would have to be received to be dropped
                self.inbox = None
                self._hang_up()
                self._pool.clear()
        self.ended = number
        self.actions.append(io.EpochLeft(number, handed, rates, missed, members))

    def _count_unused(self, now: float) -> int:
        """Elements of the epoch that were received and will not be handed out, if it is not read on."""
        measured = None if self.begun is None else self.measure(self.begun.epoch, now)
        if measured is None or self.begun is None or self.begun.epoch == self.read_to:
            return 0
        return max(0, self.arrived[0] - measured[0])

    def _is_here(self, epoch: int) -> bool:
        return self.inbox is not None and self.inbox.number == epoch

    # -- what the user gets --------------------------------------------------------------------------------------------

    def _ask(self, ask: io.MoreWanted, now: float) -> None:
        """Answer with what there is; with nothing, if it is still to come."""
        inbox, reading, self._waits = self.inbox, self.reading, False
        if inbox is None or reading is None or not inbox.number == reading.number == ask.epoch:
            error = ServiceError("the session was closed while an epoch was being read") if self.closed else None
            if not self._refuse(self.failure or error):
                self.actions.append(io.Over())
        elif reading.lost(inbox.taken):
            self.actions.append(io.Refuse(MillraceError(_INTERRUPTED), lost=True))
        elif reading.surplus:
            self._hand_out(ask, reading, now)
        elif reading.pending is not None:
            self.actions.append(io.Decode(reading.pending))  # Ctrl-C came before it was
        elif (arrival := inbox.take()) is not None:
            reading.take(arrival)
            self._grant(self._pool.used(self._source(arrival.worker, arrival.task.number), arrival.size))
            self.actions.append(io.Decode(arrival))
        elif self._refuse(self.failure):  # a failure comes after all that came before it
            pass
        elif inbox.finished:
            self._over(ask, reading)
        else:
            self._waits = True
            if (needed := inbox.needed()) is not None or inbox.any_will_do:
                self._grant(self._pool.force(needed))

    def _hand_out(self, ask: io.MoreWanted, reading: EpochProgress, now: float) -> None:
        first = reading.untouched
        if reading.hand_out(self.allowed and self.allowed[0], ask.since, now, ask.queued):
            self.actions.append(io.HandedOut(first))
        elif self.allowed is not None and self.allowed[1]:  # others have no more
            if not reading.ended:  # else Ctrl-C kept the answer from the user, who asks again
                self.left_out += len(reading.surplus) + self.ready
            self._over(ask, reading)
        else:
            self._refuse(self.failure)  # it comes after all that may be used without what will not come any more

    def _over(self, ask: io.MoreWanted, reading: EpochProgress) -> None:
        reading.end(ask.since)
        unread = self._unread[1] if self._unread[0] == ask.epoch else ""
        self.actions.append(io.Over(unread or ("" if self.inbox is None else self.inbox.unfilled)))

    def _refuse(self, error: MillraceError | None) -> bool:
        if error is not None:
            self.actions.append(io.Refuse(error))
        return error is not None

    # -- workers -------------------------------------------------------------------------------------------------------

    def opening(self) -> tuple[data_messages.Open, bytes]:
        """First message to a worker on a connection, and the key that goes with it."""
        joined = self.joined
        assert joined is not None
        return data_messages.Open(joined.job, joined.consumer, self._who.client, joined.generation), joined.key

    def _assign(self, epoch: int, reads: Sequence[msg.TaskRead], alone: Sequence[int]) -> None:
        """Note which workers tasks are (now) read from; ``alone``: some tasks that leave nothing over."""
        inbox, reading = self.inbox, self.reading
        if inbox is None or reading is None or not inbox.number == reading.number == epoch:
            return
        for task in alone:
            reading.alone.add(task)
        late: dict[str, io.Action] = {}
        for read in reads:
            if read.local:
                self.flows.local.add(read.address)
            start = inbox.assign(read.task, read.lease, read.address, read.start)
            if not inbox.wanted(read.task):
                continue
            if self._workers.setdefault(read.address, False):
                self._join(self._source(read.address, read.task))
                order = data_messages.Read(epoch, read.task, read.lease, start)
                self.actions.append(io.TellWorker(read.address, order))
            else:
                late[read.address] = io.Connect(read.address)  # all that is unfinished is asked for then
        self.actions.extend(late.values())

    def _connected(self, address: str) -> None:
        """Ask a worker for all that is to come from it."""
        if self.inbox is None:
            self.actions.append(io.Disconnect(address))
            return
        self._workers[address] = True
        unfinished = self.inbox.unfinished(address)
        self._grant(self._pool.leave(address))
        for task, lease, start in unfinished:
            self._join(self._source(address, task))
            self.actions.append(io.TellWorker(address, data_messages.Read(self.inbox.number, task, lease, start)))

    def _source(self, address: str, task: int) -> Source:
        """Whose credit a message of a task takes."""
        return address, task % self.spec.cycle_length

    def _join(self, source: Source) -> None:
        if not self._pool.has(source):
            self._grant(self._pool.join(source))

    def _disconnected(self, address: str) -> None:
        """Try again while anything is to come: if the worker is dead the dispatcher names another."""
        if self._workers.get(address):
            self._workers[address] = False
            self._grant(self._pool.leave(address))
        if self.inbox is not None and self.inbox.unfinished(address) and self.failure is None:
            self.actions.append(io.Connect(address, again=True))
        else:
            self._workers.pop(address, None)

    def _hang_up(self) -> None:
        for address in [address for address, connected in self._workers.items() if connected]:
            self._workers[address] = False
            self._pool.leave(address)
            self.actions.append(io.Disconnect(address))

    def _grant(self, grants: Mapping[Source, int]) -> None:
        for (address, slot), more in grants.items():
            if more:
                self.actions.append(io.TellWorker(address, data_messages.Credit(more, self._pool.share, slot)))

    def _deliver(self, item: io.Delivered) -> None:
        address, header, size = item.address, item.header, item.size
        source = self._source(address, header.task)
        self._pool.arrived(source, size)
        inbox, fresh, complete = self.inbox, False, False
        if inbox is not None and inbox.number == header.epoch:
            fresh = inbox.accept_delivery(address, header, item.payload, size)
            if fresh:
                self.flows.count(address, header.count, size)
            upto, complete = inbox.holds(header.task)
            # Said before the user can have it: what may be sent again to a successor was never written to here.
            received = data_messages.Received(header.epoch, header.task, upto, complete)
            self.actions.append(io.TellWorker(address, received))
            while inbox.reruns:
                self._compared(inbox.number, inbox.reruns.pop())
            if self.reading is not None:
                self.reading.ends(inbox.number, inbox.ended())
        if not fresh:
            self._grant(self._pool.used(source, size))  # what was dropped is its room again
        if complete or (fresh and self.allowed is not None):
            self.actions.append(io.ReportSoon())

    def _miss(self, address: str, skipped: data_messages.Skipped) -> None:
        """Go on behind outputs that will not come, and acknowledge them as if they had."""
        inbox, epoch, task, upto = self.inbox, skipped.epoch, skipped.task, skipped.upto
        if inbox is not None and inbox.number == epoch and inbox.skip(task, skipped.lease, upto):
            self.actions.append(io.TellWorker(address, data_messages.Received(epoch, task, upto)))

    def _compared(self, epoch: int, rerun: Rerun) -> None:
        """Note that a rerun was compared with what had come of the task before."""
        text = self._reruns.add(self.spec, epoch, rerun)
        if text and rerun.outcome is not RerunOutcome.OTHER and self.spec.visitation == "exactly_once":
            self.failure = self.failure or PipelineError(text)  # the guarantee is broken, and known to be
        elif text and self._reruns.told[1] == 1:
            self.actions.append(io.Warn(text))
        self.actions.append(io.ReportSoon())

    def _grant_short(self, address: str, short: data_messages.Short) -> None:
        source, inbox = (address, short.slot), self.inbox
        if short.size > (total := self._pool.total) and short.count == 1:
            self.failure = self.failure or too_large(short.size, total)
        dropped = inbox is not None and inbox.compares(source)
        self._grant(self._pool.short(source, short.size, short.returned, dropped=dropped))

    def wants(self, address: str) -> bool:
        """Whether there is to be a connection to a worker."""
        return address in self._workers

    @property
    def differed(self) -> int:
        """Tasks that gave something else as they were run again."""
        return self._reruns.told[1]

    # -- what there is to know -----------------------------------------------------------------------------------------

    @property
    def arrived(self) -> tuple[int, bool]:
        """Elements of the epoch that came, and whether these are all."""
        return (0, False) if self.inbox is None else (self.inbox.arrived, self.inbox.all_here)

    @property
    def has_first(self) -> bool:
        """Whether there is an element of the epoch that may be used: with equal steps all ranks have to have one."""
        return self.arrived[0] > 0 and (self.allowed is None or self.allowed[0] > 0)

    @property
    def ready(self) -> int:
        """Elements that have arrived and were not taken."""
        return 0 if self.inbox is None else self.inbox.ready

    @property
    def skipped(self) -> int:
        """Elements of this epoch that ``on_error`` left out."""
        return 0 if self.inbox is None else self.inbox.skipped

    def measure(self, epoch: int, now: float) -> tuple[int, Rates] | None:
        """Elements of an epoch that were handed out, and how fast; None: it is neither read nor was read just now."""
        each = self.reading if self._before is None or self._before.number != epoch else self._before
        return None if each is None or each.number != epoch else each.measure(now)
