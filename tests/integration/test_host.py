"""What a process may use of its host."""

import os

import pytest

from millrace import host_limits
from millrace.host_limits import cpu_quota, memory_bytes, run_delay_s, siblings

WHOLE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def own(tmp_path):
    """Say in which groups this process is."""
    path = tmp_path / "cgroup"
    path.write_text("")
    return path


def said(groups, path, text):
    (groups / path).parent.mkdir(parents=True, exist_ok=True)
    (groups / path).write_text(text)


def test_memory_is_the_hosts_unless_a_control_group_allows_less(tmp_path, own):
    assert memory_bytes(tmp_path, own) == WHOLE
    for text, expected in (("max\n", WHOLE), ("1048576\n", 1048576), (f"{2 * WHOLE}\n", WHOLE)):
        said(tmp_path, "memory.max", text)
        assert memory_bytes(tmp_path, own) == expected
    said(tmp_path, "memory/memory.limit_in_bytes", "65536\n")
    assert memory_bytes(tmp_path, own) == 65536


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("", {}, None),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/cpu.max": "50000 100000\n", "a/b/cpu.max": "max 100000\n"}, 0.5),
        ("0::/of/the/host\n", {"cpu.max": "400000 100000\n"}, 4.0),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("4:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "20000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, 0.2),
        (
            "4:cpu,cpuacct:/a\n",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "30000\n", "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"},
            0.3,
        ),
        ("0::/\n", {"cpu.max": "garbage\n"}, None),
        ("0::/\n", {"cpu.max": "100000 0\n"}, None),
    ],
)
def test_processor_time_is_what_the_groups_around_a_process_allow(tmp_path, own, groups, files, quota):
    own.write_text(groups)
    for path, text in files.items():
        said(tmp_path, path, text)
    assert cpu_quota(tmp_path, own) == quota


def test_cores_are_those_that_may_be_used(monkeypatch):
    there = host_limits.usable_cores()
    for quota, cores in ((None, there), (0.2, 1), (there + 7.5, there), (1.0, 1)):
        monkeypatch.setattr(host_limits, "cpu_quota", lambda quota=quota: quota)
        assert host_limits.usable_cores() == cores


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
