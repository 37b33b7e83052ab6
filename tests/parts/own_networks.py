"""Networks of a user's: those of docs/MODELS.md, and `Mean`, which has neither a state nor a value head."""

import pytest
import torch
from torch import nn

from rlhf_dialog.config.registry import ModelFactory
from tests.parts.processes import ROOT

CODE = (ROOT / "docs" / "MODELS.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]


class Mean(nn.Module):
    """The mean of the embeddings so far."""

    def __init__(self, size: int):
        super().__init__()
        self.embedding, self.head = nn.Embedding(size, 8), nn.Linear(8, size)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor
    ) -> torch.Tensor:
        x = self.embedding(input_ids) * attention_mask.unsqueeze(2)
        return self.head(x.cumsum(dim=1) / (position_ids + 1).unsqueeze(2))


@pytest.fixture
def own_networks(monkeypatch):
    """GruPolicy, GruCritic and Mean are registered until the test ends."""
    monkeypatch.setattr(ModelFactory, "classes", {})
    exec(CODE, {"__name__": "my_network"})
    ModelFactory.register("Mean", Mean)
