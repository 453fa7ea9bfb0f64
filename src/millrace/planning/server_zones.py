"""Zones of cache servers: which servers a worker asks, and how much they hold together for all that ask. Pure.

A zone is what is near to one another: an availability zone, a rack. Where a worker's own zone has cache servers it asks
these, and no others; elsewhere it asks all there are. So each zone with servers and workers keeps a copy of its own,
which crosses the border between zones once. A server that owns a key among all servers owns it in its zone, too (see
:mod:`millrace.planning.rendezvous`), so that those who ask all find there what those of the zone have had kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

ANY = ""
"""Zone of a process that is in none, and what stands for all servers."""


def zone_asked(zones: Collection[str], own: str) -> str:
    """Find the zone whose servers a worker asks.

    Args:
        zones: of the servers that there are.
        own: that the worker is in.

    Returns:
        ``own`` if it has servers; else :data:`ANY`: it asks all.
    """
    return own if own != ANY and own in zones else ANY


def servers_asked(servers: Sequence[str], zones: Mapping[str, str], own: str) -> list[str]:
    """List the servers that a worker asks, in the order in which they were given.

    Args:
        servers: all there are.
        zones: by server, its zone; those that are in none need not be in it.
        own: zone of the worker.
    """
    chosen = zone_asked({zones.get(server, ANY) for server in servers}, own)
    return [server for server in servers if chosen in (ANY, zones.get(server, ANY))]


def room(servers: Iterable[tuple[str, int]], workers: Iterable[str]) -> int:
    """Count the bytes of data that find room wherever they are asked for: what the least of all copies can hold.

    The servers that one worker asks own equally many keys, however large they are, so the smallest of them counts.

    Args:
        servers: (zone, bytes that it may keep) of each.
        workers: zones in which workers are; empty: no worker is known, and all servers count as asked.
    """
    bytes_in: dict[str, list[int]] = {}
    for zone, most_bytes in servers:
        bytes_in.setdefault(zone, []).append(most_bytes)
    everywhere = [each for its in bytes_in.values() for each in its]
    asked = {zone_asked(bytes_in, own) for own in workers} or {ANY}
    sizes = [everywhere if zone == ANY else bytes_in[zone] for zone in asked]
    return min(len(each) * min(each, default=0) for each in sizes)
