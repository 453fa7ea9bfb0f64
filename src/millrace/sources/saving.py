"""Life cycle of saved datasets: made, gone on with, kept as it is, made again, and removed in the end.

:mod:`millrace.policies.saved_data` decides, :mod:`millrace.sources.saved_place` knows who else is there, and
:mod:`millrace.sources.saved_blocks` writes.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import logging
import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Protocol, get_args

from millrace.errors import MillraceError, PipelineError, SourceError, SourceNotFoundError, StateError, UnsureError
from millrace.policies.decision import Decision
from millrace.policies.figures import counted, data_size, duration
from millrace.policies.saved_data import LEAST_FILE_BYTES, MOST_FILE_BYTES, MadeOf, choose_file_bytes, choose_refresh
from millrace.sources import storage
from millrace.sources.saved_blocks import write_file
from millrace.sources.saved_manifest import (
    FILE_NAME,
    FORMAT,
    MANIFEST,
    Contents,
    Made,
    Replaced,
    SavedFile,
    SavedInfo,
    SaveResult,
    Unfinished,
    decode,
    decode_contents,
    encode,
    info,
    read_contents,
)
from millrace.sources.saved_place import ConflictError, SavedPlace, Version
from millrace.version import __version__
from millrace.whole_numbers import whole

IfExists = Literal["error", "refresh", "replace"]
Age = float | dt.timedelta
_CALIBRATION_S = 0.5
"""Seconds to measure a store on a disk, about; three times as long for one behind a network."""
_LARGEST_READ = 16 << 20
"""Bytes of the largest read that is measured, which says how fast bytes come."""
_logger = logging.getLogger("millrace.save")


class Saved(Protocol):
    """Pipeline that can be saved."""

    def read_epoch(self) -> contextlib.AbstractContextManager[Iterator[Any]]:
        """Elements of the next epoch, or of the rest of one."""

    def state_dict(self) -> dict[str, Any]:
        """State behind the last element that was handed out."""

    def load_state_dict(self, state: Any) -> None:
        """Have the next epoch go on from a state."""

    def made_of(self) -> MadeOf:
        """Identify what would be saved."""


def save(
    path: str,
    source: Saved,
    *,
    file_bytes: int | Literal["auto"] = "auto",
    if_exists: IfExists = "error",
    max_age: Age | None = None,
    keep_replaced: Age = dt.timedelta(days=1),
) -> SaveResult:
    """Save the next epoch of ``source``; see :meth:`millrace.frameworks.base.Viewable.save`."""
    if if_exists not in get_args(IfExists):
        raise PipelineError(f"save(if_exists=) takes one of {', '.join(map(repr, get_args(IfExists)))}")
    if max_age is not None and if_exists != "refresh":
        raise PipelineError('save(max_age=) goes with if_exists="refresh", which makes again what is older')
    most_age_s = None if max_age is None else seconds("save", "max_age", max_age)
    keep_s = seconds("save", "keep_replaced", keep_replaced)
    sizes = _FileSizes(0 if file_bytes == "auto" else whole("save", "file_bytes", file_bytes, 1))
    place = SavedPlace(path)
    sizes.place = place
    seen = place.published()
    if seen.raw is not None and if_exists == "error":
        raise _taken(path)
    found, damage = _found(place, seen)
    of = source.made_of()
    reason = "nothing was there"
    if if_exists == "refresh" and of.why:
        raise UnsureError(
            f'save(if_exists="refresh") cannot tell whether what is at {path} is what would be saved now: {of.why}. '
            'if_exists="replace" saves in any case'
        )
    if if_exists == "refresh" and seen.raw is not None:
        before = found.made if found is not None else None
        age_s = time.time() - before.at if before is not None else None
        decision = choose_refresh(before.of if before else MadeOf(), of, age_s, most_age_s, damage)
        reason = decision.reason
        if not decision.value:
            assert found is not None
            _tidy(place, seen, found, keep_s)
            _logger.info("%s stays as it is: %s", path, reason)
            return SaveResult(False, reason, info(path, found))
    elif seen.raw is not None:
        reason = "it was to be replaced"
    saving = _Save(place, source, of, sizes, seen, found, keep_s=keep_s, most_age_s=most_age_s)
    result = saving.run(reason, refresh=if_exists == "refresh")
    _logger.info("%s %s: %s", path, "was saved" if result.made else "stays as it is", result.reason)
    return result


def saved_info(path: str) -> SavedInfo:
    """Look what is saved in a folder or under a prefix.

    Raises:
        SourceNotFoundError: nothing is.
        SourceCorruptError: its manifest is damaged.
    """
    return info(path, read_contents(path))


def check_age(path: str, max_age: Age) -> None:
    """Refuse a saved dataset that is too old.

    Raises:
        SourceError: it is, or nobody knows how old it is; the message says how old.
    """
    most_s, made = seconds("load", "max_age", max_age), saved_info(path).made
    again = 'save(path, if_exists="refresh", max_age=...) makes it again'
    if made is None:
        raise SourceError(f"{path} was saved by a millrace that did not note when; {again}")
    age_s = max(0.0, time.time() - made.at)
    if age_s > most_s:
        raise SourceError(f"{path} was saved {duration(age_s)} ago, and max_age is {duration(most_s)}; {again}")


def seconds(operator: str, name: str, value: Age) -> float:
    """Convert an age to seconds.

    Raises:
        PipelineError: it is none.
    """
    found: object = value.total_seconds() if isinstance(value, dt.timedelta) else value
    if isinstance(found, bool) or not isinstance(found, int | float) or not found >= 0:
        raise PipelineError(f"{operator}({name}=) takes a timedelta or a number of seconds, not {value!r}")
    return float(found)


def _taken(path: str) -> PipelineError:
    return PipelineError(
        f"save: {path} holds a saved dataset, which others may be reading; save to another path, each rank to one of "
        'its own, or say if_exists="refresh" or "replace"'
    )


def _found(place: SavedPlace, seen: Version) -> tuple[Contents | None, str]:
    """Decode what is published; what is wrong with it or its files, if anything is.

    Raises:
        SourceCorruptError: a later millrace has written it.
    """
    if seen.raw is None:
        return None, ""
    try:
        contents = decode_contents(seen.raw, place.location(MANIFEST))
    except MillraceError as error:
        if "is of format" in str(error):
            raise
        return None, str(error)

    def wrong(each: SavedFile) -> str:
        try:
            size = storage.stat(place.location(each.file)).size
        except SourceNotFoundError:
            return f"{each.file} is gone"
        return "" if size == each.size else f"{each.file} has {size} bytes, not {each.size}"

    said = storage.for_each(wrong, contents.files, lambda each: place.location(each.file))
    return contents, next(filter(None, said), "")


def _split_replaced(contents: Contents, keep_s: float) -> tuple[list[Replaced], list[str]]:
    """Divide the files of earlier saves into those that stay, and the names of those whose time is over."""
    now = time.time()
    stay = [each for each in contents.replaced if now - each.at < keep_s]
    return stay, [name for each in contents.replaced if each not in stay for name in each.files]


def _tidy(place: SavedPlace, seen: Version, found: Contents, keep_s: float) -> None:
    """Remove files of earlier saves whose time is over, where the dataset stays as it is."""
    stay, over = _split_replaced(found, keep_s)
    if over:
        with contextlib.suppress(ConflictError):  # whoever has published something else removes them
            place.publish(encode(Contents(FORMAT, found.files, found.made, stay)), seen)
            place.remove(over)


class _FileSizes:
    """Size at which a file is complete; chosen when the first file has become as large as the least that would be."""

    def __init__(self, chosen: int, why: str = "") -> None:
        self.chosen, self.why = chosen, why or ("it was chosen" if chosen else "")
        self.place: SavedPlace | None = None

    def __call__(self, nbytes: int) -> int:
        if not self.chosen:
            if nbytes < LEAST_FILE_BYTES:
                return LEAST_FILE_BYTES
            assert self.place is not None
            decision = _measured(self.place)
            self.chosen, self.why = decision.value, decision.reason
        return self.chosen


def _measured(place: SavedPlace) -> Decision[int]:
    """Measure the store, and choose by that."""
    from millrace.blocks.store_benchmark import SMALLEST, calibrate
    from millrace.blocks.stores.open_store import open_store

    name = f"measuring-{place.token}"
    try:
        cost = calibrate(open_store(place.location(name)), seconds=_CALIBRATION_S, largest=_LARGEST_READ).cold
    except MillraceError as error:
        return Decision(MOST_FILE_BYTES, f"the store could not be measured: {error}")
    finally:
        if not place.remote:
            place.remove([name])
    open_s = cost.seconds(SMALLEST)
    rest_s = cost.seconds(_LARGEST_READ) - open_s
    return choose_file_bytes(open_s, (_LARGEST_READ - SMALLEST) / max(rest_s, 1e-9))


class _Save:
    """One save, from the files that an earlier one has left, or from the beginning."""

    def __init__(
        self,
        place: SavedPlace,
        source: Saved,
        of: MadeOf,
        sizes: _FileSizes,
        seen: Version,
        found: Contents | None,
        *,
        keep_s: float,
        most_age_s: float | None,
    ) -> None:
        self._place, self._source, self._of, self._sizes = place, source, of, sizes
        self._seen, self._found, self._keep_s = seen, found, keep_s
        self._most_age_s, self._began = most_age_s, time.time()
        self._files: list[SavedFile] = []
        self._noted: set[str] = set()
        """Files that the progress file lists."""
        self._own: list[str] = []
        self._leftovers: set[str] = set()
        """Files of others that go when this one has published."""

    def run(self, reason: str, *, refresh: bool) -> SaveResult:
        """Save; if somebody has published meanwhile, only a refresh may find the same there."""
        place, unfinished = self._place, False
        place.enter()
        try:
            reason += self._inherit()
            self._write()
            self._check_mine()
            contents = self._publish()
        except ConflictError:
            self._remove_own()
            there, damage = _found(place, place.published())
            same = there is not None and there.made is not None and there.made.of.same(self._of)
            if damage or there is None or not (refresh and same):
                raise _taken(place.path) from None
            return SaveResult(False, "another process has saved the same meanwhile", info(place.path, there))
        except BaseException:
            unfinished = bool(self._noted)
            with contextlib.suppress(SourceError):  # what cannot be removed now a later save removes
                place.remove(set(self._own) - self._noted)
            raise
        finally:
            place.leave(unfinished=unfinished)
        return SaveResult(True, reason, info(place.path, contents))

    # -- what others left ----------------------------------------------------------------------------------------------

    def _inherit(self) -> str:
        """Take over what a save of the same has left, and remove what other ones have left; say what was found.

        Raises:
            PipelineError: another process is saving there now.
        """
        place, published = self._place, _names_of(self._found)
        living, left = place.savers(published)
        if living:
            raise PipelineError(
                f"save: another process is saving to {place.path} now: wait for it, or save to another path, each rank "
                "to one of its own"
            )
        begun = [each for names in left.values() if (each := self._unfinished(names)) is not None]
        best = max(filter(self._fits, begun), key=_elements, default=None)
        said = "" if best is None else self._go_on(best)
        gone = {name for token, names in left.items() for name in names}
        gone.update(*(_names(each.files) for each in begun))
        gone -= published | self._noted
        if place.remote:  # one of them may live, and publish before this one does: until then its files stay
            self._leftovers = {name for name in gone if not name.startswith("saving-")}
        place.remove(sorted(gone - self._leftovers))
        return said

    def _unfinished(self, names: Iterable[str]) -> Unfinished | None:
        """Progress file among the files that a saver left, if it is one."""
        for name in names:
            if name.startswith("saving-") and name.endswith(".json"):
                location = self._place.location(name)
                with contextlib.suppress(SourceError):  # gone meanwhile, or half of it was written: it is left out
                    found = decode(storage.read(location), Unfinished, location)
                    return found if all(map(FILE_NAME.fullmatch, _names(found.files))) else None
        return None

    def _fits(self, unfinished: Unfinished) -> bool:
        """Whether a save that was left is one of the same, not too old, and all of its files are there."""
        too_old = self._most_age_s is not None and self._began - unfinished.began > self._most_age_s
        if too_old or not unfinished.of.same(self._of):
            return False
        names = [each.file for each in unfinished.files]
        if not _names_of(self._found).isdisjoint(names):
            return False  # it was published before its saver died
        there = storage.existing([self._place.location(name) for name in names])
        return [each.size for each in there] == [each.size for each in unfinished.files]

    def _go_on(self, unfinished: Unfinished) -> str:
        """Begin behind the files of an unfinished save; say so, if the pipeline can go on from its state."""
        try:
            self._source.load_state_dict(unfinished.state)
        except StateError:
            return ""
        self._files, self._began = list(unfinished.files), min(self._began, unfinished.began)
        if not self._sizes.chosen and unfinished.file_bytes:
            self._sizes.chosen, self._sizes.why = unfinished.file_bytes, unfinished.why_file_bytes
        self._note(unfinished.state)
        elements, size = _elements(unfinished), sum(each.size for each in self._files)
        return f"; an interrupted save had {counted(elements, 'element')} in {data_size(size)}, and was gone on with"

    # -- writing -------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        with self._source.read_epoch() as epoch:
            elements = iter(epoch)
            for first in elements:
                name = f"{len(self._files):06}-{self._place.token}.block"
                self._own.append(name)
                with self._place.draft(name) as file:
                    complete, more = write_file(file, name, itertools.chain([first], elements), self._sizes)
                self._files.append(complete)
                if more and self._of.fingerprint:
                    self._check_mine()
                    with contextlib.suppress(StateError):  # operators hold elements back: nobody could go on from here
                        self._note(self._source.state_dict())

    def _note(self, state: dict[str, Any]) -> None:
        """Write the progress file: the files so far are complete."""
        sizes = self._sizes
        unfinished = Unfinished(self._of, state, self._files, self._began, sizes.chosen, sizes.why)
        self._place.put(self._place.progress, encode(unfinished))
        self._noted = _names(self._files)

    def _check_mine(self) -> None:
        """Stop, if another saver has taken over what the progress file lists.

        Raises:
            ConflictError: one has.
        """
        if self._noted and not self._place.is_mine():
            raise ConflictError

    def _publish(self) -> Contents:
        """Publish the manifest, and remove what nobody needs any more."""
        stay, over = ([], list[str]()) if self._found is None else _split_replaced(self._found, self._keep_s)
        if self._found is not None and self._found.files:
            former = sorted(_names(self._found.files))
            if self._keep_s > 0:
                stay.append(Replaced(former, time.time()))
            else:
                over += former
        made = Made(self._of, self._began, __version__, self._sizes.chosen, self._sizes.why)
        contents = Contents(FORMAT, self._files, made, stay)
        self._place.publish(encode(contents), self._seen)
        with contextlib.suppress(SourceError):  # as above
            self._place.remove([*sorted(self._leftovers), *over, *([self._place.progress] if self._noted else [])])
        return contents

    def _remove_own(self) -> None:
        """Remove what was written here, but for what belongs to another saver or manifest now."""
        place = self._place
        mine = set(self._own) | self._noted
        if self._noted and not place.is_mine():
            mine -= self._noted
        there, _ = _found(place, place.published())
        place.remove([*sorted(mine - _names_of(there)), *([place.progress] if self._noted else [])])


def _names(files: Iterable[SavedFile]) -> set[str]:
    return {each.file for each in files}


def _names_of(contents: Contents | None) -> set[str]:
    return set() if contents is None else contents.names


def _elements(unfinished: Unfinished) -> int:
    return sum(sum(each.elements) for each in unfinished.files)
