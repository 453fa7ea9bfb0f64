"""The judge of a chaos run sees what is lost, what comes twice, and what is wrong."""

import pytest
from chaos.pipeline import Expected
from chaos.reader import Read
from chaos.verdict import Verdict, judge

EPOCH: Expected = [([0, 1], [b"0", b"1"]), ([2, 3], [b"2", b"3"]), ([4], [b"4"])]


def reads(*places, epoch=0):
    return [Read(epoch, *EPOCH[place]) for place in places]


def test_what_was_expected_is_right():
    expected = Verdict(epochs=1, elements=5)
    assert judge([EPOCH], [reads(0, 1, 2)], in_order=True) == expected
    assert judge([EPOCH], [reads(2, 0), reads(1)], in_order=False) == expected
    assert judge([EPOCH], [reads(0, 2), reads(1)], in_order=True) == expected
    assert expected.right


@pytest.mark.parametrize(
    ("read", "wrong"),
    [
        ([reads(0, 2)], {"elements": 3, "lost": 2}),
        ([reads(0, 1, 2), reads(1)], {"elements": 7, "duplicated": 2}),
        ([reads(0, 1), [Read(0, [4], [b"?"])]], {"elements": 5, "wrong": 1}),
        ([reads(0, 1, 2), [Read(0, [5], [b"5"])]], {"elements": 6, "wrong": 1, "misplaced": 1}),
        ([reads(0, 1, 2), reads(0, epoch=1)], {"elements": 5, "wrong": 2}),
        ([reads(0, 2, 1)], {"elements": 5, "misplaced": 1}),
        ([[Read(0, [0], [b"0"]), Read(0, [1], [b"1"])], reads(1, 2)], {"elements": 5, "misplaced": 2}),
    ],
)
def test_what_is_wrong_is_seen(read, wrong):
    found = judge([EPOCH], read, in_order=True)
    assert found == Verdict(epochs=1, **wrong)
    assert not found.right


def test_an_epoch_that_comes_before_its_turn_is_seen():
    read = [*reads(0, 1), *reads(0, 1, 2, epoch=1), *reads(2)]
    assert judge([EPOCH, EPOCH], [read], in_order=False) == Verdict(epochs=2, elements=10, misplaced=1)
