"""The act level with a person in the user's place: they talk in words, and they, not the environment, give the rewards."""

from random import Random
from typing import Any

from rlhf_dialog.task_oriented.domains import NAME, TYPE, Domain
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from rlhf_dialog.task_oriented.world.act_world import MAX_TURNS, TURN_REWARD, Observation
from rlhf_dialog.task_oriented.world.acts import USER_INTENTS, Act, format_acts, parse_acts
from rlhf_dialog.task_oriented.world.goals import Goal
from rlhf_dialog.task_oriented.world.users.human import describe_goal, why_failed
from rlhf_dialog.task_oriented.world.users.teacher import PersonTurn, Teacher, sum_rewards
from rlhf_dialog.task_oriented.world.words import system_words, user_words


class PersonWorld(ActLevel):
    """An `ActLevel` without errors, whose user is a `Teacher`.

    A step is worth -1, and the reward that the teacher gave the answer, or at the end the dialogue. Where the teacher leaves, the
    dialogue is cut off. At the end `info` has `left`, whether it was cut off, and `rewards`, those of the answers (None: none was
    given), and behind them that of the dialogue, where the teacher rewards dialogues; and what `ActLevel` says.

    show_goal: the teacher is asked to pursue a goal, and success is whether it was reached; else the teacher has wishes of their
        own, and success is a reward of the dialogue above 0
    """

    def __init__(self, domain: Domain, teacher: Teacher, max_turns: int = MAX_TURNS, show_goal: bool = True):
        self.teacher, self.show_goal = teacher, show_goal
        self.typing = _Typing(domain, teacher, show_goal)
        super().__init__(domain, 0.0, max_turns, self.typing)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Say the action's acts in words, and hear the teacher."""
        if self.teacher.left:
            return self.layout.encode(self.belief, self.summary), 0.0, False, True, self._teacher_info({})
        observation, _, terminated, truncated, info = super().step(action)
        if terminated or truncated or self.teacher.left:
            info = self._teacher_info({} if self.teacher.left else info)
            truncated = truncated or not terminated
        reward = TURN_REWARD + sum_rewards(self.typing.rewards[len(self.system_acts) - 1 :])
        return observation, reward, terminated, truncated, info

    def _teacher_info(self, ended: dict[str, Any]) -> dict[str, Any]:
        """What is known at the end; `ended` is empty where the teacher has left before it."""
        rewards = self.typing.rewards
        if ended and not self.teacher.each_answer:
            verdict = "the goal was reached" if self.show_goal else ""
            if self.show_goal and not ended["success"]:
                verdict = f"not reached: {why_failed(self.domain, ended)}"
            rewards.append(self.teacher.judge(verdict))
        success = ended.get("success", False) if self.show_goal else sum_rewards(rewards) > 0
        info = {"rewards": rewards, "left": not ended, "success": success}
        return {"action_mask": self.mask} | ended | info


class _Typing:
    """A `User` whose words come from a teacher, to whom the system's acts are said in words.

    Words that are nothing but acts, such as `inform(food=thai) request(phone)`, are these acts.
    """

    def __init__(self, domain: Domain, teacher: Teacher, show_goal: bool):
        self.domain, self.teacher, self.show_goal = domain, teacher, show_goal
        self.heard, self.spoken = user_words(domain), system_words(domain)
        self.slots = {"", NAME, TYPE, *domain.constraints, *domain.requestable}
        self.goal, self.rng = Goal({}), Random(0)
        self.rewards: list[float | None] = []

    def begin(self, goal: Goal, rng: Random) -> list[Act]:
        self.goal, self.rng, self.rewards = goal.copy(), rng, []
        about = describe_goal(self.domain, self.goal) if self.show_goal else "Say goodbye when you are done."
        return self._acts(self.teacher.begin(about, self.spoken.say([Act("hello")], rng)))

    def answer(self, system_acts: list[Act]) -> list[Act]:
        turn = self.teacher.answer(self.spoken.say(system_acts, self.rng))
        self.rewards.append(turn.reward)
        return self._acts(turn)

    def _acts(self, turn: PersonTurn) -> list[Act]:
        if turn.ends:
            return [Act("bye")]
        acts = parse_acts(turn.text)
        is_acts = format_acts(acts) == " ".join(turn.text.split())
        if is_acts and all(act.intent in USER_INTENTS and act.slot in self.slots for act in acts):
            return acts
        return self.heard.read(turn.text)
