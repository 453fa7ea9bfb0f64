import errno
import os
import sys

import obstore
import pytest

from millrace.errors import PipelineError, SourceError, SourceNotFoundError
from millrace.graph import nodes as g
from millrace.planning.split_table import stamp_of
from millrace.sources import list_source, storage
from millrace.sources.listing import expand
from millrace.sources.reads import Reads


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train/b.jpg", "train/a.jpg", "train/deep/c.jpg", "val/d.jpg", "val/{odd}[1].jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def names(patterns, below=""):
    return [file.location.removeprefix(below) for file in expand(patterns)]


def test_matches_come_sorted_and_patterns_in_order(tree):
    assert names(["val/d.jpg", "train/*.jpg", "val/d.jpg"]) == [
        "val/d.jpg",
        "train/a.jpg",
        "train/b.jpg",
        "val/d.jpg",
    ]
    assert names(["train/**/*.jpg"]) == ["train/a.jpg", "train/b.jpg", "train/deep/c.jpg"]
    assert names(["train/{b,a}.jpg"]) == ["train/b.jpg", "train/a.jpg"]


def test_sizes_and_versions(tree):
    (file,) = expand([str(tree / "train/a.jpg")])
    assert file.size == len("train/a.jpg")
    before = file.version
    os.utime(file.location, ns=(1, 1))
    assert expand([file.location])[0].version not in ("", before)


def test_little_is_left_to_do_once_all_files_were_looked_at(tmp_path):
    calls = looked_at = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    def seen(files):
        nonlocal looked_at
        looked_at += files
        if looked_at == 1024:
            sys.setprofile(count)

    for number in range(1024):
        (tmp_path / f"{number}.jpg").touch()
    try:
        table = list_source(g.FromFiles(patterns=(str(tmp_path / "*.jpg"),)), Reads(), seen)
    finally:
        sys.setprofile(None)
    assert (table.count, looked_at) == (1024, 1024)
    assert 0 < calls < 512


def test_a_path_that_exists_is_taken_as_written(tree):
    assert names(["val/{odd}[1].jpg"]) == ["val/{odd}[1].jpg"]


def test_so_is_a_key_of_a_store(bucket):
    for name in ("b/a[1].txt", "b/a1.txt", "b/c?.txt", "b/cd.txt"):
        storage.write(bucket + name, b"data")
    assert names([bucket + "b/a[1].txt"]) == [bucket + "b/a[1].txt"]
    assert names([bucket + "?/c?.txt"]) == [bucket + "b/c?.txt", bucket + "b/cd.txt"]
    assert names([bucket + "b/c?.txt"]) == [bucket + "b/c?.txt"]
    assert names([bucket + "b/[ab][1].txt"]) == [bucket + "b/a1.txt"]


def test_file_urls_and_home(tree, monkeypatch):
    monkeypatch.setenv("HOME", str(tree))
    assert names([f"file://{tree}/train/*.jpg"]) == [f"{tree}/train/a.jpg", f"{tree}/train/b.jpg"]
    assert names(["~/val/d.jpg"]) == [f"{tree}/val/d.jpg"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("train/x.jpg", "train/x.jpg does not exist: the folder 'train' exists, but has nothing that matches 'x.jpg'"),
        ("tain/*.jpg", "'tain/*.jpg' matches no file: the current folder, {cwd}, has nothing that matches 'tain'"),
        ("train/*.png", "the folder 'train' exists, but has nothing that matches '*.png'"),
        ("*/x/*.jpg", "'*' matches 'train' and maybe more, but nothing in there matches 'x'"),
        ("train/a.jpg/*", "the file (not a folder) 'train/a.jpg' exists, but has nothing that matches '*'"),
        ("train/d*", "'train/d*' matches no file: only folders match it"),
        ("train", "train is a folder; for the files in it write 'train/*'"),
        ("/no-such-root/*", "/ has nothing that matches 'no-such-root'"),
    ],
)
def test_what_matches_nothing_says_how_far_it_matched(tree, pattern, message):
    with pytest.raises(SourceNotFoundError) as caught:
        expand([pattern])
    assert message.format(cwd=os.getcwd()) in str(caught.value)


def test_no_pattern(tree):
    with pytest.raises(PipelineError, match="the list of paths is empty"):
        expand([])


def test_a_missing_shard_is_named(tree):
    with pytest.raises(SourceNotFoundError, match=r"^train/z\.jpg does not exist"):
        expand(["train/{a,z}.jpg"])


def test_unknown_scheme():
    with pytest.raises(PipelineError, match=r"cannot read ftp://.*s3://"):
        expand(["ftp://host/a"])
    with pytest.raises(PipelineError, match=r"s3://bucket names no file; write s3://bucket/path"):
        expand(["s3://bucket"])


def test_object_store(bucket):
    for name in ("t/b", "t/a", "t/deep/c"):
        storage.write(bucket + name, name.encode())
    assert names([bucket + "t/*"]) == [bucket + "t/a", bucket + "t/b"]
    assert names([bucket + "t/**"]) == [bucket + "t/a", bucket + "t/b", bucket + "t/deep/c"]
    assert names([bucket + "t/b", bucket + "t/{a,b}"]) == [bucket + "t/b", bucket + "t/a", bucket + "t/b"]
    assert expand([bucket + "t/a"])[0].size == 3
    assert expand([bucket + "t/a"])[0].version == expand([bucket + "t/*"])[0].version != ""


def test_object_store_says_how_far(bucket):
    storage.write(bucket + "t/deep/c", b"")
    with pytest.raises(SourceNotFoundError, match=rf"^{bucket}t/x does not exist$"):
        expand([bucket + "t/x"])
    with pytest.raises(SourceNotFoundError, match=rf"{bucket}t/ exists, but has nothing that matches 'dep'"):
        expand([bucket + "t/dep/x/*.jpg"])
    with pytest.raises(SourceNotFoundError, match=rf"{bucket}t/deep/ exists, but has nothing that matches '\*.jpg'"):
        expand([bucket + "t/deep/*.jpg"])


@pytest.mark.parametrize(("below", "at_once"), [(0, 0), (5, 0), (30, 1)])
def test_a_flat_folder_of_a_store_comes_in_pages_unless_much_is_below_it(bucket, monkeypatch, below, at_once):
    asked = []

    def list_with_delimiter(*args):
        asked.append(args)
        return at_once_of_store(*args)

    at_once_of_store = obstore.list_with_delimiter
    monkeypatch.setattr(obstore, "list_with_delimiter", list_with_delimiter)
    monkeypatch.setattr(storage, "_LIST_PAGE", 10)
    monkeypatch.setattr(storage, "_MOST_BELOW", 20)
    for number in range(below):
        storage.write(f"{bucket}f/0005/{number}.jpg", b"1")
    for number in range(25):
        storage.write(f"{bucket}f/{number:04}.jpg", b"1" * (number > 0))
    wanted = [f"{bucket}f/{number:04}.jpg" for number in range(25)]
    assert names([bucket + "f/*.jpg"]) == wanted
    assert list(list_source(g.FromFiles(patterns=(bucket + "f/*.jpg",)), Reads()).names) == wanted
    assert len(asked) == 2 * at_once


def test_tables_list_what_is_named_in_the_same_order(tree, bucket):
    storage.write(bucket + "t/c.jpg", b"1")
    patterns = ["val/*.jpg", "train/a.jpg", bucket + "t/*.jpg", "train/**", "train/{b,a}.jpg", bucket + "t/c.jpg"]
    table = list_source(g.FromFiles(patterns=tuple(patterns)), Reads())
    found = expand(patterns)
    assert list(table.names) == [file.location for file in found]
    assert list(table.sizes) == [file.size for file in found]
    assert list(table.stamps) == [stamp_of(file.version) for file in found]


def test_a_link_to_what_is_not_there_is_an_error_and_not_left_out(tmp_path):
    (tmp_path / "1.txt").write_text("here")
    (tmp_path / "2.txt").symlink_to("/annex/2.txt")
    (tmp_path / "3.txt").symlink_to("1.txt")
    with pytest.raises(SourceNotFoundError, match=r"2\.txt is a link to '/annex/2\.txt', which is not there: fetch it"):
        expand([f"{tmp_path}/*.txt"])
    (tmp_path / "2.txt").unlink()
    assert [os.path.basename(each.location) for each in expand([f"{tmp_path}/*.txt"])] == ["1.txt", "3.txt"]


@pytest.mark.parametrize("pattern", ["*/*.jpg", "**/*.jpg", "**", "val/../*/a.jpg"])
def test_a_folder_that_cannot_be_listed_is_an_error_and_its_files_not_left_out(tree, monkeypatch, pattern):
    """By its mode, for another user than this one, or as a mount does not answer for a moment."""
    scan = os.scandir

    def denied(folder):
        if str(folder).rstrip("/").endswith("train"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return scan(folder)

    assert names([pattern])
    monkeypatch.setattr(os, "scandir", denied)
    if pattern == "val/../*/a.jpg":
        assert names([pattern]) == ["val/../train/a.jpg"], "what is named there need not be listed"
        return
    with pytest.raises(
        SourceError, match=r"the folder train/ cannot be listed, so that files .* Permission denied\. Give"
    ):
        expand([pattern])
    assert names(["val/*.jpg"])


def test_a_link_to_a_folder_above_is_not_followed_and_others_are(tree):
    plain = names(["**/*.jpg"])
    (tree / "train" / "all").symlink_to("..")
    (tree / "latest").symlink_to(".")
    (tree / "val" / "root").symlink_to("/")
    assert names(["**/*.jpg"]) == names([f"{tree}/**/*.jpg"], below=f"{tree}/") == plain
    (tree / "val" / "more").symlink_to("../train/deep")
    assert names(["**/*.jpg"]) == sorted([*plain, "val/more/c.jpg"])
    assert names(["latest/*/d.jpg"]) == ["latest/val/d.jpg"], "a link that is written out is meant"


def test_a_link_that_is_to_be_a_folder_and_leads_to_nothing_is_an_error(tree):
    (tree / "gone").symlink_to("/annex/train")
    with pytest.raises(SourceNotFoundError, match="gone is a link to '/annex/train', which is not there"):
        expand(["*/*.jpg"])
    assert names(["**/*.jpg"]), "it may have been a file, of another name"


@pytest.mark.parametrize("pattern", ["pipe", "*"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, pattern):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match=r"pipe is no file but a pipe, a socket or a device"):
        expand([f"{tmp_path}/{pattern}"])
