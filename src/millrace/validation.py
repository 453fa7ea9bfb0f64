"""Checks of what users pass to :class:`millrace.Dataset`: plain values out, or an error that says what to write."""

from __future__ import annotations

import glob
import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from numbers import Real
from typing import TYPE_CHECKING, Any

from millrace.errors import PipelineError
from millrace.functions.signature import describe, name_of, where_of
from millrace.graph.nodes import AUTOTUNE, Node, Opaque
from millrace.graph.notation import call_notation, graph_of
from millrace.planning.sampler_orders import ComputedSampler
from millrace.planning.units import INFINITE
from millrace.policies.read_concurrency import MOST_CHOSEN
from millrace.policies.scheduling.fair_share import MAX_PRIORITY, MIN_PRIORITY
from millrace.protocol.job_spec import MOST_CONSUMERS, MOST_WORKERS
from millrace.sources.storage import absolute
from millrace.whole_numbers import is_int, whole
from millrace.wire.address import parse_address

if TYPE_CHECKING:
    from millrace.dataset import Dataset


Patterns = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
DigestPath = str | os.PathLike[str] | None


class WindowReducer:
    """Function that gives a ``reduce_func`` its window as a dataset."""

    def __init__(self, reduce_func: Callable[[Any, Dataset], Any]) -> None:
        self.reduce_func = reduce_func

    def __call__(self, key: Any, elements: list[Any]) -> Any:
        """Call ``reduce_func`` for a window."""
        from millrace.dataset import Dataset

        return self.reduce_func(key, Dataset.from_list(elements))


class GeneratorCall:
    """Call of a user's generator function, for the one element that stands for the whole source."""

    def __init__(self, generator: Callable[..., Any]) -> None:
        self.generator = generator

    def __call__(self, _element: Any, **rng: Any) -> Any:
        """Begin to generate."""
        return self.generator(**rng)


def begun(source: Node | None) -> Node:
    """Check the node of a dataset that is being made: not what a user gave to the class."""
    if not isinstance(source, Node):
        raise PipelineError(
            "a dataset begins with a source: Dataset.from_list(items), Dataset.from_arrays(arrays),"
            " Dataset.from_files(pattern), Dataset.range(n), ..."
        )
    return source


def node(operator: str, value: Any) -> Node:
    """Last node of a dataset."""
    graph = graph_of(value)
    if graph is None and hasattr(type(value), "__pipeline__"):
        raise PipelineError(f"{operator} takes datasets that are not distributed: put it before distribute()")
    if graph is None:
        raise PipelineError(f"{operator} takes datasets, not {type(value).__name__}")
    return graph.root


def members(operator: str, datasets: Any) -> dict[str, Any]:
    """Find ``inputs`` of datasets that are given one by one, in a sequence, or in a dict, and the ``keys`` of that."""
    several = datasets[0] if len(datasets) == 1 and isinstance(datasets[0], (tuple, list, Mapping)) else datasets
    keys = tuple(several) if isinstance(several, Mapping) else None
    found = several.values() if isinstance(several, Mapping) else several
    if not found:
        raise PipelineError(f"{operator} needs at least one dataset")
    return {"inputs": tuple(node(operator, member) for member in found), "keys": keys}


def written(method: Callable[..., Any], *positional: Any, **named: Any) -> str:
    """Write a call of a method as users do, without what is its default."""
    defaults = {name: each.default for name, each in inspect.signature(method).parameters.items()}
    shown = {name: Opaque(each, name_of(each)) if inspect.isroutine(each) else each for name, each in named.items()}
    return call_notation(method.__name__, positional, shown, defaults)


def one_of(operator: str, name: str, value: Any, choices: Sequence[Any]) -> None:
    """Check that a value is one of ``choices``."""
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise PipelineError(f"{operator}: {name} must be one of {listed}, not {value!r}")


def function(operator: str, value: Any, arguments: Sequence[str] = ("element",), key: str = "") -> Opaque:
    """Describe a user's function: its name, whether it takes ``rng``, and the ``key`` that the user gave it."""
    about = describe(value, operator, arguments)
    return Opaque(value, about.name, about.where, about.takes_rng, version(operator, key))


def generator(operator: str, value: Any, key: str) -> Opaque:
    """Describe a user's generator function."""
    if inspect.isgenerator(value):
        raise PipelineError(
            f"{operator} takes a generator function, not the generator that it returns, which would be at its end "
            f"after one epoch: {operator}({name_of(value)})"
        )
    about = describe(value, operator, ())
    return Opaque(GeneratorCall(value), about.name, about.where, about.takes_rng, version(operator, key))


def version(operator: str, value: Any) -> str:
    """Check ``key``, the name that the user gives to a function's or an object's version."""
    if not isinstance(value, str):
        raise PipelineError(f'{operator}: key names the version of your function, as in key="v3", not {value!r}')
    return value


def reducer(operator: str, value: Any) -> Opaque:
    """Describe a user's function of a key and a window."""
    return Opaque(WindowReducer(value), *describe(value, operator, ("key", "window"), passes_rng=False))


def listed(operator: str, what: str, value: Any) -> tuple[Any, ...]:
    """Check that ``value`` is a list, a tuple or the like; return it as a tuple."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise PipelineError(f"{operator} takes a list of {what}, not {value!r}")
    return tuple(value)


def columns(operator: str, value: Any, what: str = "columns") -> tuple[str, ...] | None:
    """Names of columns, or of what else elements have by name, at least one; None for all."""
    if value is None:
        return None
    chosen = listed(operator, what, value)
    if not chosen or not all(isinstance(name, str) for name in chosen):
        raise PipelineError(f"{operator}: {what} are names, at least one, or None for all, not {list(chosen)}")
    if len(set(chosen)) < len(chosen):
        raise PipelineError(f"{operator}: {what} are different names, not {list(chosen)}")
    return chosen


def patterns(operator: str, value: Patterns) -> tuple[str, ...]:
    """Paths or patterns, at least one; local ones absolute, as workers run in folders of their own."""
    given = (value,) if isinstance(value, (str, os.PathLike)) else listed(operator, "paths or patterns", value)
    for each in given:
        if not isinstance(each, (str, os.PathLike)):
            raise PipelineError(f"{operator} takes a path, a pattern or a list of such, not {each!r}")
    several = tuple(map(str, given))
    if not several:
        raise PipelineError(f"{operator} needs at least one path or pattern, and the list is empty")
    if "" in several:
        raise PipelineError(f"{operator}: a path or pattern is empty; name a file, or a pattern like 'train/**/*.jpg'")
    return tuple(map(_absolute, several))


def _absolute(pattern: str) -> str:
    if "://" in pattern:
        return pattern
    pattern = os.path.expanduser(pattern)
    if os.path.isabs(pattern):
        return pattern
    while pattern.startswith("./"):
        pattern = pattern[2:].lstrip("/")
    return os.path.join(glob.escape(os.getcwd()), pattern)  # the folder's own name is no pattern


def digest(operator: str, value: Any) -> str:
    """Path or URL of a digest; empty for None. Relative paths are of this process's working folder."""
    if value is None:
        return ""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(path, str) or not path:
        raise PipelineError(
            f"{operator}(digest=) takes the path or URL of a file that `millrace digest` made, or None, not {value!r}"
        )
    return absolute(path)


def compression(operator: str, value: Any) -> str | None:
    """Compression of files; None goes by each file's ending."""
    one_of(operator, "compression", value, (None, "", "GZIP", "ZLIB"))
    return None if value is None else str(value)


_COLUMN_TYPES: dict[Any, str] = {int: "int", float: "float", str: "str", bytes: "bytes", bool: "bool"}


def column_types(operator: str, value: Any) -> dict[str, str] | None:
    """Names of types by column; None where none was given."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(kind in _COLUMN_TYPES for kind in value.values()):
        raise PipelineError(f"{operator}: types are int, float, str, bytes or bool by column, not {value!r}")
    return {str(name): _COLUMN_TYPES[kind] for name, kind in value.items()}


def delimiter(operator: str, value: Any) -> str:
    """Character between the values of a row."""
    if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in '"\r\n':
        raise PipelineError(f"{operator}: delimiter is one ASCII character other than a quote, not {value!r}")
    return value


def folder(operator: str, name: str, value: Any) -> str | None:
    """Path of a folder, or the URL of a prefix; None for none. Relative paths are of this process's working folder."""
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(path, str) or not path:
        raise PipelineError(f"{operator}({name}=) takes the path of a folder or None, not {value!r}")
    return absolute(path)


def numbers(args: tuple[Any, ...]) -> range:
    """Range of fewer numbers than can be counted."""
    try:
        chosen = range(*args)
    except (TypeError, ValueError) as error:
        raise PipelineError(f"range{args}: {error}") from None
    if chosen and (chosen[-1] - chosen[0]) // chosen.step >= INFINITE:
        raise PipelineError(f"range{args} is too long; for data without end write range(n).repeat()")
    return chosen


def sequence(operator: str, value: Any, remedy: str) -> int:
    """Length of something with ``len()`` and ``[i]``."""
    sized = isinstance(value, Sized) and hasattr(value, "__getitem__") and not isinstance(value, (str, bytes, type))
    if not sized:
        raise PipelineError(f"{operator} takes something with len() and [i], not {type(value).__name__}; {remedy}")
    try:
        return len(value)
    except TypeError as error:  # an array of no dimensions, say
        raise PipelineError(f"{operator} takes something with len() and [i], and there is no len(): {error}") from error


def items(value: Any) -> int:
    """Count the items of ``from_list``."""
    count = sequence("from_list", value, "of a generator write from_list(list(...))")
    try:
        if count:
            value[0]
    except LookupError as error:
        raise PipelineError(
            f"from_list takes a list of elements, and this {type(value).__name__} has no item 0 "
            f"({type(error).__name__}: {error}); of columns make rows first"
        ) from error
    return count


def arrays(value: Any) -> tuple[Opaque, int, Callable[[], str]]:
    """Arrays with equally many rows, how many, and what finds the hash of what they hold."""
    from millrace.sources.arrays import arrays_of

    found = arrays_of(value)
    return Opaque(found, str(found)), found.count, found.contents


def map_style(operator: str, value: Any, key: str) -> tuple[Opaque, int]:
    """Something with ``len()`` and ``[i]`` that is a data set, and its length."""
    count = sequence(operator, value, "an iterable has no positions that could be shared out")
    name, where = type(value).__name__, where_of(type(value))
    return Opaque(value, name, where, key=version(operator, key)), count


def sampler(value: Any) -> dict[str, Any]:
    """Object that draws positions, how many in each epoch, and the hash of what it draws by."""
    if isinstance(value, type) or not callable(getattr(value, "positions", None)):
        raise PipelineError(
            f"sample takes a sampler, such as millrace.samplers.WithReplacement() or an object with a method"
            f" positions(size, seed, epoch), not {value!r}"
        )
    count = getattr(value, "num_samples", None)
    if count is not None:
        count = whole("sample", "num_samples", count, 0)
    found = Opaque(value, type(value).__name__, where_of(type(value)))
    contents = value.contents if isinstance(value, ComputedSampler) else ""
    return {"sampler": found, "num_samples": count, "contents": contents}


def index(operator: str, name: str, value: Any, count: int) -> int:
    """Whole number from 0 to ``count`` - 1."""
    if not is_int(value) or not 0 <= value < count:
        raise PipelineError(f"{operator}: {name} must be a whole number from 0 to {count - 1}, not {value!r}")
    return int(value)


def positive(operator: str, name: str, value: Any, most: int | None = None) -> int:
    """Whole number of at least 1, and at most ``most``."""
    return whole(operator, name, value, 1, most)


def seed(operator: str, value: Any) -> int | None:
    """Seed of 64 bits, or None."""
    if value is None:
        return None
    number = whole(operator, "seed", value)
    if not -(1 << 63) <= number < 1 << 64:
        raise PipelineError(f"{operator}: seed must fit into 64 bits, and {number} does not")
    return number


def parallel(operator: str, value: Any) -> int:
    """``num_parallel_calls``: None is one call at a time."""
    if value is None:
        return 1
    return AUTOTUNE if value == AUTOTUNE else positive(operator, "num_parallel_calls", value)


def weights(operator: str, value: Any, count: int) -> tuple[float, ...]:
    """Weight for each of ``count`` datasets."""
    if graph_of(value) is not None:
        raise PipelineError(f"{operator} takes its datasets in one list, [a, b], and its weights as numbers")
    given = value.tolist() if hasattr(value, "tolist") else value  # an array, or a tensor
    chosen = (1.0,) * count if given is None else listed(operator, "weights", given)
    numbers = all(isinstance(weight, Real) for weight in chosen)
    sound = len(chosen) == count and numbers and all(math.isfinite(weight) and weight >= 0 for weight in chosen)
    if not count or not sound or not any(chosen):
        raise PipelineError(
            f"{operator} needs one weight >= 0 for each dataset and one above 0: "
            f"{count} datasets, weights {list(chosen)}"
        )
    return tuple(map(float, chosen))


def batch(operator: str, size: Any, drop_remainder: Any, fill_remainder: Any) -> dict[str, Any]:
    """Size of batches, and what becomes of a last one with fewer elements."""
    number = positive(operator, "batch_size", size)
    one_of(operator, "fill_remainder", fill_remainder, (None, "repeat", "mask"))
    if drop_remainder and fill_remainder is not None:
        raise PipelineError(
            f"{operator}: a last, short batch is either left out (drop_remainder=True) or filled up "
            f"(fill_remainder={fill_remainder!r}); leave one of them out"
        )
    return {"batch_size": number, "drop_remainder": bool(drop_remainder), "fill_remainder": fill_remainder or ""}


def buckets(operator: str, boundaries: Sequence[int], sizes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bucket boundaries and batch sizes that fit together."""
    edges = tuple(
        whole(operator, "every bucket boundary", edge) for edge in listed(operator, "bucket_boundaries", boundaries)
    )
    batches = tuple(
        positive(operator, "every batch size", size) for size in listed(operator, "bucket_batch_sizes", sizes)
    )
    if len(batches) != len(edges) + 1 or list(edges) != sorted(set(edges)):
        raise PipelineError(
            f"{operator} needs ascending bucket_boundaries and one more bucket_batch_sizes than "
            f"boundaries, not {list(edges)} and {list(batches)}"
        )
    return edges, batches


def padded_shapes(operator: str, value: Any) -> Any:
    """Shape or a pytree of shapes: sizes are 0 or more, None and -1 stand for the longest of the batch."""
    if isinstance(value, Mapping):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, tuple | list):
        parts = value
    else:
        if is_int(value) and value < -1:
            raise PipelineError(
                f"{operator}: padded_shapes has a size of {value}. A size is 0 or more, or None (or -1) where the "
                "longest element of the batch decides."
            )
        return value
    for part in parts:
        padded_shapes(operator, part)
    return value


def window(operator: str, size: Any, function_of_key: Any) -> dict[str, Any]:
    """Parameters of a window whose size is the same for all keys, or comes from a function of the key."""
    if (size is None) == (function_of_key is None):
        raise PipelineError(f"{operator} takes either window_size or window_size_func")
    if size is not None:
        return {"window_size": positive(operator, "window_size", size), "window_size_fn": None}
    about = describe(function_of_key, operator, ("key",), passes_rng=False)
    return {"window_size": None, "window_size_fn": Opaque(function_of_key, *about)}


def options(
    on_error: Any,
    buffer_bytes: int | None,
    num_threads: int | None,
    chosen: int | None,
    rewrites: bool | None,
    reads: int | None,
) -> dict[str, Any]:
    """Parameters of ``with_options``; ``chosen`` is its ``seed``."""
    label = "with_options"
    one_of(label, "rewrites", rewrites, (None, True, False))
    return {
        "on_error": error_handler(label, on_error),
        "buffer_bytes": None if buffer_bytes is None else positive(label, "buffer_bytes", buffer_bytes),
        "num_threads": None if num_threads is None else positive(label, "num_threads", num_threads),
        "seed": seed(label, chosen),
        "rewrites": None if rewrites is None else bool(rewrites),
        "reads_in_flight": None if reads is None else positive(label, "reads_in_flight", reads, MOST_CHOSEN),
    }


def error_handler(operator: str, value: Any) -> Opaque | str | None:
    """``on_error``: a known word or a function of the error."""
    if value is None or value in ("raise", "skip"):
        return None if value is None else str(value)
    if isinstance(value, str) or not callable(value):
        raise PipelineError(f'{operator}: on_error is "raise", "skip" or a function, not {value!r}')
    return Opaque(value, *describe(value, operator, ("error",), passes_rng=False))


# -- distribute --------------------------------------------------------------------------------------------------------


def asker(service: Any, job_name: Any, token: Any, consumers: int | None, consumer: int | None) -> None:
    """Check which service is asked, and as whom."""
    if hasattr(service, "address"):
        raise PipelineError(f"distribute takes the address of a service, {service.address!r}, not {service!r}")
    if service is not None:
        parse_address(service)
    if job_name is not None and (not isinstance(job_name, str) or not job_name):
        raise PipelineError(f"job_name is what all processes of a training call it, or None, not {job_name!r}")
    several = (consumers or 1) > 1 or bool(consumer)
    if several and consumer is not None and service is None:
        raise PipelineError(
            "without the address of a service each of several consumers would have a service of its own: hold one, "
            "a LocalService for instance, and give all of them its address"
        )
    if several and job_name is None:
        raise PipelineError(
            "several consumers find one another by the name of their job: give all of them the same job_name="
        )
    if token is not None and not isinstance(token, str):
        raise PipelineError(f"token is a str or None, not of type {type(token).__name__}")


def consumers(count: Any, consumer: Any) -> tuple[int | None, int | None]:
    """``num_consumers`` and ``consumer_index``."""
    chosen = None if count is None else positive("distribute", "num_consumers", count, MOST_CONSUMERS)
    if consumer is None:
        return chosen, None
    if chosen is None:
        return None, whole("distribute", "consumer_index", consumer, 0, MOST_CONSUMERS - 1)
    return chosen, index("distribute", "consumer_index", consumer, chosen)


def workers(value: Any) -> tuple[int, int] | None:
    """Least and most workers; None if the service finds that out."""
    if isinstance(value, str) and value in {"auto", "cheapest"}:
        return None
    given = value if isinstance(value, tuple | list) else (value, value)
    if len(given) != 2 or not all(map(is_int, given)) or not 1 <= given[0] <= given[1]:
        raise PipelineError(f'workers is "auto", "cheapest", a number of at least 1 or (least, most), not {value!r}')
    if given[1] > MOST_WORKERS:
        raise PipelineError(f"workers: a job has at most {MOST_WORKERS:,}, not {given[1]:,}")
    return int(given[0]), int(given[1])


def place(target_workers: Any, local_workers: Any, service: str | None) -> None:
    """Check where the work may be done."""
    one_of("distribute", "target_workers", target_workers, ("auto", "local", "remote", "any"))
    whole = isinstance(local_workers, int) and not isinstance(local_workers, bool)
    if local_workers is not None and not (whole and local_workers >= 1):
        raise PipelineError(f"local_workers is None or a number of at least 1, not {local_workers!r}")
    if service is None and (target_workers == "remote" or local_workers is not None):
        raise PipelineError(
            "without the address of a service all workers are processes of this machine: say how many with workers="
        )
    if target_workers == "remote" and local_workers is not None:
        raise PipelineError('target_workers="remote" has no local workers: leave local_workers out, or say "auto"')


def claim(priority: Any, tenant: Any) -> None:
    """Check what the job claims of the service's workers."""
    number = isinstance(priority, int | float) and not isinstance(priority, bool)
    if not number or not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise PipelineError(
            f"priority is a number from {MIN_PRIORITY:g} to {MAX_PRIORITY:g} (1 as a rule), not {priority!r}"
        )
    if not isinstance(tenant, str) or not tenant:
        raise PipelineError(f"tenant is a name, such as the team's, not {tenant!r}")


def local_workers(service: str | None, target_workers: str, local_workers: int | None) -> int:
    """Count the processes of this host to start: as many as the user allows, or the cores but one of each training."""
    if service is None:
        return 0
    if local_workers is not None or target_workers in {"auto", "remote"}:
        return local_workers or 0

    from millrace.clusters.local_workers import free_cores

    return free_cores()
