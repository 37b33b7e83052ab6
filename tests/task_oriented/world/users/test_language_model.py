import pytest

from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.environments.base import answer, open_episode
from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.world.users import language_model
from rlhf_dialog.task_oriented.world.users.language_model import LMUser, answer_all, load_responder
from tests.parts import tiny
from tests.parts.agents import save

GOALS = ["A cheap room.", "A quiet room.", "A room with a view."]
REPLIES = ["Yes .", "Which day ?", "It is taken ."]


def play(user, dialogue, seed=7, replies=REPLIES):
    """The user's turns in one dialogue."""
    texts = [user.reset(seed, {"dialogue": dialogue})[0]]
    return texts + [user.step(reply)[0] for reply in replies]


@pytest.fixture
def scripted(monkeypatch):
    """What the model says next, and what it has read before."""
    said, read = [], []

    def written(responder, prompts, streams):
        read.extend(prompts)
        return [said.pop(0) for _ in prompts]

    monkeypatch.setattr(language_model, "write_turns", written)
    return said, read


@pytest.mark.slow
def test_a_batch_of_dialogues_equals_each_by_itself(chat_agent):
    users = [LMUser(chat_agent, goals=GOALS, goodbye=()) for _ in range(4)]
    expected = [play(users[0], n) for n in range(4)]
    found = [[user.reset(7, {"dialogue": n})[0]] for n, user in enumerate(users)]
    for reply in REPLIES:
        for texts, step in zip(found, answer_all(users, [reply] * 4), strict=True):
            texts.append(step[0])
    assert found == expected


def test_a_seed_begins_with_dialogue_0_and_the_next_ones_follow(chat_agent):
    user = LMUser(chat_agent, goals=GOALS, openings=["Hi .", "Good day ."])
    infos = [user.reset(3)[1], user.reset()[1], user.reset()[1]]
    assert [info["dialogue"] for info in infos] == [0, 1, 2]
    assert user.reset(3, {"dialogue": 1})[1] == infos[1]
    assert {user.reset(3, {"dialogue": n})[1]["goal"] for n in range(30)} == set(GOALS)
    assert user.reset(3, {"goal": "Tea.", "opening": "Tea ?"}) == ("Tea ?", {"dialogue": 0, "goal": "Tea."})


def test_what_ends_a_dialogue(scripted):
    said, _ = scripted
    user = LMUser(None, max_turns=3)
    said += ["Hi .", "And ?", "Fine . Good-bye , GoodBye !"]
    assert user.reset(0)[0] == "Hi ."
    assert user.step("a")[:4] == ("And ?", 0.0, False, False)
    assert user.step("b")[:4] == ("Fine . Good-bye , GoodBye !", 0.0, True, False)
    said += ["Hi .", ""]
    user.reset()
    assert user.step("a")[:4] == ("", 0.0, True, False)
    said += ["", "b", "c"]
    assert user.reset()[0] == "Hello ."
    steps = [user.step("x") for _ in range(3)]
    assert [(text, truncated) for text, _, _, truncated, _ in steps] == [("b", False), ("c", False), ("", True)]
    said += ["Hi .", "Goodbye ."]
    other = LMUser(None, goodbye=["[end]x"])
    other.reset(0)
    assert other.step("a")[2] is False


def test_the_model_reads_persona_and_goal_and_sees_itself_as_the_answering_side(scripted):
    said, read = scripted
    said += ["I need a room .", "With a bath ?"]
    user = LMUser(None, persona="You are Ada.", goals=["A cheap room."])
    user.reset(0)
    user.step("Which one ?")
    instruction = f"You are Ada. {language_model.GOAL.format(goal='A cheap room.')}"
    assert read == [[[instruction]], [[instruction, "I need a room .", "Which one ?"]]]
    read.clear()
    said += ["Yes ."]
    plain = LMUser(None, persona="", openings=["Hi ."])
    plain.reset(0)
    plain.step("Hello .")
    assert read == [[["Hi .", "Hello ."]]]


def test_a_long_dialogue_loses_its_oldest_exchange_and_never_the_goal(chat_agent):
    user = LMUser(chat_agent, persona="Be Ada.")
    user.reset(0, {"opening": "a" * 30})
    user.turns += ["b" * 30, "c" * 30, "d" * 30]
    ids = language_model._fitting(chat_agent, user._prompt())
    text = chat_agent.encoder.tokenizer.decode(ids)
    assert len(ids) <= chat_agent.encoder.max_prompt_length == 100
    assert text == f"Be Ada.<EOU> {'c' * 30}<EOU> {'d' * 30}<EOU>"


def test_a_folder_that_does_not_say_its_format_speaks_by_its_chat_template(tmp_path):
    tiny.gpt2(vocab_size=261).save_pretrained(tmp_path)
    tiny.chat_tokenizer().save_pretrained(tmp_path)
    responder = load_responder(str(tmp_path), sampling=(("max_new_tokens", 5),))
    assert responder.settings.turn_separator == "chat_template"
    user = LMUser(responder, persona="Be Ada.")
    user.reset(0, {"opening": "Hi ."})
    user.turns.append("Hello .")
    ids = language_model._fitting(responder, user._prompt())
    assert responder.encoder.tokenizer.decode(ids) == (
        "<|im_start|>user\nBe Ada.<|im_end|>\n<|im_start|>assistant\nHi .<|im_end|>\n"
        "<|im_start|>user\nHello .<|im_end|>\n<|im_start|>assistant\n"
    )


def test_it_is_built_from_a_yaml_and_goals_may_lie_in_a_file(agent_folder, tmp_path):
    arguments = {"model": str(agent_folder), "goals": GOALS, "max_new_tokens": 4, "temperature": 0.5}
    user = EnvironmentFactory.create("language_model_user", arguments)
    assert len(open_episode(user, 0).prompt_turns) == 1
    assert answer(user, "Yes .")[1] == 0
    assert (user.responder.sampling.max_new_tokens, user.responder.sampling.temperature) == (4, 0.5)
    assert LMUser(**arguments).responder is user.responder
    path = tmp_path / "goals.txt"
    path.write_text("A room.\n\n A table. \n")
    assert LMUser(None, goals=str(path)).goals == ["A room.", "A table."]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_turns": 0}, "max_turns is 0"),
        ({"persona": ""}, "no persona, goal or opening"),
        ({"goals": "nowhere.txt"}, "'nowhere.txt' cannot be read"),
        ({"goals": "empty.txt"}, "'empty.txt' is empty"),
        ({"temperature": 0}, "temperature: "),
        ({"temprature": 1}, "temprature: "),
        ({"max_new_tokens": 999}, "256 positions, too few for 999"),
        ({"model": "nowhere"}, "language_model_user: model: .*nowhere"),
    ],
)
def test_wrong_arguments(agent_folder, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(UserError, match=message):
        LMUser(**{"model": str(agent_folder), **arguments}).reset(0)


def test_code_in_the_models_folder_is_not_run(tmp_path):
    folder = save(tmp_path / "own_code")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(
        config.replace("{", '{"auto_map": {"AutoConfig": "own.Own"}, ', 1).replace('"gpt2"', '"own"')
    )
    (folder / "own.py").write_text("raise SystemExit('code was run')\n")
    with pytest.raises(UserError, match="language_model_user: "):
        LMUser(str(folder)).reset(0)
