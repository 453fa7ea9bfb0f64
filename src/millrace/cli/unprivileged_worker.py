"""Worker that runs as another user: its process, and this one, which opens the store's blocks for it."""

from __future__ import annotations

import argparse
import contextlib
import grp
import os
import pwd
import signal
import subprocess
import sys
import threading
from typing import NamedTuple

from millrace.cli.options import TOKEN, token_of
from millrace.cli.shutdown import end_with
from millrace.errors import PipelineError, ServiceError


class OtherUser(NamedTuple):
    """User of the operating system."""

    uid: int
    gid: int
    groups: list[int]
    name: str
    home: str


def find_user(given: str) -> OtherUser:
    """Find a user by name or number.

    Raises:
        PipelineError: there is none, it is root, or this process may not become it.
    """
    try:
        found = pwd.getpwuid(int(given)) if given.isdecimal() else pwd.getpwnam(given)
    except (KeyError, OverflowError):
        if not given.isdecimal() or int(given) >= 1 << 32:
            raise PipelineError(f"--user {given}: this machine knows no user of that name") from None
        user = OtherUser(int(given), int(given), [], given, "/")
    else:
        groups = [each for each in os.getgrouplist(found.pw_name, found.pw_gid) if each]
        user = OtherUser(found.pw_uid, found.pw_gid, groups, found.pw_name, found.pw_dir)
    if not user.uid or not user.gid:
        who = "root" if not user.uid else f"in the group {grp.getgrgid(0).gr_name} of root"
        raise PipelineError(f"--user {given}: a worker that is to have fewer rights cannot be {who}")
    if os.geteuid() != 0:
        raise PipelineError(
            f"--user {given}: only root can start workers as another user; run the whole service as that one"
        )
    return user


def run_as(options: argparse.Namespace) -> int:
    """Run the worker of the command line as another user, until it ends; return its exit status.

    Args:
        options: of ``millrace worker``; ``arguments`` are the command line's.

    Raises:
        PipelineError: this process may not become that user.
        ServiceError: that user cannot run this Python.
    """
    user = find_user(options.user)

    from millrace.wire.broker.store_broker import StoreBroker, socket_pair
    from millrace.wire.own_token import resolve

    token = token_of(options)
    if options.dispatcher != "-":
        token, _ = resolve(options.dispatcher, token)
    mine, its = socket_pair()
    with its:
        try:
            process = subprocess.Popen(  # noqa: S603 (this interpreter, our module)
                [sys.executable, "-P", "-m", "millrace", *options.arguments, "--broker", str(its.fileno())],
                pass_fds=(its.fileno(),),
                env={
                    **os.environ,
                    **({TOKEN: token} if token else {}),
                    "HOME": user.home,
                    "USER": user.name,
                    "LOGNAME": user.name,
                },
                user=user.uid,
                group=user.gid,
                extra_groups=user.groups,
                # Who shares a terminal with root can type there. Without one a session is what its starter kills whole.
                start_new_session=_has_terminal(),
            )
        except OSError as error:
            mine.close()
            raise ServiceError(
                f"user {user.name} cannot run {sys.executable} ({error.strerror}): what a worker imports has to be"
                " where that user may read it"
            ) from error

    # Both signals: a terminal tells this process alone. The pipe of a parent is the worker's.
    end_with(lambda reason: process.send_signal(signal.Signals[reason]), parent_pipe=False)
    threading.Thread(target=StoreBroker(mine).serve, name="millrace-broker", daemon=True).start()
    status = process.wait()
    if status < 0:  # whoever waits for this process says how a worker has ended
        with contextlib.suppress(OSError):  # one that is never caught
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
