"""What a process may use of its host."""

import os

from millrace.host_limits import memory_bytes, run_delay_s, siblings

WHOLE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_memory_is_the_hosts_unless_a_control_group_allows_less(tmp_path):
    assert memory_bytes(tmp_path) == WHOLE
    for text, expected in (("max\n", WHOLE), ("1048576\n", 1048576), (f"{2 * WHOLE}\n", WHOLE)):
        (tmp_path / "memory.max").write_text(text)
        assert memory_bytes(tmp_path) == expected


def test_processes_of_a_training_are_those_that_torchrun_started():
    assert siblings({}) == 1
    assert siblings({"LOCAL_WORLD_SIZE": "8"}) == 8
    assert siblings({"LOCAL_WORLD_SIZE": "?"}) == 1


def test_delays_are_added_up_over_threads_as_far_as_they_are_told(tmp_path):
    for number, text in enumerate(["12 1500000000 3", "7 500000000 1", "", "no numbers"]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "schedstat").write_text(text)
    (tmp_path / "4").mkdir()
    assert run_delay_s(tmp_path) == 2.0
    assert run_delay_s(tmp_path / "none") == 0.0
