"""Whole dialogues as messages: a sequence each, of which one person's turns are learned."""

from experiments.dailydialog.pretrained import dialogues
from experiments.dailydialog.work import Work
from rlhf_dialog.data.chat_template import prompt_encoder
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.data.sources import load_records
from rlhf_dialog.training.supervised.sft import example, merge_prefixes
from tests.parts import tiny


def test_each_dialogue_is_one_sequence_and_half_of_its_turns_are_learned(tmp_path):
    work = Work(tiny.write_data(tmp_path / "data", 10), tmp_path / "work", "pretrained", None)
    dialogues.write(work)
    turns = [one.turns for one in load_records(str(work.data), "train")]
    prompts = PromptRules(1000, turn_separator="chat_template").load(str(work.dialogues / "whole"), "train")
    learned = {number: [one.reference for one in prompts if one.meta["dialogue"] == number] for number in range(10)}
    for number, said in enumerate(turns):
        first = 2 if number % 2 and len(said) > 2 else 1
        assert learned[number] == said[first::2]
    encoder = prompt_encoder(tiny.chat_tokenizer(), "chat_template", 5000)
    assert len([*merge_prefixes(example(encoder, one) for one in prompts)]) == 10
