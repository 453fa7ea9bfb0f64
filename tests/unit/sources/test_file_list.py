"""Files come in the order of their paths, whatever order they were found in."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.sources.file_list import FileList
from millrace.sources.storage import Found

PATHS = st.lists(st.text("ab/-.é\udc80", min_size=1, max_size=8))


@given(PATHS, st.booleans())
def test_the_order_is_that_of_paths_as_bytes_each_once(paths, absolute):
    files = FileList()
    for path in paths:
        files.add(Found("/" * absolute + path, len(path), f"v/{path}\udc80"))
    found = list(files.take())
    wanted = sorted(set(paths), key=lambda path: path.encode(errors="surrogateescape"))
    assert [file.location for file in found] == ["/" * absolute + path for path in wanted]
    assert found == [Found("/" * absolute + path, len(path), f"v/{path}\udc80") for path in wanted]
    assert list(files.take()) == []


def test_deep_folders():
    files, path = FileList(), "/".join(["d"] * 3000)
    files.add(Found(path, 1, ""))
    assert list(files.take()) == [Found(path, 1, "")]
