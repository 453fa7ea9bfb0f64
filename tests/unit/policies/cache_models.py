"""Pipelines and stores for tests of what is cached."""

import msgspec
from hypothesis import strategies as st

from millrace.policies.caching.autocache import CandidatePoint
from millrace.policies.caching.cache_cost_model import Passed, Profile, Stage, StoreModel

MB = 1_000_000


class Linear(msgspec.Struct, frozen=True):
    """So long to begin, and so long for each byte."""

    byte_s: float
    begin_s: float = 0.0

    def seconds(self, size: int, /) -> float:
        return self.begin_s + size * self.byte_s


def store(read_s: float, write_s: float = 0.0, room: int = 1000 * MB, **more) -> StoreModel:
    """By the seconds of a megabyte."""
    return StoreModel(Linear(read_s / MB), Linear(write_s / MB), room, **more)


def profile(*stages: Stage, points=(1,), wait_share: float = 1.0, noise: float = 0.0, cores: int = 1) -> Profile:
    """Of 100 elements, one megabyte each at every point; a stage's seconds are given per element."""
    whole = tuple(msgspec.structs.replace(each, seconds=100 * each.seconds, cpu_s=100 * each.cpu_s) for each in stages)
    passed = {point: Passed(100, 100 * MB) for point in points}
    return Profile(100, whole, passed, batch_s=1.0, wait_s=wait_share, noise=noise, cores=cores)


def point(node: int = 1, **more) -> CandidatePoint:
    """100 MB of a thing."""
    return CandidatePoint(node, f"map(f{node})", **{"whole": 100 * MB, **more})


def powers(least: float, most: float):
    """From 10 to the one to 10 to the other, every order of magnitude as likely."""
    return st.floats(least, most).map(lambda exponent: float(10**exponent))


seconds = powers(-3, 2)
sizes = powers(3, 10).map(round)
any_room = st.sampled_from([10**11, 0]) | sizes
shares = st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1))


@st.composite
def stages(draw):
    """Of a chain with the points 1, 2 and 3; some points have nothing between them."""
    found = []
    for above in range(4):
        for _ in range(draw(st.integers(above == 0, 2))):
            spent = draw(seconds)
            found.append(Stage(spent, spent * draw(shares), draw(st.integers(0, 4)), tuple(range(above + 1, 4))))
    return tuple(found)


@st.composite
def profiles(draw):
    """Whatever may be measured of such a chain."""
    passed = {node: Passed(draw(st.integers(1, 1000)), draw(sizes)) for node in (1, 2, 3)}
    batch_s = draw(seconds)
    return Profile(
        draw(st.integers(1, 1000)),
        draw(stages()),
        passed,
        batch_s,
        batch_s * draw(st.sampled_from([1.0, 1.0, 0.5, 0.1, 0.0])),
        draw(st.sampled_from([0.0, 0.01, 0.1])),
        draw(st.integers(1, 16)),
        draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])),
    )


@st.composite
def stores(draw, slowest=-7, room=any_room):
    """Slow and fast ones, with and without room."""
    read, write = (Linear(draw(powers(-12, slowest)), draw(st.sampled_from([0.0, 1e-6, 1e-2]))) for _ in range(2))
    return StoreModel(
        read,
        write,
        room=draw(room),
        threads=draw(st.integers(1, 8)),
        message=draw(st.sampled_from([1, 1 << 17])),
        cpu_s=draw(st.sampled_from([0.0, 1e-10])),
    )


worth_writing = stores(-10, st.just(10**11))
"""Fast ones with room for everything."""


@st.composite
def all_points(draw, kept=shares):
    nodes = draw(st.sets(st.integers(1, 3), min_size=1))
    return [CandidatePoint(node, f"map(f{node})", kept=draw(kept), whole=draw(sizes)) for node in sorted(nodes)]
