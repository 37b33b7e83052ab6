"""Loading from a folder or the Hub: one clear error for each folder that is wrong, and no waiting for a Hub without network."""

import time

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from rlhf_dialog.errors import UserError
from rlhf_dialog.models import pretrained
from tests.parts import tiny
from tests.parts.hub_answers import answer
from tests.parts.processes import environment, run_python

pytestmark = pytest.mark.usefixtures("forget")


def test_a_folder_loads_whatever_the_network_also_one_of_the_home_folder(tmp_path, monkeypatch):
    tiny.gpt2(seed=3).save_pretrained(tmp_path / "lm")
    lm = pretrained.load_pretrained(AutoModelForCausalLM, str(tmp_path / "lm"), "model_path")
    expected = tiny.gpt2(seed=3).state_dict()
    assert all(torch.equal(expected[name], tensor) for name, tensor in lm.state_dict().items())
    tiny.byte_tokenizer().save_pretrained(tmp_path / "words")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pretrained.load_pretrained(AutoTokenizer, "~/words", "k").convert_tokens_to_ids("<EOU>") == 258


def test_a_hub_name_without_network_fails_at_once_with_its_key():
    start = time.perf_counter()
    with pytest.raises(UserError) as error:
        pretrained.load_pretrained(AutoModelForCausalLM, "nobody/no-such-model", "model_path")
    assert time.perf_counter() - start < 60
    text = str(error.value)
    assert text.startswith("model_path: 'nobody/no-such-model'")
    assert "cannot be reached" in text
    assert "\n" not in text


@pytest.mark.parametrize("path", ["./absent", "/absent/model", "a/b/c", __file__])
def test_a_folder_that_is_not_there_or_a_file_is_not_looked_for_on_the_hub(online, monkeypatch, path):
    asked = answer(monkeypatch, AssertionError("asked"))
    with pytest.raises(UserError, match=f"ref_model: no such folder: '{path}'"):
        pretrained.load_pretrained(AutoModelForCausalLM, path, "ref_model")
    assert asked == []


@pytest.mark.parametrize(
    ("auto_class", "kind"),
    [
        (AutoModelForCausalLM, "a causal LM"),
        (AutoTokenizer, "a tokenizer"),
        (AutoModelForSequenceClassification, "a classifier"),
    ],
)
def test_an_empty_or_damaged_folder_says_what_was_wanted(tmp_path, auto_class, kind):
    with pytest.raises(UserError, match=f"k: .* cannot be loaded as {kind}"):
        pretrained.load_pretrained(auto_class, str(tmp_path), "k")
    (tmp_path / "config.json").write_text("{ half", encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text("{ half", encoding="utf-8")
    with pytest.raises(UserError, match=f"k: .* cannot be loaded as {kind}"):
        pretrained.load_pretrained(auto_class, str(tmp_path), "k")


@pytest.mark.slow
def test_saving_a_model_says_nothing_of_deepspeeds_accelerator(tmp_path):
    """Saving imports DeepSpeed where it is installed, which prints its guess of the accelerator on stdout."""
    pytest.importorskip("deepspeed", reason="the extra `deepspeed` is not installed")
    code = """
import sys
import rlhf_dialog.models.pretrained
from tests.parts.tiny import gpt2
gpt2(0).save_pretrained(sys.argv[1])
print("deepspeed" in sys.modules)
"""
    env = environment(DS_ACCELERATOR=None, CUDA_VISIBLE_DEVICES="")
    ran = run_python("-c", code, tmp_path / "model", env=env)
    assert ran.stdout.splitlines() == ["True"]
    assert "accelerator" not in ran.stderr
