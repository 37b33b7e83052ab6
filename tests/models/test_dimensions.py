"""How large a model is, by its configuration and its embeddings."""

from transformers import BloomConfig, BloomForCausalLM

from rlhf_dialog.models.network import num_embeddings, num_logits
from rlhf_dialog.models.policy import num_positions
from tests.parts.tiny import gpt2, llama


def test_positions_are_those_of_the_configuration():
    assert num_positions(gpt2()) == num_positions(llama()) == 256
    assert num_positions(BloomForCausalLM(BloomConfig(vocab_size=8, hidden_size=8, n_layer=1, n_head=1))) is None


def test_a_model_knows_and_chooses_among_the_tokens_of_its_embeddings():
    lm = gpt2(vocab_size=300)
    assert num_embeddings(lm) == num_logits(lm) == 300
