import copy
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.equivalents import ARGUMENTS, MODULE, OPERATORS

DATASET: Any = mr.Dataset
TEN: Any = mr.Dataset.range(10)
MILLRACE: Any = mr


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_of_another_library_is_answered_with_what_stands_for_it(name: str):
    for owner, who in ((DATASET, "Dataset"), (TEN, "a Dataset")):
        with pytest.raises(
            AttributeError, match=f"^{who} has no attribute '{name}'; write {re.escape(OPERATORS[name])}$"
        ):
            getattr(owner, name)
        assert not hasattr(owner, name)


def test_a_name_of_no_library_is_an_ordinary_error():
    with pytest.raises(AttributeError, match=r"^a Dataset has no attribute 'bach'$"):
        TEN.bach(3)
    with pytest.raises(AttributeError, match=r"^Dataset has no attribute 'from_fils'$"):
        DATASET.from_fils("x")
    with pytest.raises(AttributeError, match=r"^module 'millrace' has no attribute 'Datasets'$"):
        _ = MILLRACE.Datasets


def test_an_operator_on_a_view_is_told_its_place():
    view: Any = TEN.numpy()
    with pytest.raises(
        AttributeError,
        match=r"^a NumpyDataset has no attribute 'batch'; operators and distribute\(\) come before numpy\(\)$",
    ):
        view.batch(3)
    with pytest.raises(AttributeError, match=r"^a NumpyDataset has no attribute '_batch'$"):
        view._batch  # noqa: B018
    assert list(pickle.loads(pickle.dumps(copy.copy(view)))) == list(range(10))


@pytest.mark.parametrize("content", [(), ([1, 2],)], ids=["nothing", "a list"])
def test_a_dataset_is_not_made_by_its_class(content: tuple[Any, ...]):
    with pytest.raises(mr.PipelineError, match=r"^a dataset begins with a source: Dataset\.from_list\(items\), "):
        DATASET(*content)


def test_names_of_a_module_are_answered_too():
    for name, instead in MODULE.items():
        with pytest.raises(AttributeError, match=re.escape(f"no attribute {name!r}; write {instead}")):
            getattr(MILLRACE, name)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: TEN.map(len, name="lengths"), f"map() has no argument 'name'; {ARGUMENTS['name']}"),
        (lambda: TEN.batch(3, drop_last=True), f"batch() has no argument 'drop_last'; {ARGUMENTS['drop_last']}"),
        (lambda: DATASET.from_list([1], name="x"), f"from_list() has no argument 'name'; {ARGUMENTS['name']}"),
        (lambda: DATASET.zip(TEN, nam="x"), "zip() has no argument 'nam'; it takes datasets"),
        (
            lambda: TEN.batch(3, drop=True),
            "batch() has no argument 'drop'; it takes batch_size, drop_remainder, fill_remainder, collate, key",
        ),
        (
            lambda: TEN.distribute(processing_mode="distributed_epoch"),
            f"distribute() has no argument 'processing_mode'; {ARGUMENTS['processing_mode']}",
        ),
    ],
)
def test_an_argument_of_another_library_is_answered_with_what_to_do(call: Any, said: str):
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            TEN.shuffle,
            "Dataset.shuffle(): missing a required argument: 'buffer_size'; it takes buffer_size, ",
        ),
        (lambda: TEN.take(1, 2), "Dataset.take(): too many positional arguments; it takes count"),
        (TEN.peek, "Dataset.peek(): missing a required argument: 'count'; it takes count"),
        (lambda: TEN.torch(batch_size=3), f"torch() has no argument 'batch_size'; {ARGUMENTS['batch_size']}"),
        (lambda: TEN.numpy(1), "Dataset.numpy(): too many positional arguments; it takes none"),
        (lambda: TEN.numpy().load_state_dict(), "NumpyDataset.load_state_dict(): missing a required argument: 'state'"),
        (DATASET.from_list, "Dataset.from_list(): missing a required argument: 'items'; it takes items"),
        (lambda: TEN.distribute().skip(), "DistributedDataset.skip(): missing a required argument: 'count'"),
        (lambda: TEN.distribute().epochs(), "DistributedDataset.epochs(): missing a required argument: 'count'"),
    ],
)
def test_arguments_that_do_not_fit_are_answered_with_the_name_that_users_know(call: Any, said: str):
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: TEN.zip(TEN), "zip"),
        (lambda: TEN.zip((TEN, TEN)), "zip"),
        (lambda: TEN.sample_from_datasets([TEN]), "sample_from_datasets"),
        (lambda: TEN.from_list([1]), "from_list"),
        (lambda: TEN.range(3), "range"),
    ],
)
def test_a_method_of_the_class_leaves_out_no_dataset_that_it_is_called_on(call: Any, name: str):
    with pytest.raises(mr.PipelineError, match=rf"^Dataset\.{name}\(\) makes .* write Dataset\.{name}\(\.\.\.\), "):
        call()


def test_what_stands_for_a_name_is_there():
    everything = " ".join([*OPERATORS.values(), *ARGUMENTS.values(), *MODULE.values()])
    named = set(re.findall(r"(?:Dataset|ds)\.(\w+)\(", everything)) | set(
        re.findall(r"(?<![.\w])(\w+)\((?:n|\.\.\.)\)", everything)
    )
    assert {"from_files", "batch", "sample_from_datasets", "torch", "with_options"} <= named
    assert {name for name in named - {"len", "function"} if not hasattr(DATASET, name)} == set()
    for arguments in re.findall(r"^(\w+)=", "\n".join(ARGUMENTS.values()), re.MULTILINE):
        assert any(
            arguments in inspect.signature(getattr(mr.Dataset, name)).parameters
            for name in ("batch", "distribute", "pack")
        )


def test_every_name_stands_in_the_page_for_newcomers():
    page = (Path(__file__).parents[2] / "docs/coming-from.md").read_text()
    assert {name for name in [*OPERATORS, *ARGUMENTS, *MODULE] if f"`{name}" not in page} == set()


def test_signatures_stay_what_they_are_and_copies_can_be_made():
    assert list(inspect.signature(mr.Dataset.batch).parameters) == [
        "self",
        "batch_size",
        "drop_remainder",
        "fill_remainder",
        "collate",
        "key",
    ]
    assert inspect.getdoc(mr.Dataset.batch)
    assert list(copy.deepcopy(TEN)) == list(pickle.loads(pickle.dumps(TEN))) == list(range(10))


def test_the_module_shows_what_is_public_and_nothing_else():
    assert dir(mr) == mr.__all__
    assert not hasattr(mr, "Any")
    for name in mr.__all__:
        assert getattr(mr, name) is not None
