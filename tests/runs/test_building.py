"""The parts of a run: what is refused before models are loaded, and where they are."""

import tiny

from rlhf_dialog import PPOAgent, RewardFactory
from rlhf_dialog.distributed.world import World


def test_a_reward_that_needs_acts_on_data_without_acts(refused, tmp_path, rewards):
    (tmp_path / "train.jsonl").write_text('{"dialog": ["Hello there .", "Hi .", "Bye ."]}\n', encoding="utf-8")

    @RewardFactory.register("WantsActs")
    class WantsActs(RewardFactory.classes["Vowels"]):  # type: ignore[misc]
        needs = ("act",)

    message = refused("--env.args.data_path", "train.jsonl", "--reward_class", "{id: WantsActs}")
    assert "2 of 2 prompts have no act" in message
    assert "wantsacts" in message.lower()


def test_the_separator_of_the_run_is_what_data_must_not_hold(refused, tmp_path):
    (tmp_path / "train.jsonl").write_text('{"dialog": ["Hello there .", "=/="]}\n', encoding="utf-8")
    keys = ("--reward_class", "{id: Vowels}", "--turn_separator", "=/=")
    assert "dialogue 1 has a turn" in refused("--env.args.data_path", "train.jsonl", *keys)


def test_a_tokenizer_of_another_model_is_refused(refused, tmp_path):
    words = tiny.byte_tokenizer()
    words.add_tokens(["more"])
    words.save_pretrained(tmp_path / "words")
    assert "260 tokens" in refused("--env.args.tokenizer_path", "./words")


def test_what_is_built_is_on_the_device_of_the_run(run, monkeypatch):
    """`build` alone, as the benchmark calls it, asks for device and processes as a run does."""
    world = World(local_rank=3)
    monkeypatch.setattr("rlhf_dialog.distributed.process_group.start", lambda config: world)
    trainer = PPOAgent.from_config("ppo.yaml").build()
    assert trainer.world is world
