from tests.evidence import COVERAGE, problems, rows

PAGE = """
| row | what | shown by |
| --- | --- | --- |
| A1 | one | `tests/unit/test_a.py::test_one`, `tests/unit/test_b.py`, `python -m benchmarks.papers.figure8` |
| A2 | two | not yet |
"""
PASSED = {"tests/unit/test_a.py::test_one[3-x]", "tests/unit/test_b.py::test_two"}


def test_what_has_passed_is_shown():
    assert problems(PAGE, PASSED) == []


def test_what_did_not_pass_is_named():
    assert problems(PAGE, {"tests/unit/test_a.py::test_one_more"}) == [
        "A1: tests/unit/test_a.py::test_one did not run, or did not pass",
        "A1: tests/unit/test_b.py did not run, or did not pass",
    ]


def test_a_row_without_evidence_and_a_command_that_is_not_there_are_named():
    text = PAGE.replace("not yet", "it works").replace("figure8", "figure88")
    assert problems(text, PASSED) == [
        "A1: there is no command benchmarks.papers.figure88",
        "A2: names no test and no command",
    ]


def test_all_rows_of_the_page_are_found():
    found = [row for row, _ in rows(COVERAGE.read_text())]
    counts = {"C": 13, "Q": 9, "D": 6, "T": 12, "O": 8}
    assert sorted(found) == sorted(f"{letter}{n}" for letter, count in counts.items() for n in range(1, count + 1))
