import itertools

from tests.pairwise import alternately, pairwise


def test_each_two_values_are_together_once(monkeypatch):
    monkeypatch.delenv("MILLRACE_ALL_CASES", raising=False)
    factors = ["abc", [1, 2], (True, False), "xyz"]
    chosen = pairwise(*factors)
    for first, second in itertools.combinations(range(4), 2):
        pairs = {(each[first], each[second]) for each in chosen}
        assert pairs == set(itertools.product(factors[first], factors[second]))
    assert len(chosen) <= 12
    assert chosen == pairwise(*factors)


def test_each_value_of_the_first_is_there_once_and_those_of_others_in_turn(monkeypatch):
    monkeypatch.delenv("MILLRACE_ALL_CASES", raising=False)
    assert alternately({"a": 1, "b": 2, "c": 3}, [1, 2]) == [("a", 1), ("b", 2), ("c", 1)]


def test_all_of_them_are_there_if_asked_for(monkeypatch):
    monkeypatch.setenv("MILLRACE_ALL_CASES", "1")
    assert alternately("ab", [1, 2, 3]) == list(itertools.product("ab", [1, 2, 3]))
    assert pairwise("ab", [1, 2, 3]) == list(itertools.product("ab", [1, 2, 3]))
