"""configs/chat_lora.yaml on random models of two shapes that it names, from the data to an agent of plain transformers."""

import json
from pathlib import Path

import pytest
import torch
import trl
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from rlhf_dialog import ChatAgent, main
from tests.parts.ppo_runs import rows
from tests.parts.tiny import chat_tokenizer, llama

pytestmark = pytest.mark.slow

SIZES = {"vocab_size": 272, "max_position_embeddings": 1024}
TALK = ["Is it far ?", "Ten minutes on foot .", "And by bus ?", "Two minutes , it stops at the gate ."]


def trl_template(name: str) -> str:
    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def qwen2():
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 32, "intermediate_size": 64}
    ids = {"bos_token_id": None, "eos_token_id": 257, "pad_token_id": 256}
    return Qwen2ForCausalLM(Qwen2Config(num_hidden_layers=2, tie_word_embeddings=True, **heads, **ids, **SIZES))


SHAPES = {
    "Qwen2.5": (qwen2, lambda: trl_template("qwen2_5")),
    "Llama-3.2": (lambda: llama(**SIZES), lambda: trl_template("llama3_2")),
}


@pytest.fixture
def chats(tmp_path):
    """Messages, as people keep them."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(TALK)]
    for split in ("train", "validation"):
        lines = [json.dumps({"messages": [{"role": "system", "content": f"Guide {i}"}, *messages]}) for i in range(6)]
        (tmp_path / "chats").mkdir(exist_ok=True)
        (tmp_path / "chats" / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path / "chats"


@pytest.mark.parametrize("shape", SHAPES)
def test_one_key_names_the_model(shape, chats, tmp_path):
    make, template = SHAPES[shape]
    tokenizer = chat_tokenizer(template())
    tokenizer.add_tokens(
        [AddedToken(text, special=True) for text in ("<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")]
    )
    torch.manual_seed(0)
    # 40 tokens: shorter replies to a prompt may all have the same number of words, and nothing is learned
    make().save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    words = ["--config", "chat_lora.yaml", "--model_path", str(tmp_path / "model"), "--env.args.data_path", str(chats)]
    small = ["--max_iterations", "2", "--rollout_batch_size", "8", "--max_new_tokens", "40", "--num_mini_batch", "2"]
    small += ["--eval_interval", "1", "--eval_episodes", "4", "--run_dir", str(tmp_path), "--device", "cpu"]
    assert main([*words, *small]) == 0
    run = tmp_path / "chat_lora"
    first, second = rows(run)
    assert first["objective/kl"] == pytest.approx(0, abs=1e-5)
    assert second["objective/kl"] != 0
    agent, plain = ChatAgent.load(run / "agent"), AutoTokenizer.from_pretrained(run / "agent")
    AutoModelForCausalLM.from_pretrained(run / "agent")
    assert not list((run / "agent").glob("adapter*"))
    sampling = json.loads((run / "agent" / "generation_config.json").read_text(encoding="utf-8"))
    assert (sampling["temperature"], sampling["top_p"]) == (0.7, 0.9)
    chat = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(TALK[:3])]
    ids = plain.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert ids == agent.encoder.encode_prompt(TALK[:3])
    behind = plain.apply_chat_template([{"role": "system", "content": "Guide 1"}, *chat], add_generation_prompt=True)
    assert behind["input_ids"] == agent.encoder.encode_prompt(TALK[:3], "Guide 1")
