"""The stages that measure: which rows a table has, on validation and then on test."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.dailydialog import calls, curve
from experiments.dailydialog.jobs import Job
from experiments.dailydialog.reading import validation_table
from experiments.dailydialog.record import done, hash_of
from experiments.dailydialog.scene import ESTIMATE, Scene
from experiments.dailydialog.sizes import (
    BEST,
    BEST_SFT,
    CHOSEN,
    COUNTS,
    DPO,
    LEARNED,
    MATCHED,
    MINILM,
    RLOO,
    SAID,
    SHIFT,
    SMOLLM2,
    START,
    TEMPERATURES,
    Agent,
)
from experiments.dailydialog.training import reward_config
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import read_json

MEASURED = ("sft", "ppo", "best_of_4", "dpo")  # the stages whose models are measured
Rows = list[dict[str, Any]]
ALL = 7000  # prompts of a split, about


def model_row(name: str, model: Path, draw: int = 0, config: str = "") -> dict[str, Any]:
    return {"name": f"{name}_{draw}", "kind": "model", "model": str(model), "seed": draw, "config": config}


def agent_rows(scene: Scene, draws: int) -> Rows:
    """Every draw of every agent."""
    ppo = scene.folder("ppo")
    return [
        model_row(agent.folder, ppo / agent.folder / "agent", draw, str(ppo / f"{agent.folder}.yaml"))
        for agent in scene.size.agents
        for draw in range(draws)
    ]


def other_starts(scene: Scene, draws: int) -> Rows:
    """Every draw of the starts that are not the SFT model, as their agents answer."""
    ppo = scene.folder("ppo")
    return [
        model_row(
            str(agent.start), scene.pretrained(str(agent.start)) or Path(), draw, str(ppo / f"{agent.folder}.yaml")
        )
        for agent in scene.size.agents
        if agent.start
        for draw in range(draws)
    ]


def trained_rows(scene: Scene) -> Rows:
    """What was trained on draws of the start."""
    return [model_row(BEST_SFT, scene.model("best_of_4")), model_row(DPO, scene.model("dpo"))]


def all_rows(scene: Scene, draws: int, counts: tuple[int, ...], whole: bool) -> Rows:
    """The rows of a table; without `whole` only what was trained, and the best of several draws of the start."""
    rows = [model_row(START, scene.model("sft"), draw) for draw in range(draws)]
    rows += other_starts(scene, draws) + agent_rows(scene, draws)
    rows += [{"name": f"{BEST}_{n}", "kind": "best", "count": n} for n in counts]
    return rows + (untrained_rows(scene, draws, counts) if whole else []) + trained_rows(scene)


def untrained_rows(scene: Scene, draws: int, counts: tuple[int, ...]) -> Rows:
    """The best of the first agent's draws, what comes near to PPO without training, and replies that no model wrote."""
    agents = [agent for agent in scene.size.agents if agent.name == RLOO]
    first, folder = _agent_row(scene, agents[0]), agents[0].folder
    chosen = [
        {**first, "name": f"{folder}_{BEST}_{n}", "kind": "best", "count": n, "of": folder}
        for n in counts
        if n <= draws
    ]
    shifted = [{**_agent_row(scene, agent), "name": f"{SHIFT}_{agent.seed}", "kind": "shift"} for agent in agents]
    learned = {"name": LEARNED, "kind": "learned"}
    matched = {"name": MATCHED, "kind": "matched", "like": [f"{agent.folder}_0" for agent in agents]}
    return [*chosen, *shifted, learned, matched, *({"name": name, "kind": "said"} for name in SAID)]


def _agent_row(scene: Scene, agent: Agent) -> dict[str, Any]:
    return model_row(agent.folder, scene.folder("ppo") / agent.folder / "agent")


def job_of(scene: Scene, stage: str, name: str, rows: Rows, changes: dict[str, Any]) -> Job:
    """The process that makes these rows in DIR/stage/name."""
    folder = scene.folder(stage) / name
    judges = {
        "relevance": [str(scene.model("judge_convolution")), str(scene.model("judge_bag"))],
        "act_judge": str(scene.model("act_judge")),
        "encoder": _text(scene.pretrained(MINILM)),
    }
    plan: dict[str, Any] = {
        "data": str(scene.data),
        "seed": 0,
        "temperature": 1.0,
        "start": str(scene.model("sft")),
        "folder": str(folder),
        "bias_prompts": scene.size.bias_prompts,
        "bias_tokens": scene.size.bias_tokens,
        "rows": rows,
    }
    if "config" not in changes:
        plan["config"] = str(reward_config(scene, scene.folder(stage)))
    path = scene.folder(stage) / f"{name}.json"
    replace_json(path, plan | judges | changes)
    return calls.program("rows", path, scene.folder(stage) / f"{name}.log", folder / "rows.json")


def validate(scene: Scene) -> None:
    """The rows of validation, then `chosen.json`: what was chosen before the test split is read."""
    scene.run(curve.exports(scene))
    rows, size = (
        all_rows(scene, 1, COUNTS[:1], False),
        {"split": "validation", "prompts": scene.size.validation_prompts},
    )
    more = {curve.TEMPERATURE: curve_rows(scene)}
    jobs = [
        job_of(scene, "validation", f"at_{t:g}", rows + more.get(t, []), size | {"temperature": t})
        for t in TEMPERATURES
    ]
    scene.run(jobs, side_by_side=True)
    chosen = {"configuration": configuration(scene), "validation": validation_table(scene)}
    replace_json(scene.work / CHOSEN, chosen)


def curve_rows(scene: Scene) -> Rows:
    """The checkpoints of a curve."""
    config = str(scene.folder("ppo") / f"{curve.first_agent(scene).folder}.yaml")
    numbers = curve.iterations(scene)
    return [model_row(curve.row_name(one), curve.agent_folder(scene, one), config=config) for one in numbers]


def configuration(scene: Scene, stages: Sequence[str] = MEASURED) -> str:
    """The hash of what these stages have trained."""
    return hash_of({stage: done(scene.folder(stage))["hash"] for stage in stages})


def check_chosen(scene: Scene, stages: Sequence[str] = MEASURED) -> None:
    """Raises UserError where `chosen.json` is missing, or of other models than these stages have trained."""
    path = scene.work / CHOSEN
    if not path.is_file():
        raise UserError(f"{path}: is not there, and the test split is read after it alone; run --again validation")
    if read_json(path, end="; run --again validation", shape=dict[str, Any])["configuration"] != configuration(
        scene, stages
    ):
        raise UserError(f"{path}: is of other models than those in {scene.work}; run --again validation")


def test(scene: Scene) -> None:
    """The rows of test. Raises UserError as `check_chosen`."""
    check_chosen(scene)
    rows = all_rows(scene, scene.size.draws, COUNTS, True)
    size: dict[str, Any] = {"split": "test", "prompts": scene.size.test_prompts}
    jobs = [job_of(scene, "test", f"at_{t:g}", rows, size | {"temperature": t}) for t in TEMPERATURES]
    if language_model := scene.pretrained(SMOLLM2):
        few = {"split": "test", "prompts": scene.size.pretrained_prompts, "temperature": 0.7}
        judges: dict[str, Any] = {"relevance": [], "act_judge": None, "language_model": str(language_model)}
        jobs.append(job_of(scene, "test", "pretrained", pretrained_rows(scene), few | judges))
    scene.run(jobs, side_by_side=True)


def pretrained_rows(scene: Scene) -> Rows:
    """One draw of what a pretrained language model reads."""
    rows = [
        model_row(START, scene.model("sft")),
        *agent_rows(scene, 1),
        {"name": f"{BEST}_2", "kind": "best", "count": 2},
    ]
    return [*rows, model_row(BEST_SFT, scene.model("best_of_4")), {"name": "true_replies", "kind": "said"}]


def measured_speed(scene: Scene) -> dict[str, float]:
    """One row of a model with random weights: `seconds` and `drawing` of this number of `prompts`."""
    from experiments.dailydialog.numbers import ABOUT, RowFile

    folder = scene.folder(ESTIMATE)
    changes = {"split": "validation", "prompts": scene.size.measured_prompts, "start": str(folder / "sft/model")}
    judges = {
        "relevance": [str(folder / "judge_convolution/model"), str(folder / "judge_bag/model")],
        "act_judge": str(folder / "act_judge/model"),
        "config": str(reward_config(scene, folder, folder)),
    }
    scene.run([job_of(scene, ESTIMATE, "rows", [model_row(START, folder / "sft/model")], changes | judges)])
    arrays = RowFile(folder / "rows", f"{START}_0").read()
    return {name: float(arrays[f"{ABOUT}{name}"]) for name in ("seconds", "drawing", "prompts")}


def amounts(scene: Scene) -> dict[str, int]:
    """Rows times prompts of the stages that measure; all prompts of a split count as ALL."""
    size = scene.size
    validation = len(all_rows(scene, 1, COUNTS[:1], False)) * size.validation_prompts
    return {
        "validation": len(TEMPERATURES) * validation,
        "test": len(TEMPERATURES) * len(all_rows(scene, size.draws, COUNTS, True)) * (size.test_prompts or ALL),
    }


def draws_of_an_agent(scene: Scene) -> dict[str, int]:
    """Draws times prompts of one agent in the stages that measure."""
    size = scene.size
    counts = {"validation": size.validation_prompts, "test": size.draws * (size.test_prompts or ALL)}
    return {stage: len(TEMPERATURES) * count for stage, count in counts.items()}


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
