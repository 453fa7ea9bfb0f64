"""What the experiment about lost cache servers makes of what it has counted."""

from concurrent.futures import Future
from typing import Any

import pytest
from benchmarks.papers import drawings, lost_servers
from benchmarks.papers.lost_servers import Progress, aims, chance_bound, hashes_of, phases

COUNT = 3000


def inserted(**servers: int) -> dict[str, dict[str, int]]:
    return {name: {"inserted": number} for name, number in servers.items()}


COUNTS = [
    inserted(a=1000, b=990, c=1010),
    inserted(b=1490, c=1510),
    inserted(b=1490, c=1510, d=1005),
    inserted(b=995, c=1510, d=1005),
]


def found(dip: int = 20, last: int = 80, counts: Any = COUNTS) -> list[dict[str, Any]]:
    """Four phases of ten seconds, at 80 objects a second but for two seconds behind each event."""
    log = []
    for tenth in range(400):
        at = tenth / 10
        phase, within = divmod(at, 10)
        size = 8 if not phase else dip // 10 if within < 2 else last // 10 if within > 6 else 8
        log.append((100 + at, size))
    return phases([100.0, 110.0, 120.0, 130.0, 140.0], log, counts, [0, 5, 105, 205, 305], COUNT)


def test_phases_are_summed_up():
    before, killed, added, wiped = found()
    assert (before["rate"], before["least"], before["last"], before["moved"]) == pytest.approx(
        (80, 80, 80, 0), rel=0.03
    )
    assert (killed["at"], killed["seconds"], killed["sent"]) == (10.0, 10.0, 100)
    assert killed["least"] == pytest.approx(20, rel=0.1)
    assert killed["rate"] == pytest.approx(68, rel=0.05)
    assert [each["moved"] for each in (killed, added, wiped)] == pytest.approx([1000 / 3000, 1005 / 3000, 995 / 3000])


def missed(wrong: int = 0, **changed: Any) -> list[str]:
    return [row["aim"] for row in aims({"wrong": wrong, "phases": found(**changed)}, COUNT) if not row["met"]]


def test_a_wrong_byte_too_many_keys_or_a_rate_that_stays_low_are_misses():
    assert missed() == []
    assert missed(wrong=1) == ["elements with a wrong byte"]
    assert missed(last=60) == [f"{event}: rate at last, of that before" for event in ("killed", "added", "wiped")]
    more = [*COUNTS[:2], inserted(b=1490, c=1510, d=1500), COUNTS[3]]
    assert missed(counts=more) == ["added: share of keys that moved"]
    assert missed(counts=[*COUNTS[:3], inserted(b=0, c=1510, d=1005)]) == ["wiped: share of keys that moved"]


def test_chance_is_that_of_keys_and_of_slots():
    assert chance_bound(COUNT, 3) == pytest.approx(0.029, abs=0.001)
    assert chance_bound(10**9, 3) == pytest.approx(0.006, abs=0.001)


def test_who_waits_for_progress_is_told_that_a_job_has_failed():
    progress, job = Progress(), Future[int]()
    progress.add(3)
    assert progress.reach(3) > 0
    job.add_done_callback(progress.ended)
    job.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        progress.reach(4)


def test_objects_are_hashed_as_far_as_jobs_read_them(tmp_path, monkeypatch):
    monkeypatch.setattr(lost_servers, "OBJECT_BYTES", 3)
    for name, data in (("b", b"1234"), ("a", b"1239"), ("c", b"567")):
        (tmp_path / name).write_bytes(data)
    first, second, third = hashes_of(str(tmp_path))
    assert first == second != third


def test_it_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    results = {"batches": [(0.1 * at, 8) for at in range(400)], "sent": [(0.25, 0), (0.5, 9), (0.5, 9), (0.75, 20)]}
    report = {"question": "What?", "results": {**results, "phases": found()}}
    assert drawings.lost_servers(report, str(tmp_path)) == ["![What?](performance/papers.lost_servers-throughput.svg)"]
