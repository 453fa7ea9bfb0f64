"""The model of Quiver's Figure 6: link, LRU, placements."""

import json
import math

import pytest
from benchmarks.papers import drawings, who_gets_room
from benchmarks.papers.fluid_cache import Training, fair_level, lru_hits, lru_speeds, speeds, throughput
from benchmarks.papers.who_gets_room import GB, MB, SIZES, Case
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.caching.cache_budget import Room

flows = st.lists(st.tuples(st.floats(0.01, 1e3), st.integers(1, 8)), min_size=1, max_size=6)


def training(name, data_set="a", item_s=1.0, item_bytes=1.0):
    return Training(name, data_set, item_bytes, item_s)


@given(flows, st.floats(0.01, 1e4))
def test_a_link_is_full_or_all_have_what_they_ask_for_and_nobody_more_than_a_fair_part(asked, link):
    level = fair_level(asked, link)
    given_out = [min(asks, weight * level) for asks, weight in asked]
    if level == math.inf:
        assert sum(asks for asks, _ in asked) <= link * (1 + 1e-9)
    else:
        assert sum(given_out) == pytest.approx(link)
        assert any(asks >= weight * level * (1 - 1e-9) for asks, weight in asked)


def test_who_asks_for_less_leaves_the_rest_to_the_others():
    assert fair_level([(1.0, 1), (5.0, 1), (9.0, 1)], 9.0) == 4.0
    assert fair_level([(1.0, 1), (30.0, 3)], 9.0) == pytest.approx(8 / 3)
    assert fair_level([], 1.0) == math.inf


def test_a_training_is_as_fast_as_its_accelerators_or_as_its_part_of_the_link():
    fast, slow = training("fast", item_s=0.1), training("slow", "b", item_s=1.0)
    assert speeds([fast, slow], 4.0) == pytest.approx({"fast": 3.0, "slow": 1.0})
    assert speeds([fast, slow], 1.0) == pytest.approx({"fast": 0.5, "slow": 0.5})
    assert speeds([fast, slow], 4.0, hits={"fast": 0.5}) == pytest.approx({"fast": 6.0, "slow": 1.0})
    assert speeds([fast, slow], 1.0, hits={"fast": 1.0}) == pytest.approx({"fast": 10.0, "slow": 1.0})


def test_with_two_chunks_each_item_crosses_the_link_once_for_all_and_a_probe_goes_alone():
    four = [training(str(number), item_s=0.01) for number in range(4)]
    assert set(speeds(four, 8.0).values()) == {2.0}
    assert set(speeds(four, 8.0, chunks=["a"]).values()) == {8.0}
    probed = speeds(four, 8.0, chunks=["a"], past=["0"])
    assert probed == pytest.approx({"0": 2.0, "1": 6.0, "2": 6.0, "3": 6.0})
    assert set(speeds(four, 1000.0, chunks=["a"]).values()) == {100.0}


def test_reading_that_computing_does_not_hide_takes_its_own_time():
    four = [training(str(number), item_s=0.5) for number in range(4)]
    assert set(speeds(four, 4.0, ahead=1.0).values()) == {1.0}
    slow = speeds(four, 1.0, ahead=0.0)
    assert slow == pytest.approx(dict.fromkeys(slow, 0.25)), "while some compute, the others have the link"
    half = speeds(four, 1e9, ahead=0.5, hits={each.name: 1.0 for each in four})
    assert set(half.values()) == {2.0}
    assert speeds(four[:1], 1.0, ahead=0.0)["0"] == pytest.approx(1 / (0.5 + 1.0))
    assert speeds(four[:1], 1.0, ahead=0.5)["0"] == pytest.approx(1 / (0.25 + 1.0))


def test_throughput_counts_accelerators():
    one, two = Training("one", "a", 1.0, 1.0, accelerators=1), Training("two", "b", 1.0, 1.0, accelerators=3)
    assert throughput({"one": 3.0, "two": 2.0}, {"one": 1.0, "two": 2.0}, [one, two]) == (3 + 3) / 4


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_lru_has_the_hits_of_random_permutations_that_can_be_worked_out(share):
    """An item at place u of an epoch and v of the next one was hit if u * (1 - v) >= 1 - c: c + (1 - c) ln(1 - c)."""
    pieces = 2000
    found = lru_hits([training("one")], {"a": pieces}, round(share * pieces), {"one": 1.0}, epochs=6)
    assert found["one"] == pytest.approx(share + (1 - share) * math.log(1 - share), abs=0.012)


def test_lru_serves_what_another_training_has_just_read():
    both = [training("one"), training("two")]
    assert lru_hits(both, {"a": 500}, 500, {"one": 1.0, "two": 1.0}) == {"one": 1.0, "two": 1.0}
    assert min(lru_hits(both, {"a": 500}, 250, {"one": 1.0, "two": 1.0}, epochs=4).values()) > 0.2
    assert max(lru_hits(both[:1], {"a": 500}, 250, {"one": 1.0}, epochs=4).values()) < 0.2


def test_hits_and_paces_under_lru_fit_each_other():
    four = [training(str(number), item_s=0.01, item_bytes=1.0) for number in range(4)]
    found, hits = lru_speeds(four, 40.0, {"a": 300}, 150, 1.0)
    assert found == pytest.approx(speeds(four, 40.0, hits=hits))
    assert all(0.15 < each < 0.9 for each in hits.values())
    assert all(10.0 < each < 100.0 for each in found.values())


CASE = Case(dict(zip(SIZES, (250 * MB, 125 * MB, 60 * MB), strict=True)), 500 * MB, 200 * GB, SIZES)


def test_the_best_is_what_trying_all_finds_and_parts_are_no_worse():
    most, rooms = who_gets_room.best(CASE)
    assert CASE.cost(rooms) <= CASE.cache
    assert who_gets_room.gains(CASE, rooms) == most
    assert who_gets_room.gains(CASE, who_gets_room.nothing(CASE)) == 1.0
    assert who_gets_room.best_of_parts(CASE) >= 0.98 * most
    everything = Case(CASE.rates, CASE.link, 775 * GB, SIZES)
    all_cached = who_gets_room.gains(CASE, dict.fromkeys(SIZES, "full"))
    assert who_gets_room.best(everything)[0] == pytest.approx(all_cached)


def test_a_placement_settles_near_the_best_and_says_why():
    found = who_gets_room.settle(CASE)
    assert found.stable
    assert found.decisions[-1] == found.rooms
    assert CASE.cost(found.rooms) <= CASE.cache
    assert who_gets_room.gains(CASE, found.rooms) >= 0.9 * who_gets_room.best(CASE)[0]
    assert all("kept" in reason for reason in found.reasons.values())


def test_noise_adds_room_and_does_not_go_back_and_forth():
    noisy = who_gets_room.settle(CASE, noise=0.03)
    assert len(noisy.decisions) == who_gets_room.LIMIT
    assert who_gets_room.returns(CASE, 0.03) == 0
    assert who_gets_room.gains(CASE, noisy.rooms) >= 0.9 * who_gets_room.best(CASE)[0]


def test_a_decision_that_goes_back_is_counted(monkeypatch):
    first = who_gets_room.nothing(CASE)
    second: dict[str, Room] = dict.fromkeys(SIZES, "full")
    decisions = [first, second, second, first, first, second]
    monkeypatch.setattr(
        who_gets_room, "settle", lambda case, noise: who_gets_room.Settled(first, {}, decisions, stable=False)
    )
    assert who_gets_room.returns(CASE, 0.03) == 2


def test_quiver_s_rule_fills_the_cache_from_the_most_per_byte():
    rooms = who_gets_room.quiver(CASE)
    assert CASE.cost(rooms) <= CASE.cache
    assert who_gets_room.gains(CASE, rooms) > 1.5
    assert who_gets_room.quiver(Case(CASE.rates, 10**12, CASE.cache, SIZES)) == who_gets_room.nothing(CASE)


def test_a_single_training_whose_data_set_is_larger_than_the_cache_gets_none():
    found = who_gets_room.alone()
    assert {row["room"] for row in found} == {"none"}
    assert any("two chunks gain nothing" in row["reason"] for row in found)


def test_what_falls_short_of_an_aim_misses_it():
    row = {"millrace": 1.8, "best": 2.0, "lru": 1.8, "stable": True}
    found = {"results": [row], "half": [row], "envied": (0, 1), "alone": [{"room": "none"}], "returns": 0}

    def met(**changes):
        return [each["met"] for each in who_gets_room.aims({**found, **changes})]

    def misses(number):
        return [place != number for place in range(7)]

    assert met() == misses(None)
    assert met(results=[row, {**row, "best": 2.01}]) == misses(0)
    assert met(half=[{**row, "best": 2.01}, row]) == misses(1)
    assert met(results=[{**row, "lru": 1.81}, {**row, "lru": None}]) == misses(2)
    assert met(envied=(1, 9)) == misses(3)
    assert met(alone=[{"room": "full"}]) == misses(4)
    assert met(results=[{**row, "stable": False}]) == misses(5)
    assert met(half=[{**row, "stable": False}]) == misses(5)
    assert met(returns=1) == misses(6)


def test_the_command_writes_what_it_found_and_says_by_its_status_whether_aims_were_met(tmp_path, monkeypatch):
    monkeypatch.setattr(who_gets_room, "TIGHT", 250)
    monkeypatch.setattr(who_gets_room, "PIECE", 30 * GB)
    monkeypatch.setattr(who_gets_room, "envied", lambda: (0, 1))
    monkeypatch.setattr(who_gets_room, "machine", dict)
    arguments = ["--every", "90", "--drawn", "3", "--json", str(tmp_path / "found.json")]
    assert who_gets_room.main(arguments) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["results"]) == 4
    assert found["inputs"]["links_mb_s"] == list(who_gets_room.LINKS)
    assert len({len(row) for row in found["table"]}) == 1
    monkeypatch.setattr(who_gets_room, "OF_BEST", 1.5)
    assert who_gets_room.main(arguments) == 1


def test_throughput_is_drawn_for_each_cache_over_the_links(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [
        {"link": link * MB, "cache": round(share * sum(SIZES.values())), "lru": 1.2, "millrace": 2.0, "best": 2.1}
        for link in (250, 500)
        for share in who_gets_room.CACHES
    ]
    lines = drawings.who_gets_room({"question": "Who?", "results": rows}, str(tmp_path))
    assert lines == ["![Who?](performance/papers.who_gets_room-throughput.svg)"]
    assert (tmp_path / "papers.who_gets_room-throughput.svg").read_text().count("the best placement") >= 1
