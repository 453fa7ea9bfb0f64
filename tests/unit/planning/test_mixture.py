import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.planning.mixture import BLOCK, ENDLESS, Mixture, choose, seed_from, uniforms


def everything(mixture):
    return mixture.resolve(np.arange(mixture.total))


inputs = st.lists(st.tuples(st.integers(0, 50), st.sampled_from([0.0, 0.1, 1.0, 9.0])), min_size=1, max_size=5).filter(
    lambda pairs: any(weight for _, weight in pairs)
)


@given(inputs, st.integers(0, 2**128 - 1))
def test_every_element_of_every_input_once_and_in_order(pairs, seed):
    counts, weights = zip(*pairs, strict=True)
    which, index = everything(Mixture(seed, weights, counts))
    for number, (count, weight) in enumerate(pairs):
        assert index[which == number].tolist() == (list(range(count)) if weight else [])


@given(inputs, st.integers(0, 99))
def test_a_mixture_that_stops_is_the_beginning_of_one_that_goes_on(pairs, seed):
    counts, weights = zip(*pairs, strict=True)
    stops, goes_on = Mixture(seed, weights, counts, stop_on_empty=True), Mixture(seed, weights, counts)
    assert stops.total <= goes_on.total
    which, index = everything(stops)
    longer_which, longer_index = everything(goes_on)
    assert np.array_equal(which, longer_which[: stops.total])
    assert np.array_equal(index, longer_index[: stops.total])
    used = np.bincount(which, minlength=len(counts))
    assert any(used[i] == counts[i] for i, weight in enumerate(weights) if weight)


@settings(max_examples=25)
@given(inputs, st.integers(0, 99))
def test_inputs_that_begin_again_are_taken_until_all_have_ended(pairs, seed):
    passes, weights = zip(*pairs, strict=True)
    counts = [ENDLESS if count else 0 for count in passes]
    mixture = Mixture(seed, weights, counts, passes=passes)
    which, index = everything(mixture)
    drawn = [number for number, weight in enumerate(weights) if weight]
    used = np.bincount(which, minlength=len(passes))
    assert all(used[number] >= passes[number] for number in drawn)
    for number in drawn:
        assert index[which == number].tolist() == list(range(used[number]))
    whole = [number for number in drawn if passes[number]]
    # The draw that ends it finds the last one at the end of its first pass, and there are no further draws.
    assert not whole or any(used[number] == passes[number] for number in drawn)
    if whole == drawn:
        longer = Mixture(seed, weights, counts).resolve(np.arange(mixture.total))
        assert [each.tolist() for each in longer] == [which.tolist(), index.tolist()]


def one_by_one(seed, phases, counts, ending, passes, most):
    """The same draw by draw: up to ``most`` elements as (input, position in it)."""
    used, alive = [0] * len(counts), {number for _, weights in phases for number, each in enumerate(weights) if each}
    ended: set[int] = set()
    found: list[tuple[int, int]] = []
    for draw in uniforms(seed, 0).tolist():
        phase = max(at for at, (begin, _) in enumerate(phases) if begin <= len(found))
        alive = {number for number in alive if any(weights[number] for _, weights in phases[phase:])}
        while alive and not any(phases[phase][1][number] for number in alive):
            phase += 1
        if not alive or (ending == "cycle" and alive <= ended) or len(found) == most:
            break
        left = np.array([number in alive for number in range(len(counts))])
        number = int(choose(np.array([draw]), np.array(phases[phase][1], float), left)[0])
        if ending == "cycle" and used[number] >= passes[number]:
            ended.add(number)
            if alive <= ended:
                break
        if used[number] >= counts[number]:
            alive.discard(number)
            if ending == "stop":
                break
            continue
        found.append((number, used[number]))
        used[number] += 1
    return found


@settings(max_examples=50)
@given(inputs, st.data(), st.sampled_from(["stop", "go on", "cycle"]), st.integers(0, 99))
def test_weights_that_change_with_the_number_of_elements(pairs, data, ending, seed):
    passes, weights = zip(*pairs, strict=True)
    others = st.lists(st.sampled_from([0.0, 0.1, 9.0]), min_size=len(pairs), max_size=len(pairs)).filter(any)
    begins = sorted(data.draw(st.sets(st.integers(1, 120), max_size=3)))
    changes = [(begin, tuple(data.draw(others))) for begin in begins]
    counts = [ENDLESS if count else 0 for count in passes] if ending == "cycle" else list(passes)
    if data.draw(st.booleans()):
        counts[0] = ENDLESS
    mixture = Mixture(seed, weights, counts, ending == "stop", passes if ending == "cycle" else None, changes)
    expected = one_by_one(seed, [(0, weights), *changes], counts, ending, passes, 500)
    assert min(mixture.total, 500) == len(expected)
    which, index = mixture.resolve(np.arange(len(expected)))
    assert list(zip(which.tolist(), index.tolist(), strict=True)) == expected


def test_weights_change_within_a_block_and_behind_it():
    counts = [10**6, 10**6]
    mixture = Mixture(1, [1, 0], counts, changes=[(1000, [1, 3]), (3 * BLOCK, [0, 1])])
    which, _ = mixture.resolve(np.arange(4 * BLOCK))
    assert not which[:1000].any()
    assert which[1000 : 3 * BLOCK].mean() == pytest.approx(0.75, abs=0.01)
    assert which[3 * BLOCK :].all()


def test_one_that_begins_again_beside_one_without_end_never_ends():
    assert Mixture(0, [1, 1], [ENDLESS, ENDLESS], passes=[3, ENDLESS]).total == ENDLESS
    assert Mixture(0, [1, 0], [ENDLESS, ENDLESS], passes=[3, ENDLESS]).total == 3


@given(st.lists(st.integers(0, 299_999), max_size=50))
def test_any_positions_in_any_order(positions):
    mixture = LARGE
    which, index = mixture.resolve(positions)
    assert np.array_equal(which, LARGE_WHICH[positions])
    assert np.array_equal(index, LARGE_INDEX[positions])
    assert which.dtype == index.dtype == np.int64


LARGE = Mixture(5, [1, 2, 3], [100_000, 50_000, 150_000])
LARGE_WHICH, LARGE_INDEX = everything(LARGE)


def test_inputs_are_drawn_by_weight():
    shares = np.bincount(LARGE_WHICH[:BLOCK]) / BLOCK
    assert shares == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=0.01)


def test_what_was_drawn_before_does_not_matter():
    forwards = Mixture(5, [1, 2, 3], [100_000, 50_000, 150_000])
    last = forwards.resolve([299_999])
    assert (last[0][0], last[1][0]) == (LARGE_WHICH[-1], LARGE_INDEX[-1])


def test_memory_goes_by_blocks_and_a_last_input_needs_none():
    mixture = Mixture(0, [1, 1], [10, 10**15])
    assert mixture.total == 10**15 + 10
    assert mixture.resolve([mixture.total - 1])[1].tolist() == [10**15 - 1]
    assert len(mixture._drawn.starts) == 2


def test_nothing_is_drawn_before_somebody_asks():
    mixture = Mixture(0, [1, 1], [10**15, 10**15])
    assert mixture.total == 2 * 10**15
    assert len(mixture._drawn.starts) == 1
    mixture.resolve([0])
    mixture.resolve([5])
    assert len(mixture._drawn.starts) == 2


@pytest.mark.parametrize("stop", [False, True])
def test_endless_inputs(stop):
    mixture = Mixture(0, [1, 1, 0], [ENDLESS, 3 * ENDLESS, 3], stop)
    assert mixture.total == ENDLESS
    which, index = mixture.resolve(np.arange(100_000))
    assert np.bincount(which) == pytest.approx([50_000] * 2, rel=0.02)
    assert index[which == 1].tolist() == list(range(np.count_nonzero(which)))


def test_an_endless_input_beside_one_that_ends():
    goes_on = Mixture(0, [1, 1], [ENDLESS, 1000])
    assert goes_on.total == ENDLESS
    assert goes_on.resolve([10**12])[0].tolist() == [0]
    assert goes_on.resolve([10**12])[1].tolist() == [10**12 - 1000]
    stops = Mixture(0, [1, 1], [ENDLESS, 1000], stop_on_empty=True)
    assert 1900 < stops.total < 2200
    assert np.array_equal(everything(stops)[0], goes_on.resolve(np.arange(stops.total))[0])
    assert Mixture(0, [1, 0], [ENDLESS, 1000], stop_on_empty=True).total == ENDLESS


def test_the_sequence_is_fixed_for_all_time():
    assert uniforms(0, 0)[:3].tolist() == [0.014067035665647709, 0.2577672456246177, 0.47156538101528966]
    which, _ = everything(Mixture(1, [1, 1], [8, 8]))
    assert "".join(map(str, which)) == "0001000011101111"


def test_seeds_and_blocks_are_independent():
    draws = {uniforms(seed, block)[:4].tobytes() for seed in range(4) for block in range(4)}
    assert len(draws) == 16
    assert uniforms(3, 0).tolist() == uniforms(np.random.SeedSequence(3), 0).tolist()
    assert 0 <= min(uniforms(0, 0)) < 0.001
    assert 0.999 < max(uniforms(0, 0)) < 1


def test_a_seed_from_a_generator():
    assert seed_from(np.random.default_rng(1)) == seed_from(np.random.default_rng(1)) > 2**64
    assert seed_from(np.random.default_rng(1)) != seed_from(np.random.default_rng(2))


@pytest.mark.parametrize(
    ("weights", "counts", "said"),
    [
        ([0, 0], [1, 1], "at least one positive"),
        ([1, -1], [1, 1], "none negative"),
        ([1, np.nan], [1, 1], "finite"),
        ([], [], "at least one positive"),
        ([1, 1], [1], "a count >= 0 is needed for each of 2 weights"),
        ([1, 1], [1, -1], "a count >= 0"),
    ],
)
def test_what_makes_no_sense(weights, counts, said):
    with pytest.raises(ValueError, match=said):
        Mixture(0, weights, counts)


@pytest.mark.parametrize("positions", [[-1], [5], [0, 7]])
def test_positions_outside(positions):
    with pytest.raises(IndexError, match="below 5"):
        Mixture(0, [1], [5]).resolve(positions)


def test_nothing_asked():
    which, index = Mixture(0, [1], [0]).resolve([])
    assert len(which) == len(index) == 0
