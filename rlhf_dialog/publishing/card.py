"""The model card of an agent, written from its run. The files of the run are read as data: nothing that they name is built."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData

import rlhf_dialog.rewards  # noqa: F401  the built-in rewards register themselves
from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.sources import is_hub_name
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.report import SHOWN, markdown, split_rows
from rlhf_dialog.publishing.data_set import DataSet, cell, code, code_block, describe_data_set
from rlhf_dialog.publishing.privacy import hide_names, hide_private, without_places
from rlhf_dialog.publishing.repository import RUN_KEY

NOT_PUBLISHED = (
    *("run_dir", "wandb_entity", "wandb_project", "use_wandb", "use_tensorboard", "ledger", "ledger_texts", "report"),
    *("push_to_hub", "local_rank"),
)
PEOPLE = "true_replies"  # a baseline that is allowed to be better
NEUTRAL = ("mean_words", "copied")  # more is not better
LIMITS = """- It was trained on single replies, not on whole dialogues; long dialogues lose their oldest turns.
- There is no safety filter. It may say what is false, rude or harmful, and it repeats the habits of its data.
- It was trained to please a reward, not a person. A high score can be a hole of the reward: read replies, and the baselines.
- Its language, topics and style are those of its data."""


@dataclass(frozen=True)
class CardRun:
    """What is known of a run: its config.yaml, the evaluation.json of its agent, its last metrics, its library versions."""

    config: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    local_names: frozenset[str] = frozenset()  # which of the names in them were places on the machine that made them

    @property
    def name(self) -> str | None:
        return self.config.get("experiment_name")

    @property
    def data_path(self) -> str | None:
        env = self.config.get("env")
        args = env.get("args") if isinstance(env, dict) else None
        path = args.get("data_path") if isinstance(args, dict) else None
        return path if isinstance(path, str) else None

    def is_on_the_hub(self, model: str) -> bool:
        """Whether a model of the run can only be one of the Hub."""
        return model not in self.local_names and is_hub_name(model)


def agent_card(repo: str, settings: dict[str, Any], run: CardRun, key: str) -> str:
    """The README.md of an agent whose `rlhf_dialog.json` holds `settings`. Raises UserError for a damaged evaluation."""
    data = describe_data_set(run.data_path, run.local_names)
    try:
        parts = [_introduction(repo, run), _use(repo, settings), _task(settings), f"## Data\n\n{data.text}"]
        parts += [_reward(run), _training(run), _evaluation(repo, run), _limits(run), _command(run)]
        versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
        parts += [f"## Versions\n\n{versions}"] if versions else []
        start = run.config.get("model_path")
        base_model = start if isinstance(start, str) and run.is_on_the_hub(start) else None
        header = card_header(repo, data, _results(run, data), base_model=base_model, **{RUN_KEY: run.name})
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise UserError(
            f"{key}: config.yaml or evaluation.json of the run is damaged ({type(error).__name__}: {error}); evaluate again"
        ) from error
    return hide_names(f"{header}\n" + "\n\n".join(part for part in parts if part) + "\n", run.local_names)


def card_header(repo: str, data: DataSet, results: list[EvalResult], **fields: Any) -> str:
    """The YAML block of a card."""
    data_of_card = ModelCardData(
        language=data.language,
        license=data.licence,
        library_name="transformers",
        pipeline_tag=fields.pop("pipeline_tag", "text-generation"),
        tags=["rlhf-dialog", "dialogue", *fields.pop("tags", ["rlhf", "ppo"])],
        datasets=[data.hub_name] if data.hub_name else None,
        model_name=repo.rpartition("/")[2] if results else None,
        eval_results=results or None,
        **{name: value for name, value in fields.items() if value is not None},
    )
    return f"---\n{data_of_card.to_yaml()}\n---"


def _introduction(repo: str, run: CardRun) -> str:
    start, estimator = hide_private(run.config.get("model_path")), run.config.get("advantage_estimator")
    is_local = not run.is_on_the_hub(str(run.config.get("model_path")))
    from_start = f" from {code(start)}{' (a local model, not published)' if is_local else ''}" if start else ""
    how = f" (PPO, advantage estimator {code(estimator)})" if estimator else ""
    return (
        f"# {repo.rpartition('/')[2]}\n\nA dialogue model: it writes the next reply. Trained{from_start} with reinforcement "
        f"learning{how} by rlhf-dialog."
    )


def _use(repo: str, settings: dict[str, Any]) -> str:
    network = settings.get("model_class")
    return f"""## Use

```python
from rlhf_dialog import ChatAgent

agent = ChatAgent.load("{repo}")
agent.chat("Do you have a room for tonight ?", history=["Good evening , sir .", "Good evening ."])
```

In the terminal: `rlhf-dialog chat --agent {repo}{_own_network(network) if network else _plain_model(repo)}

`rlhf_dialog.json` says how turns become a prompt and how replies are sampled. `value_head.safetensors`, if it is there, is the
head of the critic."""


def _plain_model(repo: str) -> str:
    return f"""`. The model is a plain causal language model, too:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{repo}")
tokenizer = AutoTokenizer.from_pretrained("{repo}")
```"""


def _own_network(spec: Any) -> str:
    name = code(dict(spec).get("id"))
    return (
        f" --register FILE --trust_config`, where FILE is the Python file that registers the network {name}. Its code is not "
        "here, and transformers alone cannot load it; in Python import that file before `ChatAgent.load(..., trust_config=True)`."
    )


def _task(settings: dict[str, Any]) -> str:
    known = {name: value for name, value in settings.items() if name != "format_version"}
    rows = "\n".join(f"| {cell(name)} | {cell(hide_private(value))} |" for name, value in known.items())
    return f"## Task\n\nOne reply to the last turns of a dialogue.\n\n| setting | value |\n|---|---|\n{rows}"


def _reward(run: CardRun) -> str:
    wanted = run.config.get("reward_class") or {}
    lines = [f"- {line}" for line in _parts(wanted)] if wanted else []
    return "## Reward\n\n" + ("\n".join(lines) or "Unknown: the agent's run has no config.yaml beside it.")


def _parts(node: dict[str, Any], weight: float | None = None) -> Iterator[str]:
    """One line for each reward, with its weight, what it is, and its arguments."""
    args = dict(node.get("args") or {})
    below = args.pop("parts", None)
    cls = RewardFactory.classes.get(str(node.get("id")))
    is_ours = cls is not None and cls.__module__.startswith("rlhf_dialog.")
    words = (cls.__doc__ or "").strip().splitlines()[0].rstrip(".") if is_ours and cls else "a reward of its own"
    share = "" if weight is None else f", weight {weight:g}"
    shown = ", ".join(code(f"{name}: {value}") for name, value in hide_private(args).items() if value is not None)
    yield f"{code(node.get('id'))}{share}: {words}" + (f" ({shown})" if shown else "")
    for part in below or []:
        yield from _parts(part, float(part.get("weight", 1.0)))


def _training(run: CardRun) -> str:
    if not run.metrics:
        return ""
    names = [name for name in run.metrics if name.startswith(("objective/", "reward/", "eval/", "response/"))]
    numbers = {name: run.metrics[name] for name in names if isinstance(run.metrics[name], int | float)}
    rows = "\n".join(f"| {cell(name)} | {value:.4g} |" for name, value in numbers.items())
    count = run.metrics.get("iteration", "?")
    head = f"The last of {count} iterations, on training prompts (`eval/`: validation prompts):"
    return f"## Training\n\n{head}\n\n| metric | value |\n|---|---|\n{rows}"


def _evaluation(repo: str, run: CardRun) -> str:
    if run.evaluation is None:
        return (
            "## Evaluation\n\nNot evaluated yet. Measure it on held-out dialogues, with intervals and baselines:\n\n"
            f"```bash\nrlhf-dialog evaluate --agent {repo} --data_path DATA --output evaluation.json\n```"
        )
    settings = run.evaluation["settings"]
    evaluation = copy.deepcopy(run.evaluation)
    evaluation["settings"]["notes"] = [" ".join(without_places(str(x)).split()) for x in settings.get("notes", [])]
    head = (
        f"Split {code(settings['split'])}, {settings['num_prompts']} prompts: mean and 95 % interval of this one run."
    )
    own = "after" if "after" in evaluation else "metrics"
    head += f" `{own}` is this model" + (
        f", `before` is {code(hide_private(settings['baseline']))}." if own == "after" else "."
    )
    return f"## Evaluation\n\n{head}\n\n{markdown(evaluation).strip()}"


def _limits(run: CardRun) -> str:
    holes = list(_better_baselines(run.evaluation)) if run.evaluation else []
    return "\n".join(["## Limits", "", LIMITS, *(f"- {line}" for line in holes)])


def _better_baselines(evaluation: dict[str, Any]) -> Iterator[str]:
    """The metrics on which replies that no model wrote are as good as the agent or better, and gains that are not sure."""
    own = _own_row(evaluation)
    for metric in (name for name in SHOWN if name in own and name not in NEUTRAL):
        mean = own[metric]["mean"]
        rivals = {name: row[metric]["mean"] for name, row in evaluation["baselines"].items() if name != PEOPLE}
        better = {name: x for name, x in rivals.items() if x is not None and mean is not None and x >= mean}
        if better:
            named = ", ".join(f"`{name}` ({x:.3f})" for name, x in sorted(better.items(), key=lambda one: -one[1]))
            yield f"`{metric}` is {mean:.3f}, which these replies without a model reach or beat: {named}."
    gain = evaluation.get("difference", {}).get("score")
    if gain and gain["low"] is not None and gain["low"] <= 0 <= gain["high"]:
        interval = f"[{gain['low']:.3f}, {gain['high']:.3f}]"
        yield f"Its score may be no better than that of the model before: the 95 % interval of the difference is {interval}."


def _own_row(evaluation: dict[str, Any]) -> dict[str, Any]:
    """The agent's metrics: `after` in a comparison, else `metrics`."""
    rows = split_rows(evaluation)[0]
    return rows["after"] if "after" in rows else rows["metrics"]


def _results(run: CardRun, data: DataSet) -> list[EvalResult]:
    """The agent's metrics for `model-index`, each with its interval and the baselines' means."""
    if run.evaluation is None:
        return []
    settings, agent_row = run.evaluation["settings"], _own_row(run.evaluation)
    path = settings.get("data_path")
    measured = describe_data_set(path, run.local_names) if path else data
    return [
        EvalResult(
            task_type="text-generation",
            task_name="dialogue response generation",
            dataset_type=measured.type,
            dataset_name=measured.name,
            dataset_split=str(settings["split"]),
            metric_type=metric,
            metric_name=metric.replace("_", " "),
            metric_value=round(float(agent_row[metric]["mean"]), 4),
            metric_args={
                "interval_95": [_round(agent_row[metric][end]) for end in ("low", "high")],
                "baselines": {name: _round(row[metric]["mean"]) for name, row in run.evaluation["baselines"].items()},
            },
        )
        for metric in SHOWN
        if metric in agent_row and agent_row[metric]["mean"] is not None
    ]


def _round(value: float | None) -> float | None:
    return None if value is None else round(float(value), 4)


def _command(run: CardRun) -> str:
    if not run.config:
        return ""
    wanted = {name: x for name, x in run.config.items() if name in Config.model_fields and name not in NOT_PUBLISHED}
    changed = {name: value for name, value in wanted.items() if value != Config.model_fields[name].get_default()}
    text = yaml.safe_dump(hide_private(changed), sort_keys=False, allow_unicode=True).strip()
    return (
        "## How it was made\n\nPut your own paths into these settings, of which folders have their last name only, and save them "
        f"as `settings.yaml`:\n\n{code_block(text, 'yaml')}\n\n```bash\nrlhf-dialog train --config settings.yaml\n```"
    )
