"""Which segment makes room: what nobody has used, and for data that were given room what was given none."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.caching.source_eviction import SegmentUse, victim

IDLE_S = 100.0

uses = st.lists(
    st.builds(SegmentUse, st.integers(0, 50), st.floats(0, 1000), st.booleans()), unique_by=lambda use: use.number
)


@given(uses, st.floats(1000, 2000), st.booleans())
def test_what_is_in_use_goes_for_data_with_room_alone_and_is_not_of_such(segments, now, for_given):
    chosen = victim(segments, now, IDLE_S, given=for_given)
    by_number = {segment.number: segment for segment in segments}
    if chosen is None:
        assert not any(now - each.used >= IDLE_S for each in segments)
        assert not (for_given and any(not each.given for each in segments))
        return
    gone = by_number[chosen]
    assert now - gone.used >= IDLE_S or (for_given and not gone.given)
    alike = [each for each in segments if not for_given or each.given == gone.given]
    assert gone.used == min(each.used for each in alike)


def test_data_without_room_go_before_those_that_have_some_however_long_these_were_not_used():
    segments = [SegmentUse(1, 0.0, given=True), SegmentUse(2, 990.0), SegmentUse(3, 995.0)]
    assert victim(segments, 1000.0, IDLE_S, given=True) == 2
    assert victim(segments, 1000.0, IDLE_S) == 1
    assert victim(segments[:1], 50.0, IDLE_S, given=True) is None
