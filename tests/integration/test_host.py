"""What a process may use of its host."""

import os

from millrace.engine.host import memory_bytes, siblings

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
