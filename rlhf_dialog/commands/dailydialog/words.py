"""The validation loss of a model in nats a word:  python -m rlhf_dialog.commands.dailydialog.words PLAN

A word is what white space separates; the end of a reply is one more. The loss of a reply with its end token is summed over
its tokens, so models with different tokenizers can be compared.
"""

import json
import sys
from pathlib import Path
from typing import Any

from rlhf_dialog.atomic_files import replace_json


def nats_a_word(model: Path, data: str, keys: dict[str, Any]) -> dict[str, float]:
    """Nats and words of the true replies to validation prompts; keys: of the SFT's configuration."""
    from rlhf_dialog.data.prompts import load_prompts
    from rlhf_dialog.evaluation.replies import pick_prompts, reference_nll
    from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent

    names = ("context_size", "max_prompt_length", "turn_separator")
    agent = ChatAgent.load(model, settings=AgentSettings(**{name: keys[name] for name in names}))
    prompts = load_prompts(data, "validation", keys["context_size"], keys["min_context_size"])
    prompts = pick_prompts(prompts, keys["max_eval_prompts"], keys["seed"])
    nats, tokens = reference_nll(agent, prompts).sum(axis=0).tolist()
    words = sum(len((prompt.reference or "").split()) + 1 for prompt in prompts)
    return {"nats_a_word": nats / words, "nats_a_token": nats / tokens, "words": words, "prompts": len(prompts)}


def main(plan: Path) -> None:
    given = json.loads(plan.read_text(encoding="utf-8"))
    model = Path(given["model"])
    keys = json.loads((model / "training.json").read_text(encoding="utf-8"))["config"]
    replace_json(Path(given["output"]), nats_a_word(model, keys["data_path"], keys))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
