"""What processes of the present protocol say, as the first version that speaks it says it.

``python -m tests.protocol_record`` writes it down anew, which is for a change of ``PROTOCOL``, or for a new kind of
message that is sent only to who has said that it knows it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from msgspec import inspect
from tests.fuzz.samples import packed

from millrace.protocol import data_messages, source_cache_messages
from millrace.protocol import messages as msg
from millrace.protocol.cache_server_messages import CacheServerWelcome, FromCacheServer
from millrace.wire.auth import Identity
from millrace.wire.control import blob_transfer, challenges
from millrace.wire.data import handshake
from millrace.wire.data.fd_passing import Preamble
from millrace.wire.data.striping import StripePart

UNIONS: dict[str, Any] = {
    "FromWorker": msg.FromWorker,
    "ToWorker": msg.ToWorker,
    "FromConsumer": msg.FromConsumer,
    "ToConsumer": msg.ToConsumer,
    "ToServer": data_messages.ToServer,
    "ToReader": data_messages.ToReader,
    "FromCacheServer": FromCacheServer,
    "ToCacheServer": CacheServerWelcome,
    "CacheRequest": source_cache_messages.CacheRequest,
    "CacheAnswer": source_cache_messages.CacheAnswer,
    "Identity": Identity,
    "Blob": blob_transfer.Blob,
    "BlobOffer": blob_transfer.BlobOffer,
    "Challenge": challenges.Challenge,
    "Challenged": challenges.Challenged,
    "Proof": challenges.Proof,
    "Hello": handshake.Hello,
    "HandshakeAnswer": handshake.Answer,
    "Welcome": handshake.Welcome,
    "Preamble": Preamble,
    "StripePart": StripePart,
}
"""Whatever one process decodes of another one, by a name of it."""
_FILE = Path(__file__).parent / "unit" / "protocol" / "protocol_record.json"


def read() -> dict[str, Any]:
    """What was written down."""
    found: dict[str, Any] = json.loads(_FILE.read_text())
    return found


def structs_of(union: Any) -> dict[str, Any]:
    """Each struct of a union, and those in its fields: how it looks on the wire, by tag or name."""
    found: dict[str, Any] = {}
    _walk(inspect.type_info(union), found)
    return found


def _walk(kind: Any, found: dict[str, Any]) -> str:
    """Put a type into words, and its structs into ``found``."""
    match kind:
        case inspect.StructType():
            name = f"{kind.cls.__name__}:{kind.tag}" if kind.tag is not None else kind.cls.__name__
            if name not in found:
                found[name] = {}
                fields = [[field.encode_name, _walk(field.type, found), field.required] for field in kind.fields]
                found[name] = {"list": kind.array_like, "fields": fields}
            return name
        case inspect.UnionType(types=types):
            return " | ".join(sorted(_walk(each, found) for each in types))
        case inspect.TupleType(item_types=items):
            return f"tuple[{', '.join(_walk(each, found) for each in items)}]"
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item) | inspect.SetType(item_type=item):
            return f"list[{_walk(item, found)}]"
        case inspect.DictType(key_type=key, value_type=value):
            return f"dict[{_walk(key, found)}, {_walk(value, found)}]"
        case inspect.LiteralType(values=values):
            return f"one of {', '.join(sorted(map(str, values)))}"
        case inspect.EnumType(cls=cls):
            return f"one of {', '.join(sorted(str(each.value) for each in cls))}"
    return type(kind).__name__.removesuffix("Type").lower()


def written() -> dict[str, Any]:
    """What is so now."""
    return {
        "protocol": msg.PROTOCOL,
        "structs": {name: structs_of(union) for name, union in UNIONS.items()},
        "samples": {name: [each.hex() for each in packed(union)] for name, union in UNIONS.items()},
    }


if __name__ == "__main__":
    _FILE.write_text(json.dumps(written(), indent=1) + "\n")
    sys.exit(0)
