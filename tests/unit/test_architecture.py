"""What docs/architecture.md says of the code is so."""

import re

from tests.module_map import BEGIN, PAGE, SOURCES, modules, written


def test_every_module_says_what_it_is():
    assert [f"{room}/{name}" for room, name, summary in modules() if not summary] == []


def test_the_map_is_that_of_the_code():
    """After a change of a module's name or first line: ``make map``."""
    assert PAGE.read_text().partition(BEGIN)[2].strip() == written().strip()


def test_the_walks_go_through_files_that_exist():
    walks = PAGE.read_text().partition(BEGIN)[0]
    named = re.findall(r"`([a-z_/]+(?:\.py|/))`", walks)
    assert len(named) > 60
    assert [name for name in named if not (SOURCES / name).exists()] == []
