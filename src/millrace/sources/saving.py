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
from collections.abc import Iterator
from typing import Any, Literal, Protocol, get_args

from millrace.errors import MillraceError, PipelineError, SourceError, StateError, UnsureError
from millrace.policies.decision import Decision
from millrace.policies.figures import counted, data_size, duration
from millrace.policies.saved_data import (
    LEAST_FILE_BYTES,
    MOST_FILE_BYTES,
    MadeOf,
    choose_file_bytes,
    choose_refresh,
    is_progress_due,
)
from millrace.sources import storage
from millrace.sources.saved_blocks import write_file
from millrace.sources.saved_manifest import (
    FORMAT,
    Contents,
    Made,
    Replaced,
    SavedFile,
    SavedInfo,
    SaveResult,
    Unfinished,
    encode,
    info,
    read_contents,
)
from millrace.sources.saved_place import ConflictError, SavedPlace, Version, progress_of
from millrace.sources.saved_remains import (
    decode_published,
    find_contents,
    find_unfinished,
    listed_files,
    names_of,
    split_replaced,
    tidy,
)
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

    def forget_state(self) -> None:
        """Have the next epoch be a whole one again, in the place of a loaded state that it could not go on from."""

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
    found, damage = find_contents(place, seen)
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
            tidy(place, seen, found, keep_s)
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


def _lost(path: str, what: str) -> PipelineError:
    return PipelineError(
        f"save: another process {what} {path} meanwhile, and this one has stopped: save to another path, each rank to "
        "one of its own"
    )


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
        self._behind: tuple[dict[str, Any], int] | None = None
        """State behind so many files, as long as the progress file lacks it."""
        self._progress_bytes = self._unnoted_bytes = 0
        self._own: list[str] = []
        self._inherited: Unfinished | None = None
        """What it goes on with."""
        self._said = ""
        """What became of that, for the reason."""
        self._former: dict[str, list[str]] = {}
        """What other savers left, by token, who lose it once this one has written something."""
        self._remains: set[str] = set()
        """Files of others that go when this one has published."""

    def run(self, reason: str, *, refresh: bool) -> SaveResult:
        """Save; if somebody has published meanwhile, only a refresh may find the same there."""
        place, unfinished = self._place, False
        try:
            self._inherit()
            self._write()
            self._take_over()
            contents = self._publish()
        except ConflictError:
            now = place.published()
            there, damage = find_contents(place, now)
            self._remove_own(there)
            same = there is not None and there.made is not None and there.made.of.same(self._of)
            if now.raw == self._seen.raw:
                raise _lost(place.path, "has taken over what was being saved to") from None
            if damage or not (refresh and same):
                raise _lost(place.path, "has saved to") from None
            assert there is not None
            return SaveResult(False, "another process has saved the same meanwhile", info(place.path, there))
        except BaseException:
            with contextlib.suppress(SourceError, ConflictError):  # else it is gone on with from an earlier file
                self._check_mine()
                self._note()
            unfinished = bool(self._noted)
            if self._inherited is not None and not self._own:
                self._source.forget_state()
            with contextlib.suppress(SourceError):  # what cannot be removed now a later save removes
                place.remove(set(self._own) - self._noted)
            raise
        finally:
            place.leave(unfinished=unfinished)
        return SaveResult(True, reason + self._said, info(place.path, contents))

    # -- what others left ----------------------------------------------------------------------------------------------

    def _inherit(self) -> None:
        """Enter; find what a save of the same has left, and remove what other ones have left that are gone.

        Raises:
            PipelineError: another process is saving there now.
            ConflictError: somebody has published.
        """
        place, published = self._place, _published_names(self._found)
        others = place.enter(published)
        if others.living:
            raise PipelineError(
                f"save: another process is saving to {place.path} now: wait for it, or save to another path, each rank "
                "to one of its own"
            )
        self._look_again()
        found = {token: find_unfinished(place, names) for token, names in others.left.items()}
        begun = {token: each for token, each in found.items() if each is not None}
        best = max(
            (token for token in begun if self._fits(begun[token])),
            key=lambda each: _elements(begun[each]),
            default=None,
        )
        if best is not None and not self._go_on(begun[best]):
            best = None
        gone = {name for names in others.left.values() for name in names}
        gone.update(*(names_of(each.files) for each in begun.values()))
        gone -= published | listed_files(place, others.unsure.values())
        if place.remote:  # some of them may live, and publish before this one does: until then their files stay
            self._former = {token: others.left[token] for token in begun}
            self._remains = gone - {progress_of(token) for token in begun}
            return
        if best is not None:
            self._former = {best: sorted(gone & {*others.left[best], *names_of(begun[best].files)})}
        place.remove(sorted(gone - {name for names in self._former.values() for name in names}))

    def _fits(self, unfinished: Unfinished) -> bool:
        """Whether a save that was left is one of the same, not too old, and all of its files are there."""
        too_old = self._most_age_s is not None and self._began - unfinished.began > self._most_age_s
        if too_old or not unfinished.of.same(self._of):
            return False
        if not _published_names(self._found).isdisjoint(names_of(unfinished.files)):
            return False  # it was published before its saver died
        return self._are_there(unfinished)

    def _are_there(self, unfinished: Unfinished) -> bool:
        there = storage.existing([self._place.location(each.file) for each in unfinished.files])
        return [each.size for each in there] == [each.size for each in unfinished.files]

    def _go_on(self, unfinished: Unfinished) -> bool:
        """Begin behind the files of an unfinished save, if the pipeline can go on from its state."""
        try:
            self._source.load_state_dict(unfinished.state)
        except StateError as error:
            self._said = _not_gone_on(error)
            return False
        self._inherited, self._files = unfinished, list(unfinished.files)
        if not self._sizes.chosen and unfinished.file_bytes:
            self._sizes.chosen, self._sizes.why = unfinished.file_bytes, unfinished.why_file_bytes
        elements, size = _elements(unfinished), sum(each.size for each in self._files)
        self._said = (
            f"; an interrupted save had {counted(elements, 'element')} in {data_size(size)}, and was gone on with"
        )
        return True

    def _drop(self, error: StateError) -> None:
        """Begin from the beginning, as the state of the unfinished save could not be gone on from."""
        self._said, self._inherited, self._files = _not_gone_on(error), None, []
        self._source.forget_state()
        if not self._place.remote:
            self._place.remove(name for names in self._former.values() for name in names)
            self._former = {}

    def _take_over(self) -> None:
        """Take away from others what they left, or are at work on, as this one has something in its place.

        Raises:
            ConflictError: somebody else has taken this one's work over, or what it went on with is gone.
        """
        self._check_mine()
        taken, self._former = self._former, {}
        self._place.remove(progress_of(token) for token in taken)
        if taken and self._inherited is not None and not self._are_there(self._inherited):
            raise ConflictError
        if taken and self._place.remote:  # they may have written more, until they notice
            with self._place.alone(_published_names(self._found)) as others:
                written = {**others.left, **others.unsure}
                self._remains.update(name for token in taken for name in written.get(token, []))
        else:
            kept = self._noted | names_of(self._files)
            self._place.remove(name for names in taken.values() for name in names if name not in kept)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        with contextlib.ExitStack() as reading:
            try:
                elements = self._read(reading)
            except StateError as error:
                if self._inherited is None:
                    raise
                reading.close()
                self._drop(error)
                elements = self._read(reading)
            for first in elements:
                name = f"{len(self._files):06}-{self._place.token}.block"
                self._own.append(name)
                with self._place.draft(name) as file:
                    complete, more = write_file(file, name, itertools.chain([first], elements), self._sizes)
                self._files.append(complete)
                self._unnoted_bytes += complete.size
                if more and self._of.fingerprint:
                    self._check_mine()
                    with contextlib.suppress(StateError):  # operators hold elements back: nobody could go on from here
                        self._progress(self._source.state_dict())

    def _read(self, reading: contextlib.ExitStack) -> Iterator[Any]:
        """Elements from where the epoch is begun or gone on with; the first one is there."""
        elements = iter(reading.enter_context(self._source.read_epoch()))
        return itertools.chain(list(itertools.islice(elements, 1)), elements)

    def _progress(self, state: dict[str, Any]) -> None:
        """Note the state behind the files so far, in the progress file if it is due."""
        self._behind = state, len(self._files)
        if is_progress_due(self._progress_bytes, self._unnoted_bytes):
            self._note()

    def _note(self) -> None:
        """Write the progress file: the files up to the last state are complete."""
        if self._behind is None:
            return
        (state, count), self._behind, self._unnoted_bytes = self._behind, None, 0
        sizes, files = self._sizes, self._files[:count]
        data = encode(Unfinished(self._of, state, files, self._since, sizes.chosen, sizes.why))
        self._place.put(self._place.progress, data)
        self._noted, self._progress_bytes = names_of(files), len(data)
        self._take_over()

    @property
    def _since(self) -> float:
        """When this save, or the one that it goes on with, began."""
        return self._began if self._inherited is None else min(self._began, self._inherited.began)

    def _check_mine(self) -> None:
        """Stop, if another saver has taken over what the progress file lists.

        Raises:
            ConflictError: one has.
        """
        if self._noted and not self._place.is_mine():
            raise ConflictError

    def _look_again(self) -> None:
        """Look at the manifest, in which others may have struck out files of earlier saves whose time was over.

        Raises:
            ConflictError: it is of another save.
        """
        now, found = self._place.published(), self._found
        if now.raw != self._seen.raw:
            there, _ = decode_published(self._place, now)
            if found is None or there is None or (there.files, there.made) != (found.files, found.made):
                raise ConflictError
            self._found = there
        self._seen = now

    def _publish(self) -> Contents:
        """Publish the manifest, and remove what nobody needs any more."""
        while True:
            self._look_again()
            seen, (contents, over) = self._seen, self._contents()
            try:
                self._place.publish(encode(contents), seen)
                break
            except ConflictError:
                self._look_again()
                if self._seen == seen:
                    raise  # a store that refuses what it has told
        self._remains -= contents.names
        with contextlib.suppress(SourceError):  # as above
            self._place.remove([*sorted(self._remains), *over, *([self._place.progress] if self._noted else [])])
        return contents

    def _contents(self) -> tuple[Contents, list[str]]:
        """Manifest of this save, and the names of files of earlier ones that nobody needs any more."""
        stay, over = ([], list[str]()) if self._found is None else split_replaced(self._found, self._keep_s)
        if self._found is not None and self._found.files:
            former, now = sorted(names_of(self._found.files)), time.time()
            if self._keep_s > 0:
                stay.append(Replaced(former, now, now + self._keep_s))
            else:
                over += former
        made = Made(self._of, self._since, __version__, self._sizes.chosen, self._sizes.why)
        return Contents(FORMAT, self._files, made, stay), over

    def _remove_own(self, there: Contents | None) -> None:
        """Remove what was written here, but for what belongs to another saver or manifest now."""
        place = self._place
        mine = set(self._own) | self._noted
        if self._noted and not place.is_mine():
            mine -= self._noted
        place.remove([*sorted(mine - _published_names(there)), *([place.progress] if self._noted else [])])


def _not_gone_on(error: StateError) -> str:
    return f"; an interrupted save could not be gone on with: {error}"


def _published_names(contents: Contents | None) -> set[str]:
    return set() if contents is None else contents.names


def _elements(unfinished: Unfinished) -> int:
    return sum(sum(each.elements) for each in unfinished.files)
