"""`precision` and the older keys `use_amp` and `amp_dtype`: what they ask for together, and which of them contradict."""

import pytest
from trainers import settings


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({}, "auto"),
        ({"amp_dtype": "fp16"}, "auto"),
        ({"precision": "bf16"}, "bf16"),
        ({"precision": "fp32"}, "fp32"),
        ({"use_amp": False}, "fp32"),
        ({"use_amp": False, "amp_dtype": "fp16"}, "fp32"),
        ({"use_amp": True}, "bf16"),
        ({"use_amp": True, "amp_dtype": "fp16"}, "fp16"),
        ({"use_amp": True, "precision": "fp16"}, "fp16"),
        ({"use_amp": True, "amp_dtype": "bf16", "precision": "bf16"}, "bf16"),
        ({"use_amp": False, "amp_dtype": "fp16", "precision": "fp32"}, "fp32"),
        ({"use_amp": None, "precision": "auto"}, "auto"),  # as a run folder's config.yaml has it
    ],
)
def test_what_the_keys_ask_for(keys, wanted):
    config = settings(**keys)
    assert config.asked_precision == wanted
    assert config.uses_fp16 == (wanted == "fp16")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"precision": "fp32", "use_amp": True},
            "precision: fp32, but use_amp: true; keep precision, and leave out use_amp",
        ),
        ({"precision": "bf16", "use_amp": False}, "precision: bf16, but use_amp: false;"),
        ({"precision": "fp16", "amp_dtype": "bf16"}, "precision: fp16, but amp_dtype: bf16;"),
        (
            {"precision": "bf16", "use_amp": False, "amp_dtype": "fp16"},
            "precision: bf16, but use_amp: false and amp_dtype: fp16; keep precision, and leave out use_amp and amp_dtype",
        ),
    ],
)
def test_two_keys_that_ask_for_two_things(keys, message):
    with pytest.raises(ValueError, match=message):
        settings(**keys)
