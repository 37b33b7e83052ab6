"""Which files of a folder are published, and folders that are refused."""

import json
import re
from pathlib import Path

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.models.chat_agent import AgentSettings
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.saved_agent import save_agent
from rlhf_dialog.publishing.files import folder_kind, published_files, write
from tests.parts import tiny
from tests.parts.agents import save
from tests.parts.relevance_models import save_letters

TOKEN = "hf_" + "Zz09" * 9


@pytest.fixture
def folder(tmp_path):
    return save(tmp_path / "agent", {"max_new_tokens": 7, "temperature": 0.5, "top_k": 0, "top_p": 0.9})


def test_only_named_files_are_published(folder, tmp_path):
    for name in (
        "pytorch_model.bin",
        "evil.py",
        "config.yaml",
        "report.json",
        "optimizer.pt",
        "trainer_state.json",
        ".env",
    ):
        (folder / name).write_text("x")
    found = published_files(folder, "--agent")
    assert set(found) == {
        *("model.safetensors", "config.json", "generation_config.json", "rlhf_dialog.json"),
        *("tokenizer.json", "tokenizer_config.json"),
    }
    (tmp_path / "out").mkdir()
    write(found, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_template_and_sampling_of_an_agent_are_published_as_they_are(tmp_path):
    save_agent(tmp_path / "agent", Policy(tiny.gpt2()).eval(), tiny.byte_tokenizer(), AgentSettings(temperature=0.5))
    found = published_files(tmp_path / "agent", "--agent")
    assert found["chat_template.jinja"] == (tmp_path / "agent" / "chat_template.jinja").read_bytes()
    stored = json.loads((tmp_path / "agent" / "generation_config.json").read_text())
    assert json.loads(found["generation_config.json"]) == stored
    assert stored["temperature"] == 0.5


def test_a_link_is_refused_because_it_may_be_of_any_file(folder, tmp_path):
    (tmp_path / "secret").write_text("key")
    (folder / "vocab.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match=r"--agent: .*vocab\.txt is a link"):
        published_files(folder, "--agent")


def test_a_token_in_a_file_is_refused(folder):
    (folder / "config.json").write_text(json.dumps({"note": TOKEN}))
    with pytest.raises(UserError, match=r"config\.json holds an access token"):
        published_files(folder, "--agent")


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("config.json", "is not an agent: it has no config.json; give the folder agent/ of a finished run"),
        ("model.safetensors", "has no weights (model.safetensors)"),
        ("tokenizer_config.json", "has no tokenizer (tokenizer_config.json)"),
        ("rlhf_dialog.json", "is neither an agent (it has no rlhf_dialog.json) nor a reward model"),
    ],
)
def test_a_folder_that_lacks_a_part_is_refused_with_its_name(missing, says, folder):
    assert folder_kind(folder, "--agent") == "agent"
    (folder / missing).unlink()
    with pytest.raises(UserError, match=f"--agent: .*{re.escape(says)}"):
        folder_kind(folder, "--agent")


def test_the_texts_in_a_relevance_model_stay_here(tmp_path):
    with pytest.raises(UserError, match="is a relevance model, whose bank holds texts of its data"):
        folder_kind(Path(save_letters(tmp_path / "relevance")), "--agent")


def test_a_classifier_is_a_reward_model(classifier, tmp_path):
    assert folder_kind(Path(classifier), "--agent") == "reward model"
    tiny.gpt2().save_pretrained(tmp_path)
    tiny.byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="neither an agent"):
        folder_kind(tmp_path, "--agent")
