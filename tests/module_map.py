"""The map of modules at the end of docs/architecture.md, made from the first lines of their docstrings.

``python -m tests.module_map`` (or ``make map``) writes it; ``tests/unit/test_architecture.py`` holds it true.
"""

import ast
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src/millrace"
PAGE = ROOT / "docs/architecture.md"
BEGIN = "<!-- map -->\n"


def modules() -> Iterator[tuple[str, str, str]]:
    """(room, file, first line of the docstring) of every module that has anything in it."""
    for path in sorted(SOURCES.rglob("*.py"), key=lambda path: (path.parent != SOURCES, path.parent, path.name)):
        text = path.read_text()
        if text.strip():
            summary = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
            yield path.parent.relative_to(SOURCES).as_posix(), path.name, summary


def written() -> str:
    """The map in Markdown: a table for each folder."""
    tables = []
    for room, rows in groupby(modules(), key=lambda row: row[0]):
        heading = "The package itself" if room == "." else f"`{room}/`"
        lines = [f"| `{name}` | {summary.replace('|', chr(92) + '|')} |" for _, name, summary in rows]
        tables.append("\n".join([f"### {heading}", "", "| module | what it is |", "| --- | --- |", *lines, ""]))
    return "\n".join(tables)


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().partition(BEGIN)[0] + BEGIN + "\n" + written())
