"""A judge that never saw the dialogues: how near a reply lies to the turn before it, for a pretrained sentence encoder."""

from pathlib import Path
from typing import Any, ClassVar

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.base import ARGS, BaseReward

KEY = f"{ARGS}.model"
MODEL = "sentence encoder"  # its name among the frozen models of a reward
BATCH = 64  # texts read at once
LONGEST = 256  # tokens of a text


@RewardFactory.register("EncoderSimilarity")
class EncoderSimilarity(BaseReward):
    """The cosine, in [-1, 1], of the response and the last turn before it under a sentence encoder; 0 without either text.

    A text is the mean of the encoder's last hidden states over its tokens (Reimers and Gurevych, 2019). Meant as a judge: as a
    reward it would pay copies. `model`: the folder of an encoder. Raises UserError for one that cannot be loaded.
    """

    name = "encoder_similarity"
    model_args: ClassVar = {"model": MODEL}
    uses_device = True

    def __init__(self, model: str):
        from transformers import AutoModel, AutoTokenizer

        from rlhf_dialog.models.pretrained import load_pretrained

        if not Path(str(model)).expanduser().is_dir():
            raise UserError(f"{KEY}: '{model}' is not a folder; name that of a sentence encoder on this machine")
        self.tokenizer = load_pretrained(AutoTokenizer, str(model), KEY)
        self.encoder = load_pretrained(AutoModel, str(model), KEY).eval().requires_grad_(False)
        if self.tokenizer.pad_token is None:
            raise UserError(f"{KEY}: the tokenizer in '{model}' has no padding token, which a sentence encoder's has")
        self.known: dict[str, Any] = {}  # the vectors of the last call, which often asked about the same turns

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """One cosine for each dialogue."""
        pairs = [(dialogue.turns_before[-1].strip(), dialogue.response.strip()) for dialogue in dialogues]
        texts = {text for pair in pairs if all(pair) for text in pair}
        unknown = sorted(texts - self.known.keys(), key=len)
        found = self.known | dict(zip(unknown, self._vectors(unknown), strict=True))
        self.known = vectors = {text: found[text] for text in texts}
        return [float(vectors[turn] @ vectors[reply]) if turn and reply else 0.0 for turn, reply in pairs]

    def _vectors(self, texts: list[str]) -> list[Any]:
        """One vector (H,) of length 1 for each text."""
        import torch

        vectors: list[torch.Tensor] = []
        for start in range(0, len(texts), BATCH):
            rows = self.tokenizer(
                texts[start : start + BATCH], padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
            ).to(self.encoder.device)
            with torch.no_grad():
                states = self.encoder(**rows).last_hidden_state.float()
            kept = rows["attention_mask"].unsqueeze(-1)
            means = (states * kept).sum(1) / kept.sum(1).clamp(min=1)
            vectors.extend(torch.nn.functional.normalize(means, dim=-1).cpu())
        return vectors

    def frozen_models(self) -> dict[str, Any]:
        return {MODEL: self.encoder}
