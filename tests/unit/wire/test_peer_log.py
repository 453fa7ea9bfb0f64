"""Lines about peers are bounded, and counted."""

import logging
import time

from millrace.wire import peer_log
from millrace.wire.peer_log import PeerLog

LINES = 20


def test_lines_about_peers_are_bounded(caplog, monkeypatch):
    now = [5.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(peer_log, "LINES", LINES)
    log = PeerLog(logging.getLogger("millrace.test"))
    for number in range(LINES + 500):
        log.warning("peer %d", number)
    assert [record.getMessage() for record in caplog.records] == [f"peer {number}" for number in range(LINES)]
    now[0] += peer_log.PERIOD_S
    log.warning("peer %d", -1)
    assert [record.getMessage() for record in caplog.records][LINES:] == [
        "500 lines about peers were left out",
        "peer -1",
    ]
