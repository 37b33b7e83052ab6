"""The table of chat_smollm2.yaml or ask_back.yaml: agents of several training seeds, beside what needs no PPO.

python -m experiments.smollm2 table --agent runs/seed_1/agent --agent runs/seed_2/agent --config chat_smollm2.yaml \\
    --encoder fetched/minilm --system_prompt null --temperature 0.7 --work runs/chat_table --output table.json

Each row of replies is a file in the work folder as soon as it is finished, and is not written again: a stopped command goes on
with the next row. N prompts, S agents.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.seed_intervals import difference, interval
from experiments.smollm2.named import behind_name, filled, tokens_of, without_name
from rlhf_dialog.atomic_files import replace_json, replace_text
from rlhf_dialog.commands.command_line import check_seed
from rlhf_dialog.commands.options import REGISTER, Options, option, register, run_command
from rlhf_dialog.config.loading import find_config, load_config
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.hub import check_folder
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.intervals import Array, Interval, mean_statistic
from rlhf_dialog.json_files import read_json
from rlhf_dialog.metrics.text import others

if TYPE_CHECKING:
    from rlhf_dialog.evaluation.replies import Replies
    from rlhf_dialog.models.chat_agent import ChatAgent
    from rlhf_dialog.models.generation import Sampling
    from rlhf_dialog.rewards import BaseReward, Scorer

START, PEOPLE, AGENTS, SHIFTED = "start", "people's replies", "agents", "start, mean logit shift"
BEST_OF = 4
BIAS_PROMPTS = 64
BIAS_TRAINING_PROMPTS = 10_000
TEMPLATE_PROMPTS = 64
# of which the differences to the agents are shown, if measured
PAIRED = ("encoder_similarity", "encoder_margin", "follows_rule", "likelihood", "score")


class TableOptions(Options):
    description = __doc__
    agent: tuple[str, ...] = option("agent of one training seed; may be given several times", form="repeated")
    config: str = option("YAML of the runs: model_path is the start, and the data and reward are those of the rows")
    encoder: str = option("folder of a sentence encoder that the reward never saw, such as fetched/minilm")
    work: Path = option("folder for the replies of each row")
    output: Path = option("JSON file to write")
    replies: Path | None = option(
        "JSONL file for every prompt with the replies of all rows, as experiments.blind reads it"
    )
    system_prompt: tuple[str, ...] = option(
        "also the start behind this system prompt in place of the row's and the YAML's, `null` for that of its template; {name} "
        "is the row's column `name`; may be given several times",
        form="repeated",
    )
    likelihood: bool = option(
        "also the log-probability of replies under the start (a minute for 200 replies on one core)"
    )
    score: bool = option("also the score of the runs' reward, which takes as long")
    best_of: bool = option(
        f"also the best of {BEST_OF} replies of the start by the score, and where that reads the reference by a prediction"
    )
    bias: bool = option("also the start with the mean logit shift of the first agent")
    learned_bias: int | None = option("also the start with a logit bias learned from the score, with this many tokens")
    beside: tuple[str, ...] = option(
        "NAME=FOLDER: also this model, such as one fine-tuned on the start's best replies; may be given several times",
        form="repeated",
    )
    templates: Path | None = option(
        "also the template of this file with the best score on validation: a line each, {name} is the row's column `name`"
    )
    behind_name: bool = option("also the start's reply behind the row's name, cut at its last whole sentence")
    at: tuple[str, ...] = option("also the start at this temperature; may be given several times", form="repeated")
    rule: str | None = option("also the share of replies to which this reward, of YAML or --register, gives 1")
    register: str | None = option(REGISTER)
    chat: bool = option("rows with the sampling of the chat (chat_temperature, chat_top_p) in place of --temperature")
    show: int = option("also print this many prompts, drawn by --seed, with the replies of start and first agent", 0)
    split: str = option("read test once, for a table to publish", "validation", choices=("validation", "test"))
    prompts: Path | None = option("file of prompts in place of the split; --bias and --templates read the YAML's data")
    max_prompts: int = option("number of prompts, drawn with --seed (default: 300)", 300)
    temperature: float = option("of all rows (default: 1)", 1.0)
    seed: int = option("seed of prompts and replies (default: 0)", 0)


def run(options: TableOptions) -> None:
    """Write the missing rows, and the table of all."""
    check_seed(options.seed)
    for folder in (*options.agent, options.encoder):
        check_folder(folder, "--agent or --encoder")
    if not options.agent:
        raise UserError("--agent: name at least one agent")
    for words in options.beside:
        name, _, folder = words.partition("=")
        if not (name and folder):
            raise UserError(f"--beside: {words!r} must be NAME=FOLDER")
        check_folder(folder, "--beside")
    import rlhf_dialog.runs.agent  # noqa: F401  the built-in rewards register themselves
    from rlhf_dialog.evaluation import report
    from rlhf_dialog.evaluation.replies import Replies

    if options.register:
        register(options.register)
    table = Table(options, load_config(find_config(options.config), {}))
    rows = table.rows()
    if options.replies:
        answers = {name: Replies(dialogues, [0] * len(dialogues)) for name, dialogues in rows.items()}
        replace_text(options.replies, report.replies_text(table.prompts, answers))
    measured = {name: table.measures(dialogues) for name, dialogues in rows.items()}
    tokens = by_tokens(measured, table.prompts)
    result = summary(measured, len(options.agent), table.dialogue_numbers, options.seed)
    settings = {name: value for name, value in vars(options).items() if isinstance(value, int | float | str | tuple)}
    replace_json(options.output, {"settings": settings, **result, "by_tokens": tokens})
    print(markdown(result))
    if options.show:
        print(pairs(rows[START], rows[f"{AGENTS} 1"], options.show, options.seed))


@dataclass
class Table:
    """What the rows are made with, and what measures them."""

    options: TableOptions
    config: Config

    def __post_init__(self) -> None:
        from rlhf_dialog.evaluation.measure import dialogue_numbers
        from rlhf_dialog.models.chat_agent import settle_separator

        self.config = settle_separator(self.config)
        options = self.options
        split = "train" if options.prompts else options.split  # a file is the train split
        self.prompts = self.some_prompts(split, options.max_prompts, options.prompts)
        self.dialogue_numbers = dialogue_numbers(self.prompts)
        self.options.work.mkdir(parents=True, exist_ok=True)
        self.responders: dict[str, ChatAgent] = {}
        self.judges: list[BaseReward] = []

    def some_prompts(self, split: str, count: int, data_path: Path | None = None) -> list[Dialogue]:
        """At most this number of prompts of a split, by default of the YAML's data, drawn by the seed."""
        from rlhf_dialog.data.prompts import PromptRules
        from rlhf_dialog.evaluation.replies import pick_prompts

        config = self.config
        every = PromptRules.from_keys(config).load(str(data_path or config.env.args.data_path), split)
        return pick_prompts(every, count, self.options.seed)

    def responder(self, folder: str, system_prompt: str | None) -> "ChatAgent":
        """A model with the settings of the runs."""
        from experiments.dailydialog.rows import settings_of
        from rlhf_dialog.data.chat_template import prompt_encoder
        from rlhf_dialog.models.chat_agent import ChatAgent

        if folder not in self.responders:
            self.responders = {folder: ChatAgent.load(folder, settings=settings_of(self.config))}  # one model at a time
        agent = self.responders[folder]
        settings = agent.settings.model_copy(update={"system_prompt": system_prompt})
        room = agent.encoder.max_prompt_length
        encoder = prompt_encoder(agent.encoder.tokenizer, settings.turn_separator, room, system_prompt)
        return ChatAgent(agent.policy, encoder, settings)

    def rows(self) -> dict[str, list[Dialogue]]:
        """The replies of every row."""
        own, start = self.config.system_prompt, str(self.config.model_path)
        found = {PEOPLE: [replace(prompt, response=prompt.reference or "") for prompt in self.prompts]}
        found[START] = self.row(START, lambda: self.generate(self.responder(start, own)))
        for text in self.options.system_prompt:
            name = f"{START}, system prompt: {text}"
            found[name] = self.row(name, partial(self.behind, None if text == "null" else text))
        if self.options.behind_name:
            found[f"{START} behind the name"] = [behind_name(one) for one in found[START]]
        if self.options.templates:
            found["best template"] = self.best_template(self.options.templates)
        for degree in self.options.at:
            name, at = f"{START}, temperature {degree}", replace(self.sampling(), temperature=float(degree))
            found[name] = self.row(name, lambda at=at: self.generate(self.responder(start, own), at=at))  # type: ignore[misc]
        for words in self.options.beside:
            name, _, folder = words.partition("=")
            found[name] = self.row(name, lambda folder=folder: self.generate(self.responder(folder, own)))  # type: ignore[misc]
        if self.options.learned_bias:
            name = f"{START}, learned bias"
            found[name] = self.row(name, self.with_learned_bias)
        if self.options.best_of:
            found |= self.best_rows(found[START])
        for number, folder in enumerate(self.options.agent, start=1):
            name = f"{AGENTS} {number}"
            found[name] = self.row(name, lambda folder=folder: self.generate(self.responder(folder, own)))  # type: ignore[misc]
        if self.options.bias:
            found[SHIFTED] = self.row(SHIFTED, self.biased)
        return found

    def row(self, name: str, write: "Callable[[], Replies]") -> list[Dialogue]:
        """The replies that the work folder holds of a row, else those that `write` makes."""
        options = self.options
        title = "".join(letter if letter.isalnum() else "_" for letter in name)[:80]
        sampling = self.sampling()
        drawn = f"{sampling.temperature:g}" + ("" if sampling.top_p is None else f"_{sampling.top_p:g}")
        place = options.prompts.stem if options.prompts else options.split
        path = options.work / f"{title}_{place}_{drawn}_{len(self.prompts)}_{options.seed}.json"
        if not path.is_file():
            answers = write().dialogues
            document = [{"response": one.response, "truncated": one.truncated} for one in answers]
            replace_text(path, json.dumps(document, ensure_ascii=False, indent=0) + "\n")
        stored = read_json(path, f"{path} cannot be read (", "); remove it, and the row is written again")
        return [
            prompt.with_reply(one["response"], one["truncated"])
            for prompt, one in zip(self.prompts, stored, strict=True)
        ]

    def sampling(self) -> "Sampling":
        """The sampling of all rows."""
        from rlhf_dialog.models.chat_agent import chat_sampling
        from rlhf_dialog.models.generation import Sampling

        if self.options.chat:
            return chat_sampling(self.config)
        return Sampling(self.config.max_new_tokens, temperature=self.options.temperature)

    def generate(self, responder: "ChatAgent", seed: int | None = None, at: "Sampling | None" = None) -> "Replies":
        """One reply to each prompt."""
        from rlhf_dialog.evaluation.replies import generate_replies

        seed = self.options.seed if seed is None else seed
        return generate_replies(responder, self.prompts, at or self.sampling(), seed)

    def behind(self, text: str | None) -> "Replies":
        """The replies of the start behind this system prompt, `{name}` filled, in place of each row's; None: the template's."""
        from rlhf_dialog.evaluation.replies import generate_replies

        prompts = [replace(prompt, system=None if text is None else filled(text, prompt)) for prompt in self.prompts]
        responder = self.responder(str(self.config.model_path), None)
        return generate_replies(responder, prompts, self.sampling(), self.options.seed)

    def best_template(self, path: Path) -> list[Dialogue]:
        """To each prompt the one line of the file that has the best score on validation prompts."""
        from rlhf_dialog.evaluation import measure
        from rlhf_dialog.evaluation.replies import Replies

        judges = measure.default_judges(self.scorer)
        validation = self.some_prompts("validation", TEMPLATE_PROMPTS)

        def said(text: str, prompts: list[Dialogue]) -> list[Dialogue]:
            return [prompt.with_reply(filled(text, prompt)) for prompt in prompts]

        def score(text: str) -> float:
            replies = Replies(said(text, validation), [0] * len(validation))
            return float(measure.score_replies(replies, judges, self.scorer).mean())

        return said(max(path.read_text(encoding="utf-8").splitlines(), key=score), self.prompts)

    @cached_property
    def scorer(self) -> "Scorer":
        """The reward of the runs."""
        from experiments.dailydialog.rows import scorer_of

        return scorer_of(self.config)

    def best_rows(self, first: list[Dialogue]) -> dict[str, list[Dialogue]]:
        """Of several replies of the start to each prompt, `first` among them, the one with the highest score.

        Where the reward reads the reference, also the one that a prediction finds best, which does not.
        """
        from rlhf_dialog.rewards.base import READS_REFERENCE, reads_reference

        name = f"{START}, best of {BEST_OF}"
        if not reads_reference(self.scorer.reward):
            return {name: self.row(name, lambda: self.best(BEST_OF, first))}
        names = {False: name + READS_REFERENCE, True: f"{name} by a prediction"}
        return {name: self.row(name, lambda by=by: self.best(BEST_OF, first, by)) for by, name in names.items()}  # type: ignore[misc]

    def best(self, count: int, first: list[Dialogue] | None = None, by_prediction: bool = False) -> "Replies":
        """Of `count` replies of the start to each prompt, `first` among them, the one with the highest (predicted) score."""
        from experiments.prediction import predict
        from rlhf_dialog.evaluation import measure
        from rlhf_dialog.evaluation.replies import Replies

        responder = self.responder(str(self.config.model_path), self.config.system_prompt)
        drawn = [Replies(first, [0] * len(first))] if first else []
        drawn += [self.generate(responder, self.options.seed + i) for i in range(len(drawn), count)]
        judges = measure.default_judges(self.scorer)
        scores = [measure.score_replies(some, judges, self.scorer) for some in drawn]
        by = list(predict(responder, drawn, np.stack(scores, axis=1)).T) if by_prediction else scores
        return measure.highest(drawn, by)

    def with_learned_bias(self) -> "Replies":
        """The start with a logit bias that RLOO learned from the run's reward."""
        from experiments.learned_bias import BiasTraining, learn_bias
        from rlhf_dialog.models.chat_agent import configured_sampling

        start = self.responder(str(self.config.model_path), self.config.system_prompt)
        training = BiasTraining(tokens=self.options.learned_bias or 0, seed=self.options.seed)
        prompts = self.some_prompts("train", BIAS_TRAINING_PROMPTS)
        bias = learn_bias(start, prompts, self.scorer, configured_sampling(self.config), training)
        return self.generate(start, at=bias.apply_to(self.sampling()))

    def biased(self) -> "Replies":
        """The start with the mean logit shift, at the scale with the best score on validation prompts."""
        from experiments import logit_bias_baseline
        from rlhf_dialog.evaluation import measure
        from rlhf_dialog.evaluation.replies import generate_replies

        own, seed = self.config.system_prompt, self.options.seed
        agent = self.responder(self.options.agent[0], own)
        start = self.responder(str(self.config.model_path), own)
        judges, sampling = measure.default_judges(self.scorer), self.sampling()
        training, validation = (self.some_prompts(split, BIAS_PROMPTS) for split in ("train", "validation"))
        bias = logit_bias_baseline.fit_bias(agent, start, training, sampling, seed)

        def score(shifted: logit_bias_baseline.LogitBias) -> float:
            replies = generate_replies(start, validation, shifted.apply_to(sampling), seed)
            return measure.measure(replies, judges).points()["score"]

        return generate_replies(
            start, self.prompts, logit_bias_baseline.choose_scale(bias, score).apply_to(sampling), seed
        )

    def measures(self, dialogues: list[Dialogue]) -> dict[str, Array]:
        """N numbers of each measure; those of the encoder and of diversity are of texts without the rows' names."""
        from experiments.matching import distinct_2
        from rlhf_dialog.evaluation import measure
        from rlhf_dialog.evaluation.replies import Replies
        from rlhf_dialog.rewards import EncoderSimilarity, LikelihoodPrice, build_reward

        nameless = [without_name(dialogue) for dialogue in dialogues]
        if not self.judges:
            self.judges = [EncoderSimilarity(self.options.encoder)]
            if self.options.likelihood:
                start, own = str(self.config.model_path), self.config.system_prompt
                self.judges.append(LikelihoodPrice(start, None, system_prompt=own))
            self.of_reward = measure.default_judges(self.scorer if self.options.score else None)
            self.of_reward.user_judges = {judge.name: judge for judge in self.judges[1:]}
        found = measure.measure(Replies(dialogues, [0] * len(dialogues)), self.of_reward).per_prompt
        wanted = ("mean_words", "truncated", "copied_two", "relevance", "score", *(judge.name for judge in self.judges))
        found["encoder_similarity"] = np.asarray(self.judges[0](nameless))
        more: dict[str, Array] = {
            "encoder_margin": found["encoder_similarity"] - self.similarity_to_another(nameless),
            "asks": np.asarray([float("?" in one.response) for one in dialogues]),
            "distinct_2": np.full(len(dialogues), distinct_2([one.response for one in nameless])),
        }
        if self.options.rule:
            scores = build_reward(self.options.rule, {})(dialogues)
            more["follows_rule"] = np.asarray([float(score == 1) for score in scores])
        return {**{key: found[key] for key in wanted if key in found}, **more}

    def similarity_to_another(self, dialogues: list[Dialogue]) -> Array:
        """N cosines of each reply and the last turn of another prompt, drawn by the seed."""
        places = others(len(dialogues), self.options.seed)
        swapped = [replace(dialogues[i], response=one.response) for i, one in zip(places, dialogues, strict=True)]
        return np.asarray(self.judges[0](swapped))


def summary(
    measured: dict[str, dict[str, Array]], num_agents: int, units: Any, seed: int = 0
) -> dict[str, dict[str, dict[str, Interval]]]:
    """Intervals of every row and measure, the agents as one row (S, N), and what the agents have more than each other row.

    `preferred`: the share of prompts with more of the measure for the agent; ties count half.
    """
    agents = [measured.pop(f"{AGENTS} {number}") for number in range(1, num_agents + 1)]
    together = {name: _over_seeds([agent[name] for agent in agents]) for name in agents[0]}
    rows = {AGENTS: together, **measured}
    table = {name: {key: _interval(values, units, seed) for key, values in row.items()} for name, row in rows.items()}
    each = {f"agent {i}": {key: _interval(x, units, seed) for key, x in one.items()} for i, one in enumerate(agents, 1)}
    paired = [key for key in PAIRED if key in together]
    changes: dict[str, dict[str, Interval]] = {}
    preferred: dict[str, dict[str, Interval]] = {}
    for name, row in measured.items():
        changes[name] = {key: _difference(row[key], together[key], units, seed) for key in paired}
        preferred[name] = {key: _interval((np.sign(together[key] - row[key]) + 1) / 2, units, seed) for key in paired}
    return {"rows": table, "agents": each, "difference": changes, "preferred": preferred}


def _over_seeds(values: Sequence[Array]) -> Array:
    return np.stack(values) if len(values) > 1 else values[0]


def _interval(values: Array, units: Any, seed: int) -> Interval:
    return interval(replace(mean_statistic(values), units=units), seed)


def _difference(before: Array, after: Array, units: Any, seed: int) -> Interval:
    return difference(replace(mean_statistic(before), units=units), replace(mean_statistic(after), units=units), seed)


def by_tokens(measured: dict[str, dict[str, Array]], prompts: list[Dialogue]) -> dict[int, dict[str, Any]]:
    """By the number of tokens of the rows' names: how many prompts, and of each row the share that follows the rule."""
    numbers = np.asarray([tokens_of(prompt.meta["name"]) for prompt in prompts if "name" in prompt.meta])
    ruled = {name: row["follows_rule"] for name, row in measured.items() if "follows_rule" in row}
    return {
        number: {"prompts": int((numbers == number).sum())}
        | {name: float(shares[numbers == number].mean()) for name, shares in ruled.items()}
        for number in sorted(set(numbers.tolist()))
    }


def markdown(result: dict[str, dict[str, dict[str, Interval]]]) -> str:
    """The rows, and beside each how often the encoder prefers the agents."""
    names = list(result["rows"][AGENTS])
    lines = ["| row | " + " | ".join(names) + " | encoder prefers the agents |", "|---" * (len(names) + 2) + "|"]
    for row, cells in {**result["rows"], **result["agents"]}.items():
        share = result["preferred"].get(row, {}).get("encoder_similarity")
        last = f"{share['mean']:.0%} [{share['low']:.0%}, {share['high']:.0%}]" if share else ""
        numbers = (f"{x['mean']:.3f} [{x['low']:.3f}, {x['high']:.3f}]" for x in (cells[name] for name in names))
        lines.append(f"| {row} | " + " | ".join(numbers) + f" | {last} |")
    return "\n".join(lines)


def pairs(before: list[Dialogue], after: list[Dialogue], count: int, seed: int) -> str:
    """Drawn prompts, by their last turns, and both replies to each."""
    drawn = random.Random(seed).sample(range(len(before)), min(count, len(before)))
    lines = ["| last turn of the dialogue | before | after |", "|---|---|---|"]
    for i in sorted(drawn):
        texts = (before[i].turns_before[-1], before[i].response, after[i].response)
        lines.append("| " + " | ".join(ending(" ".join(text.split())).replace("|", "\\|") for text in texts) + " |")
    return "\n".join(lines)


def ending(text: str, size: int = 160) -> str:
    """A text, or the words at its end that have about `size` letters."""
    return text if len(text) <= size else "... " + text[-size:].partition(" ")[2]


main = partial(run_command, TableOptions, run)

if __name__ == "__main__":
    raise SystemExit(main())
