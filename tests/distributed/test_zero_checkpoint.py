"""Partitions of another sharing are refused."""

import pytest

from rlhf_dialog.distributed.world import World
from rlhf_dialog.distributed.zero_checkpoint import refuse_another_partitioning
from rlhf_dialog.errors import UserError


def test_a_checkpoint_of_another_sharing_is_refused(tmp_path):
    zero = {"policy": {"stage": 2, "world_size": 4, "precision": "bf16", "scaler": {}}}
    refuse_another_partitioning(tmp_path, {}, {}, World())
    with pytest.raises(UserError, match="ZeRO stage 2 in bf16 on 4 processes, but this run has no ZeRO"):
        refuse_another_partitioning(tmp_path, {"zero": zero}, {}, World())
