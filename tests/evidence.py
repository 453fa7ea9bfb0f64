"""Compares what docs/coverage.md names as evidence with the tests that have run and passed.

``python -m tests.evidence FILE`` reads the names of passed tests, one a line, which tests/conftest.py writes into the
file named by MILLRACE_PASSED_TESTS, and fails where a row names a test that is not among them.
"""

import importlib.util
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

COVERAGE = Path(__file__).parents[1] / "docs/coverage.md"
NOT_YET = "not yet"


def rows(text: str) -> Iterator[tuple[str, str]]:
    """(name, evidence) of each row of the tables."""
    for line in text.splitlines():
        row = re.fullmatch(r"\| ([A-Z]+\d+) \| .* \| (.*) \|", line)
        if row is not None:
            yield row[1], row[2]


def problems(text: str, passed: Collection[str]) -> list[str]:
    """What rows claim and what nothing shows.

    Args:
        text: of the page.
        passed: node ids of the tests that ran and passed.
    """
    # A test's parameters, and those of the class or file that it is named by, follow its name.
    names = {each.partition("[")[0] for each in passed}
    names |= {each.partition("::")[0] for each in names}
    found = []
    for row, evidence in rows(text):
        tests = re.findall(r"`(tests/[\w/]+\.py(?:::\w+)*)`", evidence)
        commands = re.findall(r"`python -m ([\w.]+)", evidence)
        if not tests and not commands and not evidence.startswith(NOT_YET):
            found.append(f"{row}: names no test and no command")
        found += [f"{row}: {test} did not run, or did not pass" for test in tests if test not in names]
        found += [f"{row}: there is no command {each}" for each in commands if importlib.util.find_spec(each) is None]
    return found


def main() -> int:
    """The command."""
    passed = Path(sys.argv[1]).read_text().splitlines()
    found = problems(COVERAGE.read_text(), set(passed))
    for each in found:
        print(each)
    print(f"docs/coverage.md: {len(found)} of its claims are not shown by the {len(passed)} tests that passed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
