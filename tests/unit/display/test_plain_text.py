"""Text of others on a terminal."""

import io
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.display.test_status_tables import BUSY

from millrace.display.plain_text import plain
from millrace.display.status import columns, show
from millrace.display.status_metrics import metrics


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


EVIL = 'a"b\\c\nd\x1b[2J\x07\u202e'


def test_a_name_moves_no_cursor_and_breaks_no_line():
    (job,) = BUSY["jobs"]
    named = {**BUSY, "jobs": [{**job, "name": EVIL, "why": f"job {EVIL} waits"}]}
    out = io.StringIO()
    show(named, out)
    assert not {"\x1b", "\x07", "\u202e"} & set(out.getvalue())
    assert r'a"b\c\nd\x1b[2J\x07\u202e' in out.getvalue()
    assert named["jobs"][0]["name"] == EVIL, "programs get what was said"


def test_tables_stay_tables_also_on_a_terminal():
    (line,) = columns([(EVIL, "3")])
    assert line == r'a"b\c\nd\x1b[2J\x07\u202e  3'
    (job,) = BUSY["jobs"]
    operators = [{"operator": "map([red]f[/])", "share": None, "elements_s": None, "threads": 0}]
    out = Terminal()
    show({**BUSY, "jobs": [{**job, "name": "a[/b]", "operators": operators}]}, out)
    assert "operators of a[/b]" in out.getvalue(), "names are no markup"


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_everything_else_stays_as_it_is(value):
    def texts(tree):
        if isinstance(tree, str):
            yield tree
        for each in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
            yield from texts(each)

    found = plain(value)
    assert all(character.isprintable() or character == "\n" for text in texts(found) for character in text)
    if all(text.isprintable() for text in texts(value)):
        assert found == value


def test_metrics_have_no_controls():
    job: dict[str, Any] = {
        "name": EVIL,
        "workers": {"observed": 1},
        "epochs": [],
        "wait_share": None,
        "group": None,
        "operators": [],
    }
    written = metrics({"fleet": {"observed": 1}, "jobs": [job]})
    assert "\x1b" not in written
    assert len(written.splitlines()) == 3 * 3
