"""Every decoder of bytes from elsewhere, with ten thousand mutated messages each; `make fuzz` takes a million."""

from pathlib import Path

import msgspec
import pytest
from tests.fuzz.mutator import mutated
from tests.fuzz.run import MEMORY_BYTES, fuzz
from tests.fuzz.targets import TARGETS

FINDINGS = Path(__file__).parents[1] / "fuzz" / "findings"


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_its_own_errors_comes_of_a_decoder(name):
    outcome = fuzz(name, 10_000)
    assert outcome.findings == []
    assert outcome.grown <= MEMORY_BYTES


@pytest.mark.parametrize("name", TARGETS)
def test_valid_messages_decode(name):
    """Else the mutated ones would be refused at their first bytes."""
    target = TARGETS[name]
    good = 0
    for message in target.corpus():
        try:
            target.decode(message)
        except target.allowed:
            continue
        good += 1
    assert good >= {"greetings": 1, "preambles": 2, "snapshots": 2, "tables": 5}.get(name, len(target.corpus()))


def test_an_input_follows_from_its_number():
    corpus = [msgspec.msgpack.encode([1, "a"]), bytes(100)]
    assert [mutated(corpus, number) for number in range(500)] == [mutated(corpus, number) for number in range(500)]
    assert len({mutated(corpus, number) for number in range(500)}) > 400


@pytest.mark.parametrize("path", sorted(FINDINGS.iterdir()), ids=lambda path: path.name)
def test_what_was_found_stays_mended(path):
    """Files are named after the decoder and what it raised."""
    target = TARGETS[path.name.partition("-")[0].replace("_", " ")]
    with pytest.raises(target.allowed or Exception):
        target.decode(path.read_bytes())
