"""A data-parallel training, of which a rank is killed in mid-epoch, and which goes on from its last checkpoint."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import millrace as mr

WORLD = 2
DIES = 23
WAIT_S = 100
SCRIPT = Path(__file__).with_name("training_rank.py")


def run(address, folder, dies):
    """Both ranks, until they have ended; how each did, with what it wrote."""
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), address, str(folder), str(rank), str(WORLD), str(dies)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD)
    ]
    try:
        return [(rank.communicate(timeout=WAIT_S)[0], rank.returncode) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_killed_in_mid_epoch_and_gone_on_with(tmp_path):
    """How many batches there are only reading tells, and each rank waits for the other at every step."""
    with mr.LocalService(max_workers=2) as service:
        (first, failed), (_, killed) = run(service.address, tmp_path, DIES)
        assert killed == -signal.SIGKILL
        assert failed != 0, first  # as its partner is gone
        assert (tmp_path / "saved").read_text() == str(DIES // 5 * 5)
        assert not (tmp_path / "end-0.json").exists()
        for said, code in run(service.address, tmp_path, -1):
            assert code == 0, said
    ends = [json.loads((tmp_path / f"end-{rank}.json").read_text()) for rank in range(WORLD)]
    assert ends[0]["steps"] == ends[1]["steps"] > DIES
    assert ends[0]["weights"] == ends[1]["weights"]
    seen = Counter(number for end in ends for number in end["seen"])
    everything = Counter(number for number in range(900) if number % 3)
    assert set(seen.values()) == {1}
    assert seen <= everything
    assert len(seen) > 0.8 * len(everything)  # what the tasks of one rank give more than the other's is left out
