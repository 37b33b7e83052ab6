"""The validation loss of a model in nats a word:  python -m experiments.dailydialog.words PLAN

A word is what white space separates; the end of a reply is one more. The loss of a reply with its end token is summed over
its tokens, so models with different tokenizers can be compared. A pretrained chat model beside it, which never saw the data,
reads fewer prompts, in its own template.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_dialog.atomic_files import replace_json

if TYPE_CHECKING:
    from rlhf_dialog.models.chat_agent import ChatAgent

READ = ("context_size", "max_prompt_length", "turn_separator")  # how the SFT model reads a prompt


def nats_a_word(agent: "ChatAgent", data: str, keys: dict[str, Any]) -> dict[str, float]:
    """Nats and words of the true replies to validation prompts; keys: of the SFT's configuration."""
    from rlhf_dialog.data.prompts import PromptRules
    from rlhf_dialog.evaluation.replies import pick_prompts, reference_nll

    every = PromptRules(context_size=keys["context_size"], min_context_size=keys["min_context_size"]).load(
        data, "validation"
    )
    prompts = pick_prompts(every, keys["max_eval_prompts"], keys["seed"])
    nats, tokens = reference_nll(agent, prompts).sum(axis=0).tolist()
    words = sum(len((prompt.reference or "").split()) + 1 for prompt in prompts)
    return {"nats_a_word": nats / words, "nats_a_token": nats / tokens, "words": words, "prompts": len(prompts)}


def main(plan: Path) -> None:
    from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent
    from rlhf_dialog.rewards.likelihood import load_responder

    given = json.loads(plan.read_text(encoding="utf-8"))
    model = Path(given["model"])
    keys = json.loads((model / "training.json").read_text(encoding="utf-8"))["config"]
    keys |= given.get("keys", {})
    settings = AgentSettings(**{name: keys[name] for name in READ})
    found: dict[str, Any] = nats_a_word(ChatAgent.load(model, settings=settings), keys["data_path"], keys)
    if given["pretrained"]:
        few = keys | {"max_eval_prompts": given["prompts"]}
        found["pretrained"] = nats_a_word(load_responder(given["pretrained"], None), keys["data_path"], few)
    replace_json(Path(given["output"]), found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
