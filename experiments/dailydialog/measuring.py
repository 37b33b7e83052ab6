"""The stages that measure: which rows a table has, on validation and then on test."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.dailydialog import calls, curve
from experiments.dailydialog.calls import Job, run_jobs
from experiments.dailydialog.reading import validation_table
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
from experiments.dailydialog.work import Work, fingerprint_of
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import read_json

Rows = list[dict[str, Any]]


def model_row(name: str, model: Path, draw: int = 0, config: str = "") -> dict[str, Any]:
    return {"name": f"{name}_{draw}", "kind": "model", "model": str(model), "seed": draw, "config": config}


def agent_rows(work: Work, draws: int) -> Rows:
    """Every draw of every agent."""
    ppo = work.folder("ppo")
    return [
        model_row(agent.folder, ppo / agent.folder / "agent", draw, str(ppo / f"{agent.folder}.yaml"))
        for agent in work.size.agents
        for draw in range(draws)
    ]


def other_starts(work: Work, draws: int) -> Rows:
    """Every draw of the starts that are not the SFT model, as their agents answer."""
    ppo = work.folder("ppo")
    return [
        model_row(
            str(agent.start), work.pretrained(str(agent.start)) or Path(), draw, str(ppo / f"{agent.folder}.yaml")
        )
        for agent in work.size.agents
        if agent.start
        for draw in range(draws)
    ]


def trained_rows(work: Work) -> Rows:
    """What was trained on draws of the start."""
    return [model_row(BEST_SFT, work.model("best_of_4")), model_row(DPO, work.model("dpo"))]


def all_rows(work: Work, draws: int, counts: tuple[int, ...], whole: bool) -> Rows:
    """The rows of a table; without `whole` only what was trained, and the best of several draws of the start."""
    rows = [model_row(START, work.model("sft"), draw) for draw in range(draws)]
    rows += other_starts(work, draws) + agent_rows(work, draws)
    rows += [{"name": f"{BEST}_{n}", "kind": "best", "count": n} for n in counts]
    return rows + (untrained_rows(work, draws, counts) if whole else []) + trained_rows(work)


def untrained_rows(work: Work, draws: int, counts: tuple[int, ...]) -> Rows:
    """The best of the first agent's draws, what comes near to PPO without training, and replies that no model wrote."""
    agents = [agent for agent in work.size.agents if agent.name == RLOO]
    first, folder = _agent_row(work, agents[0]), agents[0].folder
    chosen = [
        {**first, "name": f"{folder}_{BEST}_{n}", "kind": "best", "count": n, "of": folder}
        for n in counts
        if n <= draws
    ]
    shifted = [{**_agent_row(work, agent), "name": f"{SHIFT}_{agent.seed}", "kind": "shift"} for agent in agents]
    learned = {"name": LEARNED, "kind": "learned"}
    matched = {"name": MATCHED, "kind": "matched", "like": [f"{agent.folder}_0" for agent in agents]}
    return [*chosen, *shifted, learned, matched, *({"name": name, "kind": "said"} for name in SAID)]


def _agent_row(work: Work, agent: Agent) -> dict[str, Any]:
    return model_row(agent.folder, work.folder("ppo") / agent.folder / "agent")


def job_of(work: Work, stage: str, name: str, rows: Rows, changes: dict[str, Any]) -> Job:
    """The process that makes these rows in DIR/stage/name."""
    folder, encoder = work.folder(stage) / name, work.pretrained(MINILM)
    judges = {
        "relevance": [str(work.model("judge_convolution")), str(work.model("judge_bag"))],
        "act_judge": str(work.model("act_judge")),
        "encoder": encoder and str(encoder),
    }
    plan: dict[str, Any] = {
        "data": str(work.data),
        "seed": 0,
        "temperature": 1.0,
        "start": str(work.model("sft")),
        "folder": str(folder),
        "bias_prompts": work.size.bias_prompts,
        "bias_tokens": work.size.bias_tokens,
        "rows": rows,
    }
    if "config" not in changes:
        plan["config"] = str(reward_config(work, work.folder(stage)))
    path = work.folder(stage) / f"{name}.json"
    replace_json(path, plan | judges | changes)
    return calls.program("rows", path, work.folder(stage) / f"{name}.log", folder / "rows.json")


def validate(work: Work) -> None:
    """The rows of validation, then `chosen.json`: what was chosen before the test split is read."""
    if (work.root / CHOSEN).is_file():
        return
    run_jobs(curve.exports(work))
    rows, size = (
        all_rows(work, 1, COUNTS[:1], False),
        {"split": "validation", "prompts": work.size.validation_prompts},
    )
    more = {curve.TEMPERATURE: curve_rows(work)}
    jobs = [
        job_of(work, "validation", f"at_{t:g}", rows + more.get(t, []), size | {"temperature": t}) for t in TEMPERATURES
    ]
    run_jobs(jobs, side_by_side=True)
    chosen = {"configuration": fingerprint_of(*trained_models(work)), "validation": validation_table(work)}
    replace_json(work.root / CHOSEN, chosen)


def curve_rows(work: Work) -> Rows:
    """The checkpoints of a curve."""
    config = str(work.folder("ppo") / f"{curve.first_agent(work).folder}.yaml")
    numbers = curve.iterations(work)
    return [model_row(curve.row_name(one), curve.agent_folder(work, one), config=config) for one in numbers]


def trained_models(work: Work) -> list[Path]:
    """The folders of what is measured."""
    agents = [work.folder("ppo") / agent.folder / "agent" for agent in work.size.agents]
    return [work.model("sft"), *agents, work.model("best_of_4"), work.model("dpo")]


def check_chosen(work: Work, models: Sequence[Path]) -> None:
    """Raises UserError where `chosen.json` is missing, or of other models than these."""
    path = work.root / CHOSEN
    if not path.is_file():
        raise UserError(f"{path}: is not there, and the test split is read after it alone; run the same command again")
    if read_json(path, shape=dict[str, Any])["configuration"] != fingerprint_of(*models):
        raise UserError(
            f"{path}: is of other models than those in {work.root}; remove it with the folders validation and test, and run again"
        )


def test(work: Work) -> None:
    """The rows of test. Raises UserError as `check_chosen`."""
    check_chosen(work, trained_models(work))
    rows = all_rows(work, work.size.draws, COUNTS, True)
    size: dict[str, Any] = {"split": "test", "prompts": work.size.test_prompts}
    jobs = [job_of(work, "test", f"at_{t:g}", rows, size | {"temperature": t}) for t in TEMPERATURES]
    if language_model := work.pretrained(SMOLLM2):
        few = {"split": "test", "prompts": work.size.pretrained_prompts, "temperature": 0.7}
        judges: dict[str, Any] = {"relevance": [], "act_judge": None, "language_model": str(language_model)}
        jobs.append(job_of(work, "test", "pretrained", pretrained_rows(work), few | judges))
    run_jobs(jobs, side_by_side=True)


def pretrained_rows(work: Work) -> Rows:
    """One draw of what a pretrained language model reads."""
    rows = [
        model_row(START, work.model("sft")),
        *agent_rows(work, 1),
        {"name": f"{BEST}_2", "kind": "best", "count": 2},
    ]
    return [*rows, model_row(BEST_SFT, work.model("best_of_4")), {"name": "true_replies", "kind": "said"}]
