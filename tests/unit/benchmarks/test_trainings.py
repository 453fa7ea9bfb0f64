"""Trainings that are compared: their examples, and what is aimed at."""

import wave
from typing import Any

import numpy as np
import pytest
from benchmarks.papers import training_data as data
from benchmarks.papers.trainings import aims, table
from PIL import Image


def found(reached: float | None, waited: float = 1.0) -> dict[str, Any]:
    return {"reached": reached, "seconds": 20.0, "waited": waited, "steps": 9, "workers": 2.0, "cost": 28.0, "last": 60}


@pytest.mark.parametrize(
    ("ours", "theirs", "met"),
    [
        (found(20.0), found(30.0), [True, True]),
        (found(31.0), found(30.0), [False, True]),
        (found(20.0, 3.0), found(30.0), [True, False]),
        (found(None), found(30.0), [False, True]),
        (found(20.0), found(None), [True, True]),
    ],
)
def test_ours_is_to_learn_no_later_and_to_wait_for_a_tenth(ours, theirs, met):
    results = {"pictures": {"DataLoader": theirs, "millrace": ours}}
    assert [row["met"] for row in aims(results)] == met
    assert [row[1] for row in table(results)[1:]] == ["DataLoader", "millrace"]


def test_a_recording_is_frames_of_mels_and_a_tone_is_louder_in_its_own(tmp_path):
    path = str(tmp_path / "7_me_0.wav")
    with wave.open(path, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        tone = 9000 * np.sin(2 * np.pi * 1000 * np.arange(4000) / 8000)
        file.writeframes(tone.astype(np.int16).tobytes())
    plain = data.plain_digit((path, 7))
    assert plain["frames"].shape == (data.length_of(plain), data.MELS)
    assert plain["frames"].dtype == np.float32
    loudest = plain["frames"].mean(0).argmax()
    assert 15 < loudest < 22, "1 kHz is at 1000 of 2146 mels"
    one, same, other = (data.load_digit((path, 7), np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one["frames"], same["frames"])
    assert not np.array_equal(one["frames"], other["frames"])
    assert data.digits(str(tmp_path)) == ([(path, 7)], [])


def test_a_picture_keeps_its_size_and_changes_with_its_generator(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part / "cat").mkdir(parents=True)
        pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / part / "cat" / "0.jpg")
    ((item,), tests) = data.pictures(str(tmp_path))
    assert item[1] == 0
    assert len(tests) == 1
    made = [data.load_picture(item, np.random.default_rng(seed))["image"] for seed in (1, 1, 2)]
    assert {image.shape for image in made} == {(32, 32, 3)}
    assert np.array_equal(made[0], made[1])
    assert not np.array_equal(made[0], made[2])
    assert data.plain_picture(item)["image"].shape == (32, 32, 3)


def test_a_paragraph_is_its_bytes_and_a_long_one_a_part_of_them(tmp_path):
    (tmp_path / "a.md").write_text("\n\n".join(["tiny", "a paragraph of some length", "x" * 5000] * 20))
    learnt, held = data.documents(str(tmp_path))
    assert len(learnt) + len(held) == 40
    assert len(held) == 4
    rng = np.random.default_rng(0)
    assert bytes(data.load_document(b"paragraph", rng)["tokens"].astype(np.uint8)) == b"paragraph"
    assert len(data.load_document(b"x" * 5000, rng)["tokens"]) == data.ROW
