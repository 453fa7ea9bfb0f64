"""Order operators: they bring all elements of an epoch into an order or choose among them, before distribution."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, Self

from millrace import mixture_arguments, validation
from millrace.errors import PipelineError
from millrace.graph import nodes as g
from millrace.operators import Operators
from millrace.planning.sampler_orders import Sampler


class OrderOperators(Operators):
    """Operators that need all elements of an epoch, and not only those that come to one consumer."""

    def sample(self, sampler: Sampler, *, seed: int | None = None) -> Self:
        """Draws of ``sampler``, anew in each epoch: which elements there are, how often, and in which order.

        Put it behind the source, or behind operators that give one element for each: its input has to be readable at
        any position.

        Args:
            sampler: one of :mod:`millrace.samplers`, or an object of one's own with ``positions(size, seed, epoch)``,
                see :class:`millrace.samplers.Sampler`.
            seed: that it draws by; None: the pipeline's.

        Raises:
            PipelineError: it is no sampler.
        """
        return self._then(g.Sample, **validation.sampler(sampler), seed=validation.seed("sample", seed))

    def rejection_resample(
        self,
        class_func: Callable[..., int],
        target_dist: Sequence[float],
        initial_dist: Sequence[float] | None = None,
        seed: int | None = None,
    ) -> Self:
        """``(class, element)`` of elements that are left out or repeated, so that classes come in given proportions.

        Args:
            class_func: class of an element, a whole number from 0 on.
            target_dist: share of each class that there is to be; 1 together.
            initial_dist: share of each class that there is. None: it is estimated, in each task for itself, so that
                with a few hundred elements in a task the shares are some points off.
            seed: of the choices, which are others in each epoch; None: the pipeline's.

        Raises:
            PipelineError: these are no shares.
        """
        label = "rejection_resample"
        return self._then(
            g.RejectionResample,
            class_fn=validation.function(label, class_func),
            **mixture_arguments.distributions(label, target_dist, initial_dist),
            seed=validation.seed(label, seed),
        )

    def reservoir(
        self,
        size: int,
        *,
        levels: Sequence[int] = (),
        folders: Sequence[str | os.PathLike[str]] = (),
        with_replacement: bool = False,
        seed: int | None = None,
    ) -> Self:
        """Uniform random order of all elements, from sequential reads (OneAccess, section 3).

        As many elements as fit are read forward, from all over the data, and handed out in random order; then the next
        ones: a pass over the data for each ``size`` elements. Where their number is known, workers share that; else one
        does it, and reads all of its input in each pass.

        Args:
            size: elements that are held at a time; fewer, where these exceed the buffer (``with_options``).
            levels: numbers of elements that files on the worker's disks hold, between the data and memory, from the
                slowest disk on. Each is smaller than the one before and larger than ``size``, and is filled by passes
                over the one before. One worker has them.
            folders: of these files, one for each level; none: the worker's folder for temporary files.
            with_replacement: each element is any of the dataset's, whatever came before; an epoch is as many draws as
                there are elements.
            seed: of the order, which is another one in each epoch; None: the pipeline's.

        Raises:
            PipelineError: the input has no end, or a size or a level is out of range.
        """
        held, number = validation.positive("reservoir", "size", size), validation.seed("reservoir", seed)
        return self._then(
            g.Reservoir,
            size=held,
            **_levels(held, levels, folders, with_replacement),
            with_replacement=bool(with_replacement),
            seed=number,
        )


def _levels(size: int, levels: Any, folders: Any, with_replacement: bool) -> dict[str, Any]:
    """Check the sizes and folders of a reservoir's levels."""
    found = validation.listed("reservoir(levels=)", "numbers of elements", levels)
    sizes = [validation.positive("reservoir", "levels", most) for most in found]
    if any(below >= above for above, below in itertools.pairwise([*sizes, size])):
        raise PipelineError(
            f"reservoir(levels=): each level is smaller than the one before it and larger than size={size}, and these"
            f" are {', '.join(map(str, sizes))}"
        )
    if sizes and with_replacement:
        raise PipelineError("reservoir(levels=): levels hold what has not come yet, and with_replacement=True any")
    places = [
        validation.folder("reservoir", "folders", each)
        for each in validation.listed("reservoir(folders=)", "folders", folders)
    ]
    for place in places:
        if place is None or "://" in place:
            raise PipelineError(f"reservoir(folders=): levels are files on local disks, which {place} is none of")
    if places and len(places) != len(sizes):
        raise PipelineError(f"reservoir(folders=): there are {len(places)} folders, and {len(sizes)} levels")
    return {"levels": tuple(sizes), "folders": tuple(places)}
