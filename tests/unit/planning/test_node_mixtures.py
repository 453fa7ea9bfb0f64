import numpy as np
import pytest

from millrace.dataset import Dataset
from millrace.errors import PipelineError
from millrace.graph import nodes as g
from millrace.planning.node_mixtures import NodeMixture

TWO = (g.Range(start=0, stop=9), g.Range(start=0, stop=9))


def mixture(weights, counts, **chosen):
    node = g.SampleFromDatasets(inputs=TWO, weights=weights, **chosen)
    return NodeMixture(node, 1, counts, None)


def test_each_epoch_has_the_weights_that_hold_from_the_last_change_on():
    mixed = mixture((1.0, 0.0, 0.0, 1.0), [1 << 62, 1 << 62], weights_from=(0, 3), weights_by="epoch")
    whole = np.arange(50)
    assert [int(mixed.of_epoch(epoch).resolve(whole)[0].sum()) for epoch in (0, 2, 3, 99)] == [0, 0, 50, 50]
    assert mixed.shares == [0.5, 0.5]


def test_within_an_epoch_they_change_at_an_element_of_each_epoch():
    mixed = mixture((1.0, 0.0, 0.0, 1.0), [60, 60], weights_from=(0, 30), weights_by="element")
    assert mixed.total == 90
    for epoch in (0, 5):
        assert mixed.of_epoch(epoch).resolve(np.arange(90))[0].tolist() == [0] * 30 + [1] * 60


def test_epochs_of_different_lengths_are_refused_with_a_remedy():
    for weights, stop in (((1.0, 0.0, 1.0, 1.0), False), ((1.0, 9.0, 9.0, 1.0), True)):
        with pytest.raises(PipelineError, match=r"all epochs must have equally many: end it with take\(n\)"):
            mixture(weights, [60, 90], stop_on_empty_dataset=stop, weights_from=(0, 4), weights_by="epoch")


@pytest.mark.filterwarnings("ignore:the pipeline runs as one task")
def test_epochs_are_mixed_by_their_weights_planned_or_as_one_sequence():
    def datasets(*inputs):
        return Dataset.sample_from_datasets(inputs, {0: [9, 1], 2: [1, 9]}, seed=3)

    planned = datasets(Dataset.range(100), Dataset.range(100, 200))
    sequenced = datasets(Dataset.range(100).filter(lambda number: True), Dataset.range(100, 200))
    for dataset in (planned, sequenced):
        epochs = [list(dataset) for _ in range(4)]
        assert [sum(number < 100 for number in epoch[:60]) > 40 for epoch in epochs] == [True, True, False, False]
        assert all(sorted(epoch) == list(range(200)) for epoch in epochs)
        assert epochs[0] == epochs[1]
