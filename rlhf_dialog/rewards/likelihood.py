"""A price on what a frozen language model finds unlikely."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import CHAT_TEMPLATE, SEPARATOR, Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.base import ARGS, BaseReward, number, whole

if TYPE_CHECKING:
    from rlhf_dialog.models.chat_agent import ChatAgent

MODEL = "likelihood model"  # its name among the frozen models of a reward
BATCH = 16  # dialogues read at once


@RewardFactory.register("LikelihoodPrice")
class LikelihoodPrice(BaseReward):
    """min(0, m - floor) in nats, with m the mean log-probability of the response's first tokens under a frozen model.

    `floor`: what the model finds of people's replies, so that nobody is paid for being more likely; null gives m itself, for a
    judge. `model`: the folder of a causal LM or of an agent; `system_prompt`: that of a chat model's template; `tokens`: how many
    of the first tokens count, without the separator or end token of a response that is not empty. Raises UserError for arguments
    that cannot work.
    """

    model_args: ClassVar = {"model": MODEL}
    uses_device = True

    def __init__(self, model: str, floor: float | None = -4.0, tokens: int = 12, system_prompt: str | None = None):
        nats = "a number below 0: nats a token, such as -4; or null for none"
        self.floor = None if floor is None else number("floor", floor, nats, lambda x: x < 0)
        self.tokens = whole("tokens", tokens)
        self.responder: ChatAgent = load_responder(str(model), system_prompt)

    @property
    def name(self) -> str:
        """`likelihood_price`, or `likelihood` without a floor."""
        return "likelihood" if self.floor is None else "likelihood_price"

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """One number of at most 0 for each dialogue."""
        means, floor = self.means(dialogues), self.floor
        return means if floor is None else [min(0.0, mean - floor) for mean in means]

    def means(self, dialogues: list[Dialogue]) -> list[float]:
        """The mean log-probability of each response's first tokens, in nats."""
        parts = [dialogues[start : start + BATCH] for start in range(0, len(dialogues), BATCH)]
        return [mean for part in parts for mean in self._means(part)]

    def _means(self, dialogues: list[Dialogue]) -> list[float]:
        import torch

        from rlhf_dialog.data.chat_template import encode_without_end
        from rlhf_dialog.models.policy import teacher_forced
        from rlhf_dialog.models.token_batch import group_equal

        encoder, policy = self.responder.encoder, self.responder.policy.in_float32
        counted = [encode_without_end(encoder, dialogue.response)[: self.tokens] for dialogue in dialogues]
        size = self.responder.settings.context_size
        prompts = [encoder.encode_prompt(one.turns_before[-size:], one.system) for one in dialogues]
        tokens = self.responder.batch(prompts, group_equal(map(tuple, prompts))).with_replies(counted)
        with torch.no_grad():
            logprobs = teacher_forced(policy, tokens, 1.0, with_entropy=False).logprobs
        sums: list[float] = logprobs.sum(dim=1, dtype=torch.float64).tolist()
        return [total / len(own) for total, own in zip(sums, counted, strict=True)]

    def frozen_models(self) -> dict[str, Any]:
        return {MODEL: self.responder.policy}


def load_responder(folder: str, system_prompt: str | None) -> "ChatAgent":
    """The frozen model with its encoder: with an agent's own settings, else with its chat template."""
    from rlhf_dialog.data.chat_models import chat_settings
    from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent, read_settings

    path = Path(folder).expanduser()
    if not path.is_dir():
        raise UserError(f"{ARGS}.model: '{folder}' is not a folder; name that of a causal LM on this machine")
    settings = read_settings(path, AgentSettings(**({"turn_separator": SEPARATOR} | chat_settings(path))))
    if system_prompt is not None:
        if not isinstance(system_prompt, str) or not system_prompt or settings.turn_separator != CHAT_TEMPLATE:
            raise UserError(
                f"{ARGS}.system_prompt: {system_prompt!r} must be a text, for a model with a chat template; '{folder}' writes "
                f"prompts with {settings.turn_separator!r}"
            )
        settings = settings.model_copy(update={"system_prompt": system_prompt})
    responder = ChatAgent.load(path, device="cpu", settings=settings)  # the run moves it
    responder.policy.requires_grad_(False)
    responder.policy.num_ids = None  # a judge, which samples nothing: its probabilities are those of the whole model
    return responder
