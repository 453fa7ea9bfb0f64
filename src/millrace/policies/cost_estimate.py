"""Cost estimate: what a training costs that reads disks, a bucket, packs or a service, and how long it waits. Pure.

The cost model is DELI's (section III-C, equations 1 to 7), with requests counted as millrace makes them, and workers as
in equation 1 of tf.data service (:mod:`millrace.policies.prices`). ``docs/design/0016-cost.md`` says which sentence of
the paper each equation is from.

    cost = hosts * (disk * per_gib_month + (computing + waiting) * per_hour)                               (1, 2, 3)
         + data * bucket_per_gib_month + lists * per_list + reads * per_read                               (4, 5, 6)
    lists = epochs * ceil(objects / page) * ceil(objects / fetch_size)                                        (7)

What is consumed is kept apart from what it costs, so that it can be compared with what was counted after a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from millrace.policies.prices import PriceTable
from millrace.policies.sample_misses import prefetched_samples

_GIB = 1 << 30
_MOST_WORKERS = 128
DISK, BUCKET, PREFETCH, PACKED, SERVICE = "local disk", "bucket", "bucket with prefetch", "packed", "service"


class Training(msgspec.Struct, frozen=True):
    """Data that a training reads, and the time for which it computes.

    Attributes:
        objects: samples, of which each is an object of the bucket.
        nbytes: of all objects.
        epochs: number of passes.
        compute_s: seconds of an epoch in which the hosts compute and wait for nothing.
        hosts: training hosts, which divide each epoch among them.
        accelerators: of each host.
        preprocessing_s: seconds of one core for the preprocessing of an epoch, of all objects.
    """

    objects: int
    nbytes: int
    epochs: int = 1
    compute_s: float = 0.0
    hosts: int = 1
    accelerators: int = 1
    preprocessing_s: float = 0.0


class Conditions(msgspec.Struct, frozen=True):
    """Assumptions about speeds and sizes, all of which a user may replace.

    Attributes:
        latency_s: seconds from a request to the first byte of its answer.
        link_bytes_s: bytes a second that reach a host.
        disk_bytes_s: bytes a second that a host reads from its own disk.
        loaders: processes of a host that read the bucket or the disk ahead of the loop (``num_workers`` of a
            DataLoader); 0: the loop reads by itself.
        requests_at_once: of a prefetching sampler.
        reads_in_flight: of a worker, of a pipeline in a host, and of whoever copies or packs.
        cache_bytes: of a host's cache, for prefetching.
        pack_bytes: bytes that one request reads or writes of a pack.
        months: for which the data is stored, in the bucket and on disks.
        outside: the hosts are outside the bucket's region, so that bytes which leave it are paid for.
    """

    latency_s: float = 0.05
    link_bytes_s: float = 1 << 30
    disk_bytes_s: float = 125 << 20
    loaders: int = 4
    requests_at_once: int = 16
    reads_in_flight: int = 64
    cache_bytes: int = 2 << 30
    pack_bytes: int = 4 << 20
    months: float = 1.0
    outside: bool = False


class Consumed(msgspec.Struct, frozen=True):
    """Resources that a training consumes.

    Attributes:
        lists: requests that list.
        writes: requests that write.
        reads: requests that read.
        bytes_read: bytes of the bucket that hosts and the workers of a service read.
        bucket_gib_months: GiB times months.
        disk_gib_months: of all hosts' disks together.
        compute_s: seconds of hosts in which they compute, of all hosts together.
        waiting_s: seconds of hosts in which they wait for data, likewise.
        worker_s: seconds of workers, of all together.
        dispatcher_s: seconds of their dispatcher, which costs as much as a worker.
    """

    lists: float = 0.0
    writes: float = 0.0
    reads: float = 0.0
    bytes_read: float = 0.0
    bucket_gib_months: float = 0.0
    disk_gib_months: float = 0.0
    compute_s: float = 0.0
    waiting_s: float = 0.0
    worker_s: float = 0.0
    dispatcher_s: float = 0.0

    @property
    def requests(self) -> float:
        """Requests of all kinds."""
        return self.lists + self.writes + self.reads


class Charges(msgspec.Struct, frozen=True):
    """Costs by what they are for."""

    storage: float = 0.0
    requests: float = 0.0
    transfer: float = 0.0
    disks: float = 0.0
    compute: float = 0.0
    waiting: float = 0.0
    workers: float = 0.0

    @property
    def total(self) -> float:
        """Sum of all."""
        return math.fsum(msgspec.structs.astuple(self))


class CostOption(msgspec.Struct, frozen=True):
    """One of the places that the training can read from.

    Attributes:
        name: of the place.
        consumed: resources.
        charges: their cost.
        seconds: length of the training.
        note: what is counted in, in a sentence.
    """

    name: str
    consumed: Consumed
    charges: Charges
    seconds: float
    note: str = ""


# -- requests and charges ----------------------------------------------------------------------------------------------


def listing_requests(objects: int, page: int, epochs: int = 1, fetch_size: int | None = None) -> int:
    """Count the requests of listings: one listing in each epoch (5), or before each fetch of ``fetch_size`` (7)."""
    return epochs * math.ceil(objects / page) * (1 if fetch_size is None else math.ceil(objects / fetch_size))


def charge(consumed: Consumed, table: PriceTable, accelerators: int = 1, *, outside: bool = False) -> Charges:
    """Put a price on what is consumed."""
    bucket, host = table.bucket, table.with_accelerators(accelerators).price(table.prices) / 3600
    written, read = consumed.lists + consumed.writes, consumed.reads
    return Charges(
        storage=consumed.bucket_gib_months * bucket.gib_month,
        requests=(written * bucket.thousand_writes + read * bucket.thousand_reads) / 1000,
        transfer=consumed.bytes_read / _GIB * bucket.gib_out if outside else 0.0,
        disks=consumed.disk_gib_months * table.disk.gib_month,
        compute=consumed.compute_s * host,
        waiting=consumed.waiting_s * host,
        workers=(consumed.worker_s + consumed.dispatcher_s) / 3600 * table.worker.price(table.prices),
    )


# -- places to read from -----------------------------------------------------------------------------------------------


def estimate(
    training: Training, table: PriceTable, conditions: Conditions | None = None, workers: int | None = None
) -> list[CostOption]:
    """Estimate all places to read from: disks, the bucket, with prefetching, packed, a service.

    Args:
        training: what is read, and how often.
        table: of prices.
        conditions: speeds and sizes; None: the defaults.
        workers: of the service; None: the number with which it costs least.
    """
    given = conditions or Conditions()
    return [
        local_disk(training, table, given),
        plain_bucket(training, table, given),
        prefetched_bucket(training, table, given),
        packed(training, table, given),
        served(training, table, given, workers)
        if workers is not None
        else cheapest(served(training, table, given, count) for count in range(1, _MOST_WORKERS + 1)),
    ]


def cheapest(options: Iterable[CostOption]) -> CostOption:
    """Find the option of the least cost; of equals the fastest."""
    return min(options, key=lambda option: (option.charges.total, option.seconds))


def fastest(options: Iterable[CostOption]) -> CostOption:
    """Find the option of the shortest training; of equals the cheapest."""
    return min(options, key=lambda option: (option.seconds, option.charges.total))


def local_disk(training: Training, table: PriceTable, given: Conditions) -> CostOption:
    """Estimate a copy of all data on the disk of each host, made once from the bucket."""
    part = _part(training)
    read_s = part.nbytes / given.disk_bytes_s
    waits = training.epochs * _loop_waits(read_s, part, given, table)
    copying = _fetching(training.objects, training.nbytes, given.reads_in_flight, given)
    consumed = Consumed(
        lists=training.hosts * listing_requests(training.objects, table.bucket.page),
        reads=training.hosts * training.objects,
        bytes_read=training.hosts * training.nbytes,
        disk_gib_months=training.hosts * training.nbytes / _GIB * given.months,
    )
    note = "every host has all data on a disk of its own, and copies it there once"
    return _option(DISK, consumed, copying + waits, note, training, table, given)


def plain_bucket(training: Training, table: PriceTable, given: Conditions) -> CostOption:
    """Estimate a DataLoader that reads each object from the bucket when it is asked for."""
    part = _part(training)
    read_s = part.objects * given.latency_s + part.nbytes / given.link_bytes_s
    waits = training.epochs * _loop_waits(read_s, part, given, table, least_s=part.nbytes / given.link_bytes_s)
    consumed = Consumed(
        lists=training.hosts * listing_requests(training.objects, table.bucket.page),
        reads=training.epochs * training.objects,
        bytes_read=training.epochs * training.nbytes,
    )
    how = f"{given.loaders} processes of each host read" if given.loaders else "the loop itself reads"
    return _option(BUCKET, consumed, waits, f"{how} one object at a time", training, table, given)


def prefetched_bucket(training: Training, table: PriceTable, given: Conditions) -> CostOption:
    """Estimate ``CachedDataset`` and ``PrefetchSampler``: a bounded cache on each host, filled ahead of the loop."""
    part, mean = _part(training), _mean(training)
    room = min(training.objects, int(given.cache_bytes / mean) if mean else training.objects)
    loop_s = training.compute_s + _loop_waits(part.nbytes / given.disk_bytes_s, part, given, table)
    reads = prefetched_samples(training.objects, training.hosts, room, training.epochs, given.requests_at_once)
    waits = 0.0
    for count in reads:
        fetching = _fetching(count / training.hosts, count * mean / training.hosts, given.requests_at_once, given)
        waits += max(_first(training, given), fetching - training.compute_s, loop_s - training.compute_s)
    consumed = Consumed(
        lists=training.hosts * listing_requests(training.objects, table.bucket.page),
        reads=sum(reads),
        bytes_read=sum(reads) * mean,
        disk_gib_months=training.hosts * min(given.cache_bytes, training.nbytes) / _GIB * given.months,
    )
    note = f"{given.requests_at_once} requests at a time, into a cache that holds {room:,.0f} objects on each host"
    return _option(PREFETCH, consumed, waits, note, training, table, given)


def packed(training: Training, table: PriceTable, given: Conditions) -> CostOption:
    """Estimate objects that were packed into shards once, of which a pipeline in the host reads pieces in sequence."""
    part = _part(training)
    pieces = math.ceil(training.nbytes / given.pack_bytes)
    fetching = _fetching(pieces / training.hosts, part.nbytes, given.reads_in_flight, given)
    preparing = part.preprocessing_s / max(1.0, table.host.cores)
    waits = training.epochs * max(_first(training, given), max(fetching, preparing) - training.compute_s)
    consumed = Consumed(
        lists=listing_requests(training.objects, table.bucket.page) + training.hosts,
        writes=pieces,
        reads=training.objects + training.epochs * pieces,
        bytes_read=training.epochs * training.nbytes,
        bucket_gib_months=training.nbytes / _GIB * given.months,
        worker_s=_fetching(training.objects, training.nbytes, given.reads_in_flight, given),
    )
    note = "a worker packs once and reads each object; packs are stored beside the objects, and pieces are shuffled"
    return _option(PACKED, consumed, waits, note, training, table, given)


def served(training: Training, table: PriceTable, given: Conditions, workers: int) -> CostOption:
    """Estimate a service with so many workers, and a dispatcher, which read the bucket and preprocess."""
    part = _part(training)
    fetching = _fetching(training.objects, training.nbytes, workers * given.reads_in_flight, given, workers)
    preparing = training.preprocessing_s / (workers * max(1.0, table.worker.cores))
    slowest = max(fetching, preparing, part.nbytes / given.link_bytes_s)
    waits = training.epochs * max(_first(training, given), slowest - training.compute_s)
    consumed = Consumed(
        lists=listing_requests(training.objects, table.bucket.page),
        reads=training.epochs * training.objects,
        bytes_read=training.epochs * training.nbytes,
        worker_s=workers * (training.epochs * training.compute_s + waits),
        dispatcher_s=training.epochs * training.compute_s + waits,
    )
    name = f"{SERVICE}, {workers} worker{'' if workers == 1 else 's'}"
    note = f"{given.reads_in_flight} requests at a time in each worker; the dispatcher costs as much as a worker"
    return _option(name, consumed, waits, note, training, table, given)


def _option(
    name: str,
    consumed: Consumed,
    waits: float,
    note: str,
    training: Training,
    table: PriceTable,
    given: Conditions,
) -> CostOption:
    """Add what all options have: the objects in the bucket, and hosts that compute and wait."""
    stored = training.nbytes / _GIB * given.months
    whole = msgspec.structs.replace(
        consumed,
        bucket_gib_months=consumed.bucket_gib_months + stored,
        compute_s=training.hosts * training.epochs * training.compute_s,
        waiting_s=training.hosts * waits,
    )
    charges = charge(whole, table, training.accelerators, outside=given.outside)
    return CostOption(name, whole, charges, training.epochs * training.compute_s + waits, note)


# -- times -------------------------------------------------------------------------------------------------------------


class _Part(msgspec.Struct, frozen=True):
    """Part of an epoch that one host reads."""

    objects: float
    nbytes: float
    preprocessing_s: float
    compute_s: float


def _part(training: Training) -> _Part:
    hosts = training.hosts
    return _Part(
        training.objects / hosts, training.nbytes / hosts, training.preprocessing_s / hosts, training.compute_s
    )


def _mean(training: Training) -> float:
    return training.nbytes / training.objects if training.objects else 0.0


def _fetching(requests: float, nbytes: float, at_once: int, given: Conditions, links: int = 1) -> float:
    """Seconds of so many requests: each waits for its answer and then for its bytes, all share the links."""
    one_by_one = requests * given.latency_s + nbytes / given.link_bytes_s
    return max(one_by_one / at_once, nbytes / (links * given.link_bytes_s))


def _loop_waits(read_s: float, part: _Part, given: Conditions, table: PriceTable, least_s: float = 0.0) -> float:
    """Seconds of an epoch for which a loop waits that reads and preprocesses by itself, or has loaders do it.

    Args:
        read_s: seconds that reading takes, one object after the other.
        part: what is read.
        given: how many loaders there are.
        table: how many cores there are.
        least_s: seconds that reading takes at least, with as many loaders as one likes.
    """
    if not given.loaders:
        return read_s + part.preprocessing_s
    cores = min(float(given.loaders), max(1.0, table.host.cores))
    loading = max(read_s / given.loaders + part.preprocessing_s / cores, least_s)
    first = (read_s + part.preprocessing_s) / max(1.0, part.objects)
    return max(first, loading - part.compute_s)


def _first(training: Training, given: Conditions) -> float:
    """Seconds until the first object is there, for which every epoch waits at least."""
    return given.latency_s + _mean(training) / given.link_bytes_s if training.objects else 0.0
