"""The shape of an epoch comes through everything that tells of it."""

import msgspec
import pytest

from millrace.control.journal.epoch_events import EpochOpened, EpochResumed
from millrace.control.journal.replay import AnyEvent
from millrace.control.state.state import Epoch
from millrace.planning.checkpoint import Checkpoint, Merged, pack, unpack
from millrace.planning.epoch_shape import EpochShape, RunShape, WeightChange
from millrace.planning.plan import Piece
from millrace.protocol.messages import EpochBegun, LeaseTask, TaskRef

SHAPE = EpochShape(
    reused=3, chunks=5, reweighted=(WeightChange(4, 9, (1.0, 3.0)),), pieces=[Piece.of(4, 9), Piece(0, 4, 1, 3, 7)]
)


def test_a_state_keeps_it_and_a_journal_brings_it_back():
    opened = EpochOpened("job", 1, **SHAPE.fields())
    resumed = EpochResumed("job", 1, 5, anew=True, **SHAPE.fields())
    for event in (opened, resumed):
        again = msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=AnyEvent)
        assert again == event
        assert Epoch.shaped(again).shape == SHAPE


@pytest.mark.parametrize("kind", [EpochBegun, Checkpoint, Merged])
def test_who_reads_and_who_saves_is_told_all_of_it(kind):
    numbers = {"epoch": 1} | ({"tasks": 9} if kind is EpochBegun else {})
    shape = msgspec.structs.replace(SHAPE, shares=2)
    told = kind(**numbers, **shape.fields())
    assert told.fields() == shape.fields()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=kind) == told


def test_its_fields_lie_flat_in_what_is_sent_and_kept():
    lease = LeaseTask(TaskRef("job", 1, 2), 5, 0, **SHAPE.for_runs())
    assert msgspec.json.decode(msgspec.json.encode(lease)) == {
        "type": "LeaseTask", "ref": ["job", 1, 2], "lease": 5, "consumer": 0, "reused": 3, "chunks": 5,
        "reweighted": [[4, 9, [1.0, 3.0], 0]]
    }  # fmt: skip
    assert msgspec.json.encode(EpochOpened("job", 0)) == b'{"type":"EpochOpened","job":"job","epoch":0}'
    assert set(RunShape.__struct_fields__) <= set(EpochShape.__struct_fields__) <= set(Checkpoint.__struct_fields__)


def test_a_state_dict_has_it():
    saved = Checkpoint(epoch=1, **SHAPE.fields())
    assert unpack(pack(saved)) == saved
    assert pack(saved)["reused"] == 3
