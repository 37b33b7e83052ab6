import re
from random import Random

from rlhf_dialog.task_oriented.world.multi_domain.bookings import BookingDesk

ORDER = (2, (("stay", "1"), ("day", "friday")))


def test_a_booking_is_written_down_under_its_reference():
    desk = BookingDesk(Random(0), {})
    first, second = desk.book("hotel", ORDER, {}), desk.book("hotel", ORDER, {})
    assert desk.bookings == [first, second]
    assert re.fullmatch("[a-z0-9]{8}", first.reference)
    assert first.reference != second.reference
    assert first.as_dict() | {"reference": ""} == {
        **{"domain": "hotel", "reference": "", "entity": 2, "slots": {"stay": "1", "day": "friday"}, "made": {}}
    }


def test_a_taxi_is_made_when_it_is_ordered():
    made = BookingDesk(Random(0), {}).book("taxi", (None, ()), {"colour": ("teal",), "type": ("rover", "comet")}).made
    assert made["car type"] in ("teal rover", "teal comet")
    assert re.fullmatch("[0-9]{10}", made["phone"])


def test_what_is_refused_is_not_written_down():
    desk = BookingDesk(Random(0), {"hotel": {"day": "friday", "stay": "1"}})
    assert desk.book("hotel", ORDER, {}) is None
    assert desk.bookings == []
    assert desk.book("hotel", (2, (("stay", "1"), ("day", "monday"))), {}) is not None
