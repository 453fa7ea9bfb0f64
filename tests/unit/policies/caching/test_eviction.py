"""Which blocks stay."""

import random

import pytest
from benchmarks.papers.eviction import Job, Kept, Recent, hit_ratios
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.caching.eviction import HALF_LIFE_S, WORTH, KeptBlockSize, PointUse, admit, benefit, evict

MIB = 1 << 20


def blocks(**kept):
    """Of each point, blocks of so many MiB."""
    return {
        point: [KeptBlockSize(f"{point}{number}", size * MIB) for number, size in enumerate(sizes)]
        for point, sizes in kept.items()
    }


# -- benefit -----------------------------------------------------------------------------------------------------------


def test_benefit_is_what_is_saved_of_the_time_per_byte_summed_over_jobs():
    uses = [PointUse(saves=0.5, last_s=0), PointUse(saves=0.1, last_s=0), PointUse(saves=-0.2, last_s=0)]
    assert benefit(uses, 100, now=0) == pytest.approx((0.5 + 0.1) / 100)
    assert benefit([], 100, now=0) == 0


def test_what_a_job_contributes_fades_by_half_with_every_hour():
    use = PointUse(saves=0.5, last_s=100)
    assert [benefit([use], 1, now=100 + hours * HALF_LIFE_S) for hours in (0, 1, 2)] == [0.5, 0.25, 0.125]
    assert benefit([use], 1, now=0) == 0.5


uses = st.builds(PointUse, saves=st.floats(0, 1), last_s=st.floats(0, 1e6))


@given(st.lists(uses, max_size=4), uses, st.integers(1, 10**12), st.floats(0, 1e6))
def test_benefit_grows_with_jobs_and_savings_and_shrinks_with_bytes_and_time(before, use, whole, now):
    base = benefit([*before, use], whole, now)
    assert base >= benefit(before, whole, now)
    more = PointUse(2 * use.saves, use.last_s)
    assert benefit([*before, more], whole, now) >= base
    assert benefit([*before, use], 2 * whole, now) <= base
    assert benefit([*before, use], whole, now + 60) <= base


# -- what goes ---------------------------------------------------------------------------------------------------------


def test_what_saves_least_per_byte_goes_first_and_of_equals_what_was_read_longest_ago():
    kept = blocks(a=[1, 1], b=[1, 1], c=[1])
    worth = {"a": 3.0, "b": 1.0, "c": 2.0}
    assert evict(kept, worth, 3 * MIB).value == ("b0", "b1", "c0")
    decision = evict(kept, worth, MIB + 1)
    assert decision.value == ("b0", "b1")
    assert decision.reason == "2 MiB of b go, as they save the least time per byte"
    assert evict(kept, {"a": 1.0}, MIB).value == ("b0",)
    assert evict(kept, worth, 0).value == ()


def test_everything_goes_where_even_that_is_not_enough():
    decision = evict(blocks(a=[1]), {"a": 1.0}, 2 * MIB)
    assert decision.value == ("a0",)
    assert decision.reason == "1 MiB of 2 MiB can be given up: that is all that is kept"


def test_a_new_block_takes_free_room():
    decision = admit("new", MIB, MIB, 2 * MIB, blocks(a=[1]), {})
    assert decision.value == ()
    assert decision.reason == "1 MiB of new fit into 2 MiB that are free"


def test_a_new_block_takes_the_place_of_clearly_less_useful_ones_only():
    kept = blocks(a=[1, 1], b=[1])
    decision = admit("new", MIB, MIB, 0, kept, {"new": 2.0, "a": 1.0, "b": 1.5})
    assert decision.value == ("a0",)
    assert decision.reason == "1 MiB of new save more time than 1 MiB of a, which go"
    decision = admit("new", MIB, MIB, 0, kept, {"new": 1.2, "a": 1.0, "b": 1.0})
    assert decision.value is None
    assert decision.reason == "new gets no more room: nothing that may go saves clearly less time per byte"
    assert admit("a", MIB, MIB, 0, kept, {"a": 2.0, "b": 2.0}).value is None
    assert admit("new", 4 * MIB, 4 * MIB, 0, kept, {"new": 9.0}).value is None


def test_a_large_block_does_not_go_for_the_little_that_a_point_lacks():
    kept, worth = blocks(a=[250]), {"new": 2.0, "a": 1.0}
    decision = admit("new", MIB, MIB, 0, kept, worth)
    assert decision.value is None
    assert decision.reason == "new gets no more room: 250 MiB of a would go, and save more time"
    assert admit("new", MIB, 200 * MIB, 0, kept, worth).value == ("a0",)


points = st.sampled_from("abcd")
kept_blocks = st.dictionaries(points, st.lists(st.integers(1, 300), max_size=5)).map(lambda kept: blocks(**kept))
benefits = st.dictionaries(points, st.floats(0, 1e-3))


@given(kept_blocks, benefits, st.integers(0, 2000 * MIB))
def test_enough_goes_and_nothing_worth_more_than_what_stays(kept, worth, need):
    gone = set(evict(kept, worth, need).value)
    movable = [(point, block) for point in kept for block in kept[point]]
    assert gone <= {block.name for _, block in movable}
    freed = sum(block.bytes for _, block in movable if block.name in gone)
    assert freed >= min(need, sum(block.bytes for _, block in movable))
    going = [worth.get(point, 0.0) for point, block in movable if block.name in gone]
    staying = [worth.get(point, 0.0) for point, block in movable if block.name not in gone]
    assert not going or not staying or max(going) <= min(staying)


@given(kept_blocks, benefits, points, st.integers(1, 300 * MIB), st.integers(0, 600 * MIB), st.integers(0, 300 * MIB))
def test_what_is_admitted_fits_and_is_worth_more_than_what_goes(kept, worth, point, size, lacking, free):
    going = admit(point, size, lacking, free, kept, worth).value
    if going is None:
        return
    gone = [(each, block) for each in kept for block in kept[each] if block.name in going]
    freed = sum(block.bytes for _, block in gone)
    assert free + freed >= size
    assert all(WORTH * worth.get(each, 0.0) < worth[point] for each, _ in gone)
    lost = sum(worth.get(each, 0.0) * block.bytes for each, block in gone)
    assert not gone or lost < worth[point] * max(size, min(lacking, free + freed))


@given(st.integers(0, 2**32), st.integers(1, 1000))
def test_the_capacity_is_never_exceeded(seed, capacity):
    chance = random.Random(seed)
    worth = {point: chance.random() for point in "abcd"}
    kept: dict[str, list[KeptBlockSize]] = {point: [] for point in worth}
    for number in range(60):
        point, size = chance.choice("abcd"), chance.randrange(1, 300)
        used = sum(block.bytes for of in kept.values() for block in of)
        assert used <= capacity
        going = admit(point, size, size, capacity - used, kept, worth).value
        if going is not None:
            kept = {each: [block for block in of if block.name not in going] for each, of in kept.items()}
            kept[point].append(KeptBlockSize(f"{point}{number}", size))


# -- epochs over more than fits ----------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.sampled_from([0.1, 0.25, 0.5, 0.9]))
def test_a_working_set_that_does_not_fit_is_kept_by_its_share_and_stays(seed, share):
    job = Job("job", computed_s=1.0, got_s=0.3, blocks=40)
    (ours,) = hit_ratios(Kept(round(40 * share)), [job], seed).values()
    (recent,) = hit_ratios(Recent(round(40 * share)), [job], seed).values()
    assert ours >= 0.95 * share
    assert recent < ours


def test_lru_has_hardly_any_hits_where_a_quarter_fits():
    job = Job("job", computed_s=1.0, got_s=0.3)
    assert sum(hit_ratios(Recent(job.blocks // 4), [job]).values()) < 0.06


def test_the_job_that_saves_more_of_its_time_gets_the_room():
    jobs = [Job("much", 1.0, 0.2, blocks=40), Job("little", 1.0, 0.8, blocks=40)]
    found = hit_ratios(Kept(50), jobs)
    assert found == {"much": 1.0, "little": pytest.approx(0.25)}


def test_the_room_passes_on_when_a_job_has_ended_for_long():
    cache = Kept(20)
    before, after = Job("before", 1.0, 0.2, blocks=20), Job("after", 1.0, 0.6, blocks=20)
    for block in range(20):
        cache.read(before, block, now=0.0)
        cache.read(after, block, now=60.0)
    assert [len(cache.blocks[job.name]) for job in (before, after)] == [20, 0]
    for block in range(20):
        cache.read(after, block, now=2 * HALF_LIFE_S)
    assert [len(cache.blocks[job.name]) for job in (before, after)] == [0, 20]
