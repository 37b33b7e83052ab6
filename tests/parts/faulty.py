"""Models of a user's with one fault each, and runs on them."""

import pytest
import torch
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models.packing import ATTENTION, Decoding
from tests.parts.tiny import byte_tokenizer
from tests.parts.trainers import make_trainer

PAD, EOS = 256, 257
PROMPTS = [Dialogue([f"{'long ' * (i % 3)}{letter} ?"], meta={"index": i}) for i, letter in enumerate("abcdefgh")]


def new(kind, seed=0, packing=True, **config):
    """A model of the class `kind` with sharp predictions."""
    sizes = {"vocab_size": len(byte_tokenizer()), "n_positions": 256, "n_embd": 32, "n_layer": 2, "n_head": 2}
    ids = {"bos_token_id": None, "eos_token_id": EOS, "pad_token_id": PAD}
    torch.manual_seed(seed)
    healthy = GPT2LMHeadModel(GPT2Config(**{**sizes, **ids, "initializer_range": 0.2, **config}))
    lm = kind(healthy.config).eval()
    lm.load_state_dict(healthy.state_dict())
    lm.set_attn_implementation(ATTENTION if packing else "sdpa")
    return lm


def is_step(options):
    """Whether a call of the model is for one more token of each row."""
    return isinstance(options.get("packing"), Decoding) or options.get("past_key_values") is not None


class Changed(GPT2LMHeadModel):
    """Changes its logits (B, L, V); `step`: in a call for one more token of each row."""

    def changed(self, logits, step):
        raise NotImplementedError

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **options):
        output = super().forward(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, **options
        )
        output.logits = self.changed(output.logits, is_step(options))
        return output


class Drops(Changed):
    """Its dropout acts in eval mode."""

    def changed(self, logits, step):
        return functional.dropout(logits, 0.1, training=True)


class DrawsItself(Changed):
    """Random numbers of its own, which torch's dropout does not know."""

    def changed(self, logits, step):
        return logits * (torch.rand_like(logits) > 0.1)


class Narrows(Changed):
    """Casts the logits of its steps to bfloat16."""

    def changed(self, logits, step):
        return logits.bfloat16().float() if step else logits


class OffByOne:
    """Positions are one too large when tokens come one by one."""

    def forward(self, *args, position_ids=None, **options):
        if position_ids is not None:
            position_ids = position_ids + is_step(options)
        return super().forward(*args, position_ids=position_ids, **options)


class CountsFromOne(OffByOne, GPT2LMHeadModel):
    pass


class CountingTrunk(OffByOne, GPT2Model):
    pass


class CountsInTrunk(GPT2LMHeadModel):
    """As `CountsFromOne`, in a model that packs."""

    def __init__(self, config):
        super().__init__(config)
        self.transformer = CountingTrunk(config)


class CountsPadding(GPT2LMHeadModel):
    """Takes no position_ids, and counts them from the left edge, padding or not."""

    def forward(self, input_ids=None, attention_mask=None, **options):
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, **options)


class SeesPadding(GPT2LMHeadModel):
    """Makes an attention mask of its own, in which nothing is hidden."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **options):
        mask = torch.ones_like(attention_mask)
        return super().forward(input_ids=input_ids, attention_mask=mask, position_ids=position_ids, **options)


class MixingTrunk(GPT2Model):
    """Adds the mean of all tokens that it sees at once, of other rows too where these are packed."""

    def forward(self, *args, **options):
        output = super().forward(*args, **options)
        if options.get("packing") is not None and not is_step(options):
            output.last_hidden_state += 0.1 * output.last_hidden_state.mean(dim=1, keepdim=True)
        return output


class Leaks(GPT2LMHeadModel):
    """Rows that are packed change each other."""

    def __init__(self, config):
        super().__init__(config)
        self.transformer = MixingTrunk(config)


class Biased(Changed):
    """One token is more likely when tokens come one by one."""

    def changed(self, logits, step):
        return logits + step * torch.linspace(0, 1, logits.shape[-1]).square()


def stopped(trainer, steps=1):
    """The message with which the run stops at its last step."""
    for _ in range(steps - 1):
        trainer.step()
    with pytest.raises(RunStopped) as caught:
        trainer.step()
    return str(caught.value)


def trainer_on(kind, packing=True, healthy_reference=False, **keys):
    """A trainer whose policy is of the class `kind`, and so is its reference unless that is healthy."""
    made = []

    def new_lm(seed):
        made.append(new(GPT2LMHeadModel if made and healthy_reference else kind, seed, packing))
        return made[-1]

    return make_trainer(new_lm=new_lm, **{"prompts": PROMPTS, **keys})
