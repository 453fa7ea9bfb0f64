"""Within a protocol nothing is refused that an earlier version could say, and nothing is said that it would misread.

Else PROTOCOL goes up, and ``python -m tests.protocol_record`` writes down what is said then.
"""

import copy
from typing import Any

import msgspec
import pytest
from tests import protocol_record

from millrace.protocol.messages import PROTOCOL

RECORD = protocol_record.read()


def broken(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What a peer of before would misread, or could not say any more."""
    found = [f"{name} is a new kind: an earlier peer would end its session" for name in now if name not in before]
    for name, was in before.items():
        known = now.get(name)
        if known is None:
            found.append(f"{name} is gone")
            continue
        fields, earlier = known["fields"], was["fields"]
        if known["list"] != was["list"] or (
            was["list"] and [each[0] for each in fields][: len(earlier)] != [each[0] for each in earlier]
        ):
            found.append(f"the order of {name} is another one")
        types = {field: kind for field, kind, _ in fields}
        found += [f"{name}.{field} has changed" for field, kind, _ in earlier if types.get(field) != kind]
        needed = {field for field, _, required in fields if required}
        may_lack = needed - {field for field, _, required in earlier if required}
        found += [f"{name}.{field} is not said by earlier peers, and has no default" for field in sorted(may_lack)]
    return found


def test_the_record_is_of_this_protocol():
    assert RECORD["protocol"] == PROTOCOL, "write it down anew: python -m tests.protocol_record"


@pytest.mark.parametrize("name", protocol_record.UNIONS)
def test_earlier_peers_of_this_protocol_are_understood_and_understand(name):
    assert broken(RECORD["structs"][name], protocol_record.structs_of(protocol_record.UNIONS[name])) == []


@pytest.mark.parametrize("name", protocol_record.UNIONS)
def test_what_an_earlier_version_has_said_decodes(name):
    decoder = msgspec.msgpack.Decoder(protocol_record.UNIONS[name])
    messages = [decoder.decode(bytes.fromhex(each)) for each in RECORD["samples"][name]]
    assert messages


def test_a_change_that_an_earlier_peer_would_notice_is_found():
    before = RECORD["structs"]["ToWorker"]
    (name,) = [each for each in before if each.startswith("LeaseTask")]
    assert broken(before, before) == []

    def changed(change):
        now = copy.deepcopy(before)
        change(now)
        return broken(before, now)

    assert changed(lambda now: now.pop(name)) == [f"{name} is gone"]
    assert changed(lambda now: now.update(New={"list": False, "fields": []}))[0].startswith("New is a new kind")
    assert changed(lambda now: now[name]["fields"].append(["more", "int", True])) == [
        f"{name}.more is not said by earlier peers, and has no default"
    ]
    assert changed(lambda now: now[name]["fields"].append(["more", "int", False])) == []
    assert len(changed(lambda now: now[name]["fields"].pop())) >= 1
    (listed, *_) = [each for each, struct in before.items() if struct["list"] and len(struct["fields"]) > 1]
    assert f"the order of {listed} is another one" in changed(lambda now: now[listed]["fields"].reverse())
