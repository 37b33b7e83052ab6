"""Measure one agent, or two on the same prompts, on a held-out split, next to replies that no model wrote:

python scripts/evaluate.py --agent runs/quickstart/agent --baseline runs/quickstart_sft --output evaluation.json

The split is validation; read test once, at the end, for a row to publish. With --judge FOLDER the acts are also judged by a
classifier that the reward never saw; --relevance_model FOLDER judges whether replies fit their prompts.

An agent is any folder of a causal LM. Data and reward are those of its run (config.yaml beside agent/), or of --config; with
--data_path neither is needed. A config.yaml that was found beside the agent is read as data: a reward that opens a connection,
reads an environment variable or a pickle, or is a class of your own is left out, unless --trust_config or --config allows it.
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import rlhf_dialog.rewards  # noqa: F401  the built-in rewards register themselves
from rlhf_dialog.atomic_files import replace_file, replace_json
from rlhf_dialog.commands import evaluate_options as agent_options
from rlhf_dialog.commands.command_line import check_device, check_output, check_seed
from rlhf_dialog.commands.options import check_run_keys, option, register, run_command
from rlhf_dialog.config.loading import RunKeys, find_config, read_value
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.hub import LOCAL_KEY, check_folder, is_local, local_names
from rlhf_dialog.data.prompts import NO_REFERENCE, PromptRules
from rlhf_dialog.data.sources import check_path
from rlhf_dialog.data.sources.record import SPLITS
from rlhf_dialog.errors import MissingSplit, UserError
from rlhf_dialog.evaluation import report
from rlhf_dialog.evaluation.intervals import NUM_RESAMPLES
from rlhf_dialog.evaluation.untrusted import RunConfig, read_run_config
from rlhf_dialog.found_files import agent_folder, check_part
from rlhf_dialog.metrics.evaluate_modules import EvaluateModule
from rlhf_dialog.rewards import Intent
from rlhf_dialog.rewards.composite import model_paths
from rlhf_dialog.rewards.intent import CLASSIFIER
from rlhf_dialog.rewards.meteor import meteor_variant
from rlhf_dialog.rewards.scoring import Scorer, penalty_keys
from rlhf_dialog.terminal import Console

if TYPE_CHECKING:
    from rlhf_dialog.evaluation.compare import Comparison
    from rlhf_dialog.evaluation.measure import Judges
    from rlhf_dialog.models.chat_agent import ChatAgent
    from rlhf_dialog.models.generation import Sampling

logger = logging.getLogger(__name__)
WIDTH = 100  # columns of a log or a pipe


class EvaluateOptions(agent_options.AgentOptions):
    description = __doc__
    output: Path = option("JSON file to write")
    report: Path | None = option("Markdown file for the table of all systems and metrics")
    replies: Path | None = option("JSONL file for every prompt with the replies of agents and baselines")
    data_path: str | None = option(
        "data to use in place of the configuration's; without a configuration there is no score"
    )
    columns: str | None = option("what the data's columns hold: '{prompt: question}'; default: as configured")
    metric: tuple[str, ...] = option(
        "metric of the `evaluate` library, whose Python runs: the folder of one, or a name of the Hub, which needs "
        "--trust_remote_code; with :KEY one of its results. May be given several times",
        metavar="NAME|FOLDER[:KEY]",
        form="repeated",
    )
    legacy_eou: bool = option("count the separator's text in ROUGE, METEOR and BLEU, as the published tables do")
    split: str = option("default: validation; read test once, for a row to publish", "validation", choices=SPLITS)
    max_prompts: int | None = option("measure at most this number of prompts, drawn with --seed; default: all")
    min_context_size: int | None = option("default: the configuration's")
    batch_size: int = option("prompts answered at a time; fewer where a GPU has no memory (default: 64)", 64)
    seed: int = option("seed of sampling and resampling (default: 0)", 0)
    temperature: float | None = option("default: the agent's own sampling")
    top_k: int | None = option("default: the agent's own sampling")
    top_p: float | None = option("default: the agent's own sampling")
    min_new_tokens: int = option("number of tokens before a reply may end (default: 0)", 0)
    greedy: bool = option("the most likely token instead of sampling")


def check(options: EvaluateOptions) -> None:
    """Raises UserError for options that cannot work, before anything is computed."""
    for name in ("batch_size", "max_prompts", "min_context_size", "best_of", "draws"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name}: found {value}, wanted at least 1")
    if options.min_new_tokens < 0:
        raise UserError(f"--min_new_tokens: found {options.min_new_tokens}, wanted at least 0")
    check_seed(options.seed)
    check_device(options.device)
    agent_options.check_beside(options)
    files = {name: getattr(options, name) for name in ("output", "report", "replies")}
    paths = {name: path.absolute() for name, path in files.items() if path is not None}
    for name, path in paths.items():
        check_output(name, path, str(files[name]))
        if list(paths.values()).count(path) > 1:
            raise UserError(f"--{name}: '{files[name]}' is given twice; name one file for each output")
    named = [("--agent", options.agent), ("--baseline", options.baseline), ("--intent_model", options.intent_model)]
    named += [("--beside", folder) for folder in agent_options.folders_beside(options).values()]
    named += [("--relevance_model", one) for one in options.relevance_model]
    named += [("--judge", one) for one in options.judge if not one.startswith("{")]
    for key, folder in named:
        if folder:
            check_part(folder, options.trust_config)
            check_folder(folder, key)
    metric_modules(options)
    if options.data_path is not None:
        check_path(options.data_path)
    if options.config:
        check_run_keys(RunKeys(find_config(options.config)), options.register)


def run(options: EvaluateOptions) -> None:
    """Measure the agent, and write the files."""
    check(options)
    options = replace(cast(Any, options), agent=agent_folder(options.agent, options.trust_config))
    if options.register:
        register(options.register)
    from rlhf_dialog.data.chat_template import keep_with_room, warn_about_marks
    from rlhf_dialog.evaluation.compare import Comparison

    options = options.on_device()
    agent = agent_options.load_agent(options, options.agent)
    task = read_task(options, agent)
    judges = build_judges(options, task)
    if options.best_of and judges.scorer is None:
        remedy = "name one with --config, or leave --best_of out"
        raise UserError(f"--best_of: there is no reward to choose the best reply by; {remedy}")
    prompts = list(keep_with_room(agent.encoder, held_out_prompts(task, options)))
    warn_about_marks(agent.encoder, prompts)
    sampling = choose_sampling(options, agent.sampling)
    systems = {"metrics": agent}
    if options.baseline:
        systems = {"after": agent, "before": agent_options.load_baseline(options, agent, options.baseline)}
    folders = agent_options.folders_beside(options)
    comparison = Comparison(
        systems,
        prompts,
        judges,
        sampling,
        options.seed,
        options.batch_size,
        beside={name: agent_options.load_baseline(options, agent, one, "--beside") for name, one in folders.items()},
        draws=options.draws,
        best_of=options.best_of,
    )
    result = comparison.run(load_training_prompts(task))
    result["settings"] = record_settings(options, task, sampling, judges, prompts)
    result[LOCAL_KEY] = local_names(result["settings"])
    write_results(options, report.finite(result), comparison)


def metric_modules(options: EvaluateOptions) -> list[EvaluateModule]:
    """Those of --metric; none is loaded yet. Raises UserError for one that is not there, or that is not trusted."""
    return [EvaluateModule(word, options.trust_remote_code, "--metric") for word in dict.fromkeys(options.metric)]


def choose_sampling(options: EvaluateOptions, own: "Sampling") -> "Sampling":
    """The agent's own sampling with what the options name. Raises UserError when a number is out of range."""
    from rlhf_dialog.models.generation import Sampling

    chosen = {"temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p}
    filters: dict[str, Any] = {name: getattr(own, name) if x is None else x for name, x in chosen.items()}
    if not (filters["temperature"] >= 1e-4 and filters["top_k"] >= 0 and 0 < filters["top_p"] <= 1):
        raise UserError(
            f"{filters}: temperature must be at least 0.0001, top_k at least 0, top_p above 0 and at most 1"
        )
    return Sampling(own.max_new_tokens, **filters, min_new_tokens=options.min_new_tokens, greedy=options.greedy)


def write_results(options: EvaluateOptions, result: dict[str, Any], comparison: "Comparison") -> None:
    """Write the files that the options name, and show the tables."""
    replace_json(options.output, result)
    if options.report:
        replace_file(options.report, report.markdown(result))
    if options.replies:
        replace_file(options.replies, report.replies_text(comparison.prompts, comparison.answers))
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    if verdict := report.verdict_line(result):
        console.print(verdict, markup=False, highlight=False)
    console.print(*report.metric_tables(result, console.width))
    for note in result["settings"]["notes"]:
        console.print(note, markup=False, highlight=False)
    logger.info("written: %s", options.output)


@dataclass
class Task:
    """What the replies are measured on."""

    data_path: str
    rules: PromptRules
    run: RunConfig | None = None

    def classifiers(self) -> list[str]:
        """The folders or Hub names of the act classifiers in the run's reward."""
        wanted = self.run.config.reward_class if self.run else None
        models = model_paths(wanted.id, wanted.args) if wanted else {}
        return [path for name, path in models.items() if name.startswith(CLASSIFIER)]


def read_columns(text: str | None) -> dict[str, Any]:
    """`columns` with the value of --columns; empty without one. Raises UserError where it is not YAML."""
    return {} if text is None else {"columns": read_value("columns", text)}


def read_task(options: EvaluateOptions, agent: "ChatAgent") -> Task:
    """Data and reward from --config, else from the agent's run, else --data_path alone. Raises UserError for none of them."""
    named = {"turn_separator": agent.settings.turn_separator} | read_columns(options.columns)
    if options.min_context_size:
        named["min_context_size"] = options.min_context_size
    if run := read_run(options):
        return Task(options.data_path or run.data_path(), PromptRules.from_keys(run.config, **named), run)
    if not options.data_path:
        raise UserError(
            f"--agent {options.agent}: no run's config.yaml beside it; name data and reward with --config, or the data alone "
            "with --data_path"
        )
    return Task(options.data_path, PromptRules(agent.settings.context_size, **named))


def read_run(options: EvaluateOptions) -> RunConfig | None:
    """The configuration of --config, else the one beside the agent, if any. Raises UserError for its mistakes."""
    if not options.config and not is_local(options.agent):
        return None
    beside = Path(options.agent).resolve().parent / "config.yaml"
    return read_run_config(find_config(options.config) if options.config else None, beside, options.trust_config)


def build_judges(options: EvaluateOptions, task: Task) -> "Judges":
    """The run's reward, its classifier or another one in its place, --judge, and METEOR as the reward has it."""
    from rlhf_dialog.distributed.random_states import generators_of_users
    from rlhf_dialog.distributed.world import World
    from rlhf_dialog.evaluation.measure import default_judges as judges_by

    reward, run, classifiers = None, task.run, task.classifiers()
    if run and not (options.no_intent and classifiers):
        reward = run.reward(dict.fromkeys(classifiers, options.intent_model) if options.intent_model else {})
        reward = reward and reward.in_float32().move_to(options.device)
    elif run:
        logger.info("no score: the run's reward asks the classifier that --no_intent leaves out")
    scorer = None
    if run and reward:
        skip = run.config.on_reward_error == "skip"
        around = partial(generators_of_users, options.seed, World())
        scorer = Scorer(reward, skip, run.config.reward_timeout_s, *penalty_keys(run.config), around=around)
    judges = judges_by(scorer)
    if options.intent_model and not (judges.intent and classifiers):
        judges.intent = Intent(options.intent_model, precision="fp32").move_to(options.device)
    agent_options.set_judges(judges, options)
    judges.modules = metric_modules(options)
    for module in judges.modules:
        module.load()
    judges.legacy_eou, judges.seed = options.legacy_eou, options.seed
    return judges


def held_out_prompts(task: Task, options: EvaluateOptions) -> list[Dialogue]:
    """The prompts of the split. Raises MissingSplit, with the others, where the data has none."""
    from rlhf_dialog.evaluation.replies import pick_prompts

    try:
        every = replace(task.rules, drop_overlap=False).load(task.data_path, options.split)
    except MissingSplit as error:
        other = "validation" if options.split == "test" else "test"
        is_file = Path(task.data_path).expanduser().suffix not in ("", ".zip")  # it has the training split alone
        rest = "--split train" if is_file else f"--split {other}, or --split train"
        raise MissingSplit(f"{error}; or measure another split: {rest}") from error
    prompts = pick_prompts(every, options.max_prompts, options.seed)
    for what, left_out in (("reference", "ROUGE, METEOR, BLEU, perplexity"), ("act", "the intent metrics")):
        if missing := sum(getattr(prompt, what) is None for prompt in prompts):
            logger.warning("%d of %d prompts have no %s: left out are %s", missing, len(prompts), what, left_out)
    return prompts


def load_training_prompts(task: Task) -> Sequence[Dialogue]:
    """The prompts of the training split that have a reference; none, with a notice, when it cannot be read."""
    try:
        prompts = task.rules.load(task.data_path, "train")
    except UserError as error:
        logger.warning("no baselines of training replies: %s", error)
        return []
    return prompts.select(~prompts.flagged(NO_REFERENCE))


def record_settings(
    options: EvaluateOptions, task: Task, sampling: "Sampling", judges: "Judges", prompts: list[Dialogue]
) -> dict[str, Any]:
    """What decides the numbers."""
    import torch

    from rlhf_dialog.evaluation import act_judges, measure
    from rlhf_dialog.runs.publish import hash_of_agent

    paths = task.classifiers()
    paths += [options.intent_model] if paths and options.intent_model else []
    return {
        "agent": str(options.agent),
        "agent_hash": hash_of_agent(Path(options.agent)) if Path(options.agent).is_dir() else None,
        "baseline": options.baseline,
        "data_path": task.data_path,
        "split": options.split,
        "num_prompts": len(prompts),
        "resampled": "dialogues",
        "num_dialogues": act_judges.num_dialogues(prompts),
        "num_resamples": NUM_RESAMPLES,
        "context_size": task.rules.context_size,
        "min_context_size": task.rules.min_context_size,
        "sampling": sampling.settings,
        "seed": options.seed,
        "batch_size": options.batch_size,
        "legacy_eou": options.legacy_eou,
        "reward_class": task.run.config.reward_class.model_dump() if task.run and judges.scorer else None,
        "intent_model": options.intent_model or ("the reward's" if judges.intent else None),
        "judge": agent_options.judge_folder(options),
        "judges": list(options.judge),
        "relevance_models": {name: str(path) for name, path in agent_options.relevance_folders(options).items()},
        "own_metrics": judges.own_metrics,
        **({"metrics": list(options.metric)} if options.metric else {}),
        "best_of": options.best_of,
        **({"draws": options.draws} if options.draws > 1 else {}),
        "truncation_penalty": judges.scorer.truncation_penalty if judges.scorer else None,
        "overlong_penalty_tokens": judges.scorer.overlong_penalty_tokens if judges.scorer else None,
        "meteor": meteor_variant(judges.wordnet),
        "sacrebleu_tokenize": "intl",
        "distinct_block": measure.BLOCK,
        "distinct_blocks": max(len(prompts) // measure.BLOCK, 1),
        "torch": torch.__version__,
        "notes": act_judges.notes(prompts, judges, agent_options.judge_folder(options), paths),
    }


main = partial(run_command, EvaluateOptions, run)  # the command line; returns the exit code
