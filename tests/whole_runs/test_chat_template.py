"""The whole way with a chat template: fine-tuning, PPO, evaluation and chat."""

import json

import pytest

from rlhf_dialog import ChatAgent
from rlhf_dialog.commands import evaluate
from rlhf_dialog.commands.supervised import train_sft
from tests.parts import tiny
from tests.parts.chatml import END, OPEN, said
from tests.parts.ppo_runs import rows

pytestmark = pytest.mark.slow


def test_an_agent_of_a_template_that_wants_the_user_first_keeps_it_and_answers(run, world, tmp_path):
    tiny.gpt2(vocab_size=261).save_pretrained("model")
    tiny.chat_tokenizer(tiny.CHATML_USER_FIRST).save_pretrained("model")
    template = ["--turn_separator", "chat_template", "--device", "cpu"]
    few = ["--max_steps", "3", "--batch_size", "4", "--evals", "1", "--pytorch_threads", "1"]
    data = ["--data_path", str(world / "data"), "--model_path", "model", "--output", "sft"]
    assert train_sft([*data, *template, *few]) == 0
    assert run(*template, "--model_path", "sft", "--max_prompt_length", "200") == 0
    first, second = rows(tmp_path / "run_results/ppo")
    assert first["objective/kl"] == pytest.approx(0, abs=1e-5)
    assert second["objective/kl"] != 0
    agent = ChatAgent.load("run_results/ppo/agent")
    assert agent.settings.turn_separator == "chat_template"
    assert agent.encoder.encode_prompt(["a", "b"]) == said("user", "b") + OPEN
    assert END in agent.stop.end_ids
    assert "<|" not in agent.chat("Hello", history=["Hi", "Who is there ?"])
    words = ["--agent", "run_results/ppo/agent", "--output", "evaluation.json", "--max_prompts", "4"]
    assert evaluate.main([*words, "--no_intent"]) == 0
    found = json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8"))["baselines"]
    assert found["constant_reply"]["mean_length"]["mean"] == len("Yes , I am .") + 1  # with its end token
