"""A pipeline as it travels: its structure, the bundle of its functions, and the memory of its arrays apart."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from millrace.elements.sealed_memory import SealedMemory
from millrace.errors import UnsureError
from millrace.functions.bundles import pack, unpack
from millrace.functions.fingerprint import fingerprint
from millrace.functions.graph_hash import hash_parts
from millrace.functions.signature import describe
from millrace.graph import serialize
from millrace.graph.nodes import Node
from millrace.graph.operator_graph import Graph
from millrace.graph.source_nodes import FromArrays
from millrace.sources.arrays import Arrays, open_shipped


def shared(graph: Graph) -> dict[str, SealedMemory]:
    """Memory of a graph's arrays by digest, for processes of this host; it is there as long as somebody keeps it.

    Raises:
        ShippingError: there is no room for it.
    """
    memories = [node.arrays.value.share() for node in graph.nodes if isinstance(node, FromArrays)]
    return {memory.digest: memory for memory in memories}


def ship(graph: Graph, sharding: object) -> tuple[bytes, bytes]:
    """Structure and bundle.

    Args:
        graph: with user functions.
        sharding: a policy, or a function of the user's, which comes behind those of the graph.

    Raises:
        ShippingError: a function or object can't travel.
    """
    structure, slots = serialize.pack(graph)
    users = {id(slot): str(node) for node in graph.nodes for _, slot in node.opaques()}
    values = [slot.value.shipped() if isinstance(slot.value, Arrays) else slot.value for slot in slots]
    names = [users.get(id(slot), slot.name) for slot in slots]
    if callable(sharding):
        values.append(sharding)
        names.append(f"sharding={describe(sharding, 'distribute', ('tasks', 'workers')).name}")
    return structure, pack(values, names)


def fingerprint_of(graph: Graph, sharding: object) -> str:
    """Fingerprint of what the bundle of :func:`ship` holds; empty where nobody can tell by looking what it computes.

    Arrays are left out, as they have digests of their own.
    """
    _, slots = serialize.pack(graph)
    digest = hashlib.blake2b(digest_size=16)
    try:
        for slot in slots:
            if not isinstance(slot.value, Arrays):
                digest.update(hash_parts(slot.key.encode()) if slot.key else fingerprint(slot.value))
        if callable(sharding):
            digest.update(fingerprint(sharding))
    except UnsureError:
        return ""
    return digest.hexdigest()


def unship(structure: bytes, bundle: bytes, memories: Mapping[str, SealedMemory]) -> Node:
    """Unpack the last node of the graph. Runs the user's code."""
    values = open_shipped(unpack(bundle), lambda digest: memories[digest].view())
    return serialize.unpack(structure, values).root
