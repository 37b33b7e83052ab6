"""What happens often is one line of the log a minute."""

import asyncio
import logging

from rlhf_dialog.feedback.page.tally import MINUTE, Tally


def run(happens):
    """What was warned of while `happens` is called with a Tally and a function that lets a minute pass."""
    lines, later = [], []

    async def main():
        loop = asyncio.get_running_loop()
        loop.call_later = lambda seconds, call, *given: later.append((seconds, call, given))

        def a_minute():
            due, later[:] = list(later), []
            for seconds, call, given in due:
                assert seconds == MINUTE
                call(*given)

        happens(Tally(lines.append), a_minute)

    asyncio.run(main())
    return lines


def test_the_first_at_once_and_the_number_of_the_others_after_a_minute():
    def happens(tally, a_minute):
        for number in (1_001, 1, 0, 1):
            for _ in range(number):
                tally.add("a")
            a_minute()
        tally.add("b")

    assert run(happens) == ["a", "a (1,000 times in the last minute)", "a (1 times in the last minute)", "a", "b"]


def test_what_another_logger_warns_of_is_counted_and_its_tracebacks_stay():
    def happens(tally, a_minute):
        for level, error in (
            (logging.WARNING, None),
            (logging.ERROR, None),
            (logging.INFO, None),
            (logging.ERROR, (None,) * 3),
        ):
            record = logging.LogRecord("uvicorn.error", level, "", 1, "%s request", ("bad",), error)
            assert tally.filter(record) == (level == logging.INFO or error is not None)

    assert run(happens) == ["bad request"]
