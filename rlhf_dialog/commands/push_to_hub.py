"""Publish an agent or a reward model on the Hugging Face Hub: its weights, tokenizer and settings, and a model card.

python scripts/push_to_hub.py --agent runs/quickstart/agent --repo NAME --dry_run

The card is written from the run that the agent is in: task, data, reward, evaluation.json, limits, settings and versions. It
holds no text of the data, and of a path only its last name. --dry_run writes the folder that would be uploaded, lists its
files, and opens no connection; look at it first. The token is that of `hf auth login`, or HF_TOKEN.

A repository that does not exist is created. One that holds something else is refused without --overwrite; an earlier agent of
the run of the same name gets a new commit. All files arrive in one commit, or none.
"""

import logging
from functools import partial
from pathlib import Path

from rlhf_dialog.commands.command_line import new_folder
from rlhf_dialog.commands.options import Options, option, run_command
from rlhf_dialog.config.checks import repository_name
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import agent_folder

logger = logging.getLogger(__name__)


class PushOptions(Options):
    description = __doc__
    agent: Path = option("folder of the agent, of its run, or of a reward model")
    repo: str = option("name of the repository: NAME, or USER/NAME")
    private: bool = option("create the repository as private; default: public")
    overwrite: bool = option("replace the files of a repository that holds something else")
    evaluation: Path | None = option("output of evaluate; default: evaluation.json in the run, if it is of this agent")
    trust_config: bool = option("follow an agent folder of a run that is a link out of the run")
    dry_run: bool = option("only write the folder that would be uploaded, and list its files")
    output: str | None = option("new or empty folder for --dry_run; default: ./hub_NAME")


def run(options: PushOptions) -> None:
    """Publish, or write what would be published."""
    try:
        repository_name(options.repo)
    except ValueError as error:
        raise UserError(f"--repo: found {options.repo[:100]!r}, wanted {error}") from None
    if options.output and not options.dry_run:
        raise UserError("--output: only --dry_run writes a folder; add it, or leave out --output")
    if not options.agent.is_dir():
        raise UserError(
            f"--agent: no such folder: '{options.agent}'; give the folder of an agent, e.g. run_results/first/agent"
        )
    agent = Path(agent_folder(str(options.agent), options.trust_config))
    from rlhf_dialog.publishing.files import write
    from rlhf_dialog.publishing.repository import Target
    from rlhf_dialog.runs.publish import package, publish

    if not options.dry_run:
        target = Target(options.repo, "--repo", options.private, options.overwrite)
        logger.info("published: %s", publish(agent, target, "--agent", options.evaluation))
        return
    name = options.repo if "/" in options.repo else f"USER/{options.repo}"
    files, _ = package(agent, name, "--agent", options.evaluation)
    output = options.output or f"hub_{options.repo.rpartition('/')[2]}"
    with new_folder(output) as folder:
        try:
            write(files, folder)
        except OSError as error:
            raise UserError(f"output: '{output}' cannot be written: {error}") from error
    for name_of_file, content in files.items():
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        print(f"{size:>15,} bytes  {name_of_file}")
    logger.info("nothing was uploaded; %s holds the %d files of %s", output, len(files), name)


main = partial(run_command, PushOptions, run)  # the command line; returns the exit code
