"""Which of the settings PPO A gets: by validation, with a seed that is in no table."""

from experiments.dailydialog.pretrained import measuring, training
from experiments.dailydialog.scene import Scene
from experiments.dailydialog.sizes import START
from experiments.dailydialog.systems import System
from rlhf_dialog.atomic_files import replace_json

DISTINCT, LENGTH = 0.9, 0.1  # distinct-2 is at least this share of SFT's, length within this share of it
NUMBERS = ("meteor_margin", "rouge1_margin", "judge_accuracy", "distinct_2", "mean_words", "score")


def choose(scene: Scene) -> None:
    """Train with each of the settings, measure on validation, and write `setting.json`."""
    some = training.setting_agents(scene)
    training.train(scene, some, {})
    job = measuring.table_job(scene, "settings", "rows", measuring.setting_rows(scene), measuring.on_validation(scene))
    scene.run([job])
    folder = scene.folder("settings") / "rows"
    names = {START: START} | {agent.name: agent.folder for agent in some}
    systems = {title: System.read(title, folder, [[f"{name}_0"]]) for title, name in names.items()}
    numbers = {title: {metric: one.point(metric) or 0.0 for metric in NUMBERS} for title, one in systems.items()}
    best = best_of(numbers)
    keys = scene.size.settings[[agent.name for agent in some].index(best)]
    replace_json(
        scene.folder("settings") / training.CHOSEN_SETTING, {"name": best, "keys": keys, "validation": numbers}
    )


def best_of(numbers: dict[str, dict[str, float]]) -> str:
    """The setting with the most METEOR margin and intent by the judge, half each as in the reward.

    Among those that keep distinct-2 and length near those of the SFT model; among all where none does.
    """
    start = numbers[START]
    settings = [title for title in numbers if title != START]
    near = [title for title in settings if is_near(numbers[title], start)]
    return max(near or settings, key=lambda title: numbers[title]["meteor_margin"] + numbers[title]["judge_accuracy"])


def is_near(agent: dict[str, float], start: dict[str, float]) -> bool:
    """Whether distinct-2 and length are within their limits."""
    moved = abs(agent["mean_words"] - start["mean_words"])
    return agent["distinct_2"] >= DISTINCT * start["distinct_2"] and moved <= LENGTH * start["mean_words"]
