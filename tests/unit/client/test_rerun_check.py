"""What is said about a run that differs from the one before: whose fault it is, as well as can be known."""

import numpy as np
import pytest

import millrace as mr
from millrace.client.epoch_buffer import Rerun, RerunOutcome
from millrace.client.rerun_check import impurity
from millrace.graph import serialize


def load(element):
    return element


def jitter(element):
    return element


def augment(element, rng):
    return element


class Pictures:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return np.zeros(3)


def said(dataset, rerun):
    return impurity(serialize.unpack(serialize.pack(dataset.__pipeline__().graph)[0]), 2, rerun)


@pytest.mark.parametrize(
    ("dataset", "culprit"),
    [
        (
            mr.Dataset.range(9).map(jitter).map(augment).batch(3),
            r"map\(jitter\) \(.*test_rerun_check.py:\d+\) is not pure",
        ),
        (mr.Dataset.range(9).map(augment), r"map\(augment\) \(.*\) is not pure"),
        (mr.Dataset.range(9).map(load).filter(jitter), r"one of map\(load\) .* and filter\(jitter\) .* is not pure"),
        (mr.Dataset.from_map_style(Pictures()), r"from_map_style\(Pictures\) .*is not pure"),
        (mr.Dataset.from_list([1, 2]).batch(2), "its data are not the same at each reading"),
    ],
)
def test_the_function_is_named(dataset, culprit):
    text = said(dataset, Rerun(7, 41, RerunOutcome.OTHER))
    assert text.startswith(
        "task 7 of epoch 2 was run again after its worker was lost, and gave another element (output 41): "
    )
    with pytest.raises(AssertionError, match=culprit):
        raise AssertionError(text)
    assert "a parameter called rng" in text
    assert "Visitation.AT_MOST_ONCE" in text


def test_data_that_were_changed_are_no_function_s_fault():
    text = said(mr.Dataset.range(9).map(jitter), Rerun(7, 41, RerunOutcome.SHORTER, "train/3.tar"))
    assert "gave fewer elements (42 outputs before), so that elements are missing or came twice" in text
    assert "train/3.tar was changed" in text
    assert "jitter" not in text
