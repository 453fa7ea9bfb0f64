"""Error codec: errors on their way from one process to another, by the names of classes in :mod:`millrace.errors`."""

from __future__ import annotations

import traceback

from millrace import errors
from millrace.protocol.messages import Failure

MAX_CHARS = 64_000
"""Most characters of a message or a traceback: users' errors may be of any size, and have to fit into a message."""


def failure_of(error: BaseException, doing: str = "") -> Failure:
    """Convert ``error`` to data. An error that is not millrace's becomes one, with its traceback.

    Args:
        error: the error that was raised.
        doing: what was being done, e.g. ``task 3 of job 'resnet50'``; used for errors that don't say it themselves.
    """
    if isinstance(error, errors.ElementError):
        message = str(error.args[0]) if error.args else ""
        text = _noted(message, error)
        return Failure(
            _public_name(error), text, shorten(error.operator), shorten(error.where), shorten(error.user_traceback)
        )
    if isinstance(error, errors.MillraceError):
        needs = error.needs if isinstance(error, errors.ElementTooLargeError) else 0
        return Failure(_public_name(error), _noted(str(error), error), needs=needs)
    summary = shorten("".join(traceback.format_exception_only(error)).strip())
    text = shorten("".join(traceback.format_exception(error)))
    return Failure("MillraceError", f"{doing}: {summary}" if doing else summary, user_traceback=text)


def shorten(text: str, most: int = MAX_CHARS) -> str:
    """Cut the middle out of ``text`` if it is longer than ``most`` characters, and make it text that can be encoded."""
    text = text.encode(errors="backslashreplace").decode()
    if len(text) <= most:
        return text
    half = most // 2 - 30
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _noted(text: str, error: BaseException) -> str:
    return shorten("\n".join([text, *getattr(error, "__notes__", ())]))


def error_of(failure: Failure) -> errors.MillraceError:
    """Restore the error that :func:`failure_of` was given, as far as it is one of millrace's."""
    found = getattr(errors, failure.kind, None)
    kind: type[errors.MillraceError] = errors.MillraceError
    if isinstance(found, type) and issubclass(found, errors.MillraceError):
        kind = found
    if kind is errors.ElementError:
        return errors.ElementError(
            failure.message,
            operator=failure.operator,
            where=failure.where,
            user_traceback=failure.user_traceback,
        )
    text = f"{failure.message}\n\n{failure.user_traceback}" if failure.user_traceback else failure.message
    error = kind(text)
    if isinstance(error, errors.ElementTooLargeError):
        error.needs = failure.needs
    return error


def _public_name(error: errors.MillraceError) -> str:
    """Name of the nearest class that the other side knows."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
