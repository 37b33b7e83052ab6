"""The training loop: it learns, its checks stop a broken run, and it counts as the configuration says."""

import json
import time

import pytest

from rlhf_dialog.errors import RunStopped
from rlhf_dialog.metrics.nlp import VecInfo
from rlhf_dialog.models.generation import StopRule
from rlhf_dialog.training.checks import watch_kl
from tests.parts.trainers import PROMPTS, Holes, Places, Share, collect_next, make_trainer


@pytest.mark.parametrize(("rank", "groups"), [(0, [0, 0, 1, 1]), (1, [2, 2, 3, 3])])
def test_responses_to_one_prompt_have_a_group_that_is_counted_over_all_ranks(monkeypatch, rank, groups):
    trainer = make_trainer(advantage_estimator="rloo", num_responses_per_prompt=2, rollout_batch_size=8)
    taken = make_trainer().sampler.take(4)
    monkeypatch.setattr(type(trainer.world), "share", lambda _, items: items[2 * rank : 2 * rank + 2])
    rollout = collect_next(trainer)
    assert [d.meta["group"] for d in rollout.dialogues] == groups
    assert [d.meta["index"] for d in rollout.dialogues] == [taken[group] for group in groups]
    assert all("group" not in prompt.meta for prompt in trainer.prompts)


def test_learns_to_write_one_letter():
    """From one in 259 to six of ten within 20 iterations (measured with three seeds: 5 to 15)."""
    trainer = make_trainer(
        Share(),
        rollout_batch_size=96,
        per_device_microbatch_size=96,
        max_new_tokens=6,
        num_mini_batch=4,
        lr=1e-2,
        critic_lr=1e-2,
        gamma=1.0,
        kl_coef=0.0,
        entropy_coef=0.0,
        max_iterations=20,
    )
    trainer.models.policy.lm.generation_config.eos_token_id = None
    trainer.speaker.stop = StopRule(trainer.models.policy, trainer.models.tokenizer, "<EOU>")
    scores = []
    for metrics in trainer.train():
        scores.append(metrics["objective/score"])
        if scores[-1] > 0.6:
            break
    assert scores[0] < 0.05
    assert scores[-1] > 0.6, scores


def test_an_iteration_says_where_it_is():
    trainer, told = make_trainer(per_device_rollout_size=4), []
    trainer.step()  # before anybody listens
    trainer.listener = lambda iteration, text: told.append((iteration, text))
    trainer.step()
    rollout = ["0 of 6 responses", "4 of 6 responses", "reference model", "reward"]
    update = [f"epoch {i} of 2, minibatch {j} of 2" for i in (1, 2) for j in (1, 2)]
    assert told == [(2, text) for text in rollout + update]
    trainer.speaker.reply(PROMPTS)  # as a validation does
    assert len(told) == 8


def test_minibatches_follow_the_number_of_episodes():
    trainer = make_trainer(Holes([0, 1, 2, 3]), on_reward_error="skip", num_mini_batch=20, ppo_epoch=3)
    metrics = trainer.step()
    steps = {int(state["step"]) for state in trainer.optimizers["policy"].state.values()}
    assert (steps, metrics["ppo/skipped_steps"]) == ({6}, 0)


def test_a_group_has_four_responses_by_default():
    grouped = make_trainer(advantage_estimator="grpo", rollout_batch_size=8)
    grouped.step()
    assert len({dialogue.meta["index"] for dialogue in grouped.rollout.dialogues}) == 2


def test_prompts_are_used_up_before_they_come_again():
    trainer = make_trainer(rollout_batch_size=8, ppo_epoch=1, num_mini_batch=1)
    seen = []
    for _ in range(2):
        trainer.step()
        seen += [dialogue.meta["index"] for dialogue in trainer.rollout.dialogues]
    assert sorted(seen) == list(range(16))


def test_max_iterations_and_progress():
    trainer = make_trainer(max_iterations=3, total_time_steps=1)
    progress = []
    metrics = []
    for line in trainer.train():
        metrics.append(line)
        progress.append(trainer.progress)
    assert [line["iteration"] for line in metrics] == [1, 2, 3]
    assert [line["episodes"] for line in metrics] == [6, 12, 18]
    assert progress == pytest.approx([1 / 3, 2 / 3, 1])
    assert list(trainer.train()) == []


def test_total_episodes_and_progress():
    trainer = make_trainer(total_episodes=13)
    progress = [(metrics["episodes"], trainer.progress) for metrics in trainer.train()]
    assert progress == [(6, pytest.approx(6 / 13)), (12, pytest.approx(12 / 13)), (18, 1.0)]
    assert list(trainer.train()) == []


def test_training_ends_with_the_iteration_that_reaches_the_tokens_exactly():
    trainer = make_trainer()
    trainer.step()
    tokens = int(trainer.rollout.response_mask.sum())
    for more, count in ((0, 1), (1, 2)):
        trainer = make_trainer(total_time_steps=tokens + more)
        found = [(metrics["time_steps"], trainer.progress) for metrics in trainer.train()]
        assert (len(found), found[0]) == (count, (tokens, pytest.approx(tokens / (tokens + more))))
        assert found[-1][1] == 1


def test_the_seed_orders_the_prompts():
    assert make_trainer(seed=1).sampler.take(16) != make_trainer(seed=2).sampler.take(16)


def test_kl_coefficient_moves_once_an_iteration():
    trainer = make_trainer(kl_coef=0.5)
    first, second = trainer.step(), trainer.step()
    assert first["objective/kl_coef"] == 0.5
    assert second["objective/kl_coef"] == 0.5  # it is held until the KL has reached its target
    free = make_trainer(kl_coef=0.5, kl_hold=False)
    assert [free.step()["objective/kl_coef"] for _ in range(2)] == [
        0.5,
        pytest.approx(0.5 * 0.98),
    ]  # KL 0 lies below it
    fixed = make_trainer(kl_coef=0.5, kl_rate=0.0)
    fixed.step()
    assert fixed.kl.kl_coef == 0.5
    given = {"kl_coef": 0.4, "kl_target": 0.1, "kl_rate": 0.2, "kl_clip": 0.3, "kl_coef_max": 2.0}
    found = vars(make_trainer(**given, kl_hold=False).kl)
    assert {name: found[name] for name in given} == given
    assert found["hold"] is False


def test_what_a_filter_hides_is_logged():
    trainer = make_trainer(top_k=20, temperature=0.7)
    metrics, r = trainer.step(), trainer.rollout
    mask = r.response_mask
    assert metrics["objective/kl_full"] == pytest.approx(r.kl_full[mask].mean().item(), abs=1e-7)
    assert metrics["objective/ref_support_mass"] == pytest.approx(r.ref_support_mass[mask].mean().item(), rel=1e-5)
    assert "objective/kl_full" not in make_trainer().step()


def test_state_is_json_and_goes_back():
    trainer = make_trainer(top_p=0.9)
    trainer.step()
    trainer.sizes.lower({"update": 1})  # as for a full GPU
    state = json.loads(json.dumps(trainer.state_dict()))
    other, of_other_sizes = make_trainer(top_p=0.9), make_trainer(top_p=0.9, per_device_rollout_size=5)
    of_other_sizes.load_state_dict(state)
    assert of_other_sizes.sizes.rows == {}
    other.load_state_dict(state)
    assert other.state_dict() == trainer.state_dict()
    assert (other.iteration, other.episodes, other.time_steps) == (1, 6, trainer.rollout.num_tokens)
    assert other.kl.kl_coef == trainer.kl.kl_coef
    assert other.value_norm.mean == trainer.value_norm.mean != 0
    assert other.sampler.take(3) == trainer.sampler.take(3)
    assert make_trainer(use_valuenorm=False).state_dict()["value_normalizer"] is None


def test_a_kl_that_does_not_come_down_is_reported_at_16_32_64_iterations(caplog):
    trainer, reported = make_trainer(kl_target=1e-9, kl_rate=1.0, kl_clip=0.05, kl_coef_max=5.0), []
    for iteration in range(40):
        trainer.iteration = 5
        trainer.kl.update(0.5)
        caplog.clear()
        watch_kl(trainer.kl, 0.5, trainer.iteration)
        reported += [(iteration + 1, caplog.messages[0])] if caplog.messages else []
    assert [iteration for iteration, _ in reported] == [16, 32]
    assert reported[0][1] == (
        "KL above its target (1e-09) for 16 iterations although the coefficient grew 2.2-fold, now 0.437: lower lr, or raise "
        "rollout_batch_size"
    )


def test_a_coefficient_at_its_bound_is_reported_although_it_cannot_grow(caplog):
    trainer = make_trainer(kl_coef=4.9, kl_target=1e-9, kl_rate=1.0, kl_clip=0.05, kl_coef_max=5.0)
    for _ in range(16):
        trainer.kl.update(0.5)
    watch_kl(trainer.kl, 0.5, trainer.iteration)
    assert "grew 1.0-fold, now 5, which is its bound kl_coef_max: lower lr" in caplog.text


def test_a_fixed_coefficient_has_no_target_to_miss(caplog):
    trainer = make_trainer(kl_coef=5.0, kl_target=1e-9, kl_rate=0.0, kl_coef_max=5.0)
    for iteration in range(2, 70):
        trainer.kl.update(0.5)
        watch_kl(trainer.kl, 0.5, iteration)
    assert not caplog.records


def test_a_start_far_from_the_reference_is_reported(caplog):
    trainer = make_trainer()
    for iteration, kl, is_reported in ((1, 0.9, False), (2, 1.2, False), (1, 1.2, True)):
        trainer.iteration = iteration
        watch_kl(trainer.kl, kl, trainer.iteration)
        assert (
            "starts 1.20 nats per token away from its reference (objective/kl_initial)" in caplog.text
        ) is is_reported


def test_what_a_metric_of_the_user_takes_is_in_no_other_time(monkeypatch):
    """The clock stands still but for the vec-info class, which takes 1,000 seconds."""
    now = [0.0]

    class Slow(VecInfo):
        def __call__(self, rollout):
            now[0] += 1000.0
            return {}

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    trainer = make_trainer(vec_info=Slow())
    now[0] = 50.0
    monkeypatch.setattr(trainer.update, "warm_up_ddp", lambda rollout: now.__setitem__(0, now[0] + 10))
    metrics = trainer.step()
    assert metrics["time/vec_info"] == 1000
    assert metrics["time/update"] == 10
    assert metrics["FPS"] == pytest.approx(trainer.rollout.num_tokens / 10)


def test_a_reward_without_an_end_stops_the_run(monkeypatch, capsys):
    class Stuck(Places):
        name = "stuck"

        def __call__(self, dialogues):
            time.sleep(600)

    trainer = make_trainer(Stuck(), reward_timeout_s=0.2)
    with pytest.raises(RunStopped, match=r"reward 'stuck' did not finish within 0\.2 seconds"):
        trainer.step()
    assert "time.sleep(600)" in capsys.readouterr().err
