"""Audit a reward before training: find bad replies that score higher than true ones.

python scripts/audit.py --config quickstart.yaml --judge FOLDER --output audit.json
rlhf-dialog audit --reward my_rewards.py:politeness --data chats.jsonl

The audit uses the reward, validation prompts and training replies of a training YAML, or a reward function and data without
one, such as a function of TRL's trainers. It trains nothing and needs no model. It scores copies,
constants, word lists and marks, and searches for replies with a higher score. Whether those are bad is decided by a judge or
a language model that the reward does not use: --judge or --likelihood. By default the judge is retrieval: are a reply's words
those that people say after the most similar last turns of the other validation dialogues?

Exit code 1: a fixed probe scores higher than true replies, the search found replies with a higher score that a judge rates
lower or that no judge can judge, or a score depends on the batch. 0: none of these. 2: wrong input.
"""

import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.commands.command_line import check_device, check_output, check_seed
from rlhf_dialog.commands.evaluate import read_columns
from rlhf_dialog.commands.evaluate_options import all_judges
from rlhf_dialog.commands.options import REGISTER, DeviceOption, check_run_keys, option, register, run_command
from rlhf_dialog.config.loading import RunKeys, find_config, load_config
from rlhf_dialog.config.registry import COLON
from rlhf_dialog.data.dialogue import SEPARATOR
from rlhf_dialog.data.hub import check_folder
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.data.sources import check_path
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.untrusted import RunConfig
from rlhf_dialog.rewards import BaseReward, LikelihoodPrice
from rlhf_dialog.rewards.base import models_inside
from rlhf_dialog.rewards.function_reward import FunctionReward
from rlhf_dialog.rewards.scoring import Scorer
from rlhf_dialog.terminal import Console

if TYPE_CHECKING:
    from rlhf_dialog.data.dialogue import Dialogue
    from rlhf_dialog.evaluation.audit import AuditPlan

LEAST_PROMPTS = 20
HOLES = 1  # the exit code
UNUSED = "none"  # the model of the settings of an audit without a YAML


class AuditOptions(DeviceOption):
    description = __doc__
    config: str | None = option("YAML of a training, with its data and its reward", metavar="FILE", rivals="reward")
    reward: str | None = option(
        "a reward function in place of a YAML, with --data_path: as of TRL, or f(dialogues)",
        metavar="FILE:FUNCTION",
        rivals="reward",
    )
    output: Path | None = option("JSON file for everything that was found")
    judge: tuple[str, ...] = option(
        "act classifier that the reward never saw, or another reward, `Name`, `FILE.py:FUNCTION` or `{id: Name, args: "
        "{..}}`. May be given several times",
        form="repeated",
    )
    likelihood: str | None = option(
        "folder of a causal LM or agent that the reward does not use; its mean log-probability per token judges a reply",
        metavar="MODEL",
    )
    register: str | None = option(REGISTER)
    data_path: str | None = option("data to use instead of those of the configuration")
    columns: str | None = option("what the data's columns hold: '{prompt: question}'; default: as configured")
    max_prompts: int = option(f"validation prompts, drawn with --seed (default: 100, at least {LEAST_PROMPTS})", 100)
    search_prompts: int = option("prompts of the search (default: 25, at least 10)", 25)
    search_replies: int = option("training replies that are tried for each of them (default: 1000, at least 100)", 1000)
    search_rounds: int = option(
        "rounds of changing words, of training replies and from nothing (default: 12, at least 4)", 12
    )
    search_candidates: int = option("changed texts in a round (default: 100, at least 20)", 100)
    seed: int = option("seed of everything that is drawn (default: 0)", 0)


def check(options: AuditOptions) -> None:
    """Raises UserError for options that cannot work."""
    from rlhf_dialog.evaluation.probes import LEAST

    least = {"max_prompts": LEAST_PROMPTS} | {f"search_{name}": number for name, number in asdict(LEAST).items()}
    for name, number in least.items():
        if getattr(options, name) < number:
            why = "with less, an audit that finds nothing would say nothing"
            raise UserError(f"--{name}: found {getattr(options, name)}, wanted at least {number}; {why}")
    check_seed(options.seed)
    check_device(options.device)
    if options.config is None and (options.reward is None or options.data_path is None):
        raise UserError("audit: name a YAML, --config FILE, or --reward FILE:FUNCTION and --data_path PATH")
    known = check_run_keys(RunKeys(find_config(options.config)), options.register) if options.config else None
    configured = known.env.args.data_path or None if known else None
    data_path = configured if options.data_path is None else options.data_path
    if data_path is not None:
        check_path(data_path)
    if options.output:
        check_output("output", options.output, str(options.output))
    if options.likelihood is not None and not Path(options.likelihood).expanduser().is_dir():
        what = f"'{options.likelihood}' is not a folder; name that of a causal LM on this machine"
        raise UserError(f"--likelihood: {what}")
    for word in options.judge:
        if not word.startswith("{") and COLON not in word:
            check_folder(word, "--judge")


def run(options: AuditOptions) -> int:
    """Audit the reward, write the file, and show the findings; returns the exit code."""
    begun = time.monotonic()
    check(options)
    if options.register:
        register(options.register)
    from rlhf_dialog.evaluation.audit import AuditPlan, RetrievalJudge, audit
    from rlhf_dialog.evaluation.probes import Budget, Training
    from rlhf_dialog.evaluation.replies import pick_prompts
    from rlhf_dialog.models.chat_agent import settle_separator

    options = options.on_device()
    config = read_config(options)
    keys, data_path = config.config, options.data_path or config.data_path()
    keys = settle_separator(keys, needs_model=False)
    rules = PromptRules.from_keys(keys, **read_columns(options.columns))
    validation = rules.load(data_path, "validation")
    prompts = pick_prompts(validation, options.max_prompts, options.seed)
    training = Training(rules.load(data_path, "train"))
    reward = config.reward()
    assert reward is not None  # the user named the file
    if isinstance(reward, FunctionReward):  # a watched one would write down what the audit asks
        reward.function = getattr(reward.function, "unwatched", reward.function)
    skip = config.config.on_reward_error == "skip"
    scorer = Scorer(reward.in_float32().move_to(options.device), skip, config.config.reward_timeout_s)
    judges = load_judges(options, config, scorer.reward)
    judges = judges or {"judge_retrieval": RetrievalJudge([one for one in validation if one.reference])}
    check_usable(prompts, training.replies, [scorer.reward, *judges.values()], data_path)
    counts = min(options.search_prompts, len(prompts)), min(options.search_replies, len(training.different))
    budget = Budget(counts[0], counts[1], options.search_rounds, options.search_candidates)
    plan = AuditPlan(budget, keys.turn_separator or "", keys.max_new_tokens, options.seed)
    result = audit(prompts, training, scorer, judges, plan)
    effort = {"seconds": round(time.monotonic() - begun, 1), "asked": result.pop("asked")}
    result["settings"] = record_settings(options, config, data_path, plan, len(prompts)) | effort
    return finish(options, result)


def read_config(options: AuditOptions) -> RunConfig:
    """The YAML, or the default settings with the reward that --reward names."""
    if options.config is not None:
        path = find_config(options.config)
        return RunConfig(load_config(path), path, trusted=True)
    keys: dict[str, Any] = {"model_path": UNUSED, "turn_separator": SEPARATOR}
    keys |= {"env.args.data_path": options.data_path, "reward_class.id": options.reward}
    return RunConfig(load_config(keys), Path(), trusted=True)


def load_judges(options: AuditOptions, config: RunConfig, reward: BaseReward) -> dict[str, BaseReward]:
    """Those of --judge, and `likelihood`. Raises UserError for one that cannot be loaded, or has a model of the reward."""
    from rlhf_dialog.evaluation.act_judges import same_weights

    judges = all_judges(options.judge, options.device)
    if options.likelihood:
        try:
            price = LikelihoodPrice(options.likelihood, None, config.config.max_new_tokens)
        except UserError as error:
            raise error.with_location("--likelihood", "reward_class.args.model") from error
        judges["likelihood"] = price.move_to(options.device)
    models = [module for _, module in models_inside(reward).values()]
    for name, judge in judges.items():
        if any(same_weights(one, module) for _, one in models_inside(judge).values() for module in models):
            raise UserError(
                f"{'--likelihood' if name == 'likelihood' else '--judge'}: {name} has a model that the reward has too, so it is "
                "not an independent judge; name another one"
            )
    return judges


def check_usable(prompts: "list[Dialogue]", replies: list[str], rewards: list[BaseReward], data_path: str) -> None:
    """Raises UserError for too few prompts, some without a true reply or what a reward or judge needs, and no training reply."""
    if len(prompts) < LEAST_PROMPTS:
        needed = f"an audit needs at least {LEAST_PROMPTS}; use data with more (--data_path)"
        raise UserError(f"{data_path}, validation: has {len(prompts)} prompts, and {needed}")
    missing = sum(prompt.reference is None for prompt in prompts)
    if missing or not replies:
        where = f"validation: {missing} of {len(prompts)} prompts have" if missing else "train: all prompts have"
        why = "an audit compares with true replies; use data with replies (--data_path)"
        raise UserError(f"{data_path}, {where} no reference, and {why}")
    for reward in rewards:
        reward.check_prompts(prompts, f" of {data_path}, validation,")


def record_settings(
    options: AuditOptions, config: RunConfig, data_path: str, plan: "AuditPlan", num_prompts: int
) -> dict[str, Any]:
    """What decides the numbers."""
    from rlhf_dialog.runs.identity import essential

    settings = config.config
    return {
        "config": str(config.path),
        "reward_class": essential(settings.reward_class.model_dump()),
        "data_path": data_path,
        "context_size": settings.context_size,
        "min_context_size": settings.min_context_size,
        "turn_separator": plan.separator,
        "max_new_tokens": plan.max_words,
        "num_prompts": num_prompts,
        "budget": asdict(plan.budget) | {"size": plan.budget.size},
        "seed": options.seed,
        "judges": list(options.judge),
        "likelihood": options.likelihood,
    }


def finish(options: AuditOptions, result: dict[str, Any]) -> int:
    """Write the file, and show what was found; returns the exit code."""
    from rlhf_dialog.evaluation.audit import WIDTH, finding_kind, page_lines, verdict_line
    from rlhf_dialog.evaluation.report import finite

    result = {"verdict": verdict_line(result), **result}
    if options.output:
        replace_json(options.output, finite(result))
    count, seconds = result["settings"]["asked"], result["settings"]["seconds"]
    notes = [f"{count:,} replies were asked about in {seconds:.0f} s. Intervals: 95 %, over dialogues."]
    if not (options.judge or options.likelihood):
        what = "how near a reply is to what people say after the 20 nearest last turns of other validation dialogues"
        notes.append(f"judge_retrieval: {what}. A stronger judge is named with --judge or --likelihood.")
    if any(finding.get("unjudged") for finding in result["findings"]):
        notes.append("To have it judged, name a judge that the reward does not use, or raise --search_prompts.")
    if options.output:
        notes.append(f"written: {options.output}")
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for line in [*page_lines(result), *notes]:
        console.print(line, markup=False, highlight=False)
    return HOLES if any(finding_kind(finding) != "note" for finding in result["findings"]) else 0


main = partial(run_command, AuditOptions, run)  # the command line; returns the exit code
