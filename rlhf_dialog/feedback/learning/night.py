"""One `learn`: from a snapshot of the feedback to a new version, which is promoted or refused; with a report of what it did."""

import logging
import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from rlhf_dialog.atomic_files import atomic_folder, repair_swaps
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.random_states import random_states_kept
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.evaluation.untrusted import check_data
from rlhf_dialog.feedback.learning import gate
from rlhf_dialog.feedback.learning import tokenized_examples as tokenized
from rlhf_dialog.feedback.learning.gate import GateComparison
from rlhf_dialog.feedback.learning.guards import LEAST_LINES, MOST_LINES, GuardLimit, GuardMeasurement
from rlhf_dialog.feedback.learning.learner import (
    Learner,
    NightSizes,
    NightState,
    Watch,
    load_version,
    read_state,
)
from rlhf_dialog.feedback.learning.report import NUM_LINES, ChangedAnswers, NightReport, compare_answers
from rlhf_dialog.feedback.store import examples as stored
from rlhf_dialog.feedback.store.bot import FIRST, NIGHT, Bot, agent_source
from rlhf_dialog.feedback.store.settings import BotSettings, read_settings
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.precision import without_tf32
from rlhf_dialog.models.saved_agent import save_agent
from rlhf_dialog.runs.lock import lock_folder
from rlhf_dialog.runs.verification import sha256_of

logger = logging.getLogger(__name__)
LEARNER = "learner"
LEAST_KEPT = 0.5  # of what a night has learned of the liked replies, where it goes back to a checkpoint
LEAST_FALL = 0.02  # nats per held-out liked reply and step: a night goes on while these become likelier by as much
MOST_PASSES = 3  # times its plan


@dataclass(frozen=True)
class Measurement:
    """The guards of a night's end and those of its checkpoints, and the newest stored lines."""

    at_end: GuardMeasurement
    at_checkpoints: GuardMeasurement
    lines: list[stored.DialoguePrompt]

    @property
    def learner(self) -> Learner:
        return self.at_end.learner


@dataclass
class Snapshot:
    """What a night sees: the examples up to the event `last_event`, those to train on, and those held out."""

    settings: BotSettings
    champion: str
    last_event: int
    examples: stored.Examples
    training: stored.TrainingSet
    heldout: stored.HeldOut
    num_steps: int  # of the bot's life until then
    fingerprint: str  # of all that decides what the night makes of the champion


def learn(
    bot: Bot, dry_run: bool = False, watch: Watch = lambda done, steps: None, trust_config: bool = False
) -> NightReport:
    """One night: snapshot, filter, train, guards, gate, new version, promotion. Returns its report.

    A night that was killed goes on where it was. `trust_config`: config.yaml may name data on the Hub. `dry_run` says what a
    night would use, and writes nothing. `watch` is called with the steps done and all steps. Raises UserError when another
    process learns in this folder, or when something cannot be used or written, and RunStopped when a loss is not finite.
    """
    settings = _read_settings(bot, trust_config)
    if dry_run:
        snapshot = take_snapshot(bot, settings)
        return _report(bot, snapshot, _obstacle(bot, snapshot) or "dry run: nothing was changed")
    with _lock_bot(bot), random_states_kept():
        start = time.perf_counter()
        _promote_passed(bot)
        state = _read_unfinished(bot)
        snapshot = take_snapshot(bot, settings, None if state is None else state.last_event)
        if state is not None and not _can_continue(bot, state, snapshot):
            state, snapshot = None, take_snapshot(bot, settings)
        report = _report(bot, snapshot, _obstacle(bot, snapshot) or "")
        if report.why:
            return report
        learner = Learner(bot, settings)
        sft = learner.sft_prompts("train") if settings.sft_share else []
        if state is None:
            plan = learner.plan(snapshot.training, len(sft))
            with closing(bot.store()) as store:
                state = NightState(snapshot.fingerprint, snapshot.last_event, store.last_turn(), plan)
        else:
            learner.load(bot.folder / NIGHT)
        learner.reference.add(learner.encoder.encode_rows([*snapshot.training.all, *snapshot.heldout.all]))
        learner.reference.save({name for one in snapshot.examples.all for name in tokenized.row_names(one)})
        report.lengthened = learner.lengthen_replies(snapshot.training)
        measurement = _measurement(bot, learner, snapshot, state)
        try:
            _train_within_guards(bot, measurement, snapshot.training, sft, state, watch, report)
        except RunStopped:
            bot.drop_night()
            raise
        report.seconds = time.perf_counter() - start
        return _judge(bot, measurement, snapshot, state, report)


def learn_from_candidate(bot: Bot, candidate: str, trust_config: bool = False) -> NightReport:
    """Make a version of an agent that was trained elsewhere, and promote it if it passes the gate; returns the report.

    It counts as trained on all feedback until now; the optimizer state of the champion stays. An interrupted night begins again.
    Raises UserError as `learn`, with `use_lora`, and for another network or vocabulary than the champion's.
    """
    settings = _read_settings(bot, trust_config)
    if settings.use_lora:
        raise UserError("use_lora: true, but --candidate replaces all weights; set it to false in config.yaml")
    with _lock_bot(bot), random_states_kept():
        _promote_passed(bot)
        snapshot = take_snapshot(bot, settings)
        learner = Learner(bot, settings)
        state = NightState(None, snapshot.last_event, last_turn=None, plan=[])
        try:
            learner.load_agent(agent_source(candidate, trust_config))
        except UserError as error:
            raise error.with_location("--candidate", "--agent") from error
        report = _report(bot, snapshot, _too_little_heldout(snapshot) or "")
        report.used, report.left_out = {}, {}
        if report.why:
            return report
        return _judge(bot, _measurement(bot, learner, snapshot, state), snapshot, state, report)


def _read_settings(bot: Bot, trust_config: bool) -> BotSettings:
    settings = read_settings(bot.settings_path)
    if not trust_config:
        check_data(bot.settings_path, "sft_data_path", settings.sft_data_path)
    return settings


@contextmanager
def _lock_bot(bot: Bot) -> Iterator[None]:
    """Raises UserError when another process learns in this folder, or when it cannot be written."""
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_folder(bot.folder))
        except UserError as error:
            if isinstance(error.__cause__, OSError):
                raise UserError(f"{bot.folder}: cannot be written: {error.__cause__}") from error
            what, remedy = f"{error.what}: another learn job is at work", "wait until it ends, or stop it"
            raise UserError(what, where=error.where, remedy=remedy) from None
        repair_swaps(bot.folder, (NIGHT, "reference.json"))
        yield


def take_snapshot(bot: Bot, settings: BotSettings, last_event: int | None = None) -> Snapshot:
    """What a night would see now, or as of an event. Raises UserError when store or champion's state cannot be read."""
    champion = bot.champion()
    source = bot.version_folder(champion) / LEARNER
    state: dict[str, Any] = read_state(source) if source.is_dir() else {"consumed": [], "num_nights": 0, "num_steps": 0}
    with closing(bot.store()) as store:
        last_event = store.last_event() if last_event is None else last_event
        examples = stored.read_examples(store, last_event)
    training = stored.training_set(examples, settings, state["consumed"], f"{settings.seed} {state['num_nights']}")
    digest = sha256(sha256_of([settings.model_dump(), champion, last_event]).encode())
    for one in training.all:
        digest.update(repr((one, training.weights[one.event])).encode())
    heldout = stored.heldout_set(examples, settings)
    num_steps = int(state["num_steps"])
    return Snapshot(settings, champion, last_event, examples, training, heldout, num_steps, digest.hexdigest())


def _promote_passed(bot: Bot) -> None:
    """Promote the newest version, which passed the gate, if a kill came between it and its promotion."""
    records = bot.lineage()["versions"]
    name = max(records)
    passed = records[name]["status"] == "candidate" and (records[name]["gate"] or {}).get("promoted")
    if passed and records[name]["parent"] == bot.champion():
        bot.promote(name)
        logger.info("%s: version %s, which a night had left unpromoted, is the champion", bot.folder, name)


def _read_unfinished(bot: Bot) -> NightState | None:
    """The state of a night that was killed; None if there is none that can be read."""
    if not (bot.folder / NIGHT).is_dir():
        return None
    try:
        return NightState(**read_state(bot.folder / NIGHT)["night"])
    except (UserError, LookupError, TypeError) as error:
        logger.warning("%s: the night that was interrupted cannot go on, so it begins again: %s", bot.folder, error)
        bot.drop_night()
        return None


def _can_continue(bot: Bot, state: NightState, snapshot: Snapshot) -> bool:
    """Whether the interrupted night goes on: it has not ended meanwhile, and all that decides it is as it was."""
    if _find_version(bot, state.fingerprint) is not None:  # the kill came between the new version and the end
        logger.info("%s: the night that was interrupted had made its version", bot.folder)
    elif state.fingerprint == snapshot.fingerprint:
        logger.info("%s: the night that was interrupted goes on after step %d", bot.folder, state.done)
        return True
    else:
        logger.warning(
            "%s: settings, champion or feedback have changed since a night was interrupted; it begins again", bot.folder
        )
    bot.drop_night()
    return False


def _find_version(bot: Bot, fingerprint: str | None) -> str | None:
    """The version that a night of this fingerprint has made."""
    versions = bot.lineage()["versions"]
    return next((name for name in sorted(versions, reverse=True) if versions[name].get("night") == fingerprint), None)


def _obstacle(bot: Bot, snapshot: Snapshot) -> str | None:
    """Why nothing would change; None when a night can be made."""
    if (obstacle := _too_little_heldout(snapshot)) is not None:
        return obstacle
    versions = bot.lineage()["versions"]
    if not snapshot.training.num_new:
        return "nothing changed: there is no new feedback to learn from that is not held out or left out"
    if (made := _find_version(bot, snapshot.fingerprint)) is not None:
        status = versions[made]["status"]
        return f"nothing changed: version {made}, which is {status}, was made of just this feedback; more is needed"
    return None


def _too_little_heldout(snapshot: Snapshot) -> str | None:
    num_heldout = len(snapshot.heldout)
    if num_heldout < snapshot.settings.min_heldout:
        progress = stored.describe_progress(len(snapshot.examples), num_heldout, snapshot.settings)
        return f"nothing changed: {progress}"
    if not gate.is_comparable(snapshot.heldout):
        return "nothing changed: the held-out feedback has no liked and disliked answers of one kind, and no edit or choice"
    return None


def _measurement(bot: Bot, learner: Learner, snapshot: Snapshot, state: NightState) -> Measurement:
    """Of the lines that were stored until the night began: `guard_prompts` held-out ones, or with `auto` of all."""
    heldout, count, size = snapshot.heldout, snapshot.settings.guard_prompts, learner.agent.settings.context_size
    with closing(bot.store()) as store:
        lines = stored.newest_prompts(store, MOST_LINES if count == "auto" else NUM_LINES, size, state.last_turn)
    if count != "auto":
        guards = GuardMeasurement(learner, heldout, count)
        return Measurement(guards, guards, lines)
    guards, few = (GuardMeasurement(learner, heldout, number, lines) for number in (MOST_LINES, LEAST_LINES))
    return Measurement(guards, few, lines)


def _train_within_guards(
    bot: Bot,
    measurement: Measurement,
    training: stored.TrainingSet,
    sft: list[Dialogue],
    state: NightState,
    watch: Watch,
    report: NightReport,
) -> None:
    """The steps of the plan; where a guard has no room at the end, back to the newest checkpoint at which all had.

    A change may lead through replies that no guard would pass, so a checkpoint without room does not end the night, nor does
    the plan while held-out liked replies become likelier. The report gets metrics and guards, or why the night went back; the
    learner is left with the trained policy.
    """
    learner, folder, settings = measurement.learner, bot.folder / NIGHT, measurement.learner.settings

    def note_surprise() -> None:
        if (surprise := measurement.at_checkpoints.liked_surprise()) is not None:
            state.surprises.append((state.done, surprise))

    if not state.done:
        note_surprise()

    def goes_on() -> bool:
        extra = state.done - len(state.plan)
        if settings.steps is not None or extra >= (MOST_PASSES - 1) * len(state.plan):
            return False
        if extra % settings.checkpoint_steps:
            return True
        if not extra:
            note_surprise()
        if len(state.surprises) < 2:
            return False
        (earlier, before), (now, after) = state.surprises[-2:]
        return before - after > LEAST_FALL * (now - earlier)

    def save() -> None:
        note_surprise()
        if all(guard.has_room for guard in measurement.at_checkpoints.measure()):
            with atomic_folder(folder) as target:
                learner.save(target, {"night": asdict(state)})

    report.metrics = learner.train(training, sft, state, watch, save, goes_on)
    report.used["steps"], report.guards = state.done, measurement.at_end.measure()
    fallen = [guard for guard in report.guards if not guard.has_room]
    if fallen and folder.is_dir():
        at_end = measurement.at_checkpoints.liked_surprise()
        steps = learner.load(folder)["night"]["done"]
        why = "; ".join(map(str, fallen))
        report.went_back, report.guards = f"went back to step {steps}, as a guard had no room at the end: {why}", []
        kept = measurement.at_checkpoints.liked_surprise()
        if at_end is not None and kept is not None:
            report.kept = (state.surprises[0][1] - kept) / max(state.surprises[0][1] - at_end, 1e-9)


def _judge(
    bot: Bot, measurement: Measurement, snapshot: Snapshot, state: NightState, report: NightReport
) -> NightReport:
    """Guards, gate, new version and promotion; returns the report with them. Raises UserError when the disk is full."""
    learner = measurement.learner
    learner.consumed = snapshot.training.seen
    learner.num_nights += 1
    report.guards = report.guards or measurement.at_end.measure()
    report.comparison, report.changed = _measure(bot, measurement, snapshot)
    report.promoted, report.why = _decision(report.comparison, report.guards, report.changed)
    if report.promoted and report.kept < LEAST_KEPT:
        report.promoted = False
        report.why = (
            f"refused: {{version}} {report.went_back}; of what the end had learned of the liked replies it has {report.kept:.0%} "
            f"(at least {LEAST_KEPT:.0%} is needed)"
        )

    def write(folder: Path) -> None:
        save_agent(folder / "agent", learner.policy, learner.encoder.encoder.tokenizer, learner.agent.settings)
        (folder / LEARNER).mkdir()
        learner.save(folder / LEARNER)

    is_candidate = state.fingerprint is None
    record = {
        "parent": snapshot.champion,
        "method": "candidate" if is_candidate else "kto_dpo",
        "status": "candidate" if report.promoted else "refused",
        "last_event": snapshot.last_event,
        "num_events": report.used,
        "left_out": report.left_out,
        "people": (snapshot.examples if is_candidate else snapshot.training).concerned,
        "gate": report.gate_record(),
        "metrics": report.metrics,
        "night": state.fingerprint,
    }
    report.version = bot.add_version(write, record)
    report.why = report.why.format(version=report.version)
    if report.promoted:
        bot.promote(report.version)
    bot.drop_night()
    report.removed = bot.prune(snapshot.settings.keep_last)
    return report


def _measure(bot: Bot, measurement: Measurement, snapshot: Snapshot) -> tuple[GateComparison, ChangedAnswers]:
    """The gate's comparison with the champion, and the answers that are not the champion's."""
    learner, heldout, champion = measurement.learner, snapshot.heldout, snapshot.champion
    candidate = log_ratios(learner, learner.policy, heldout)
    if champion == FIRST:
        policy, before = learner.reference_policy, dict.fromkeys(candidate, 0.0)
    else:
        policy = load_version(bot, champion, snapshot.settings).policy
        before = log_ratios(learner, policy, heldout)
    comparison = gate.compare(heldout, before, candidate, snapshot.settings.seed)
    changed = compare_answers(learner, policy, measurement.lines[:NUM_LINES])
    return comparison, changed


@without_tf32()
def log_ratios(learner: Learner, policy: Policy, examples: stored.Examples) -> dict[str, float]:
    """The log-ratio of each row of the examples to the first version, by its name, in float32."""
    rows, reference = learner.encoder.encode_rows(examples.all), learner.reference_policy
    pad_id, size = learner.encoder.encoder.pad_id, learner.settings.per_device_microbatch_size
    compute = partial(tokenized.compute_logprobs_in_batches, rows=list(rows.values()), pad_id=pad_id, batch_size=size)
    if reference.use_amp or reference.lm.device.type == "cuda":  # those that are kept are as exact as the training
        first = compute(reference.in_float32)
    else:
        learner.reference.add(rows)
        first = learner.reference.get(list(rows))
    return dict(zip(rows, (compute(policy.in_float32) - first).tolist(), strict=True))


def _decision(comparison: GateComparison, guards: list[GuardLimit], changed: ChangedAnswers) -> tuple[bool, str]:
    """Whether the candidate is promoted, and why; `{version}` in the text is its name."""
    points = f"{100 * comparison.difference:+.1f} points{gate.describe_people(comparison.num_people)}"
    bound = f"above {-100 * gate.SLACK * comparison.standard_error:+.1f}"
    low = f"the lower bound {100 * comparison.low:+.1f} is"
    if failed := [guard for guard in guards if not guard.passed]:
        return False, f"refused: {{version}} fails a guard: {'; '.join(map(str, failed))}"
    if not comparison.difference > 0:
        return False, f"refused: {{version}} agrees no more with the held-out feedback than the champion ({points})"
    if not comparison.is_enough:
        return False, f"refused: {{version}} may agree by chance ({points}): {low} not {bound}; wait for more feedback"
    if not changed.is_enough:
        remedy = f"at least {changed.num_needed} are needed; raise learning_rate or epochs, or wait for more feedback"
        return False, f"refused: {{version}} answers only {changed} differently, {remedy}"
    passed = f"all guards passed, {changed} answered differently"
    return True, f"promoted: {{version}} is the champion: {points}, {low} {bound}, {passed}"


def _report(bot: Bot, snapshot: Snapshot, why: str) -> NightReport:
    settings, training = snapshot.settings, snapshot.training
    sizes = NightSizes.of(settings, training.weight, snapshot.num_steps)
    liked = Counter(one.liked for one in training.answers)
    used = {
        "new": training.num_new,
        "replayed": len(training) - training.num_new,
        "people": len(training.people),
        "liked": liked[True],
        "disliked": liked[False],
        "pairs": len(training.pairs),
        **({"after_copies": copied} if (copied := training.num_after_copies) else {}),
        "sft": sizes.num_sft if settings.sft_data_path and training.num_new else 0,
        "steps": sizes.steps if training.num_new else 0,
    }
    power = gate.describe_power(snapshot.heldout, len(snapshot.examples), settings, gate.last_gate(bot))
    report = NightReport(str(bot.folder), snapshot.champion, snapshot.last_event, used, training.left_out, power, why)
    if lowered := [weight for weight in training.weights.values() if weight < 1]:
        share = float(stored.max_share(settings.person_cap, len(training.people)))
        report.weighing = (
            f"person_cap: {len(lowered)} examples of people with many ratings count as {math.fsum(lowered):.0f}, so that nobody "
            f"has more than {share:.0%} of the weight"
        )
    return report
