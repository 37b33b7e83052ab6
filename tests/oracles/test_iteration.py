"""One iteration of PPO, written again with plain loops over tokens and compared with the trainer's, in float64 at 1e-9.

From the papers: the clipped surrogate (PPO, arXiv 1707.06347, equation 7), GAE (1506.02438, equation 16), GRPO (2402.03300),
RLOO (2402.14740), REINFORCE++ (2501.03262), the adaptive KL coefficient (1909.08593, section 2.2), AdamW (1711.05101).
What the project decides for itself: the KL is in the token rewards of every estimator, each token of a group carrying its own
penalties to go; a minibatch is divided by the rollout's mean number of tokens a minibatch; whitening once, by the variance of
the population. Taken from the run are only tokens, masks and the permutations of the responses.
"""

import copy
import math

import pytest
import torch

from tests.parts.plain import as_made
from tests.parts.trainers import make_trainer, parameters

TOLERANCE = {"rel": 1e-9, "abs": 1e-9}
CLIP, VALUE_CLIP, DUAL_CLIP = 0.1, 0.2, 1.5
GAMMA, LAMBDA = 0.95, 0.85
ENTROPY_COEF, VALUE_COEF = 0.03, 0.7
KL_COEF, KL_TARGET, KL_RATE, KL_CLIP = 0.3, 0.04, 0.1, 0.2
LR, CRITIC_LR, EPSILON, DECAY, MAX_NORM = 0.01, 0.02, 1e-5, 0.03, 0.4
TEMPERATURE, TRUNCATION_PENALTY = 0.75, 0.25
EPOCHS, MINIBATCHES, GROUP = 2, 4, 3
KEYS = {
    "rollout_batch_size": 9,
    "num_mini_batch": MINIBATCHES,
    "ppo_epoch": EPOCHS,
    "per_device_microbatch_size": 2,
    "clip_param": CLIP,
    "value_clip_param": VALUE_CLIP,
    "dual_clip_coeff": DUAL_CLIP,
    "use_huber_loss": False,
    "use_valuenorm": False,
    "gamma": GAMMA,
    "gae_lambda": LAMBDA,
    "entropy_coef": ENTROPY_COEF,
    "value_loss_coef": VALUE_COEF,
    "kl_coef": KL_COEF,
    "kl_target": KL_TARGET,
    "kl_rate": KL_RATE,
    "kl_clip": KL_CLIP,
    "lr": LR,
    "critic_lr": CRITIC_LR,
    "opti_eps": EPSILON,
    "weight_decay": DECAY,
    "max_grad_norm": MAX_NORM,
    "temperature": TEMPERATURE,
    "truncation_penalty": TRUNCATION_PENALTY,
    "ref_seed": 3,
    "ref_model": "another",
}


@pytest.fixture(autouse=True)
def in_float64(monkeypatch):
    """What the package keeps in float32, the scores among them, is float64."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# --- the models, one unpadded sequence at a time


def hidden_states(trunk, prompt, response):
    """The states that predict the tokens of the response."""
    sequence = torch.tensor([prompt + response[:-1]])
    return trunk(sequence)[0][0][len(prompt) - 1 :]


def token_distributions(policy, prompt, response):
    """Log-probabilities of all tokens at each place of the response, with the temperature."""
    logits = hidden_states(policy.lm.transformer, prompt, response) @ policy.lm.lm_head.weight.T / TEMPERATURE
    return [row - row.exp().sum().log() for row in logits]


def token_values(trunk, head, prompt, response):
    states = hidden_states(trunk, prompt, response)
    return [(state * head.weight[0]).sum() + head.bias[0] for state in states]


class Learner:
    """Copies of the models of a trainer before its step, and the moments of AdamW."""

    def __init__(self, models):
        self.policy, self.reference = as_made(models.policy), as_made(models.ref_policy)
        self.critic = as_made(models.critic) if models.critic else None
        self.learned = {"policy": (self.policy, LR)} | ({"critic": (self.critic, CRITIC_LR)} if self.critic else {})
        self.num_steps = 0
        self.moments = {
            name: [(torch.zeros_like(p), torch.zeros_like(p)) for p in module.parameters()]
            for name, (module, _) in self.learned.items()
        }

    def values_of(self, prompt, response):
        """Of the critic, or of the head on the policy's states; zeros without either."""
        if self.critic:
            return token_values(self.critic.trunk, self.critic.value_head, prompt, response)
        if self.policy.value_head:
            return token_values(self.policy.lm.transformer, self.policy.value_head, prompt, response)
        return [torch.zeros(()) for _ in response]

    def step(self, losses):
        """Gradients, clipped by their norm for each learner, and one step of AdamW; returns the policy's norm."""
        self.num_steps += 1
        norms = {}
        head = list(self.policy.value_head.parameters()) if self.policy.value_head else []
        for name, (module, rate) in self.learned.items():
            learned = list(module.parameters())
            gradients = torch.autograd.grad(losses[name], learned, retain_graph=True, allow_unused=True)
            norms[name] = math.sqrt(sum((g**2).sum().item() for g in gradients if g is not None))
            scale = min(1.0, MAX_NORM / (norms[name] + 1e-6))  # 1e-6 as torch adds it
            for p, g, (first, second) in zip(learned, gradients, self.moments[name], strict=True):
                if g is None:
                    continue
                first.copy_(0.9 * first + 0.1 * scale * g)
                second.copy_(0.999 * second + 0.001 * (scale * g) ** 2)
                mean = first / (1 - 0.9**self.num_steps)
                deviation = (second / (1 - 0.999**self.num_steps)).sqrt()
                lr = CRITIC_LR if any(p is own for own in head) else rate
                p.data = p.data - lr * DECAY * p.data - lr * mean / (deviation + EPSILON)
        return norms["policy"]


# --- advantages, on lists of numbers: one list of tokens for each episode


def gae_of(rewards, values):
    """The double sum of the paper: advantages, and advantages plus values."""
    later = [*values[1:], 0.0]
    deltas = [rewards[t] + GAMMA * later[t] - values[t] for t in range(len(rewards))]
    advantages = []
    for t in range(len(rewards)):
        advantages.append(sum((GAMMA * LAMBDA) ** (k - t) * deltas[k] for k in range(t, len(rewards))))
    return advantages, [advantage + value for advantage, value in zip(advantages, values, strict=True)]


def discounted(rewards):
    return [sum(GAMMA ** (k - t) * rewards[k] for k in range(t, len(rewards))) for t in range(len(rewards))]


def neighbours(i):
    """The episodes that answer the same prompt as episode i, itself among them."""
    first = i - i % GROUP
    return range(first, first + GROUP)


def to_go(penalties, t):
    return sum(penalties[t:])


def rloo_of(i, scores, penalties):
    others = [j for j in neighbours(i) if j != i]
    paid = scores[i] - sum(scores[j] for j in others) / len(others)
    return [
        paid + to_go(penalties[i], t) - sum(to_go(penalties[j], t) for j in others) / len(others)
        for t in range(len(penalties[i]))
    ]


def grpo_of(i, scores, penalties):
    """The deviation is that of a sample, n - 1 below the root, and 1e-4 is added to it."""
    group = neighbours(i)
    mean = sum(scores[j] for j in group) / GROUP
    deviation = math.sqrt(sum((scores[j] - mean) ** 2 for j in group) / (GROUP - 1))
    paid = (scores[i] - mean) / (deviation + 1e-4)
    return [
        paid + to_go(penalties[i], t) - sum(to_go(penalties[j], t) for j in group) / GROUP
        for t in range(len(penalties[i]))
    ]


def advantages_of(estimator, scores, penalties, values):
    """Advantages and returns of all episodes before whitening."""
    rewards = [[*row[:-1], row[-1] + score] for row, score in zip(penalties, scores, strict=True)]
    if estimator == "gae":
        both = [gae_of(*pair) for pair in zip(rewards, values, strict=True)]
        return [advantages for advantages, _ in both], [returns for _, returns in both]
    returns = [discounted(row) for row in rewards]
    if estimator == "reinforce_pp":
        return returns, returns
    compare = {"rloo": rloo_of, "grpo": grpo_of}[estimator]
    return [compare(i, scores, penalties) for i in range(len(scores))], returns


def whitened(rows):
    numbers = [x for row in rows for x in row]
    mean = sum(numbers) / len(numbers)
    variance = sum((x - mean) ** 2 for x in numbers) / len(numbers)
    return [[(x - mean) / math.sqrt(variance + 1e-8) for x in row] for row in rows]


# --- the losses of a minibatch, token by token


def surrogate(ratio, advantage, dual_clip):
    """The negative of what PPO maximises, and whether clipping made it larger."""
    plain, clipped = ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage
    gain = clipped if clipped < plain else plain
    if dual_clip and advantage < 0 and gain < DUAL_CLIP * advantage:
        gain = gain * 0 + DUAL_CLIP * advantage
    return -gain, float(clipped < plain)


def value_error(value, old, target):
    """Half the larger one of the squared errors of the value and of the value that moved at most by the range."""
    moved = old + (value - old).clamp(-VALUE_CLIP, VALUE_CLIP)
    plain, clipped = (value - target) ** 2 / 2, (moved - target) ** 2 / 2
    return clipped if clipped > plain else plain


def minibatch_losses(learner, episodes, rows, divisor, dual_clip, with_values):
    """The loss of each learner, and the sums that the metrics report, all divided by `divisor`."""
    names = ("policy_loss", "clip_fraction", "approx_kl", "entropy", "value_loss")
    sums = dict.fromkeys(names, torch.zeros((), dtype=torch.float64))
    for i in rows:
        prompt, response = episodes["prompts"][i], episodes["responses"][i]
        values = learner.values_of(prompt, response)
        for t, whole in enumerate(token_distributions(learner.policy, prompt, response)):
            difference = whole[response[t]] - episodes["logprobs"][i][t]
            loss, was_clipped = surrogate(difference.exp(), episodes["advantages"][i][t], dual_clip)
            sums["policy_loss"] = sums["policy_loss"] + loss
            sums["clip_fraction"] = sums["clip_fraction"] + was_clipped
            sums["approx_kl"] = sums["approx_kl"] + (difference.exp() - 1 - difference).detach()
            sums["entropy"] = sums["entropy"] - (whole.exp() * whole).sum()
            if with_values:
                error = value_error(values[t], episodes["values"][i][t], episodes["returns"][i][t])
                sums["value_loss"] = sums["value_loss"] + error
    means = {name: total / divisor for name, total in sums.items()}
    losses = {"policy": means["policy_loss"] - ENTROPY_COEF * means["entropy"]}
    if with_values:
        name = "critic" if learner.critic else "policy"
        losses[name] = losses.get(name, 0.0) + VALUE_COEF * means["value_loss"]
    return losses, {name: x.item() for name, x in means.items()}


# --- the iteration


def collected(learner, rollout, estimator, kl_estimator):
    """Rewards and advantages of the run's tokens; raw scores as `trainers.Places` gives them."""
    ids = [
        (rollout.tokens.prompt_ids, rollout.tokens.prompt_mask),
        (rollout.tokens.response_ids, rollout.response_mask),
    ]
    prompts, responses = ([row[kept].tolist() for row, kept in zip(*pair, strict=True)] for pair in ids)
    pairs = list(zip(prompts, responses, strict=True))
    chosen = {}
    for name, model in (("policy", learner.policy), ("reference", learner.reference)):
        found = [zip(token_distributions(model, *pair), pair[1], strict=True) for pair in pairs]
        chosen[name] = [[whole[token].item() for whole, token in row] for row in found]
    scores = [(i * 7) % 5 - 1.5 - TRUNCATION_PENALTY * cut for i, cut in enumerate(rollout.truncated.tolist())]
    differences = [[p - q for p, q in zip(*rows, strict=True)] for rows in zip(*chosen.values(), strict=True)]
    shape = {"k1": lambda x: x, "k3": lambda x: math.exp(-x) - 1 + x}[kl_estimator]
    penalties = [[-KL_COEF * shape(x) for x in row] for row in differences]
    values = [[value.item() for value in learner.values_of(*pair)] for pair in pairs]
    advantages, returns = advantages_of(estimator, scores, penalties, values)
    num_tokens = sum(map(len, responses))
    return {
        "prompts": prompts,
        "responses": responses,
        "logprobs": chosen["policy"],
        "values": values,
        "rewards": [[*row[:-1], row[-1] + score] for row, score in zip(penalties, scores, strict=True)],
        "advantages": whitened(advantages),
        "returns": returns,
        "kl": sum(map(sum, differences)) / num_tokens,
        "divisor": num_tokens / MINIBATCHES,
    }


def minibatches(permutation):
    """Four parts whose sizes differ by at most one, none dropped, the larger ones first."""
    size, more = divmod(len(permutation), MINIBATCHES)
    start = 0
    for number in range(MINIBATCHES):
        end = start + size + (number < more)
        yield permutation[start:end]
        start = end


def updated(learner, episodes, permutations, dual_clip, with_values):
    """All steps of the iteration; the mean of each number over them."""
    found = []
    for permutation in permutations:
        for rows in minibatches(permutation):
            losses, means = minibatch_losses(learner, episodes, rows, episodes["divisor"], dual_clip, with_values)
            found.append(means | {"grad_norm": learner.step(losses)})
    return {name: sum(one[name] for one in found) / len(found) for name in found[0]}


def ready_trainer(monkeypatch, estimator, keys):
    """In float64, with heads that are not 0; the permutations that it draws are noted."""
    groups = {"num_responses_per_prompt": GROUP} if estimator in ("grpo", "rloo") else {}
    trainer = make_trainer(double=True, advantage_estimator=estimator, **{**KEYS, **groups, **keys})
    for module in filter(None, (trainer.models.policy, trainer.models.critic)):
        if module.value_head is not None:
            module.value_head.weight.data += torch.arange(module.value_head.weight.numel()).sin() / 10
            module.value_head.bias.data += 0.3
    permutations, original = [], torch.randperm

    def noted(*args, **options):
        permutations.append(original(*args, **options))
        return permutations[-1]

    monkeypatch.setattr(torch, "randperm", noted)
    return trainer, permutations


@pytest.mark.parametrize(
    ("estimator", "keys"),
    [
        ("gae", {"use_share_model": False}),
        ("gae", {"use_share_model": True, "dual_clip_ppo": True}),
        ("grpo", {}),
        ("rloo", {}),
        ("rloo", {"kl_estimator": "k3"}),
        ("reinforce_pp", {"dual_clip_ppo": True}),
    ],
)
def test_an_iteration_is_that_of_the_papers(monkeypatch, estimator, keys):
    trainer, drawn = ready_trainer(monkeypatch, estimator, keys)
    learner = Learner(copy.deepcopy(trainer.models))
    metrics, rollout = trainer.step(), trainer.rollout
    episodes = collected(learner, rollout, estimator, keys.get("kl_estimator", "k1"))
    for name in ("logprobs", "rewards", "advantages", "returns"):
        tokens = [row[kept].tolist() for row, kept in zip(getattr(rollout, name), rollout.response_mask, strict=True)]
        for found, expected in zip(tokens, episodes[name], strict=True):
            assert found == pytest.approx(expected, **TOLERANCE), name
    size = GROUP if estimator in ("grpo", "rloo") else 1
    groups = [one.tolist() for one in drawn if len(one) == len(episodes["responses"]) // size][-EPOCHS:]
    permutations = [[group * size + i for group in one for i in range(size)] for one in groups]
    means = updated(learner, episodes, permutations, bool(keys.get("dual_clip_ppo")), estimator == "gae")
    assert metrics["objective/kl"] == pytest.approx(episodes["kl"], **TOLERANCE)
    for name in ("policy_loss", "clip_fraction", "approx_kl", "grad_norm", *(["value_loss"] * (estimator == "gae"))):
        assert metrics[f"ppo/{name}"] == pytest.approx(means[name], **TOLERANCE), name
    assert means["clip_fraction"] > 0.05  # the clipping is at work
    for name, (module, _) in learner.learned.items():
        found = parameters(getattr(trainer.models, name))
        for key, expected in parameters(module).items():
            torch.testing.assert_close(found[key], expected, rtol=1e-9, atol=1e-9)
    error = max(-KL_CLIP, min(KL_CLIP, (episodes["kl"] - KL_TARGET) / KL_TARGET))
    held = error < 0  # the coefficient does not fall before the KL has reached its target
    assert trainer.kl.kl_coef == pytest.approx(KL_COEF * (1 if held else 1 + KL_RATE * error), rel=1e-12)
