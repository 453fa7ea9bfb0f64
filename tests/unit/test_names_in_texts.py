"""Names of millrace's own inside texts are names of something: in programs that tests run as text, and in docstrings.

No type checker looks there, so that whoever gives a module or class another name would miss them.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = sorted(path for folder in ("src", "tests", "benchmarks", "chaos") for path in (ROOT / folder).rglob("*.py"))
IMPORT = re.compile(r"^[ \t]*from (millrace[\w.]*) import (\w+(?:, \w+)*)", re.MULTILINE)
REFERENCE = re.compile(r":(?:attr|class|data|func|meth|mod):`~?(millrace[\w.]*)`")


def _file(module: list[str]) -> Path | None:
    base = (ROOT / "src").joinpath(*module)
    return next((each for each in (base.with_suffix(".py"), base / "__init__.py") if each.is_file()), None)


@cache
def _text(file: Path) -> str:
    return file.read_text()


@cache
def _statements(file: Path) -> list[ast.stmt]:
    return ast.parse(_text(file)).body


def _bound(statements: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Names that these statements bind, and those inside their conditions."""
    found: dict[str, ast.stmt] = {}
    for statement in statements:
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found[statement.name] = statement
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            found |= {each.asname or each.name: statement for each in statement.names}
        elif isinstance(statement, (ast.If, ast.Try)):
            found |= _bound([*statement.body, *statement.orelse])
        else:
            found |= {node.id: statement for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return found


def _is_there(name: str) -> bool:
    """A module, what one binds or exports, or an attribute of a class of one; what bases add is not looked for."""
    parts = name.split(".")
    length = next(n for n in range(len(parts), 0, -1) if _file(parts[:n]) is not None)
    file, rest = _file(parts[:length]), parts[length:]
    assert file is not None
    if not rest:
        return True
    found = _bound(_statements(file)).get(rest[0])
    if found is None:
        return length == 1 and f'"{rest[0]}": ' in _text(file)  # the package exports it when it is asked for
    if len(rest) == 1 or not isinstance(found, ast.ClassDef) or found.bases:
        return True
    own = {node.attr for node in ast.walk(found) if isinstance(node, ast.Attribute)}
    return rest[1] in own | _bound(found.body).keys()


def _texts(file: Path) -> list[str]:
    """All strings of a module, docstrings among them."""
    nodes = ast.walk(ast.parse(_text(file)))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("millrace", True),
        ("millrace.Dataset", True),
        ("millrace.Datasets", False),
        ("millrace.planning.plan", True),
        ("millrace.planning.plans", False),
        ("millrace.planning.plan.make_plan", True),
        ("millrace.planning.plan.made_plan", False),
        ("millrace.control.state.state.State.make_plan", True),
        ("millrace.control.state.state.State.made_plan", False),
    ],
)
def test_what_is_there(name, there):
    assert _is_there(name) is there


def test_what_texts_name_is_there():
    named = {
        (str(file.relative_to(ROOT)), name)
        for file in PYTHON
        if file != Path(__file__)
        for text in _texts(file)
        for name in [
            *REFERENCE.findall(text),
            *(f"{module}.{each}" for module, names in IMPORT.findall(text) for each in names.split(", ")),
        ]
    }
    assert len(named) > 100
    assert sorted(each for each in named if not _is_there(each[1])) == []
