"""Prices: of machines, buckets and disks; the cost of an epoch (equation 1 of tf.data service, 4.1). Pure.

    C = t * (C_cpu * (n_w * cpu_w + n_t * cpu_t) + C_mem * (n_w * mem_w + n_t * mem_t) + C_acc * n_t * acc_t)

with t hours, n_w workers that use cpu_w cores and mem_w GiB each, and n_t training hosts that have cpu_t cores, mem_t
GiB and acc_t accelerators each. Workers count with the cores and memory that they use, as others get the rest; training
hosts with all that they have, as nobody else gets it. Links are not in it: inside a zone they cost nothing.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

PROVIDERS = ("aws", "azure", "gcp")
"""Names of the tables of prices that come with millrace."""


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of an hour, in any currency; whole machines cost the sum of what they have.

    Attributes:
        core: of a core.
        gib: of a GiB of memory.
        accelerator: of an accelerator.
    """

    core: float = 0.0
    gib: float = 0.0
    accelerator: float = 0.0


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Resources that a worker uses, or that a training host has.

    Attributes:
        cores: mean number of cores.
        gib: GiB of memory.
        accelerators: number of them.
        hour: price of it as a whole, beside that of its parts.
    """

    cores: float = 0.0
    gib: float = 0.0
    accelerators: float = 0.0
    hour: float = 0.0

    def price(self, prices: Prices) -> float:
        """Price of an hour."""
        parts = prices.core * self.cores + prices.gib * self.gib + prices.accelerator * self.accelerators
        return self.hour + parts


class HourlyRates(msgspec.Struct, frozen=True):
    """Prices of an hour of a job's workers and training hosts, in ``currency``.

    Attributes:
        worker: of a worker.
        training: of all training hosts of a job, with their accelerators.
        currency: for what is said.
        local: workers inside those hosts, which cost nothing beside them.
    """

    worker: float
    training: float
    currency: str = ""
    local: int = 0

    def workers(self, count: int) -> float:
        """Price of an hour of so many workers."""
        return max(0, count - self.local) * self.worker


class BucketPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of an object store.

    Attributes:
        gib_month: of a GiB that is stored for a month.
        thousand_writes: of 1,000 requests that list or write, which the providers call class A.
        thousand_reads: of 1,000 requests that read, class B.
        gib_out: of a GiB that leaves the region; within it, bytes cost nothing.
        page: objects that one request of a listing names.
    """

    gib_month: float = 0.0
    thousand_writes: float = 0.0
    thousand_reads: float = 0.0
    gib_out: float = 0.0
    page: Annotated[int, msgspec.Meta(ge=1)] = 1000


class DiskPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of a machine's disk.

    Attributes:
        gib_month: of a GiB for a month.
    """

    gib_month: float = 0.0


class PriceSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Source of a price.

    Attributes:
        date: day for which the source gives the price or, where it names none, on which it was read, as 2026-11-23.
        source: address.
        note: what exactly has this price.
    """

    date: str
    source: str
    note: str = ""


class PriceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices, and the machines.

    Attributes:
        prices: of an hour of a machine's parts.
        worker: resources that one uses, where that was not measured.
        host: the machine of one consumer; its accelerators are those that ``distribute`` was told of.
        currency: for what is printed.
        name: of the provider and the region.
        bucket: prices of the object store.
        disk: prices of the hosts' disks.
        sources: where prices are from, by their names in this table, such as ``bucket.gib_month``.
    """

    prices: Prices = Prices()
    worker: Machine = Machine(cores=1.0)
    host: Machine = Machine()
    currency: str = ""
    name: str = ""
    bucket: BucketPrices = BucketPrices()
    disk: DiskPrices = DiskPrices()
    sources: dict[str, PriceSource] = {}

    def with_accelerators(self, accelerators: int) -> Machine:
        """Machine of a consumer that has so many accelerators."""
        return msgspec.structs.replace(self.host, accelerators=accelerators)

    def rates(self, consumers: int, accelerators: int, local: int = 0) -> HourlyRates:
        """Rates of a worker, and of so many consumers with so many accelerators each; see :class:`HourlyRates`."""
        training = consumers * self.with_accelerators(accelerators).price(self.prices)
        return HourlyRates(self.worker.price(self.prices), training, self.currency, local)

    def of_hours(
        self,
        worker_hours: float,
        training_hours: float,
        accelerators: int,
        core_hours: float = 0.0,
        gib_hours: float = 0.0,
    ) -> Cost:
        """Cost of so many hours of workers, and of hosts with so many accelerators each.

        Args:
            worker_hours: of all workers together.
            training_hours: of all hosts together.
            accelerators: of each host.
            core_hours: measured use of the workers, of all cores; 0: not measured, and the table says.
            gib_hours: of memory, likewise.
        """
        worker = self.worker
        if core_hours and worker_hours:
            worker = msgspec.structs.replace(worker, cores=core_hours / worker_hours, gib=gib_hours / worker_hours)
        return cost(3600.0, worker_hours, worker, training_hours, self.with_accelerators(accelerators), self.prices)


USUAL = PriceTable(
    Prices(core=0.03, gib=0.004, accelerator=2.5), Machine(cores=1.0, gib=2.0), Machine(cores=16.0, gib=120.0), "USD"
)
"""Prices for whoever says none: round figures of the order of what public clouds ask for machines on demand. A host
with an accelerator costs as much as some ninety workers, and it matters little whether it is fifty or two hundred: that
many workers cost little beside it, so that nearly always those are cheapest that keep it busy."""


class Cost(msgspec.Struct, frozen=True):
    """Cost of the service, and of the training hosts."""

    service: float
    training: float

    @property
    def total(self) -> float:
        """Sum of both."""
        return self.service + self.training


def cost(
    seconds: float, workers: float, worker: Machine, hosts: float, host: Machine, prices: Prices | None = None
) -> Cost:
    """Cost of running for so long.

    Args:
        seconds: of the training.
        workers: mean number of workers (a dispatcher is one more).
        worker: resources that one of them uses.
        hosts: number of training hosts.
        host: resources that one of them has.
        prices: of the parts; None: only whole machines have a price.
    """
    hours, known = seconds / 3600, prices or Prices()
    return Cost(hours * workers * worker.price(known), hours * hosts * host.price(known))
