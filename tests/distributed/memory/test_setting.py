"""What a configuration says of the memory of one process."""

from rlhf_dialog.distributed.memory.setting import memory_setting
from tests.parts.yaml_files import settings


def test_setting_of_a_configuration():
    config = settings(
        rollout_batch_size=10,
        per_device_microbatch_size=3,
        max_prompt_length=64,
        max_new_tokens=12,
        use_amp=True,
        top_k=7,
        reward_class={"id": "CompositeReward", "args": {"parts": [{"id": "Intent", "args": {"batch_size": 4}}]}},
    )
    found = memory_setting(config, world_size=4)
    assert (found.rows, found.microbatch, found.prompt, found.response, found.world_size) == (3, 3, 64, 12, 4)
    assert (found.critic, found.precision, found.top_k, found.filtered) == ("separate", "amp", 7, True)
    assert (found.classifier_batch, found.own_reference, found.exact_kl) == (4, False, False)
    assert memory_setting(settings(kl_in="loss")).exact_kl
    assert not memory_setting(settings(reference=False, kl_coef=0)).reference
    assert memory_setting(settings(), on_cuda=True).precision == "amp"  # auto
    assert memory_setting(settings(precision="fp32"), on_cuda=True).precision == "fp32"
    other = memory_setting(settings(use_share_model=True, ref_model="other", top_p=0.5))
    assert (other.critic, other.precision, other.own_reference, other.filtered) == ("shared", "fp32", True, True)
    assert memory_setting(settings(advantage_estimator="grpo")).critic == "none"
    assert not memory_setting(settings(ref_model="tiny")).own_reference
    assert memory_setting(settings(reward_class={"id": "X", "args": {"batch_size": "big"}})).classifier_batch == 32
