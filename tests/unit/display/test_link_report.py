import io

from millrace.display import link
from millrace.wire.data.link_benchmark import LinkFigure, LinkReport


def report(plain=100e6, ours=90e6, lz4=50e6, sockets=1, near=False, window=2e6, round_trip=0.02):
    rows = [
        LinkFigure("plain sockets", sockets, "random bytes", None, plain, [plain]),
        LinkFigure("millrace", sockets, "random bytes", None, ours, [ours]),
        LinkFigure("millrace", sockets, "token ids", None, ours, [ours]),
        LinkFigure("millrace", sockets, "token ids", "lz4", lz4, [lz4]),
    ]
    return LinkReport("far:5051", near, round_trip, window, sockets, rows)


def test_the_table():
    out = io.StringIO()
    link.show(report(), out)
    lines = out.getvalue().splitlines()
    assert lines[0] == "the link to far:5051; round trip 20.00 ms"
    assert lines[2].split() == [
        "sockets",
        "content",
        "compression",
        "MB/s",
        "batches",
        "of",
        "9.6",
        "MB",
        "a",
        "second",
    ]
    assert lines[3].split() == ["plain", "sockets", "1", "random", "bytes", "-", "100", "10.4"]
    assert lines[6].split() == ["millrace", "1", "token", "ids", "lz4", "50", "5.2"]


def test_what_is_concluded():
    one, why, compression = link.conclusions(report())
    assert one == "The link gives 100 MB/s. With 1 socket, which it chooses here, millrace moves 90 MB/s: 0.90 of that."
    assert "at most 2.0 MB on the way" in why
    assert "it carries at most 100 MB/s" in why
    assert compression == "Compression does not pay: the link is faster than the compressors."
    assert "With 8 sockets" in link.conclusions(report(sockets=8))[0]
    assert "compression='lz4' pays: 2.0 times as fast" in link.conclusions(report(lz4=180e6))[2]
    assert "Both ends are on this host" in link.conclusions(report(near=True))[1]
    assert "unknown here" in link.conclusions(report(window=None))[1]
    assert "at most inf" in link.conclusions(report(round_trip=0.0))[1]
