import pytest
from msgspec.structs import replace

from millrace.dispatcher.job_keys import JobKeys
from millrace.errors import ProtocolError
from millrace.graph.nodes import Range
from millrace.graph.operator_graph import Graph
from millrace.graph.serialize import pack
from millrace.protocol.data_messages import Open
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import JobJoined, Notice, OpenJob
from millrace.wire.data.data_keys import (
    NONCE_BYTES,
    consumer_credential,
    consumer_key,
    draw_key,
    job_key,
    of_token,
    proof,
    read_claims,
    worker_credential,
)

SECRET = bytes(range(32))
OPENING = Open("job", 3, "client", 7)
SPEC = JobSpec("job", pack(Graph(Range(start=0, stop=9)))[0], "bundle")


def test_each_consumer_of_each_life_of_each_job_has_a_key_of_its_own():
    others = [
        replace(OPENING, **change)
        for change in ({"job": "other"}, {"consumer": 4}, {"client": "b"}, {"generation": 8}, {"consumer": -1})
    ]
    keys = [consumer_key(job_key(SECRET, each.job, each.generation), each) for each in (OPENING, *others)]
    keys += [consumer_key(job_key(bytes(32), "job", 7), OPENING), job_key(SECRET, "job", 7), of_token("secret").key]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {NONCE_BYTES}


def test_what_the_dispatcher_gives_is_what_workers_expect():
    keys = JobKeys(SECRET)
    opened = keys.enclose(OpenJob("job", SPEC, 1, generation=7))
    joined = keys.enclose(JobJoined("job", 3, 1, 5.0, generation=7), "client")
    assert consumer_key(opened.key, OPENING) == joined.key
    shown = consumer_credential(joined.key, OPENING)
    assert read_claims(shown.claims) == OPENING
    assert (
        consumer_key(opened.key, read_claims(worker_credential(opened.key, "job", 7).claims))
        == worker_credential(opened.key, "job", 7).key
    )
    assert keys.enclose(Notice("hello")) == Notice("hello")


def test_a_proof_is_of_one_end_of_one_connection():
    key, a, b = draw_key(), draw_key(), draw_key()
    proofs = [
        proof(key, "client", b"", a, b),
        proof(key, "server", b"", a, b),
        proof(key, "client", b"claims", a, b),
        proof(key, "client", b"", b, a),
        proof(draw_key(), "client", b"", a, b),
    ]
    assert len(set(proofs)) == len(proofs)


def test_claims_that_are_none():
    with pytest.raises(ProtocolError, match="the peer's claims are malformed"):
        read_claims(b"nonsense")
