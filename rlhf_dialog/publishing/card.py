"""The model card of an agent or a reward model: what its run or its training wrote, read as data.

Texts that may hold anything (settings, names, numbers) stand in blocks of YAML, so that none of them is markup.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import yaml
from huggingface_hub import ModelCardData

from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.hub import LOCAL_KEY
from rlhf_dialog.data.sources import is_hub_name
from rlhf_dialog.evaluation import preferences, report
from rlhf_dialog.publishing.privacy import hide_names, hide_private, without_places

RUN_KEY = "rlhf_dialog_run"  # in the header of a card: the run whose agent the repository holds
OF_THIS_MACHINE = {"run_dir", "push_to_hub", "local_rank", "ledger", "ledger_texts", "report"}
NOT_PUBLISHED = OF_THIS_MACHINE | {"wandb_entity", "wandb_project", "use_wandb", "use_tensorboard"}
DAILY_DIALOG = re.compile(r"daily[ _-]?dialog", re.IGNORECASE)
FILL_IN = "**Please fill in**: whose data these are, and under which licence"
LIMITS = """- It was trained on single replies; long dialogues lose their oldest turns.
- There is no safety filter. It may say what is false, rude or harmful, and it repeats the habits of its data.
- A high score can be a hole of the reward: read replies, and the baselines."""
LIMITS_OF_A_REWARD = """- Its languages, topics and style are those of its data.
- A policy that is trained to please it can find replies that it likes and people do not."""
EXAMPLE = ("Good evening , sir .", "Good evening .", "Do you have a room for tonight ?")
MAX_EXAMPLE = 300  # letters
HOW_TO_TRAIN = "The settings of `rlhf-dialog train --config`; folders have their last name only:"


@dataclass(frozen=True)
class CardRun:
    """What is known of a run: its config.yaml, the evaluation.json of its agent, its last metrics, its library versions."""

    config: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    local_names: frozenset[str] = frozenset()  # which of the names in them were places on the machine that made them
    example: Sequence[str] = EXAMPLE  # the turns that the card says to the agent


def agent_card(repo: str, settings: dict[str, Any], run: CardRun) -> str:
    """The README.md of an agent whose `rlhf_dialog.json` holds `settings`.

    Raises KeyError, TypeError, ValueError, AttributeError or StopIteration for a damaged run.
    """
    config, start = run.config, run.config.get("model_path")
    data, about_data = describe_data(((config.get("env") or {}).get("args") or {}).get("data_path"), run.local_names)
    header = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["rlhf-dialog", "dialogue", "rlhf", "ppo"],
        base_model=start if start and start not in run.local_names and is_hub_name(start) else None,
        **data,
        **({RUN_KEY: config["experiment_name"]} if config.get("experiment_name") else {}),
    )
    shown = ("objective/", "reward/", "eval/", "response/")
    metrics = {k: x for k, x in run.metrics.items() if k == "iteration" or k.startswith(shown)}
    metrics = {k: float(f"{x:.4g}") if isinstance(x, float) else x for k, x in metrics.items()}
    fields = {name: field for name, field in Config.model_fields.items() if name not in NOT_PUBLISHED}
    changed = {k: x for k, x in config.items() if k in fields and x != fields[k].get_default()}
    sections = {
        "Use": _use(repo, settings, run.example),
        "Task": f"One reply to the last turns of a dialogue, with these settings:\n\n{_block(settings)}",
        "Data": about_data,
        "Training": "The last metrics on training prompts (`eval/`: validation prompts):\n\n" + _block(metrics),
        "Evaluation": _evaluation(repo, run.evaluation),
        "Limits": LIMITS,
        "How it was made": f"{HOW_TO_TRAIN}\n\n{_block(changed)}\n\nWith:\n\n{_block(run.versions)}",
    }
    about = "A dialogue model: it writes the next reply. Trained with reinforcement learning by rlhf-dialog."
    return hide_names(_page(header, repo, about, sections), run.local_names)


def reward_card(repo: str, found: dict[str, Any], model: dict[str, Any]) -> str:
    """The README.md of a reward model with that config.json; `found` is its report.json, empty where there is none.

    Raises KeyError, TypeError, ValueError or AttributeError for a damaged report.
    """
    settings, local = found.get("settings") or {}, local_names(found)
    data, about_data = describe_data(settings.get("data_path"), local)
    header = ModelCardData(
        library_name="transformers", pipeline_tag="text-classification", tags=["rlhf-dialog", "reward-model"], **data
    )
    names = model.get("id2label") or {}
    if normal := found.get("normalisation"):
        page = preferences.markdown(found | {"normalisation": normal | {"of": without_places(normal["of"])}})
        numbers = page.partition("\n")[2].strip()  # without its title
    else:
        splits = [split for split in ("validation", "test") if split in found]
        plain = {str(k): {name: x for name, x in found[k].items() if not isinstance(x, list)} for k in splits}
        numbers = _block(plain) if plain else "Not measured."
    sections = {
        "Use": f"Set its name where a reward or `--judge` of rlhf-dialog takes a model: `{repo}`.",
        "Output": f"One class:\n\n{_block(names)}" if len(names) > 1 else "One number: higher is better.",
        "Data": about_data,
        "Evaluation": numbers,
        "Limits": LIMITS_OF_A_REWARD,
        "How it was made": _block({k: x for k, x in settings.items() if x is not None and k != "output"})
        + f"\n\nWith:\n\n{_block(dict(found.get('versions') or {}))}",
    }
    about = "A reward model for dialogues: it reads a dialogue's last turns and a reply, and judges the reply."
    return hide_names(_page(header, repo, about, sections), local)


def local_names(tree: dict[str, Any] | None) -> list[str]:
    """What an evaluation or a report says of the names in it that were places when it was written."""
    names = (tree or {}).get(LOCAL_KEY)
    return [str(name) for name in names] if isinstance(names, list) else []


def describe_data(path: str | None, local_names: Collection[str] = ()) -> tuple[dict[str, Any], str]:
    """The fields of a card's header for the data at `path` of a configuration, and a sentence; DailyDialog by its name.

    `local_names` are on the machine that made the model, whatever they look like here.
    """
    if path and DAILY_DIALOG.search("/".join(PurePath(path).parts[-2:])):
        header = {"license": "cc-by-nc-sa-4.0", "language": "en", "datasets": ["li2017dailydialog/daily_dialog"]}
        licence = "CC BY-NC-SA 4.0, so not for commercial use, with attribution, and under the same licence"
        return header, f"DailyDialog (Li et al., 2017): everyday English dialogues with acts. Licence: {licence}."
    if path and path not in local_names and is_hub_name(path):
        return {"license": "other", "datasets": [path]}, f"`{path}` of the Hugging Face Hub. {FILL_IN}."
    return {"license": "other"}, f"{FILL_IN}."


def _page(header: ModelCardData, repo: str, about: str, sections: dict[str, str]) -> str:
    parts = [f"# {repo.rpartition('/')[2]}", about, *(f"## {name}\n\n{text}" for name, text in sections.items())]
    return f"---\n{header.to_yaml()}\n---\n" + "\n\n".join(parts) + "\n"


def _block(tree: dict[str, Any]) -> str:
    """Settings as they may be published, in a block of YAML whose fence is longer than each row of backticks in it."""
    shown, line = hide_private(tree), 1 << 30  # letters: on one line a secret is recognised
    text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=line).strip() if tree else "unknown"
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}yaml\n{text}\n{fence}"


def may_be_example(turns: Sequence[str]) -> bool:
    """Whether the turns fit into the lines of code of a card: short, without a fence, a place or a URL.

    >>> may_be_example(["Is it far ?"]), may_be_example(["Read /home/ada/notes"])
    (True, False)
    """
    text = " ".join(turns)
    return bool(turns) and len(text) <= MAX_EXAMPLE and "```" not in text and without_places(text) == text


def _use(repo: str, settings: dict[str, Any], example: Sequence[str]) -> str:
    plain = f"""It is also a causal language model of transformers: `AutoModelForCausalLM.from_pretrained("{repo}")`."""
    network = """Add `--register FILE --trust_config`, where FILE registers the network of `model_class` below; its code is not
here, and transformers alone cannot load it. In Python import that file before `ChatAgent.load(..., trust_config=True)`."""
    *history, said = (json.dumps(text, ensure_ascii=False) for text in example)
    before = f", history=[{', '.join(history)}]" if history else ""
    return f"""```python
from rlhf_dialog import ChatAgent

ChatAgent.load("{repo}").chat({said}{before})
```

In the terminal: `rlhf-dialog chat --agent {repo}`. {network if "model_class" in settings else plain}"""


def _evaluation(repo: str, evaluation: dict[str, Any] | None) -> str:
    if evaluation is None:
        command = f"rlhf-dialog evaluate --agent {repo} --data_path DATA --output evaluation.json"
        return f"Not evaluated yet. Measure it on held-out dialogues, with intervals and baselines:\n\n```bash\n{command}\n```"
    settings = evaluation["settings"]
    notes = [" ".join(without_places(str(note)).split()) for note in settings.get("notes", [])]
    table = report.markdown(evaluation | {"settings": settings | {"notes": notes}}).strip()
    shown = {name: settings[name] for name in ("split", "num_prompts", "baseline") if settings.get(name) is not None}
    own = "`after` is this model, `before` is `baseline`." if "after" in evaluation else "`metrics` is this model."
    return f"Mean and 95 % interval of this one run. {own}\n\n{_block(shown)}\n\n{table}"
