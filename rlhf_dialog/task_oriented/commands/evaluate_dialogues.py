"""`evaluate_policy` for language models: whole dialogues with an environment, beside the handcrafted and the random policy."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.commands.command_line import check_device, check_output
from rlhf_dialog.commands.options import REGISTER, PrecisionOption, option
from rlhf_dialog.config.schema import EnvironmentConfig
from rlhf_dialog.data.hub import check_folder
from rlhf_dialog.environments.base import baseline_names
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.dialogues import cell, compare_dialogues, measure_dialogues, transcript
from rlhf_dialog.evaluation.report import finite
from rlhf_dialog.evaluation.untrusted import read_run_config
from rlhf_dialog.found_files import check_part
from rlhf_dialog.terminal import Console, message

if TYPE_CHECKING:
    from rlhf_dialog.models.chat_agent import AgentSettings

logger = logging.getLogger(__name__)
BASELINES = ("handcrafted", "random")
SHOWN = {"success": "{:.1%}", "reward": "{:.2f}", "turns": "{:.2f}", "words": "{:.1f}"}
SHOWN |= {"distinct_2": "{:.3f}", "truncated": "{:.1%}"}
SAMPLING = ("max_new_tokens", "temperature", "top_k", "top_p", "context_size", "max_prompt_length")
AT_ONCE = 250
FILES = ("config.json", "rlhf_dialog.json")


class EvaluatePolicyOptions(PrecisionOption):
    agent: Path = option("folder of the agent, runs/NAME/agent")
    dialogues: int = option("number of dialogues per policy; default 1000", 1000)
    domain: str | None = option("path of the agent's domain, if it has moved or lies outside of the agent's folder")
    data_path: str | None = option("folder of multiwoz, if it has moved")
    error_rate: float | None = option("probability that a user act is misunderstood; default: as in training")
    user: str | None = option("the simulated user: friendly, unfriendly or fixed; default: as in training")
    seed: int = option("seed of the test dialogues; default 0", 0)
    transcripts: int = option("print the agent's first N dialogues", 0, metavar="N")
    output: Path | None = option("JSON file to write; default: evaluation.json beside the agent's folder")
    register: str | None = option(REGISTER, metavar="FILE")
    trust_config: bool = option(
        "allow the run's files to name things outside of the run folder: your own classes, models on the Hub, files; and "
        "its agent to be a link"
    )
    environment: str | None = option(
        "for language models: a registered environment; default: that of the agent's run, else restaurant"
    )
    baseline: Path | None = option(
        "for language models: a second agent for the same dialogues, e.g. the model before PPO"
    )
    temperature: float | None = option(
        "for language models: sampling temperature of agent and baseline; default: the agent's"
    )


def is_language_model(folder: Path) -> bool:
    """Whether the folder of an agent holds a language model, not a policy that chooses acts."""
    return any((folder / name).is_file() for name in FILES)


def evaluate(options: EvaluatePolicyOptions) -> None:
    """Evaluate the language model of the options; raises UserError for what cannot be used."""
    if options.data_path is not None:
        raise UserError(
            f"--data_path: only policies of acts read it, and {options.agent} is a language model; leave it out"
        )
    output = options.output or options.agent.absolute().parent / "evaluation.json"
    check_output("output", output, str(output))
    check_device(options.device)
    environment = choose_environment(options)
    if options.baseline:
        check_part(options.baseline, options.trust_config)
        check_folder(str(options.baseline), "--agent")
    from rlhf_dialog.models.chat_agent import ChatAgent, read_settings
    from rlhf_dialog.runs.data_source import build_simulated, play_dialogues, spoken

    source, numbers = build_simulated(environment, options.seed, "test"), range(options.dialogues)
    settings = _with_temperature(options.temperature, read_settings(options.agent))
    trusted = options.trust_config
    agent = ChatAgent.load(options.agent, device=options.device, settings=settings, trust_config=trusted)
    agent.set_precision(options)
    dialogues = {"agent": play_dialogues(agent, source, numbers, AT_ONCE)}
    if options.baseline:
        own = read_settings(options.baseline, settings).model_copy(update={"precision": settings.precision})
        own = _with_temperature(options.temperature, own)
        baseline = ChatAgent.load(options.baseline, device=options.device, settings=own, trust_config=trusted)
        baseline.set_precision(options)
        dialogues["baseline"] = play_dialogues(baseline, source, numbers, AT_ONCE)
    registered = baseline_names(source.environments[0])
    dialogues |= {name: spoken(name, source, numbers) for name in BASELINES if name in registered}
    for episode in dialogues["agent"][: options.transcripts]:
        print("\n".join(message(line) for line in transcript(episode.dialogue)), end="\n\n")
    asked: dict[str, Any] = {"agent": str(options.agent), "baseline": options.baseline and str(options.baseline)}
    asked |= {"dialogues": options.dialogues, "seed": options.seed, "environment": environment.model_dump()}
    compared_with = [name for name in ("baseline", "handcrafted") if name in dialogues]
    result = {
        "settings": asked | agent.settings.model_dump(include=set(SAMPLING)),
        "policies": {name: measure_dialogues(own) for name, own in dialogues.items()},
        **{f"difference_from_{name}": compare_dialogues(dialogues[name], dialogues["agent"]) for name in compared_with},
    }
    replace_json(output, finite(result))
    Console().print(measures_table(result, f"{options.dialogues} dialogues, {environment.id}", SHOWN))
    logger.info("written: %s", output)


def choose_environment(options: EvaluatePolicyOptions) -> EnvironmentConfig:
    """The environment of --environment, of the run that the agent comes from, or `restaurant`; --domain and --user change it."""
    beside = options.agent.resolve().parent / "config.yaml"
    run_config = read_run_config(None, beside, options.trust_config) if beside.is_file() else None
    overrides = {key: getattr(options, key) for key in ("domain", "user", "error_rate")}
    args = {key: value for key, value in overrides.items() if value is not None}
    environment = run_config.environment(args) if run_config and not options.environment else None
    return environment or EnvironmentConfig(id=options.environment or "restaurant", args=args)


def _with_temperature(temperature: float | None, settings: "AgentSettings") -> "AgentSettings":
    """The settings with this temperature, where there is one. Raises UserError for one that cannot be used."""
    if temperature is None:
        return settings
    try:
        return type(settings)(**settings.model_dump() | {"temperature": temperature})
    except ValueError as error:
        raise UserError(f"--temperature: found {temperature:g}, wanted a number above 0, such as 0.7") from error


def measures_table(result: dict[str, Any], title: str, columns: Mapping[str, str]) -> Table:
    """The measures of each policy, and the agent's differences from others; columns: measure -> the form of its numbers."""
    table = Table(title=f"{title}: mean [95 % interval of this one run]", title_justify="left")
    for name in ("policy", *columns):
        table.add_column(name.replace("_", " "), justify="left" if name == "policy" else "right")
    differences = [name for name in result if name.startswith("difference_from_")]
    rows = result["policies"] | {name.replace("difference_from_", "agent - "): result[name] for name in differences}
    for name, metrics in rows.items():
        table.add_row(name, *(cell(metrics.get(key), form) for key, form in columns.items()))
    return table
