"""Some schedules: nothing is violated, and what is planted is found."""

import functools
from collections import Counter

import pytest
from tests import finding_seeds

from millrace.cli import main
from millrace.simulation.cache_server_fleet import KINDS
from millrace.simulation.faults import FAULTS
from millrace.simulation.mutants import MUTANTS, planted
from millrace.simulation.simulated_cluster import EVENTS, play

SEEDS = [*range(12), 27, 42, 49, 122]
"""Together they have all kinds of faults; `millrace simulate faults` plays more."""
WITH_CACHE_SERVERS = [5, 6, 28, 124, 147, 252, 261]
"""Together they have all that can happen to these; in some of them nothing fails at first, and some have zones."""
WITH_MIXTURES = [23, 34, 44, 48, 62, 97, 137]
"""In these trainings set the weights of a mixture, and the dispatcher is killed, and they are saved and loaded."""
MANY_S = 600
"""Seconds for a test that plays many schedules, some of which take two."""


@pytest.mark.timeout(MANY_S)
def test_nothing_is_violated_in_a_long_and_eventful_schedule():
    fired: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = play(seed)
        assert not outcome.violation, f"seed {seed}: {outcome.violation}"
        assert outcome.events >= EVENTS
        assert outcome.faults.total() - outcome.faults["worker added"] >= 3
        fired += outcome.faults
    assert fired.keys() >= FAULTS.keys()
    assert fired.keys() >= {"member came later", "member detached", "member missed outputs", "job beyond a quota"}


@pytest.mark.timeout(MANY_S)
def test_nothing_is_violated_while_cache_servers_fail():
    fired: Counter[str] = Counter()
    items: Counter[str] = Counter()
    for seed in WITH_CACHE_SERVERS:
        outcome = play(seed)
        assert not outcome.violation, f"seed {seed}: {outcome.violation}"
        fired += outcome.faults
        items += outcome.items
    assert fired.keys() >= KINDS
    assert items["tasks in chunks"] > 100
    assert items["found"] > 100
    assert items["waited for"] > 3
    assert items["ordered before anything failed"] > 100
    assert items["asked in a zone"] > 10


@pytest.mark.timeout(MANY_S)
def test_nothing_is_violated_while_weights_are_set():
    fired: Counter[str] = Counter()
    reweighted = 0
    for seed in WITH_MIXTURES:
        outcome = play(seed)
        assert not outcome.violation, f"seed {seed}: {outcome.violation}"
        fired += outcome.faults
        reweighted += outcome.kinds["EpochReweighted"]
    assert reweighted >= fired["weights set"] > 30
    assert fired["saved and loaded"] > 3
    assert fired["dispatcher killed"] > 2


VIOLATED = [283, 504, 513, 558, 598, 624, 695, 705, 1159, 1214, 1602, 2230, 2332, 2703, 2715, 2853, 4464, 5688, 5749]
VIOLATED += [6289, 7492, 7647, 7755, 9304, 102, 899, 1374, 281, 387, 626, 1071, 101504, 487, 607, 746]
VIOLATED += [6003947, 6011353, 3023257, 3018920, 3000793, 3021264, 3028188]
VIOLATED += [3003136, 3003212, 3011657, 3017925, 3032290, 3005070, 3033026]
VIOLATED += [24003101, 1000234, 7003434, 9200762, 55, 734, 70053322, 71407935, 71439231]
"""Seeds that once showed something wrong, in the core or in what looks at it."""


@pytest.mark.nightly
@pytest.mark.parametrize("seed", VIOLATED)
def test_nothing_is_violated_any_more(seed):
    assert not play(seed).violation


def test_a_seed_tells_the_whole_story():
    stories: list[list[str]] = [[], []]
    for story in stories:
        assert not play(10, story.append).violation
    assert stories[0] == stories[1]
    assert len(stories[0]) > 500


@pytest.mark.timeout(MANY_S)
@pytest.mark.parametrize(
    "plant",
    [pytest.param(plant, marks=pytest.mark.nightly if place % 5 else ()) for place, plant in enumerate(MUTANTS)],
)
def test_a_planted_bug_is_found_soon(plant):
    """Within 240 schedules; the one that is remembered to find it is tried first, as looking for it takes long."""
    first = finding_seeds.read().get(plant, 0)
    with planted(plant):
        found = next((seed for seed in [first, *range(finding_seeds.SOON)] if play(seed).violation), None)
    assert found is not None
    assert found < finding_seeds.SOON
    assert not violation_of(found)


@functools.cache  # the same few schedules find most of them
def violation_of(seed):
    return play(seed).violation


def test_the_command_says_what_happened(capsys):
    assert main(["simulate", "faults", "--seeds", "2", "--json"]) == 0
    assert '"violations": {}' in capsys.readouterr().out
    assert main(["simulate", "faults", "--seed", "0", "--plant", "reply-before-durability"]) == 1
    said = capsys.readouterr().out
    assert "is done before event " in said
    assert "millrace simulate faults --seed 0 --trace" in said
    assert main(["simulate", "faults", "--seed", "1", "--plant", "orphan", "--trace"]) == 1
    assert "w1 > dispatcher          WorkerHello(" in capsys.readouterr().out


def test_the_command_lists_what_can_be_planted(capsys):
    assert main(["simulate", "faults", "--plant", "-"]) == 0
    assert "lost-ack " in capsys.readouterr().out
    assert main(["simulate", "faults", "--plant", "nonsense"]) == 2
    assert main(["simulate", "faults", "--trace"]) == 2
    assert "--trace needs --seed" in capsys.readouterr().err
