"""Which versions are in memory, and which one a new dialogue gets."""

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.sessions.batched_generation import Answering
from rlhf_dialog.feedback.sessions.loaded_versions import LoadedVersions, load_agent
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.generation import at_temperature
from tests.parts.agents import save
from tests.parts.bots import new_version
from tests.parts.tiny import chat_tokenizer, gpt2


class Versions:
    """A source whose champion the test sets; what is in `broken` does not load. Loaded, a version is its own name."""

    def __init__(self, champion: str = "0001"):
        self.pointer, self.broken, self.loaded = champion, set(), []

    def champion(self) -> str:
        if not self.pointer:
            raise UserError("champion: cannot be read")
        return self.pointer

    def load(self, version: str):
        self.loaded.append(version)
        if version in self.broken:
            raise UserError("truncated file")
        return f"agent {version}"


def served_of(source, **options):
    return LoadedVersions(source.champion, lambda version: source.load(version), **options)


def test_a_dialogue_keeps_its_version_and_a_new_one_gets_the_champion():
    source = Versions()
    served = served_of(source)
    early = served.hold()
    assert served.hold() == early
    source.pointer = "0002"
    late = served.hold()
    assert (early, late, served.versions) == ("0001", "0002", ["0001", "0002"])
    assert served.agent(early) == "agent 0001"
    served.release(early)
    assert served.versions == ["0001", "0002"]  # of two dialogues one goes on
    served.release(early)
    assert served.versions == ["0002"]
    with pytest.raises(UserError, match="0001 is not in memory any more; begin a new dialogue"):
        served.agent(early)
    served.release(late)
    assert served.versions == ["0002"]  # the next dialogue gets it
    assert source.loaded == ["0001", "0002"]


def test_a_dialogue_may_end_while_another_one_begins():
    """As garbage collection does it: in the same thread, in the middle of a load."""
    source = Versions()
    served, load = served_of(source), source.load
    served.hold()
    source.pointer = "0002"

    def collecting(version):
        served.release("0001")
        return load(version)

    source.load = collecting
    assert served.hold() == "0002"
    assert served.versions == ["0002"]


def test_a_dialogue_goes_on_with_the_version_that_it_names_where_that_can_be():
    source, seconds = Versions("0003"), [0.0]
    served = served_of(source, usable=lambda: ["0001", "0002", "0003"], max_versions=2, clock=lambda: seconds[0])
    assert served.hold() == "0003"
    assert served.hold("0001") == "0001"
    assert served.hold("0009") == "0003"  # not usable
    assert served.hold("0002") == "0003"  # no room
    served.release("0001")
    assert served.versions == ["0001", "0003"]  # it rests
    assert source.loaded == ["0003", "0001"]
    assert served.hold("0002") == "0002"  # in its place
    served.release("0002")
    source.pointer = "0004"
    for _ in range(3):
        served.release("0003")
    assert served.hold() == "0004"  # what rests makes room for the champion
    served.release("0004")
    source.broken = {"0001"}
    assert served.hold("0001") == "0004"
    assert served.hold("0003") == "0003"
    served.release("0003")
    seconds[0] = 601.0
    served.release("0004")
    assert served.versions == ["0004"]  # it has rested long enough


def test_full_memory_serves_the_newest_version_in_it():
    source, held = Versions(), []
    served = served_of(source, max_versions=2)
    for source.pointer in ("0001", "0002", "0003"):
        held.append(served.hold())
    assert held == ["0001", "0002", "0002"]
    served.release("0001")
    assert served.hold() == "0003"
    assert served.versions == ["0002", "0003"]


def test_a_champion_that_does_not_load_or_is_not_known_leaves_the_version_in_memory(caplog):
    source = Versions()
    served = served_of(source)
    served.hold()
    source.pointer, source.broken = "0002", {"0002"}
    assert served.hold() == "0001"
    assert "truncated file; version 0001 answers in its place" in caplog.text
    source.pointer = ""
    assert served.hold() == "0001"
    for pointer, words in (("", "cannot be read"), ("0002", "truncated file")):
        source.pointer = pointer
        with pytest.raises(UserError, match=words):
            served_of(source).hold()
    source.broken = set()
    assert served.hold() == "0002"


def test_a_version_with_broken_weights_is_not_served(bot):
    def break_weights(folder):
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])

    new_version(bot, break_weights)
    with Answering(bot) as answering, pytest.raises(UserError, match="version 0002 does not load"):
        answering.begin()


def test_a_plain_chat_model_speaks_by_its_template_unless_it_has_settings(tmp_path):
    gpt2(vocab_size=261).save_pretrained(tmp_path)
    chat_tokenizer().save_pretrained(tmp_path)
    agent = load_agent(tmp_path)
    assert (agent.settings.turn_separator, agent.settings.max_prompt_length) == ("chat_template", 192)
    assert agent.encoder.tokenizer.decode(agent.encoder.encode_prompt(["Hi"])).startswith("<|im_start|>user\nHi")
    save(tmp_path, {"max_new_tokens": 5, "turn_separator": "<EOU>"}, vocab_size=261)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert load_agent(tmp_path).settings.turn_separator == "<EOU>"


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({}, (False, 0.9, 0.6)),
        ({"chat_temperature": 0.3, "chat_top_p": 1.0}, (False, 0.3, 1.0)),
        ({"chat_temperature": 0, "chat_top_p": 0.9}, (True, 0.9, 0.9)),
    ],
)
def test_an_agents_chat_sampling_comes_before_its_own_and_the_persons_choice_before_both(tmp_path, keys, wanted):
    save(tmp_path, {"temperature": 0.9, "top_p": 0.6, "top_k": 7, **keys})

    def cool(agent):
        agent.sampling = at_temperature(0.5, agent.sampling)

    plain, chosen = (load_agent(tmp_path, adjust=adjust).sampling for adjust in (None, cool))
    assert (plain.greedy, plain.temperature, plain.top_p, plain.top_k) == (*wanted, 7)
    assert (chosen.greedy, chosen.temperature, chosen.top_p) == (False, 0.5, wanted[2])
    assert ChatAgent.load(tmp_path).sampling.top_p == 0.6
