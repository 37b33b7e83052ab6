"""Text in: dialogues, prompts, formats, the Hub.

- **This folder speaks text and ids, and never imports torch.** Loading models from a folder or the Hub is
  `models/pretrained.py`; `hub` only says what is on this machine and whether the Hub answers.
- **What a speaker says never ends a turn.** `PromptRules.load` replaces the separator in the data, so that rewards, metrics
  and the model see one text; both encoders replace it once more in all that they encode (`spoken`), so that chat,
  environments and another agent's prompts cannot pass it by. The special tokens of a chat template are known only with
  a tokenizer, so there the encoder alone does it.
"""
