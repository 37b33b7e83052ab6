"""A dialogue for readers: goal, acts, what was believed or known, what was paid, bookings, and the verdict."""

from collections.abc import Iterator, Sequence
from typing import Any

from rlhf_dialog.task_oriented.domains import DONTCARE, AnyDomain, Domain, MultiDomain
from rlhf_dialog.task_oriented.policies.base import Episode, Features
from rlhf_dialog.task_oriented.world.acts import format_acts
from rlhf_dialog.task_oriented.world.multi_domain.state import DialogueState
from rlhf_dialog.task_oriented.world.summary import Layout


def _wish(wish: dict[str, Any]) -> str:
    parts = []
    for key, value in wish.items():
        said = ", ".join(value) if key == "requests" else ", ".join(f"{slot}={v}" for slot, v in value.items())
        parts.append(f"{key.replace('_', ' ')}: {said}")
    return "; ".join(parts)


def _describe_state(state: DialogueState) -> str:
    """For each domain of which the user spoke: what it wants, how many entities fit, what is open, and what is booked."""
    parts = []
    for name, domain_state in state.domains.items():
        constraints = {**domain_state.constraints, **{f"book {s}": x for s, x in domain_state.booking.items()}}
        fit = f"; {len(domain_state.matches)} fit" if domain_state.is_ready and domain_state.service.entities else ""
        asked = f"; asked: {', '.join(domain_state.asked)}" if domain_state.asked else ""
        booked = "; booked" if domain_state.is_booked else ""
        parts.append(
            f"{name} ({', '.join(f'{s}={v}' for s, v in constraints.items()) or 'anything'}{fit}{asked}{booked})"
        )
    return " ".join(parts) or "-"


SHOWN_ABOVE = 0.05


def beliefs(layout: Layout, observation: Features) -> str:
    """The values of each constraint slot with their probabilities, best first, as far as they are above 0.05."""
    parts = []
    for slot, place in layout.slots.items():
        names = (*layout.domain.constraints[slot], DONTCARE)
        scores = observation[place].tolist()[: len(names)]
        ranked = sorted(zip(names, scores, strict=True), key=lambda pair: -pair[1])
        text = " ".join(f"{name} {score:.2f}" for name, score in ranked if score > SHOWN_ABOVE)
        parts.append(f"{slot}: {text or '-'}")
    return "; ".join(parts)


def transcript(domain: AnyDomain, names: Sequence[str], episode: Episode) -> str:
    """The lines of a whole dialogue of `ActLevel` or `MultiActLevel`; `names` are those of its actions."""
    info, multi = episode.info, isinstance(domain, MultiDomain)
    contexts = _states(domain, info) if isinstance(domain, MultiDomain) else _beliefs(domain, episode.observations)
    goal, end_goal = (_multi_goal(info[k]) if multi else _goal(info[k]) for k in ("first_goal", "goal"))
    lines = [f"dialogue {episode.dialogue}, goal: {goal}"]
    lines += [f"  at the end, goal: {end_goal}"] if info["goal"] != info["first_goal"] else []
    lines.append(f"  user    {format_acts(info['user_acts'][0])}")
    for line, action, reward, system, user in zip(
        contexts, episode.actions, episode.rewards, info["system_acts"], info["user_acts"][1:], strict=True
    ):
        lines += [line, f"  system  {format_acts(system)}   [{names[action]}]"]
        lines.append(f"  user    {format_acts(user)}   [reward {reward:+g}]")
    for booking in info.get("bookings", ()):
        slots = ", ".join(f"{slot}={value}" for slot, value in {**booking["made"], **booking["slots"]}.items())
        lines.append(f"  booked  {booking['domain']} {booking['reference']}: {slots}")
    how = "the user said goodbye" if episode.terminated else "the turn limit"
    shown = info["inform"] | ({"book rate": info["book_rate"]} if multi else {})
    measures = ", ".join(f"{name} {value:.2f}" for name, value in shown.items() if value is not None)
    verdict = f"{'success' if episode.success else 'failure'} after {len(episode)} turns ({how})"
    end = f"  {verdict}; reward {episode.total_reward:g}; {'' if multi else 'inform: '}{measures}"
    return "\n".join([*lines, end])


def plain_transcript(names: Sequence[str], episode: Episode) -> str:
    """The lines of a whole dialogue of any environment: its actions, and what each was worth."""
    turns = zip(episode.actions, episode.rewards, strict=True)
    lines = [
        f"  {number:3}  {names[action]}   [reward {reward:+g}]" for number, (action, reward) in enumerate(turns, 1)
    ]
    how = "the environment ended it" if episode.terminated else "the environment cut it off"
    verdict = {None: "no word of success", True: "success"}.get(episode.success, "no success")
    end = f"  {verdict} after {len(episode)} turns ({how}); reward {episode.total_reward:g}"
    return "\n".join([f"dialogue {episode.dialogue}", *lines, end])


def answer_test_transcript(names: Sequence[str], episode: Episode) -> str:
    """The lines of a whole dialogue of a `AnswerTest`: what was said, the action, and where it was wrong the right one."""
    lines = [f"dialogue {episode.dialogue}"]
    for (line, right), action in zip(episode.info["asked"], episode.actions, strict=True):
        verdict = "right" if names[action] == right else f"wrong: {right}"
        lines += [f"  user    {line}", f"  system  {names[action]}   [{verdict}]"]
    return "\n".join(
        [*lines, f"  {episode.info['right']} of {len(episode)} answers were right; reward {episode.total_reward:g}"]
    )


def _states(domain: MultiDomain, info: dict[str, Any]) -> Iterator[str]:
    """What the system knew before each of its turns."""
    state = DialogueState(domain)
    for system, user in zip([[], *info["system_acts"][:-1]], info["user_acts"][:-1], strict=True):
        state.update(system, user)
        yield f"  state   {_describe_state(state)}"


def _beliefs(domain: Domain, observations: Features) -> Iterator[str]:
    layout = Layout(domain)
    return (f"  belief  {beliefs(layout, row)}" for row in observations)


def _multi_goal(goal: dict[str, dict[str, Any]]) -> str:
    return "; ".join(f"{name} ({_wish(wish)})" for name, wish in goal.items())


def _goal(goal: dict[str, Any]) -> str:
    wanted = ", ".join(f"{slot}={value}" for slot, value in goal["constraints"].items())
    refused = f"; not {', '.join(goal['other_than'])}" if goal["other_than"] else ""
    return f"{wanted}; wants to know {', '.join(goal['requests'])}{refused}"
