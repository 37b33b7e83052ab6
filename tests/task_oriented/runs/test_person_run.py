import os
import signal
from pathlib import Path

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.gp_sarsa import GPSarsa
from rlhf_dialog.task_oriented.policies.sampling.sampler import run_dialogues
from tests.parts.folders import contents
from tests.parts.persons import ASKED, BAD, GOOD, SHOP, person_run, talked
from tests.parts.policy_runs import numbers

TWO, MORE = [*GOOD, *BAD], [*BAD, *GOOD, *GOOD]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "args", "lines"),
    [
        ("gp_sarsa", {}, (TWO, MORE)),
        ("gp_sarsa", {}, (ASKED, ASKED[5:] + ASKED[:5] * 2)),
        ("dqn", {"hidden_sizes": [8], "steps_per_dialogue": 5}, (ASKED, ASKED[5:] + ASKED[:5] * 2)),
    ],
)
def test_two_days_are_one_longer_day(tmp_path, policy, args, lines):
    settings = {"policy": {"id": policy, "args": args}} | ({} if lines[0] == TWO else SHOP)
    (tmp_path / "days").mkdir()
    (tmp_path / "day").mkdir()
    talked(tmp_path / "days", lines[0], **settings)
    shown = talked(tmp_path / "days", lines[1], **settings)
    assert shown[0].startswith("2 dialogues so far, 2 of them rewarded; ")
    talked(tmp_path / "day", lines[0] + lines[1], **settings)
    names = {"gp_sarsa": "policy.safetensors", "dqn": "replay.safetensors"}
    assert (tmp_path / "day" / "run" / "agent" / names[policy]).is_file()
    own = (Path("policy_agent.json"),)  # names the file of the domain
    one, other = (contents(tmp_path / name / "run" / "agent") for name in ("days", "day"))
    assert {k: v for k, v in one.items() if k not in own} == {k: v for k, v in other.items() if k not in own}
    assert [row["reward"] for row in numbers(tmp_path / "days" / "run")] == [
        row["reward"] for row in numbers(tmp_path / "day" / "run")
    ]


def test_each_dialogue_has_the_streams_of_its_number_and_is_explored(tmp_path, monkeypatch):
    led = []

    def noted(policy, make, seed, dialogues, **args):
        led.append((seed, list(dialogues), args))
        return run_dialogues(policy, make, seed, dialogues, **args)

    monkeypatch.setattr("rlhf_dialog.task_oriented.runs.person_run.run_dialogues", noted)
    talked(tmp_path, TWO, seed=4)
    talked(tmp_path, BAD, seed=4)  # the third dialogue was left before its first words
    assert led == [(4, [number], {"deterministic": False}) for number in (0, 1, 2, 2, 3)]


def test_what_counts_and_what_is_learned_from(tmp_path):
    """A dialogue that has not ended counts if something in it was rewarded."""
    shown = talked(tmp_path, [*GOOD[:-1], "", *GOOD])
    assert "(saved; without a reward, nothing was learned)" in shown
    assert [row["rewarded"] for row in numbers(tmp_path / "run")] == [0, 1]
    assert numbers(tmp_path / "run")[1]["gp/dialogues"] == 1
    assert talked(tmp_path, ["hi", "green tea", "/quit"])[0].startswith("2 dialogues so far, 1 of them rewarded")
    talked(tmp_path, ["hi", "/reward 5", "green tea", "/quit"])
    assert [row["reward"] for row in numbers(tmp_path / "run")][2:] == [5.0 - 2]
    talked(tmp_path, [], reward_after="turn", rewards=[0, 1], show_goal=False)
    with pytest.raises(UserError, match="seed: 0 -> 1"):
        talked(tmp_path, GOOD, seed=1)


def test_a_signal_while_the_policy_learns_loses_nothing(tmp_path, monkeypatch):
    update = GPSarsa.update

    def signalled(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return update(self)

    monkeypatch.setattr(GPSarsa, "update", signalled)
    run, _ = person_run(tmp_path, TWO)
    with pytest.raises(SystemExit) as end:
        run.run()
    assert end.value.code == 143
    assert len(numbers(tmp_path / "run")) == 1
    assert (tmp_path / "run" / "agent").is_dir()
