"""Train a dialogue policy that chooses acts. Metrics, checkpoints and the agent go to <run_dir>/<experiment_name>."""

from functools import partial
from pathlib import Path
from typing import Any

from rlhf_dialog.commands.options import RunOptions, option, register, run_command
from rlhf_dialog.config.loading import RunKeys
from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains.loading import MULTIWOZ, check_domain_path
from rlhf_dialog.task_oriented.runs.settings import PERSON, PolicyConfig, load_policy_config


class TrainPolicyOptions(RunOptions[PolicyConfig]):
    description = __doc__
    schema = PolicyConfig
    usage = """{program} --config FILE [--key value]
       e.g. {program} --config restaurant.yaml --error_rate 0.15 --batchsz 1024 --epoch 200 --process_num 8
       with user: person, a run always goes on where it is (--resume auto)
       --policy NAME: another policy than the file's, such as gp_sarsa, with its default arguments"""
    example = "restaurant.yaml"

    register: str | None = option(
        "Python file that registers an environment or a policy of your own, run first; also for evaluate_policy.py",
        metavar="FILE",
    )
    transcripts: str = option(
        "print N dialogues of the trained policy at the end: goal, acts, beliefs, rewards, verdict", "0", metavar="N"
    )

    def load(self, path: Path | None) -> PolicyConfig:
        """The settings; what the schema does not know is found before torch is loaded. Raises UserError."""
        assert path is not None
        keys: dict[str, Any] = dict(self.keys)
        if isinstance(keys.get("policy"), str):
            keys = {"policy": {"id": keys.pop("policy")}, **keys}
        config = RunKeys(path, keys).check(PolicyConfig)
        if (
            isinstance(config.domain, str)
            and config.domain != MULTIWOZ
            and not (config.environment or self.print_config)
        ):
            check_domain_path(config.domain)
        if self.register:
            register(self.register)
        import rlhf_dialog.task_oriented.runs.run  # noqa: F401  what is built in registers itself

        return load_policy_config(path, keys)


def run(options: TrainPolicyOptions) -> None:
    """Train, alone or with a person."""
    resume, transcripts, config = options.resumes(), options.transcripts, options.settings
    if not transcripts.isascii() or not transcripts.isdigit():
        raise UserError(f"--transcripts: found '{transcripts}', wanted a number of dialogues, such as 3")
    from rlhf_dialog.task_oriented.commands.train_with_person import train_with_person
    from rlhf_dialog.task_oriented.runs.run import PolicyRun

    if config.user == PERSON:
        options.folders.append(config.run_folder)
        train_with_person(config, options.overwrite)
        return
    training = PolicyRun(config, options.overwrite, resume)
    options.folders.append(training.folder)
    training.run()
    for text in training.transcripts(int(transcripts)):
        print(f"{text}\n")


main = partial(run_command, TrainPolicyOptions, run)  # the command line; returns the exit code
