from random import Random

from small_domain import small_domain

from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.goals import Goal
from rlhf_dialog.task_oriented.world.users import AgendaUser, User


class Impatient:
    """A user of one's own needs no base class."""

    goal = Goal({})

    def begin(self, goal, rng):
        self.goal = goal
        return [Act("hello")]

    def answer(self, system_acts):
        return [Act("bye")]


def test_users_share_a_protocol():
    for user in (Impatient(), AgendaUser(small_domain())):
        talker: User = user
        assert talker.begin(Goal({"tea": "green"}), Random(1))
        assert talker.goal.constraints == {"tea": "green"}
        assert isinstance(talker.answer([Act("bye")])[0], Act)
