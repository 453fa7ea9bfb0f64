"""What a training will cost."""

import math
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.cost_estimate import (
    BUCKET,
    DISK,
    PACKED,
    PREFETCH,
    Charges,
    Conditions,
    Consumed,
    Training,
    charge,
    cheapest,
    estimate,
    fastest,
    listing_requests,
    local_disk,
    packed,
    plain_bucket,
    served,
)
from millrace.policies.prices import BucketPrices, DiskPrices, Machine, Prices, PriceTable

GIB = 1 << 30
TABLE = PriceTable(
    prices=Prices(accelerator=1.0),
    worker=Machine(cores=2, hour=0.1),
    host=Machine(cores=8, hour=2.0),
    bucket=BucketPrices(gib_month=0.02, thousand_writes=0.005, thousand_reads=0.0004, gib_out=0.1),
    disk=DiskPrices(gib_month=0.1),
)
TRAINING = Training(100_000, 100 * GIB, epochs=10, compute_s=600, hosts=4, preprocessing_s=3600)

amounts = st.floats(0, 1e3)
machines = st.builds(Machine, cores=st.floats(0, 128), gib=amounts, accelerators=amounts, hour=amounts)
tables = st.builds(
    PriceTable,
    prices=st.builds(Prices, amounts, amounts, amounts),
    worker=machines,
    host=machines,
    bucket=st.builds(BucketPrices, amounts, amounts, amounts, amounts, st.integers(1, 5000)),
    disk=st.builds(DiskPrices, amounts),
)
trainings = st.builds(
    Training,
    objects=st.integers(1, 10**8),
    nbytes=st.integers(1, 10**15),
    epochs=st.integers(1, 5),
    compute_s=st.floats(0, 1e5),
    hosts=st.integers(1, 64),
    accelerators=st.integers(0, 8),
    preprocessing_s=st.floats(0, 1e6),
)
conditions = st.builds(
    Conditions,
    latency_s=st.floats(0, 1),
    link_bytes_s=st.floats(1e6, 1e11),
    disk_bytes_s=st.floats(1e6, 1e10),
    loaders=st.integers(0, 16),
    requests_at_once=st.integers(1, 256),
    reads_in_flight=st.integers(1, 256),
    cache_bytes=st.integers(1, 10**13),
    pack_bytes=st.integers(1, 10**9),
    months=st.floats(0, 12),
    outside=st.booleans(),
)


def by_name(training=TRAINING, table=TABLE, given=None, workers=3):
    return {option.name.split(",")[0]: option for option in estimate(training, table, given, workers)}


def test_the_requests_of_a_listing():
    assert listing_requests(60_000, 1000) == 60
    assert listing_requests(60_001, 1000, epochs=2) == 122
    assert listing_requests(70_000, 1000, 2, fetch_size=1024) == 2 * 70 * 69
    assert listing_requests(0, 1000) == 0


def test_each_resource_has_its_price():
    used = Consumed(
        lists=1000,
        writes=2000,
        reads=10_000,
        bytes_read=3 * GIB,
        bucket_gib_months=50,
        disk_gib_months=20,
        compute_s=3600,
        waiting_s=1800,
        worker_s=7200,
    )
    expected = Charges(
        storage=1.0, requests=0.015 + 0.004, transfer=0.0, disks=2.0, compute=4.0, waiting=2.0, workers=0.2
    )
    found = charge(used, TABLE, accelerators=2)
    assert msgspec.structs.astuple(found) == pytest.approx(msgspec.structs.astuple(expected))
    assert charge(used, TABLE, outside=True).transfer == pytest.approx(0.3)
    assert found.total == pytest.approx(1.0 + 0.019 + 2.0 + 4.0 + 2.0 + 0.2)


def test_a_bucket_is_asked_once_for_each_sample_of_each_epoch_and_listed_once_by_each_host():
    used = by_name()[BUCKET].consumed
    assert (used.lists, used.writes, used.reads) == (4 * 100, 0, 10 * 100_000)
    assert used.bytes_read == 10 * 100 * GIB
    assert (used.bucket_gib_months, used.disk_gib_months) == (100, 0)
    assert used.compute_s == 4 * 10 * 600


def test_a_loop_that_reads_by_itself_waits_for_every_request_and_loaders_share_them():
    training = Training(1000, 1000, compute_s=20)
    given = Conditions(latency_s=0.1)
    alone = by_name(training, given=msgspec.structs.replace(given, loaders=0))[BUCKET]
    assert alone.seconds == pytest.approx(20 + 1000 * 0.1)
    four = by_name(training, given=msgspec.structs.replace(given, loaders=4))[BUCKET]
    assert four.seconds == pytest.approx(25)
    eight = by_name(training, given=msgspec.structs.replace(given, loaders=8))[BUCKET]
    assert eight.seconds == pytest.approx(20 + 0.1)


def test_disks_hold_everything_on_each_host_and_prefetching_what_its_cache_has_room_for():
    options = by_name(given=Conditions(cache_bytes=5 * GIB, months=2))
    assert options[DISK].consumed.disk_gib_months == 2 * 4 * 100
    assert options[DISK].consumed.reads == 4 * 100_000
    assert options[PREFETCH].consumed.disk_gib_months == 2 * 4 * 5
    assert options[PREFETCH].consumed.reads == pytest.approx(10 * 100_000, rel=0.01)
    everything = by_name(Training(1000, GIB, epochs=5), given=Conditions(cache_bytes=GIB))[PREFETCH]
    assert everything.consumed.reads == 1000


def test_packs_are_read_in_pieces_and_written_once():
    used = by_name(given=Conditions(pack_bytes=GIB))[PACKED].consumed
    assert (used.writes, used.reads) == (100, 100_000 + 10 * 100)
    assert used.bucket_gib_months == 200


def test_a_service_is_as_fast_as_its_workers_and_has_a_dispatcher():
    training = Training(1000, 1000, compute_s=10, preprocessing_s=120)
    given = Conditions(latency_s=0.0)
    slow, enough = (by_name(training, given=given, workers=count)["service"] for count in (3, 6))
    assert slow.seconds == pytest.approx(120 / (3 * 2), rel=1e-6)
    assert enough.seconds == pytest.approx(10, rel=1e-6)
    assert enough.consumed.worker_s == pytest.approx(6 * 10, rel=1e-6)
    assert enough.consumed.dispatcher_s == pytest.approx(10, rel=1e-6)
    assert enough.charges.workers == pytest.approx(7 * 10 / 3600 * 0.1, rel=1e-6)


def test_the_number_of_workers_is_the_cheapest_unless_it_is_given():
    training = Training(1000, 1000, compute_s=10, preprocessing_s=120)
    chosen = estimate(training, TABLE, Conditions(latency_s=0.0))[-1]
    assert chosen.name == "service, 6 workers"
    assert cheapest(estimate(training, TABLE, workers=n)[-1] for n in range(1, 20)).name == chosen.name


def test_of_equals_the_cheapest_is_the_fastest_and_the_other_way_round():
    options = estimate(TRAINING, TABLE, workers=3)
    assert cheapest(options).charges.total == min(option.charges.total for option in options)
    assert fastest(options).seconds == min(option.seconds for option in options)
    free = PriceTable()
    assert cheapest(estimate(TRAINING, free, workers=3)) == fastest(estimate(TRAINING, free, workers=3))


def test_no_objects_cost_nothing_but_machines():
    for option in estimate(Training(0, 0, epochs=3, compute_s=60, hosts=2), TABLE, workers=1):
        charges = option.charges
        assert (charges.storage, charges.transfer, charges.disks, charges.waiting) == (0, 0, 0, 0)
        assert option.seconds == 180
        assert charges.compute == pytest.approx(2 * 180 / 3600 * 3)
        assert option.consumed.reads == 0


@given(trainings, tables, conditions, st.data())
def test_a_price_that_rises_makes_nothing_cheaper(training, table, given, data):
    part = data.draw(st.sampled_from(("prices", "worker", "host", "bucket", "disk")))
    before = getattr(table, part)
    names = [each.name for each in msgspec.structs.fields(before) if each.name not in {"page", "cores", "gib"}]
    names = [name for name in names if name != "accelerators"] or ["gib_month"]
    name = data.draw(st.sampled_from(names))
    dearer = msgspec.structs.replace(before, **{name: getattr(before, name) + data.draw(amounts)})
    changed = msgspec.structs.replace(table, **{part: dearer})
    for cheap, dear in zip(estimate(training, table, given, 2), estimate(training, changed, given, 2), strict=True):
        assert dear.charges.total >= cheap.charges.total * (1 - 1e-9)
        assert (dear.consumed, dear.seconds) == (cheap.consumed, cheap.seconds)


@given(trainings, tables, conditions, st.floats(0.1, 100))
def test_another_currency_changes_all_amounts_alike(training, table, given, rate):
    def exchanged(struct):
        kept = {"page", "cores", "gib", "accelerators"} if struct is not table.prices else set()
        fields = [each.name for each in msgspec.structs.fields(struct) if each.name not in kept]
        return msgspec.structs.replace(struct, **{name: rate * getattr(struct, name) for name in fields})

    parts = ("prices", "worker", "host", "bucket", "disk")
    other = msgspec.structs.replace(table, **{part: exchanged(getattr(table, part)) for part in parts})
    for one, two in zip(estimate(training, table, given, 2), estimate(training, other, given, 2), strict=True):
        assert two.charges.total == pytest.approx(rate * one.charges.total, rel=1e-6)


@given(trainings, tables, conditions)
def test_nothing_is_negative_and_nobody_is_faster_than_the_computing(training, table, given):
    computing = training.epochs * training.compute_s
    for option in estimate(training, table, given, 2):
        assert option.seconds >= computing
        for struct in (option.consumed, option.charges):
            assert all(value >= 0 and math.isfinite(value) for value in msgspec.structs.astuple(struct))
        assert option.consumed.waiting_s == pytest.approx(training.hosts * (option.seconds - computing), abs=1e-3)


@given(trainings, tables, conditions)
def test_more_loaders_a_nearer_store_and_a_wider_link_never_slow_anything_down(training, table, given):
    for place in (local_disk, plain_bucket, packed, partial(served, workers=2)):
        before = place(training, table, given)
        for better in (
            {"latency_s": given.latency_s / 2},
            {"link_bytes_s": 2 * given.link_bytes_s},
            {"loaders": max(1, 2 * given.loaders)},
        ):
            after = place(training, table, msgspec.structs.replace(given, **better))
            assert after.seconds <= before.seconds * (1 + 1e-9) + 1e-6, (before.name, better)
