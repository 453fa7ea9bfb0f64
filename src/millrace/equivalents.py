"""Names and arguments of other data loaders, and what to write here instead: for errors, and for a page of the docs.

Somebody who comes from tf.data, torch, Hugging Face or Ray Data tries the names of there first. The error that they
get names the equivalent.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABCMeta
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from millrace.errors import PipelineError

OPERATORS = {
    "apply": "call the function: function(ds)",
    "as_numpy_iterator": "iterate over the dataset: its elements are numpy's; .numpy() turns Python numbers into them",
    "bucket": "bucket_by_sequence_length(element_length_func, bucket_boundaries, bucket_batch_sizes)",
    "cardinality": "len(ds)",
    "batch_and_pad": 'batch(n, fill_remainder="mask")',
    "collate": "batch(n), which stacks leaf by leaf, or batch(n, collate=function)",
    "counter": "Dataset.range(n), or Dataset.range(n).repeat()",
    "dense_to_ragged_batch": "ragged_batch(n)",
    "from_dict": "Dataset.from_arrays(columns), in which each column is an array",
    "from_items": "Dataset.from_list(items)",
    "from_iterable": "Dataset.from_list(list(iterable))",
    "from_numpy": "Dataset.from_arrays(arrays)",
    "from_tensor_slices": "Dataset.from_arrays(arrays), of which workers on this host share one copy",
    "from_tensors": "Dataset.from_list([element])",
    "get_single_element": "next(iter(ds))",
    "ignore_errors": 'with_options(on_error="skip")',
    "iter_batches": "batch(n), and iterate",
    "iter_rows": "iterate over the dataset",
    "iter_torch_batches": "batch(n).torch(), and iterate",
    "list_files": "Dataset.from_files(pattern), whose elements hold path and bytes",
    "map_batches": "batch(n).map(function)",
    "options": "with_options(...)",
    "pack_dataset": "pack(n): rows of n tokens, each filled with whole sequences",
    "padded_batch_to_dense": "padded_batch(n)",
    "parallel_interleave": "interleave(...), which runs in parallel",
    "random": "Dataset.range(n).map(lambda _, rng: rng.integers(2**31))",
    "random_shuffle": "shuffle(buffer_size, seed=...)",
    "read_csv": "Dataset.from_csv(pattern)",
    "read_images": "Dataset.from_files(pattern).map(decode)",
    "read_parquet": "Dataset.from_parquet(pattern)",
    "read_text": "Dataset.from_text(pattern)",
    "select": "take(n), skip(n) or shard(n, index); of single positions Dataset.from_list([...]).map(lookup)",
    "set_epoch": "iter(ds), which is the next epoch each time, shuffled anew",
    "snapshot": "cache(path), or save(path, if_exists='refresh') and Dataset.load(path)",
    "sparse_batch": "padded_batch(n)",
    "train_test_split": "take(n) for the one part and skip(n) for the other",
}
"""What stands here for an operator or a source of another library."""

ARGUMENTS = {
    "args": "write a function that knows them: functools.partial(function, ...)",
    "batch_fn": "collate=function",
    "batch_size": "put batch(n) behind it",
    "collate_fn": "put batch(n) behind it, which stacks leaf by leaf, or batch(n, collate=function)",
    "cross_trainer_cache": "autocache() where the pipeline may be cached: jobs share what is kept there",
    "data_transfer_protocol": "leave it out: memory is shared on one host, TCP is used between hosts",
    "drop_last": "drop_remainder=True",
    "dtype": "write a function that converts: map(lambda element: element.astype(...))",
    "max_seq_len": "write the number alone: pack(n)",
    "max_outstanding_requests": "with_options(buffer_bytes=...): what waits to be read is bounded in bytes",
    "name": "leave it out: an operator is called by its function's name, as in map(decode)",
    "num_epochs": "repeat(n), or iterate n times: each iteration is one epoch",
    "num_packing_bins": "window=n",
    "num_workers": "distribute(workers=n), or with_options(num_threads=n) in this process",
    "output_shapes": "leave it out: elements are what the function returns",
    "output_signature": "leave it out: elements are what the function returns",
    "output_types": "leave it out: elements are what the function returns",
    "padding_idx": "padding_values=...",
    "pin_memory": "leave it out; .torch() gives tensors on which pin_memory() can be called",
    "processing_mode": "sharding=ShardingPolicy.DYNAMIC, .STATIC or .OFF",
    "rerandomize_each_iteration": "leave it out: the values of rng are others in each epoch",
    "split_across_pack": 'too_long="split"',
    "stop_criteria": "write stop_on_empty_dataset=..., or cycle=True where datasets that have ended begin again",
    "stopping_strategy": "write stop_on_empty_dataset=..., or cycle=True where datasets that have ended begin again",
    "task_refresh_interval_hint_ms": "leave it out: workers are told of tasks, they do not ask",
    "worker_init_fn": "make what is expensive on first use, in a function with functools.cache around it",
}
"""What to do about an argument of another library."""

_BEFORE = "it before distribute(): behind it there is what comes to this process, in the order in which it comes"
BEHIND = {
    **OPERATORS,
    **dict.fromkeys(
        (
            *("choose_from_datasets", "concatenate", "rejection_resample", "reservoir"),
            *("sample", "sample_from_datasets", "zip"),
        ),
        _BEFORE,
    ),
}
"""The same behind ``distribute()``."""

MODULE = {
    "DataLoader": "ds.torch(), which torch's DataLoader takes as well",
    "DistributeOptions": "ds.distribute(...)",
    "FirstFitPackIterDataset": "ds.pack(n)",
    "FixedLengthRecordDataset": "Dataset.from_fixed_length_records(pattern, record_bytes)",
    "IterableDataset": "ds.torch(), which is one",
    "MultiNodeWeightedSampler": "Dataset.sample_from_datasets([...], weights)",
    "Options": "ds.with_options(...)",
    "PackedDataset": "ds.pack(n)",
    "TensorDataset": "Dataset.from_arrays((x, y)), of which workers on this host share one copy",
    "TFRecordDataset": "Dataset.from_tfrecords(pattern)",
    "CsvDataset": "Dataset.from_csv(pattern)",
    "TextLineDataset": "Dataset.from_text(pattern)",
    "data": "the names of tf.data directly: millrace.Dataset, millrace.AUTOTUNE",
    "experimental": "the names of tf.data directly: millrace.Dataset, millrace.AUTOTUNE",
    "interleave_datasets": "Dataset.sample_from_datasets(...), or Dataset.choose_from_datasets(...) for each in turn",
    "read_images": "Dataset.from_files(pattern).map(decode)",
    "read_csv": "Dataset.from_csv(pattern)",
    "read_parquet": "Dataset.from_parquet(pattern)",
    "read_text": "Dataset.from_text(pattern)",
    "read_tfrecords": "Dataset.from_tfrecords(pattern)",
}
"""What stands here for a name in another library's module."""


def no_attribute(owner: str, name: str, equivalents: dict[str, str]) -> str:
    """Write the message of an ``AttributeError``, with the equivalent if there is one."""
    remedy = equivalents.get(name)
    return f"{owner} has no attribute {name!r}" + (f"; write {remedy}" if remedy else "")


class _EquivalentsOfClass(ABCMeta):
    """Names on the class itself, as in ``Dataset.from_generator``."""

    if not TYPE_CHECKING:  # else type checkers believe that every name is there

        def __getattr__(cls, name: str) -> Any:
            raise AttributeError(no_attribute(cls.__name__, name, cls._equivalents))


class NamesEquivalents(metaclass=_EquivalentsOfClass):
    """A class whose errors about names and arguments that are not there say what to write instead.

    Public methods that are defined in a subclass refuse arguments they do not have with the equivalent.
    """

    _equivalents: ClassVar[dict[str, str]] = OPERATORS

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(no_attribute(f"a {type(self).__name__}", name, self._equivalents))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, member in list(vars(cls).items()):
            if name.startswith("_"):
                continue
            if isinstance(member, classmethod | staticmethod):
                setattr(cls, name, _OfClass(type(member)(_explaining(member.__func__, cls.__name__))))
            elif inspect.isfunction(member):
                setattr(cls, name, _explaining(member))


class _OfClass:
    """Method that is called on the class; on an instance it is refused, as that would be left out."""

    def __init__(self, member: classmethod[Any, Any, Any] | staticmethod[Any, Any]) -> None:
        self._member = member

    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        method = self._member.__get__(None, owner)
        return method if instance is None else functools.wraps(method)(functools.partial(_left_out, owner, method))


def _left_out(owner: type, method: Callable[..., Any], *_args: Any, **_kwargs: Any) -> NoReturn:
    call = f"{owner.__name__}.{method.__name__}"
    raise PipelineError(
        f"{call}() makes a dataset of its arguments alone, so that the one it is called on would be left out: "
        f"write {call}(...), with all that belongs to it between the parentheses"
    )


def _explaining(function: Callable[..., Any], owner: str = "") -> Callable[..., Any]:
    """Have ``function`` refuse arguments that it does not have, or lacks, with what to do instead.

    Args:
        function: a method.
        owner: name of its class; empty: that of the object it is called on.
    """
    signature = inspect.signature(function)
    known = signature.parameters
    if any(each.kind is each.VAR_KEYWORD for each in known.values()):
        return function
    takes = f"it takes {', '.join(each for each in known if each not in _BOUND) or 'none'}"

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in known:
                raise TypeError(f"{function.__name__}() has no argument {name!r}; {ARGUMENTS.get(name, takes)}")
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:  # Python's own message would name the class that defines the method
            raise TypeError(f"{owner or type(args[0]).__name__}.{function.__name__}(): {error}; {takes}") from None
        return function(*args, **kwargs)

    return call


_BOUND = {"self", "cls"}
