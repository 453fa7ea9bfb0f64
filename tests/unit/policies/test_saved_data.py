"""How large files of saved datasets are, and when one is made again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.saved_data import (
    LEAST_FILE_BYTES,
    MOST_FILE_BYTES,
    OPENING_SHARE,
    MadeOf,
    choose_file_bytes,
    choose_refresh,
    is_progress_due,
)

MADE = MadeOf("Dataset.range(3).map(f)", "aa", "bb", 3, 3 << 20)
DAY = 86_400.0


@given(st.floats(0, 60), st.floats(1, 1e12))
def test_opening_takes_next_to_nothing_of_reading_a_file_unless_it_is_as_large_as_any(open_s, bytes_per_s):
    chosen = choose_file_bytes(open_s, bytes_per_s)
    assert LEAST_FILE_BYTES <= chosen.value <= MOST_FILE_BYTES
    if chosen.value < MOST_FILE_BYTES:
        assert open_s <= OPENING_SHARE * chosen.value / bytes_per_s * 1.001
    if chosen.value > LEAST_FILE_BYTES:  # and no larger than that takes
        assert open_s * bytes_per_s >= OPENING_SHARE * (chosen.value - 1) * 0.999


@given(st.floats(0, 10), st.floats(0, 10), st.floats(1e3, 1e10))
def test_who_opens_more_slowly_gets_no_smaller_files(one, other, bytes_per_s):
    less, more = sorted((one, other))
    assert choose_file_bytes(less, bytes_per_s).value <= choose_file_bytes(more, bytes_per_s).value


@pytest.mark.parametrize(
    ("open_s", "bytes_per_s", "size", "said"),
    [
        (80e-6, 2e9, LEAST_FILE_BYTES, "the first bytes of a file take 80 µs and 1.86 GiB come per second"),
        (10e-3, 150e6, 150_000_000, "of a file of 143 MiB that is 0.99 % of the time to read it"),
        (30e-3, 90e6, 270_000_000, "take 30 ms"),
        (0.2, 1e9, MOST_FILE_BYTES, "that is 8.5 % of the time to read it, and no file is larger than 2 GiB"),
    ],
)
def test_a_device_gets_files_that_suit_it_and_a_sentence(open_s, bytes_per_s, size, said):
    chosen = choose_file_bytes(open_s, bytes_per_s)
    assert chosen.value == size
    assert said in chosen.reason
    assert chosen.inputs == {"open_s": open_s, "bytes_per_s": bytes_per_s}


@pytest.mark.parametrize(
    ("found", "here", "age_s", "max_age_s", "damage", "again", "said"),
    [
        (MADE, MADE, 3600, None, "", False, "it was made 1 h ago by the same pipeline from the same data"),
        (MADE, MADE, 3600, 3600, "", False, "by the same pipeline"),
        (MADE, MADE, -5, 0, "", False, "it was made 0 s ago by"),
        (MADE, MADE, 3 * DAY, DAY, "", True, "it was made 3 d ago, and max_age is 1 d"),
        (
            MADE,
            MadeOf(MADE.pipeline, "cc", "bb"),
            1,
            None,
            "",
            True,
            "a function of the pipeline, or what it refers to",
        ),
        (
            MADE,
            MadeOf("Dataset.range(4)", "cc", "bb"),
            1,
            None,
            "",
            True,
            "was Dataset.range(3).map(f) then, and is Da",
        ),
        (
            *(MADE, MadeOf(MADE.pipeline, "aa", "cc", 4, 9 << 20), 1, None, "", True),
            "the data have changed since: 3 parts of files with 3 MiB then, 4 parts of files with 9 MiB now",
        ),
        (
            MadeOf(),
            MADE,
            None,
            None,
            "",
            True,
            "nobody knows when it was made, and nothing says by which pipeline from",
        ),
        (MADE, MADE, None, DAY, "", True, "nobody knows when it was made, and max_age is 1 d"),
        (MADE, MADE, 1, None, "000001.block is gone", True, "it is damaged: 000001.block is gone"),
    ],
)
def test_what_is_there_is_made_again_for_a_reason_that_is_said(found, here, age_s, max_age_s, damage, again, said):
    decision = choose_refresh(found, here, age_s, max_age_s, damage)
    assert decision.value is again
    assert said in decision.reason


def test_what_nobody_can_tell_is_the_same_as_nothing():
    assert MADE.same(MADE)
    assert not MadeOf().same(MadeOf())
    assert not MadeOf("", "aa", "").same(MadeOf("", "aa", ""))


def test_all_progress_files_together_are_a_small_part_of_what_is_written():
    file_bytes, listed = 200_000, 300  # bytes of a file, and of what a progress file says of it
    written = progress = last = since = times = 0
    for files in range(1, 20_001):
        written, since = written + file_bytes, since + file_bytes
        if is_progress_due(last, since):
            last, since, times = files * listed, 0, times + 1
            progress += last
    assert times > 200  # behind each file at first
    assert progress < 0.02 * written


def test_progress_is_noted_behind_each_file_of_the_size_that_is_chosen():
    assert is_progress_due(64 << 10, 1)
    assert is_progress_due((64 << 10) + 1, 64 << 20)
    assert not is_progress_due(1 << 20, 64 << 20)
