"""Ids that are no tokens have probability 0: in sampling, update, reference and their KL, and in the saved agent."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from rlhf_dialog.config.schema import Config
from rlhf_dialog.json_files import load_json
from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent
from rlhf_dialog.models.generation import Sampling, StopRule
from rlhf_dialog.models.loading import load_models
from rlhf_dialog.models.network import num_token_ids
from rlhf_dialog.models.policy import Policy, teacher_forced
from rlhf_dialog.models.saved_agent import save_agent
from rlhf_dialog.models.token_batch import TokenBatch, pad_left
from tests.parts.tiny import byte_tokenizer, gpt2, llama
from tests.parts.token_batches import respond_to

NUM_TOKENS, PADDED = 259, 300
PROMPTS, REPLIES = [[5, 6, 7], [8]], [[9, 10, 258], [11]]


@pytest.fixture(params=[gpt2, llama])
def folder(request, tmp_path):
    """A model that likes ids which are no tokens best."""
    model = request.param(vocab_size=PADDED, initializer_range=0.3, tie_word_embeddings=False)
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head[NUM_TOKENS:] *= 6
    model.save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def expected(folder, temperature):
    """Log-probabilities, entropies and whole distributions at the reply's tokens, by a plain forward pass in float64."""
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    rows = []
    for prompt, reply in zip(PROMPTS, REPLIES, strict=True):
        with torch.no_grad():
            logits = lm(torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1] / temperature
        logits[:, NUM_TOKENS:] = -torch.inf
        rows.append(logits.log_softmax(-1))
    return rows


def test_policy_reference_and_kl_are_those_of_the_tokens_alone(folder):
    temperature = 0.7
    given = {"env": {"args": {"data_path": "unused"}}, "reward_class": {"id": "LengthMatch"}, "use_share_model": True}
    models = load_models(Config(model_path=str(folder), **given), torch.device("cpu"))
    with torch.no_grad():
        for name, weight in models.policy.lm.named_parameters():
            if "norm" in name or "ln_" in name:
                weight *= 1.3  # so that policy and reference differ
    models.policy.lm.save_pretrained(folder.parent / "changed")
    policy, reference = models.policy.double(), models.ref_policy.double()
    tokens = TokenBatch.from_prompts(PROMPTS, 256, torch.device("cpu")).with_replies(REPLIES)
    features = reference.features(tokens.pack())[0].detach()
    found = policy(tokens.pack(), temperature, True, (reference, features))
    theirs = teacher_forced(reference, tokens, temperature)
    ours, ref = (expected(path, temperature) for path in (folder.parent / "changed", folder))
    for row, reply in enumerate(REPLIES):
        at = range(len(reply)), reply
        torch.testing.assert_close(theirs.logprobs[row, : len(reply)], ref[row][at], rtol=0, atol=1e-11)
    p, q = torch.cat(ours)[:, :NUM_TOKENS], torch.cat(ref)[:, :NUM_TOKENS]
    places = range(len(p)), [i for reply in REPLIES for i in reply]
    torch.testing.assert_close(found.logprobs, p[places], rtol=0, atol=1e-11)
    torch.testing.assert_close(found.entropy, -(p.exp() * p).sum(-1), rtol=0, atol=1e-11)
    torch.testing.assert_close(found.kl, (p.exp() * (p - q)).sum(-1), rtol=0, atol=1e-11)
    found.logprobs.sum().backward()
    gradient = policy.lm.get_output_embeddings().weight.grad
    assert gradient[:NUM_TOKENS].any()
    assert not gradient[NUM_TOKENS:].any()


@pytest.mark.parametrize(
    "sampling", [Sampling(30, 0.8, top_p=0.9), Sampling(9, greedy=True), Sampling(5, min_new_tokens=4)]
)
def test_no_id_without_text_is_drawn(folder, sampling):
    agent = ChatAgent.load(folder)
    agent.policy.lm.generation_config.eos_token_id = PADDED - 1  # an end that is no token is no end
    stop = StopRule(agent.policy, agent.encoder.tokenizer, "<EOU>")
    torch.manual_seed(0)
    found = respond_to(agent.policy, *pad_left([[5, 6, 7]] * 40, 256), sampling, stop, 256)
    assert found.tokens.response_ids.max() < NUM_TOKENS
    if sampling.filtered:
        again = teacher_forced(agent.policy, found.tokens, sampling.temperature).logprobs
        torch.testing.assert_close(found.logprobs, again, rtol=0, atol=1e-4)


def test_a_vocabulary_without_padding_is_left_alone():
    assert num_token_ids(gpt2(vocab_size=NUM_TOKENS), byte_tokenizer()) is None
    assert num_token_ids(gpt2(vocab_size=NUM_TOKENS + 1), byte_tokenizer()) == NUM_TOKENS


def test_other_programs_suppress_the_ids_without_text(folder):
    agent = ChatAgent.load(folder)
    save_agent(folder.parent / "agent", agent.policy, agent.encoder.tokenizer, AgentSettings(turn_separator="<EOU>"))
    assert load_json(folder.parent / "agent/generation_config.json")["suppress_tokens"] == [*range(NUM_TOKENS, PADDED)]
    saved = AutoModelForCausalLM.from_pretrained(folder.parent / "agent")
    ids = saved.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=12, do_sample=False)
    assert ids.max() < NUM_TOKENS
    unpadded = gpt2() if not isinstance(agent.policy.lm, LlamaForCausalLM) else llama()
    save_agent(folder.parent / "whole", Policy(unpadded), byte_tokenizer(), AgentSettings(turn_separator="<EOU>"))
    assert "suppress_tokens" not in json.loads((folder.parent / "whole/generation_config.json").read_text())
