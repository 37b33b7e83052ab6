"""Evaluate a dialogue policy next to the handcrafted and the random policy: success, reward and turns with 95 % intervals.

python scripts/evaluate_policy.py --agent runs/restaurant/agent --dialogues 1000

All three talk with the same held-out users. Differences from the handcrafted policy are paired by dialogue. --transcripts N
prints the first N dialogues of the agent.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from rich.table import Table

from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.commands.command_line import check_output, check_seed
from rlhf_dialog.commands.options import register, run_command
from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.report import finite
from rlhf_dialog.evaluation.untrusted import check_class, leads_out
from rlhf_dialog.found_files import agent_folder, not_trusted
from rlhf_dialog.task_oriented.commands import evaluate_dialogues
from rlhf_dialog.task_oriented.commands.evaluate_dialogues import BASELINES, EvaluatePolicyOptions, measures_table
from rlhf_dialog.task_oriented.domains.loading import MULTIWOZ, OWN
from rlhf_dialog.task_oriented.policies.base import PolicyFactory, PolicySpec
from rlhf_dialog.task_oriented.policies.built_in import build_policy
from rlhf_dialog.task_oriented.policies.sampling.measures import TEST_SEED, compare_dialogues, measure_dialogues
from rlhf_dialog.task_oriented.policies.sampling.sampler import run_dialogues
from rlhf_dialog.task_oriented.runs.checkpoint import AGENT, check_domain, read_policy_agent
from rlhf_dialog.task_oriented.runs.training_world import open_world
from rlhf_dialog.terminal import Console

logger = logging.getLogger(__name__)
SHOWN = {"success": "{:.1%}", "reward": "{:.2f}", "turns": "{:.2f}", "inform_f1": "{:.3f}"}
SHOWN_OF_SEVERAL = {"inform_precision": "{:.3f}", "inform_recall": "{:.3f}", "book_rate": "{:.1%}"}
NUM_ENVS = 64


def run(options: EvaluatePolicyOptions) -> None:
    """Measure the agent and its baselines, write the file and show the tables."""
    check_seed(options.seed)
    for name, least in (("dialogues", 1), ("transcripts", 0)):
        if getattr(options, name) < least:
            raise UserError(f"--{name}: found {getattr(options, name)}, wanted {least} or more")
    if options.register:
        register(options.register)
    options = replace(cast(Any, options), agent=Path(agent_folder(str(options.agent), options.trust_config)))
    if evaluate_dialogues.is_language_model(options.agent):
        evaluate_dialogues.evaluate(options)
        return
    agent = read_policy_agent(options.agent)
    if not options.trust_config:
        _check_found(options, agent)
    for name in ("environment", "baseline", "temperature"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name}: only language models have it, and {options.agent} chooses acts; leave it out")
    settings = agent | _read_overrides(options, agent)
    output = options.output or options.agent.absolute().parent / "evaluation.json"
    check_output("output", output, str(output))
    world = open_world(settings)
    check_domain(options.agent, agent["domain_name"], agent["domain_hash"], world)
    setting = PolicySpec(world.num_features, len(world.names), options.seed, world.domain)
    policies = {"agent": build_policy(agent["policy"]["id"], agent["policy"].get("args") or {}, setting)}
    policies["agent"].load(options.agent)
    policies |= {name: build_policy(name, {}, setting) for name in BASELINES if world.domain or name == "random"}
    numbers, seed = range(options.dialogues), TEST_SEED + options.seed
    episodes = {name: run_dialogues(policy, world.make, seed, numbers, NUM_ENVS) for name, policy in policies.items()}
    for episode in episodes["agent"][: options.transcripts]:
        print(f"{world.transcript(episode)}\n")
    other = "handcrafted" if "handcrafted" in episodes else "random"
    asked = {"agent": str(options.agent), "dialogues": options.dialogues, "seed": options.seed}
    measured = {name: measure_dialogues(played) for name, played in episodes.items()}
    difference = compare_dialogues(episodes[other], episodes["agent"])
    result = {"settings": asked | settings, "policies": measured, f"difference_from_{other}": difference}
    replace_json(output, finite(result))
    for table in _tables(result):
        Console().print(table)
    logger.info("written: %s", output)


def _check_found(options: EvaluatePolicyOptions, agent: dict[str, Any]) -> None:
    """Raises UserError where the agent's file names what leads out of its folder, other than data; nothing is opened."""
    path, environment, domain = options.agent / AGENT, agent["environment"], agent["domain"]
    if environment:
        check_class(path, "environment", EnvironmentFactory, environment["id"], environment.get("args") or {})
    check_class(path, "policy", PolicyFactory, agent["policy"]["id"], agent["policy"].get("args") or {})
    place = domain["actions"] if isinstance(domain, dict) else domain
    if place not in (*OWN, MULTIWOZ) and options.domain is None and leads_out(place, options.agent):
        why = f"domain: {place[:100]!r} is not in {options.agent}"
        raise UserError(f"{not_trusted(path, why)}, or name the one that it learned in with --domain")


def _read_overrides(options: EvaluatePolicyOptions, agent: dict[str, Any]) -> dict[str, Any]:
    """The settings of the command line in place of the agent's. Raises UserError for one that the agent does not read."""
    overrides = {key: getattr(options, key) for key in ("domain", "data_path", "error_rate", "user")}
    overrides = {key: value for key, value in overrides.items() if value is not None}
    if agent["environment"] and overrides:
        raise UserError(
            f"--{next(iter(overrides))}: the agent's environment {agent['environment']['id']} does not read it"
        )
    return overrides


def _tables(result: dict[str, Any]) -> Iterator[Table]:
    """The measures of the environment; with several domains a second table of what was informed and booked."""
    measured, settings = result["policies"]["agent"], result["settings"]
    environment = settings["environment"]
    where = environment["id"] if environment else f"{settings['error_rate']:.0%} error"
    for columns in (SHOWN, SHOWN_OF_SEVERAL if "book_rate" in measured else {}):
        if formats := {name: form for name, form in columns.items() if name in measured}:
            yield measures_table(result, f"{settings['dialogues']} dialogues, {where}", formats)


main = partial(run_command, EvaluatePolicyOptions, run, about=__doc__)  # the command line; returns the exit code
