import re
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.engine.run.program import list_sources
from millrace.errors import PipelineError, StateError
from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.planning import weight_changes
from millrace.planning.checkpoint import Checkpoint, merge, pack, unpack
from millrace.planning.epoch_shape import WeightChange
from millrace.planning.mixture import BLOCK, ENDLESS, Mixture
from millrace.planning.node_mixtures import NodeMixture
from millrace.planning.plan import Piece, plan_of
from millrace.planning.units import UnitMap

TWO = (g.Range(start=0, stop=9), g.Range(start=0, stop=9))
SOME = Dataset.range(700)


def endless():
    return Dataset.sample_from_datasets([SOME.repeat(), SOME.repeat()], [1, 1], seed=1)


def units_of(dataset):
    graph = Graph(dataset._source.node)
    return UnitMap(graph, list_sources(graph), 1)


def decided(dataset, task=1, weights=(9, 1), tasks=None, pieces=(), before=()):
    units = units_of(dataset)
    plan = plan_of(units, tasks, None, pieces)
    start = plan.task(task).start if plan.length is None or task < plan.length else 0
    return start, weight_changes.set_weights(units, plan.task, task, 0, before, weights, pieces)


@pytest.mark.parametrize(
    ("behind", "element"),
    [
        (lambda mixed: mixed.take(900), lambda unit: unit),
        (lambda mixed: mixed.take(900).map(abs).filter(bool).prefetch(2), lambda unit: unit),
        (lambda mixed: mixed.take(903).batch(4), lambda unit: unit * 4),
        (lambda mixed: mixed.map(abs).batch(4).take(100), lambda unit: unit * 4),
        (lambda mixed: mixed.take(900).filter(bool).batch(4), lambda unit: unit),
        (lambda mixed: mixed.take(900).enumerate().skip(7), lambda unit: unit + 7),
        (lambda mixed: mixed.take(900).shard(3, 1), lambda unit: unit * 3 + 1),
        (lambda mixed: mixed.take(900).window(4, 2).map(list), lambda unit: unit * 2 + 2),
        (lambda mixed: mixed.take(900).window(2, 5).map(list), lambda unit: unit * 5),
        (lambda mixed: mixed.shuffle(50), lambda unit: unit),
        (lambda mixed: mixed.repeat(), lambda unit: unit),
        (lambda mixed: mixed.take(900).flat_map(lambda each: [each, each]).shuffle(9).take(-1), None),
        (lambda mixed: Dataset.zip([mixed, mixed.skip(5)]).take(900), lambda unit: unit + 5),
        (lambda mixed: Dataset.range(100).concatenate(mixed.take(900)), lambda unit: max(0, unit - 100)),
        (lambda mixed: mixed.take(100).concatenate(Dataset.range(900)), lambda unit: min(100, unit)),
    ],
)
def test_the_boundary_is_pushed_down_through_operators_that_keep_order(behind, element):
    if element is None:
        with pytest.raises(PipelineError, match="takes them in another order"):
            decided(behind(endless()))
        return
    unit, change = decided(behind(endless()))
    assert change.element == element(unit)
    assert change.weights == (9.0, 1.0)


def test_before_the_first_task_they_hold_for_all():
    for dataset in (endless().take(900), endless().take(900).window(4, 2).map(list), endless().take(900).shard(3, 1)):
        assert decided(dataset, 0)[1].element == 0


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (SOME, "sets the weights of a sample_from_datasets, and this pipeline has none"),
        (Dataset.zip([endless(), endless()]).take(9), "this pipeline has 2 of them"),
        (endless().take(900).shuffle(50), "takes them in another order: put it before the mixture, to each dataset"),
        (endless().take(900).reservoir(50), "reservoir() behind it takes them in another order"),
        (endless().take(900).repeat(2), "repeat() behind it has them again"),
        (endless().take(900).cache("/tmp/never-made"), "keeps what its old weights gave"),
        (Dataset.choose_from_datasets([endless(), SOME.repeat()], [0, 1]).take(900), "mixes them once more"),
        (endless().take(900).unique(), "this pipeline runs as one"),
        (Dataset.sample_from_datasets([SOME, SOME], {0: [1, 1], 9: [1, 2]}, weights_by="element"), "as it is written"),
        (Dataset.sample_from_datasets([SOME, SOME], stop_on_empty_dataset=True), "change the number of elements"),
        (Dataset.sample_from_datasets([SOME, SOME], cycle=True), "repeat() without end, with take(n) behind them"),
    ],
)
def test_other_operators_and_ends_are_refused_with_what_to_do(dataset, message):
    with pytest.raises(PipelineError, match=re.escape(message)):
        decided(dataset)


def test_inputs_that_end_may_be_drawn_otherwise_until_all_have_ended_and_no_longer_left_out():
    both = Dataset.sample_from_datasets([SOME, SOME], [1, 1], seed=1)
    assert decided(both)[1].element > 0
    with pytest.raises(PipelineError, match="would change the number of elements"):
        decided(both, weights=(1, 0))
    with pytest.raises(PipelineError, match="2 datasets, weights"):
        decided(both, weights=(1, 1, 1))


@pytest.mark.parametrize("last", [(1, 2, 0), (3, 1, 0)])
def test_weights_that_an_epoch_begins_with_replace_those_that_are_written_for_it(last):
    """So the number of elements is that of the epoch with them, whatever other datasets these would have drawn."""
    three = [Dataset.range(at, at + 100) for at in (0, 1000, 2000)]
    mixed = Dataset.sample_from_datasets(three, {0: [1, 1, 0], 1: [1, 0, 1]}, weights_by="epoch", seed=1)
    units = units_of(mixed)
    number = weight_changes.mixture_of(units.graph)
    begun = weight_changes.carried([WeightChange(number, 50, last)])
    weight_changes.check_changes(units, 1, begun)
    sequence = units.mixtures[number].of_epoch(1, ((0, last),))
    alone = units_of(Dataset.sample_from_datasets(three, last, seed=1)).mixtures[number].of_epoch(1)
    assert sequence.total == alone.total == 200
    every = np.arange(200)
    assert [each.tolist() for each in sequence.resolve(every)] == [each.tolist() for each in alone.resolve(every)]
    weight_changes.check_changes(units, 1, (*begun, WeightChange(number, 7, (1, 5, 0))))
    for wrong in ((WeightChange(number, 0, (1, 1, 1)),), (*begun, WeightChange(number, 7, (1, 0, 1)))):
        with pytest.raises(StateError, match="another number of elements"):
            weight_changes.check_changes(units, 1, wrong)


def test_weights_are_checked_before_anything_else():
    for wrong in ([-1, 1], [0, 0], [1e300, 1], [float("nan"), 1], [float("inf"), 1], ["a", 1]):
        with pytest.raises(PipelineError, match="one weight >= 0 for each dataset, none above"):
            weight_changes.checked_weights(wrong)
    for large in (10**400, -(10**5000), Fraction(10**400)):  # for a float, or even to be printed
        with pytest.raises(PipelineError, match=r"none above 2\*\*53"):
            weight_changes.checked_weights([large, 1])
    with pytest.raises(PipelineError, match="a list of weights"):
        weight_changes.checked_weights(3)
    for other in ({0: 1, 1: 3}, {1: 1, 2: 3}.keys(), {1, 3}, frozenset([1])):
        with pytest.raises(PipelineError, match=r"one list of weights, .*, which holds from now on, not"):
            weight_changes.checked_weights(other)
    assert weight_changes.checked_weights(np.array([1, 3], np.float32)) == [1.0, 3.0]


def test_so_many_weights_of_an_epoch_travel_with_each_task_and_no_more():
    mixed = Dataset.sample_from_datasets([SOME.repeat()] * 2100, seed=1).take(900)
    number, weights = weight_changes.mixture_of(units_of(mixed).graph), (1.0,) * 2100
    begun = WeightChange(number, 0, weights)
    many = tuple(WeightChange(number, 1 + element, weights) for element in range(8))
    assert decided(mixed, weights=weights, before=(begun, *many[1:]))
    with pytest.raises(
        PipelineError, match=r"changed weights 8 times in this epoch.*set them less often, or have epochs"
    ):
        decided(mixed, weights=weights, before=(begun, *many))
    last = decided(mixed, weights=weights)[1]
    again = decided(mixed, weights=weights, before=(begun, *many[1:], last))[1]  # replaces that one
    assert (again.element, again.replaced) == (last.element, 1)
    weight_changes.check_numbers((begun, *many[1:], last))


def test_of_what_is_set_before_the_next_task_begins_the_last_counts_and_a_list_does_not_grow():
    """However often: thousands of sets in an epoch of which nothing else begins are one."""
    changes: tuple[WeightChange, ...] = (WeightChange(weight_changes.mixture_of(units_of(endless()).graph), 0, (3, 1)),)
    element = decided(endless().take(900), 1)[1].element
    for turn in range(3):
        changes = weight_changes.with_change(changes, decided(endless().take(900), 1, (1, 2 + turn), before=changes)[1])
    assert [(each.element, each.weights, each.replaced) for each in changes] == [
        (0, (3, 1), 0),
        (element, (1, 4), 2),
    ]
    at_begin = decided(endless().take(900), 0, (1, 7), before=changes[:1])[1]
    assert weight_changes.with_change(changes[:1], at_begin) == (at_begin,)
    assert at_begin.replaced == 1


@pytest.mark.parametrize(
    ("pieces", "read"),
    [
        ([Piece.of(100, 200), Piece.of(400, 900)], 400),
        ([Piece.of(100, 900)], 100),
        ([Piece.of(100, 800)], 900),  # the last ones were read
        ([Piece.of(100, 200), Piece(850, 900, 7, 50, 3)], 900),  # of a task that was read in part
        ([Piece(0, 0, 0, 0)], 900),
    ],
)
def test_of_an_epoch_that_was_divided_anew_the_boundary_is_behind_all_that_was_read(pieces, read):
    """What was read before must not be drawn by other weights: the elements behind it would be others."""
    units = units_of(endless().take(900))
    plan = plan_of(units, 6, None, pieces)
    assert plan.length is not None
    for task in range(plan.length + 1):
        found = decided(endless().take(900), task, tasks=6, pieces=pieces)[1].element
        assert found == max(read, plan.task(task - 1).pieces[-1].stop if task else 0)


def test_weights_that_are_set_where_less_has_begun_than_before_hold_behind_the_earlier_ones():
    number = weight_changes.mixture_of(units_of(endless().take(900)).graph)
    before = (WeightChange(number, 700, (1.0, 2.0)),)
    assert decided(endless().take(900), 1, before=before)[1].element == 700


def test_behind_the_last_task_it_holds_for_no_element_of_the_epoch():
    dataset = endless().take(900)
    units = units_of(dataset)
    plan = plan_of(units)
    assert plan.length is not None
    assert decided(dataset, plan.length - 1)[1].element < 900
    assert weight_changes.set_weights(units, plan.task, plan.length, 0, (), (1, 9)).element == 900


@pytest.mark.parametrize(
    ("behind", "end"),
    [
        (lambda mixed: mixed.take(900), 900),
        (lambda mixed: mixed.batch(4).take(100), 400),
        (lambda mixed: mixed.take(900).skip(7), 900),
        (lambda mixed: mixed.take(100).concatenate(Dataset.range(900)), 100),
        (lambda mixed: mixed, None),
    ],
)
def test_it_is_too_late_where_nothing_of_the_epoch_is_made_of_what_comes_from_there_on(behind, end):
    units = units_of(behind(endless()))
    number = weight_changes.mixture_of(units.graph)
    assert not weight_changes.too_late(units, number, 10**12 if end is None else end - 1)
    if end is not None:
        assert weight_changes.too_late(units, number, end)


def test_a_boundary_before_a_tail_is_where_the_tasks_before_it_end():
    dataset = endless().take(9000).filter(bool).batch(4)
    units = units_of(dataset)
    plan = plan_of(units, 20)
    tail = next(index for index in range(20) if plan.task(index).is_tail)
    found = [weight_changes.set_weights(units, plan.task, index, 0, (), (1, 9)).element for index in (tail, tail + 1)]
    assert found == [plan.task(tail - 1).stop] * 2 == [plan.task(tail + 1).start] * 2


lengths = st.lists(st.sampled_from([0, 3, 40, ENDLESS]), min_size=2, max_size=4)
ANY = st.sampled_from([0.0, 0.1, 1.0, 9.0])


@settings(max_examples=300)
@given(lengths, st.data(), st.sampled_from(["stop", "go on", "cycle"]), st.integers(0, 99))
def test_where_a_change_is_allowed_length_and_all_before_it_stay(counts, data, ending, seed):
    drawn = st.lists(ANY, min_size=len(counts), max_size=len(counts)).filter(any).map(tuple)
    weights = data.draw(drawn)
    passes = list(counts) if ending == "cycle" else None
    counts = [ENDLESS if count else 0 for count in counts] if ending == "cycle" else counts
    node = g.SampleFromDatasets(
        inputs=(TWO * 2)[: len(counts)],
        weights=weights,
        cycle=ending == "cycle",
        stop_on_empty_dataset=ending == "stop",
    )
    mixed = NodeMixture(node, seed, counts, passes)
    changes: tuple[tuple[int, tuple[float, ...]], ...] = ()
    for element in sorted(data.draw(st.lists(st.integers(0, 90), max_size=3))):
        other = data.draw(drawn)
        if not mixed.keeps_length(0, (*changes, (element, other))):
            continue
        before, changes = mixed.of_epoch(0, changes), (*changes, (element, other))
        after = mixed.of_epoch(0, changes)
        assert after.total == before.total == mixed.total
        until = np.arange(min(element, mixed.total))
        assert [each.tolist() for each in before.resolve(until)] == [each.tolist() for each in after.resolve(until)]
        anew = Mixture(seed, weights, counts, ending == "stop", passes, changes)
        some = np.arange(min(200, mixed.total))
        assert [each.tolist() for each in anew.resolve(some)] == [each.tolist() for each in after.resolve(some)]


@pytest.mark.parametrize("element", [0, 5, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_what_was_drawn_before_a_change_is_drawn_once(element):
    counts = [BLOCK // 3, 10 * BLOCK]
    one = Mixture(7, [1, 1], counts)
    one.resolve([3 * BLOCK])
    other = one.changed((element, [1, 3]))
    assert len(other._drawn.starts) - 1 == np.searchsorted(one._drawn.starts[1:], element)
    plain = Mixture(7, [1, 1], counts, changes=[(element, [1, 3])])
    some = np.arange(0, 4 * BLOCK, 7)
    assert all(np.array_equal(*pair) for pair in zip(other.resolve(some), plain.resolve(some), strict=True))


def test_a_mixture_that_cannot_end_before_its_last_weights_is_not_drawn_to_know_that():
    mixture = Mixture(0, [1, 0], [ENDLESS, ENDLESS], changes=[(10**15, [0, 1])])
    assert mixture.total == ENDLESS
    assert len(mixture._drawn.starts) == 1


ONE, OTHER = WeightChange(4, 10, (1.0, 3.0)), WeightChange(4, 90, (1.0, 1.0))


def test_states_carry_changes_and_the_longest_list_counts():
    known = Checkpoint(seed=1, done=3, reweighted=(ONE, OTHER), rank=0, ranks=2)
    late = Checkpoint(seed=1, done=2, reweighted=(ONE,), rank=1, ranks=2)
    assert unpack(pack(known)) == known
    assert msgspec.json.decode(msgspec.json.encode(pack(known)))["reweighted"] == [[4, 10, [1, 3]], [4, 90, [1, 1]]]
    assert "reweighted" not in pack(Checkpoint())
    assert merge([late, known]).reweighted == merge([known, late]).reweighted == (ONE, OTHER)
    with pytest.raises(StateError, match="other weights were set"):
        merge([known, msgspec.structs.replace(late, reweighted=(OTHER,))])


def test_states_of_before_and_after_a_change_was_replaced_are_of_one_run():
    replacing, again = WeightChange(4, 90, (2.0, 1.0), 1), WeightChange(4, 90, (3.0, 1.0), 2)
    after = WeightChange(4, 95, (1.0, 1.0))
    for one, other in (
        ((ONE, OTHER), (ONE, replacing)),
        ((ONE, OTHER), (ONE, again, after)),
        ((ONE, replacing), (ONE, again)),
        ((ONE,), (ONE, again)),
        ((), (ONE, again)),
        ((ONE, OTHER, WeightChange(4, 90, (2.0, 1.0))), (ONE, again)),  # a state that has what was replaced
    ):
        assert weight_changes.longest([one, other]) == weight_changes.longest([other, one]) == other
    for one, other in (
        ((ONE, replacing), (ONE, OTHER, after)),
        ((OTHER,), (ONE, again)),
        ((again,), (replacing, after)),
    ):
        with pytest.raises(StateError, match="other weights were set"):
            weight_changes.longest([one, other])
    known = Checkpoint(seed=1, done=3, reweighted=(ONE, replacing))
    assert pack(known)["reweighted"] == [[4, 10, [1.0, 3.0]], [4, 90, [2.0, 1.0], 1]]
    assert unpack(pack(known)) == known


def test_an_epoch_after_one_in_which_weights_were_set_begins_with_the_last():
    ended = Checkpoint(seed=1, done=9, reweighted=(ONE, OTHER), ended=True)
    assert merge([ended]).epoch == 1
    assert merge([ended]).reweighted == (WeightChange(4, 0, (1.0, 1.0)),)
    assert weight_changes.carried((ONE, WeightChange(2, 5, (7.0,)))) == (
        WeightChange(2, 0, (7.0,)),
        WeightChange(4, 0, (1.0, 3.0)),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        [[4, -1, [1.0, 1.0]]],
        [[4, 9, [1.0, 1.0]], [4, 8, [1.0, 1.0]]],
        [[4, 1 << 63, [1.0, 1.0]]],
        [[4, 9, [1.0, -1.0]]],
        [[4, 9, [0.0, 0.0]]],
        [[4, 9, [float("inf"), 1.0]]],
        [[4, 9, [1.0, 1.0], -1]],
        [[4, element, [1.0] * 9000] for element in (1, 2, 3)],
    ],
)
def test_damaged_changes_are_refused(wrong):
    with pytest.raises(StateError, match="damaged"):
        unpack({**pack(Checkpoint(seed=1, done=3)), "reweighted": wrong})


def test_changes_of_another_pipeline_are_refused():
    units = units_of(endless().take(900))
    number = weight_changes.mixture_of(units.graph)
    weight_changes.check_changes(units, 0, (WeightChange(number, 10, (1.0, 3.0)),))
    for wrong in (WeightChange(0, 10, (1.0, 3.0)), WeightChange(99, 10, (1.0,)), WeightChange(number, 10, (1.0,))):
        with pytest.raises(StateError, match="does not mix by"):
            weight_changes.check_changes(units, 0, (wrong,))
    finite = units_of(Dataset.sample_from_datasets([SOME, SOME], seed=1))
    with pytest.raises(StateError, match="another number of elements"):
        weight_changes.check_changes(finite, 0, (WeightChange(weight_changes.mixture_of(finite.graph), 5, (1.0, 0.0)),))
