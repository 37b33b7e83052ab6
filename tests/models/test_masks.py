"""What masks do to tensors, by hand."""

from rlhf_dialog.models.masks import last_token
from tests.parts.masks import masks_of


def test_last_token_by_hand():
    assert last_token(masks_of("110", "101", "000", "010")).tolist() == [1, 2, -1, 1]
