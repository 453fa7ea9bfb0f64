import glob
import os
import tempfile
import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import SourceNotFoundError
from millrace.sources import storage
from millrace.sources.globs import compile_glob, expand_braces, fixed_folder
from millrace.sources.listing import expand


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.tar", ["a.tar"]),
        ("s-{8..11}.tar", ["s-8.tar", "s-9.tar", "s-10.tar", "s-11.tar"]),
        ("s-{008..011}.tar", ["s-008.tar", "s-009.tar", "s-010.tar", "s-011.tar"]),
        ("s-{2..0}", ["s-2", "s-1", "s-0"]),
        ("{a,b}-{0..1}", ["a-0", "a-1", "b-0", "b-1"]),
        ("{a,}x", ["ax", "x"]),
        ("{a}", ["{a}"]),
        ("{0...1}", ["{0...1}"]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{a,b{1,2}}", ["a", "b1", "b2"]),
        ("{{1,2},x}", ["1", "2", "x"]),
        ("{x{1,2}}", ["{x1}", "{x2}"]),
        ("a{b{1..2}", ["a{b1", "a{b2"]),
    ],
)
def test_braces(pattern, expected):
    assert list(expand_braces(pattern)) == expected


@pytest.mark.parametrize(
    ("pattern", "folder"),
    [("a/b/*.x", "a/b/"), ("*.x", ""), ("s3://b/*", "s3://b/"), ("a/[bc]/d", "a/"), ("a/b", "a/")],
)
def test_fixed_folder(pattern, folder):
    assert fixed_folder(pattern) == folder


def test_an_unclosed_bracket_is_a_character():
    assert compile_glob("a[b").match("a[b")
    assert not compile_glob("a[b").match("ab")


_NAMES = st.sampled_from(["a", "b", "ab", ".h", "a.x", "b-1", "]", "c"])
_PARTS = st.sampled_from(
    [
        "a",
        "*",
        "**",
        "?",
        "[ab]",
        "[!a]",
        "*.x",
        ".*",
        "a*",
        "**b",
        "[a-c]",
        "[!.]*",
        "[]]",
        "[]-a]",
        "[c-a]",
        ".h",
        "??",
    ]
)


@given(
    files=st.sets(st.lists(_NAMES, min_size=1, max_size=3).map("/".join), min_size=1, max_size=8),
    pattern=st.lists(_PARTS, min_size=1, max_size=4).map("/".join),
)
@settings(max_examples=150)
def test_object_stores_match_what_glob_matches(files, pattern):
    files = {name for name in files if not any(other.startswith(name + "/") for other in files)}
    bucket = f"memory://{uuid.uuid4().hex}/"
    with tempfile.TemporaryDirectory() as root:
        for name in files:
            path = Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
            storage.write(bucket + name, b"")
        expected = {
            os.path.relpath(path, root)
            for path in glob.glob(os.path.join(glob.escape(root), pattern), recursive=True)
            if os.path.isfile(path)
        }
        for place in (root + "/", bucket):
            try:
                found = [file.location.removeprefix(place) for file in expand([place + pattern])]
            except SourceNotFoundError:
                found = []
            assert found == sorted(expected)
