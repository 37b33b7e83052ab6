"""Every size: its keys are those of the configurations, and its agents have names of their own."""

import pytest

from experiments.dailydialog import sizes, training
from experiments.dailydialog.scene import Scene
from experiments.dailydialog.sizes import SIZES
from rlhf_dialog.config.loading import load_config, load_settings, override_all, read_yaml, shipped_folder
from rlhf_dialog.training.supervised.settings import IntentConfig, RelevanceConfig, SFTConfig

SCHEMAS = {"train-sft": SFTConfig, "train-relevance-model": RelevanceConfig, "train-intent-classifier": IntentConfig}
PLAN = {"use_amp": False, "epochs": 2, "tokens": 100_000}


@pytest.fixture(params=SIZES)
def scene(request, tmp_path):
    (tmp_path / "fetched/smollm2").mkdir(parents=True)
    made = Scene(tmp_path / "data", tmp_path / "work", request.param, tmp_path / "fetched", print)
    made.plan = PLAN | ({"epochs": {"sft": 2}} if made.size.pretrained else {})
    return made


SMALL = tuple(name for name, size in SIZES.items() if not size.pretrained)


def test_the_keys_of_supervised_stages_are_known(scene):
    for stage, trained in scene.size.supervised.items():
        keys = training.supervised_keys(scene, stage)
        settings = load_settings(SCHEMAS[trained.command], shipped_folder("configs") / trained.yaml, dict(keys))
        assert {key: getattr(settings, key) for key in keys} == keys
    assert training.supervised_keys(scene, "sft")["patience"] is None
    if "tiny" not in scene.size_name:
        assert training.supervised_keys(scene, "sft")["epochs"] == 2


@pytest.mark.parametrize("scene", SMALL, indirect=True)
def test_the_keys_of_ppo_are_known(scene, tmp_path):
    names = [agent.folder for agent in scene.size.agents]
    assert len(set(names)) == len(names)
    for agent in scene.size.agents:
        job = training.ppo_job(scene, agent)
        config = load_config(scene.folder("ppo") / f"{agent.folder}.yaml")
        assert (config.seed, config.total_time_steps, job.tokens) == (agent.seed, 100_000, 100_000)
        shipped_reward = read_yaml(shipped_folder("configs") / sizes.PPO)["reward_class"]
        stages = ("relevance", "relevance_order", "sft")
        paths = {f"args.parts.{i}.args.model": str(tmp_path / f"work/{stage}/model") for i, stage in enumerate(stages)}
        override_all(shipped_reward, paths)
        assert config.reward_class.args == shipped_reward["args"]
        start = tmp_path / "fetched/smollm2" if agent.start else tmp_path / "work/sft/model"
        assert config.model_path == str(start)
        assert config.advantage_estimator == ("rloo" if agent.name.startswith("rloo") else agent.name)


def test_full_has_what_short_has_and_more():
    assert {agent.folder for agent in sizes.SHORT.agents} < {agent.folder for agent in sizes.FULL.agents}
    assert [agent.folder for agent in sizes.SHORT.agents] == ["rloo_0", "rloo_1", "rloo_2", "gae_0"]
    assert (sizes.SHORT.test_prompts, sizes.FULL.test_prompts, sizes.FULL.tokens) == (1500, None, 330_000)
