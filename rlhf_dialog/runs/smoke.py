"""`--smoke`: two prompts through every stage of a run, from the data to a reply of the saved agent."""

import contextlib
import os
import tempfile
from pathlib import Path

from rlhf_dialog.config.loading import replace_keys
from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.placement import check_placement
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.runs.agent import PPOAgent


def smoke(agent: PPOAgent) -> None:
    """Pass two prompts through every stage of the agent's run, in a folder that is removed again."""
    agent.check_outputs()
    check_placement(agent.config, agent.world.device)  # with the numbers of the run itself
    with contextlib.ExitStack() as stack:
        folder = agent.world.on_main(lambda: stack.enter_context(_folder_beside(agent.run_folder)))
        small = PPOAgent(two_prompts(agent.config, folder, agent.world.size), optimizer=agent.optimizer, is_trial=True)
        small.train()
        agent.world.on_main(lambda: _answer_once(small))


def _folder_beside(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder next to the future run folder, on the same disk."""
    beside = next(parent for parent in folder.absolute().parents if parent.exists())
    try:
        return tempfile.TemporaryDirectory(prefix=".smoke_", dir=beside if os.access(beside, os.W_OK) else None)
    except OSError as error:
        raise UserError(f"run_dir: {folder} cannot be written: {error}") from error


def _answer_once(agent: PPOAgent) -> None:
    """Load the agent that was saved, as chat.py does, and let it reply to a prompt."""
    assert agent.trainer is not None
    assert agent.trainer.rollout is not None
    turns, device = agent.trainer.rollout.dialogues[0].prompt_turns, str(agent.trainer.models.policy.lm.device)
    agent.trainer, agent.services = None, ()  # one model at a time in the memory of the device
    trust = agent.config.trust_remote_code
    responder = ChatAgent.load(agent.run_folder / "agent", device=device, trust_remote_code=trust, trust_config=True)
    responder.chat(turns[-1], turns[:-1])


def two_prompts(config: Config, folder: str, world_size: int) -> Config:
    """The same run with one iteration of two prompts (one for each process, if there are more) that writes below `folder` and to
    no tracker."""
    num_responses = max(2, world_size) * config.num_responses_per_prompt
    few = {"max_iterations": 1, "total_episodes": None, "rollout_batch_size": num_responses, "eval_episodes": 2}
    every = {"sample_interval": 1, "save_interval": 1, "eval_interval": min(config.eval_interval, 1)}
    quiet = {"run_dir": folder, "use_wandb": False, "use_tensorboard": False, "log_interval": 1}
    return replace_keys(config, few | every | quiet)
