"""Files come in the order of their paths, whatever order they were found in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.planning.split_table import stamp_of, table_of
from millrace.sources import file_list
from millrace.sources.file_list import FileList
from millrace.sources.storage import FileInfo

PATHS = st.lists(st.text("ab/-.é\udc80", min_size=1, max_size=8))


def raw(path):
    return path.encode(errors="surrogateescape")


def taken(files):
    return [
        (each.folder + name, size, stamp)
        for each in files.take()
        for name, size, stamp in zip(each.names, each.sizes, each.stamps, strict=True)
    ]


@given(PATHS, st.booleans())
def test_the_order_is_that_of_paths_as_bytes_each_once(paths, absolute):
    files = FileList()
    for path in paths:
        files.add(FileInfo("/" * absolute + path, len(path), f"v/{path}\udc80"))
    wanted = sorted(set(paths), key=raw)
    assert taken(files) == [(raw("/" * absolute + path), len(path), stamp_of(f"v/{path}\udc80")) for path in wanted]
    assert taken(files) == []


@given(PATHS)
def test_a_table_is_made_of_them_folder_by_folder(paths):
    files = FileList()
    for path in paths:
        files.add(FileInfo(path, len(path), path))
    table = table_of(files.take())
    wanted = sorted(set(paths), key=raw)
    assert list(table.names) == wanted
    assert list(table.sizes) == [len(path) for path in wanted]
    assert list(table.stamps) == [stamp_of(path) for path in wanted]


@given(PATHS, st.integers(1, 3))
def test_the_files_of_a_folder_may_come_in_several_parts(paths, most):
    whole, parts = FileList(), FileList()
    for path in paths:
        for files in (whole, parts):
            files.add(FileInfo(path, len(path), path))
    wanted = taken(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_list, "_AT_ONCE", most)
        found = list(parts.take())
    assert all(len(each.names) <= most for each in found)
    assert [each.folder + name for each in found for name in each.names] == [path for path, *_ in wanted]
    assert [size for each in found for size in each.sizes] == [size for _, size, _ in wanted]
    assert [stamp for each in found for stamp in each.stamps] == [stamp for *_, stamp in wanted]


def test_deep_folders():
    files, path = FileList(), "/".join(["d"] * 3000)
    files.add(FileInfo(path, 1, ""))
    assert taken(files) == [(raw(path), 1, 0)]
