"""Zones: who asks which servers, what moves when one comes or goes, and how much there is room for."""

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millrace.planning.rendezvous import SLOTS, owners
from millrace.planning.server_zones import room, servers_asked, zone_asked

ZONE = st.sampled_from(["", "a", "b", "c"])
NAMES = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=6, unique=True)


@st.composite
def servers_in_zones(draw) -> dict[str, str]:
    """By server, its zone."""
    return {name: draw(ZONE) for name in draw(NAMES)}


def owner_names(zones: dict[str, str], own: str) -> list[str]:
    """By slot, the server that somebody in this zone asks."""
    asked = servers_asked(list(zones), told(zones), own)
    return [asked[at] for at in owners(asked)]


def told(zones: dict[str, str]) -> dict[str, str]:
    """Zones as workers are told of them: those that are in none are left out."""
    return {server: zone for server, zone in zones.items() if zone}


@given(servers_in_zones(), ZONE)
def test_who_has_servers_in_its_own_zone_asks_them_and_who_has_none_asks_all(zones: dict[str, str], own: str):
    near = [server for server, zone in zones.items() if zone == own]
    asked = servers_asked(list(zones), told(zones), own)
    assert asked == (near if own and near else list(zones))
    assert zone_asked(set(zones.values()), own) == (own if own and near else "")


def test_where_no_server_is_left_nobody_is_asked():
    assert servers_asked([], {}, "a") == servers_asked([], {}, "") == []
    assert room([], ["a", ""]) == room([], []) == 0


@given(servers_in_zones(), st.text(min_size=1, max_size=20), ZONE)
def test_a_server_that_comes_moves_keys_of_its_own_zone_alone_and_those_to_itself(
    zones: dict[str, str], newcomer: str, its: str
):
    if newcomer in zones:
        return
    after = {**zones, newcomer: its}
    for own in ["", "a", "b", "c"]:
        old, new = owner_names(zones, own), owner_names(after, own)
        moved = {there for was, there in zip(old, new, strict=True) if was != there}
        if its and own == its and its not in zones.values():
            assert set(new) == {newcomer}, "the first one of a zone has all that is asked for there"
        elif own and own != its and own in zones.values():
            assert not moved, "other zones go on as they were"
        else:
            assert moved <= {newcomer}


def test_one_that_dies_moves_its_share_of_its_own_zone():
    zones = {f"10.0.{zone}.{at}:7070": "abc"[zone] for zone in range(3) for at in range(4)}
    dead = "10.0.0.2:7070"
    left = {server: zone for server, zone in zones.items() if server != dead}
    for own in "abc":
        before, after = owner_names(zones, own), owner_names(left, own)
        moved = [was for was, there in zip(before, after, strict=True) if was != there]
        assert set(moved) <= {dead}
        assert len(moved) == (before.count(dead) if own == "a" else 0)
        assert abs(before.count(dead) - (SLOTS / 4 if own == "a" else 0)) < SLOTS / 40


def test_the_last_one_of_a_zone_leaves_its_workers_to_all_others_and_nobody_else_notices():
    zones = {"x:1": "a", "y:1": "b", "z:1": ""}
    left = {"y:1": "b", "z:1": ""}
    assert servers_asked(list(left), told(left), "a") == ["y:1", "z:1"]
    assert owner_names(left, "b") == owner_names(zones, "b")


@given(servers_in_zones(), ZONE)
def test_who_asks_all_finds_what_a_zone_has_had_kept(zones: dict[str, str], own: str):
    """So those who ask all take no more room in a zone than its own workers do."""
    for anywhere, near in zip(owner_names(zones, ""), owner_names(zones, own), strict=True):
        assert anywhere == near or zones[anywhere] != own


def test_the_room_is_that_of_the_copy_that_holds_least():
    servers = [("a", 100), ("a", 80), ("b", 300), ("", 50)]
    assert room(servers, []) == 200, "all of them, as large as the smallest"
    assert room(servers, [""]) == 200
    assert room(servers, ["a"]) == 160
    assert room(servers, ["a", "b"]) == 160
    assert room(servers, ["b"]) == 300, "a zone without workers has no copy"
    assert room(servers, ["b", "c"]) == 200, "who is in a zone without servers asks all"
    assert room([("a", 100)], ["a", "b", ""]) == 100


@given(st.lists(st.tuples(ZONE, st.integers(1, 100)), min_size=1, max_size=6), st.lists(ZONE, max_size=4))
def test_what_there_is_room_for_fits_on_each_server(servers: list[tuple[str, int]], workers: list[str]):
    """Also on those that several copies lie on, each of them spread evenly over the servers that are asked."""
    found, zones = room(servers, workers), {str(at): zone for at, (zone, _) in enumerate(servers)}
    for own in workers or [""]:
        asked = servers_asked(list(zones), told(zones), own)
        assert all(found / len(asked) <= servers[int(at)][1] for at in asked)


def test_keys_are_spread_over_the_servers_of_a_zone_alike():
    zones = {f"{at}:1": "ab"[at % 2] for at in range(8)}
    asked = servers_asked(list(zones), zones, "b")
    found = owners(asked)
    keys = [hashlib.sha256(str(at).encode()).digest() for at in range(4000)]
    counts = np.bincount([found[int.from_bytes(key[-2:], "big")] for key in keys])
    assert counts.min() > 850
