"""Where a cache is and how large: as the command line and ``LocalService`` take it, and what they say of mistakes."""

import argparse
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

import millrace as mr
from millrace.blocks.disk_capacity import default_bytes
from millrace.blocks.stores import file_store
from millrace.cache_server import item_store
from millrace.cli import main
from millrace.cli.options import size, trust


@pytest.mark.parametrize(
    ("text", "count"),
    [("1000000", 1_000_000), ("20GiB", 20 << 30), ("500MB", 500_000_000), ("1.5KiB", 1536), ("2TiB", 2 << 40)],
)
def test_sizes_are_read_with_their_units(text, count):
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "20 gigs", "1e400GiB", "nan", "-5", "0", "0.1", "inf"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a size such as 500MB, 20GiB or 1000000"):
        size(text)


def test_how_much_goes_with_where(capsys):
    assert main(["dispatcher", "--cache-bytes", "20GiB"]) == 1
    assert "--cache-bytes says how much a cache may take: say where it is, too, with" in capsys.readouterr().err


def test_an_object_store_cannot_say_what_is_free(capsys):
    assert main(["dispatcher", "--cache-dir", "s3://bucket/cache"]) == 1
    assert "how much the cache in s3://bucket/cache may take has to be said" in capsys.readouterr().err


def test_a_cache_may_take_half_of_what_is_free_and_of_what_it_has(tmp_path, monkeypatch):
    free = 10_000
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert default_bytes(str(tmp_path / "not" / "there")) == 5_000
    point = tmp_path / "cache" / "0123456789abcdef0123456789abcdef"
    point.mkdir(parents=True)
    (point / "block").write_bytes(bytes(4_000))
    free -= 4_000
    assert default_bytes(str(tmp_path / "cache")) == 5_000
    (tmp_path / "cache" / "data").mkdir()
    (tmp_path / "cache" / "data" / "of somebody else").write_bytes(bytes(2_000))
    free -= 2_000
    assert default_bytes(str(tmp_path / "cache"), file_store.is_own) == 4_000
    (tmp_path / "cache" / "00000001.segment").write_bytes(bytes(2_000))
    (tmp_path / "cache" / "data.segment").write_bytes(bytes(2_000))
    assert default_bytes(str(tmp_path / "cache"), item_store.is_own) == (4_000 + 2_000) // 2
    free = 0
    assert default_bytes(str(tmp_path / "empty")) == 1


def test_the_command_names_the_option_that_is_wrong(capsys):
    with pytest.raises(SystemExit):
        main(["dispatcher", "--cache-dir", "there", "--cache-bytes", "20 gigs"])
    assert "argument --cache-bytes: '20 gigs' is not a size such as" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"cache_dir": "s3://bucket/cache"}, "how much the cache in s3://bucket/cache may take has to be said"),
        ({"cache_bytes": 1}, "cache_bytes says how much a cache may take: say where it is, too, with cache_dir="),
        ({"cache_dir": "there", "cache_bytes": 0}, "cache_bytes must be a whole number of at least 1, not 0"),
        (
            {"cache_dir": "there", "cache_bytes": "20GiB"},
            "cache_bytes must be a whole number of at least 1, not '20GiB'",
        ),
        (
            {"cache_dir": "there", "cache_bytes": 1, "cache_compression": "gzip"},
            "cache_compression is None, 'lz4' or 'zstd', not 'gzip'",
        ),
    ],
)
def test_a_service_says_what_is_wrong_before_it_starts(arguments: dict[str, Any], said):
    with pytest.raises(mr.PipelineError, match=said):
        mr.LocalService(**arguments)


def test_whom_a_tenant_trusts():
    assert trust("vision=speech,ads") == ("vision", ["speech", "ads"])
    for wrong in ("vision", "vision=", "=speech", "vision=speech,,ads"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a tenant and whom it trusts, such as vision="):
            trust(wrong)
