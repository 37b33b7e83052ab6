"""Destinations of metrics: always metrics.jsonl; console, wandb and TensorBoard by configuration."""

import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

from rich.progress import BarColumn, Progress, RenderableColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError, check_installed
from rlhf_dialog.evaluation.gain import NUM_ITERATIONS, REFERENCE, START, SUMS, recent_gain
from rlhf_dialog.runs.metrics_file import read_metrics
from rlhf_dialog.runs.optional_outputs import OptionalOutputs
from rlhf_dialog.runs.services.base import Metrics, Run, Service
from rlhf_dialog.runs.services.ledger import markdown_table
from rlhf_dialog.runs.services.wandb_tracker import Tracked, WandbTracker, open_wandb
from rlhf_dialog.terminal import Console, TimeLeft, visible
from rlhf_dialog.training.rollout import Rollout

logger = logging.getLogger(__name__)
RECENT = {  # what a gain is over -> its metric and the words of the console
    REFERENCE: ("objective/recent_gain", "gain"),
    START: ("objective/recent_change", "since iteration 1"),
}
NUM_SHOWN = 8  # metrics in the console line of an evaluation
SHOWN_LETTERS = 100  # of a turn or reply in the console
LONG = 10.0  # seconds after which an iteration says where it is
LOGGED_EVERY = 30.0  # seconds, where no terminal shows it


class JsonlTracker:
    """`metrics.jsonl`, one object per line, written immediately in every iteration; non-finite numbers are null."""

    def __init__(self, path: Path):
        """Raises UserError when the file cannot be opened."""
        self.path = path
        try:
            self.file = path.open("ab", buffering=0)  # unbuffered: after a full disk, closing must not write again
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}; move it away, and start again") from error
        self._handle = self.file.fileno()
        self.step = 0  # of the last line
        self.is_whole = True  # false after a failure in the middle of a line

    def log(self, step: int, metrics: Metrics) -> None:
        """Write a line. Raises UserError when the file cannot be written or was removed; and, after writing the other metrics,
        for a metric that is not a number."""
        finite, texts = dict[str, float | None](), dict[str, Any]()
        for name, value in metrics.items():
            try:  # a vec-info may return other numeric types
                number = value if isinstance(value, int | float) else float(value)
                finite[name] = number if math.isfinite(number) else None
            except Exception:  # a type of the user's own may raise any
                texts[name] = value
        self.is_whole = False
        try:
            is_present = os.path.samestat(os.fstat(self._handle), os.stat(self.path))
        except OSError:
            is_present = False
        if not is_present:
            remedy = "leave the run folder in its place until the run has ended"
            raise UserError(f"{self.path}: was removed or moved while the run was writing to it; {remedy}")
        line = json.dumps(finite).encode() + b"\n"
        try:
            while line:
                line = line[self.file.write(line) :]
            os.fsync(self._handle)  # a checkpoint never outlives the line of its iteration
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error}") from error
        self.step, self.is_whole = step, True
        if texts:
            name, value = next(iter(texts.items()))
            raise UserError(f"{name}: a metric must be a number, but the vec-info class returned {value!r:.200}")

    def close(self) -> None:
        self.file.close()


class TensorBoardTracker:
    """Event files in <run folder>/tensorboard."""

    def __init__(self, folder: Path, done: int = 0):
        """`done`: iterations that the run goes on after; TensorBoard hides what an earlier process logged after them."""
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1 if done else None)

    def log(self, step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def log_table(self, step: int, columns: list[str], rows: list[list[Any]]) -> None:
        self.writer.add_text("ledger", markdown_table(columns, rows), step)

    def close(self) -> None:
        self.writer.close()


class _Console(Console):
    """Lets the caller see that nobody reads stdout any more, where rich would end the program."""

    def on_broken_pipe(self) -> None:
        with suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # Python flushes stdout when it ends
        raise


class LiveLine:
    """One line on a terminal, with `text`, a bar and the remaining time; nothing elsewhere, or unless it `may_live`."""

    def __init__(self, console: Console, may_live: bool, text: str, transient: bool = False):
        self.live, self.text = console.is_terminal and may_live, text
        self.progress = Progress(console=console, disable=not self.live, transient=transient)
        line = RenderableColumn(self, table_column=Column(no_wrap=True)), BarColumn(bar_width=10), TaskProgressColumn()
        self.progress.columns = *line, TextColumn("left"), TimeRemainingColumn()
        self.task = self.progress.add_task("", total=1.0)
        self.progress.start()

    def __rich__(self) -> Text:
        return Text(self.text)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Hide the live line while the block runs, to make room for another progress bar."""
        if not self.live:
            yield
            return
        self.progress.live.transient = True
        self.progress.stop()
        try:
            yield
        finally:
            self.progress.live.transient = False
            self.progress.start()

    def advance(self, share: float) -> None:
        """Show that `share` (0 to 1) of the run is done."""
        self.progress.update(self.task, completed=share)

    def close(self) -> None:
        self.progress.stop()


class ConsoleTracker(LiveLine):
    """A live line with remaining time, reward, KL and FPS on a terminal; otherwise one plain line per log point.

    An iteration that takes longer than ten seconds says where it is, in the live line or in a plain line every 30 seconds.
    """

    def __init__(self, config: Config, done: int = 0):
        """`done`: iterations that the run goes on after."""
        console = _Console()
        self.console: Console = console if console.is_terminal else _Console(width=160)
        self.eval_metric = config.eval_metric
        self.time_left, self.left = TimeLeft(), ""
        self.iteration = done + 1
        self.began, self.said, self.position = 0.0, 0.0, ""
        super().__init__(self.console, config.use_rich_handler, "collecting the first rollout")

    def __rich__(self) -> Text:  # rich's own thread asks for it
        return Text(self.position if self.position and time.monotonic() - self.began >= LONG else self.text)

    def log(self, step: int, metrics: Metrics) -> None:
        """Print a line for the iteration if it has metrics, and a line for its evaluation if there was one."""
        if "objective/score" in metrics:
            self._show_iteration(step, metrics)
        found = {name.removeprefix("eval/"): value for name, value in metrics.items() if name.startswith("eval/")}
        if found:
            names = [name for name in dict.fromkeys(("score", self.eval_metric, *found)) if name in found]
            numbers = "  ".join(f"{name} {found[name]:.3f}" for name in names[:NUM_SHOWN])
            self.console.print(f"evaluation of iteration {step}  {numbers}", highlight=False)

    def _show_iteration(self, step: int, metrics: Metrics) -> None:
        reward, kl, speed = (metrics[name] for name in ("objective/score", "objective/kl", "FPS"))
        gain = ""
        for name, words in RECENT.values():
            if name in metrics:
                gain = f"  {words} {metrics[name]:+.3f} ± {metrics[f'{name}_half']:.3f}"
        distance = f"  KL {kl:z.3f}" if math.isfinite(kl) else ""
        text = f"iteration {step}  reward {reward:.3f}{gain}{distance}  FPS {speed:.0f}"
        if self.live:
            self.text = text
        else:
            tokens, length = metrics["time_steps"], metrics["response/length"]
            left = f"  {self.left}" if self.left else ""
            self.console.print(f"{text}  length {length:.1f}  tokens {tokens:.0f}{left}", highlight=False)

    def advance(self, share: float) -> None:
        """Show that `share` (0 to 1) of the run is done; the plain lines that follow say how long the rest takes."""
        super().advance(share)
        self.left = self.time_left.text(share)
        self.iteration += 1
        self.position = ""

    def show_position(self, text: str) -> None:
        """Remember where the running iteration is, for the live line; print it if it is time for a plain line."""
        now = time.monotonic()
        if not self.position:
            self.began, self.said = now, now + LONG - LOGGED_EVERY
        self.position = f"iteration {self.iteration}: {text}"
        if not self.live and now - self.said >= LOGGED_EVERY:
            self.said = now
            self.console.print(self.position, highlight=False)

    def show_replies(self, rollout: Rollout) -> None:
        """Print two replies of a rollout, one per line: the last turn before each, the reply and its score."""
        for i in (0, len(rollout) // 2)[: len(rollout)]:
            dialogue = rollout.dialogues[i]
            cut = " [cut]" if dialogue.truncated else ""
            texts = dialogue.turns_before[-1], dialogue.response
            turn, reply = (shorten(visible(text), SHOWN_LETTERS, placeholder=" ...") for text in texts)
            self.console.print(Text(f"| {turn} -> {reply}{cut}  {rollout.paid[i].item():.2f}", style="dim"))


class Trackers(OptionalOutputs):
    """All trackers of a run. Only metrics.jsonl may end the run; any other that fails is dropped with one warning."""

    def __init__(
        self,
        config: Tracked,
        folder: Path,
        done: int = 0,
        wandb: WandbTracker | None = None,
        console: Callable[[], LiveLine] | None = None,
    ):
        """`done`: iterations that the run goes on after. `wandb` is open already. `console`: in place of `ConsoleTracker`."""
        super().__init__()
        self.log_interval = config.log_interval
        self.num_responses_per_prompt = getattr(config, "num_responses_per_prompt", 1)  # a policy of acts has none
        self.rows = read_metrics(folder / "metrics.jsonl") if done else []
        self.jsonl = JsonlTracker(folder / "metrics.jsonl")
        self.add("the console", console or (lambda: ConsoleTracker(config, done)))  # type: ignore[arg-type]
        if wandb:
            self.add("wandb", lambda: wandb)
            self.use("wandb", WandbTracker.remember)
        if config.use_tensorboard:
            self.add("TensorBoard", lambda: TensorBoardTracker(folder, done))

    def log(self, step: int, metrics: Metrics) -> None:
        """Log to metrics.jsonl; to the others every `log_interval` iterations, and evaluations always, but never `gain_sums/`."""
        self.jsonl.log(step, metrics)
        self.rows.append(metrics)
        del self.rows[1 : -NUM_ITERATIONS - 1]  # the first, the last 10, and the one before them
        metrics = {name: value for name, value in metrics.items() if not name.startswith(SUMS)}
        if "objective/gain" in metrics and (gain := recent_gain(self.rows, self.num_responses_per_prompt)):
            name, _ = RECENT[gain.over]
            metrics = metrics | {name: gain.mean, f"{name}_half": gain.half}
        if step % self.log_interval:
            metrics = {name: value for name, value in metrics.items() if name.startswith(("eval/", "time/eval"))}
        for name in tuple(self.others) if metrics else ():
            self.use(name, lambda tracker: tracker.log(step, metrics))

    def complete(self, step: int, metrics: Metrics) -> bool:
        """Whether metrics.jsonl has the line of iteration `step`, which is written now if it was not before."""
        if self.jsonl.is_whole and self.jsonl.step < step:
            with suppress(UserError):
                self.jsonl.log(step, metrics)
        return self.jsonl.is_whole and self.jsonl.step == step

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Hide the live line while the block runs."""
        with ExitStack() as stack:
            self.use("the console", lambda console: stack.enter_context(console.pause()))
            try:
                yield
            finally:
                self.use("the console", lambda _: stack.close())

    def close(self) -> None:
        """Close all trackers; those that fail are reported, but do not raise."""
        super().close()
        self.jsonl.close()


class TrackerService(Service):
    """The trackers of a run, on rank 0: wandb opens at once, the others when the run begins.

    goes_on: the run continues its own run of wandb; console: in place of `ConsoleTracker`
    """

    def __init__(
        self, config: Tracked, folder: Path, world: World, goes_on: bool, console: Callable[[], LiveLine] | None = None
    ):
        self.config, self.console = config, console
        self.wandb: WandbTracker | None = None
        self.trackers: Trackers | None = None
        world.on_main(partial(self._open_wandb, folder, goes_on))

    def _open_wandb(self, folder: Path, goes_on: bool) -> None:
        self.wandb = open_wandb(self.config, folder, goes_on)

    @property
    def files(self) -> Path | None:  # type: ignore[override]
        return self.wandb.files if self.wandb else None

    def begin(self, run: Run) -> None:
        run.world.on_main(partial(self._open, run))

    def _open(self, run: Run) -> None:
        self.trackers = Trackers(self.config, run.folder, run.iteration, self.wandb, self.console)

    def show_position(self, text: str) -> None:
        """Show where the running iteration is."""
        if self.trackers:
            self.trackers.use("the console", lambda console: console.show_position(text))

    def after_iteration(self, run: Run, metrics: Metrics) -> Metrics:
        run.world.on_main(partial(self._log, run, metrics))
        return {}

    def _log(self, run: Run, metrics: Metrics) -> None:
        assert self.trackers is not None
        self.trackers.use("the console", lambda console: console.advance(run.progress))
        self.trackers.log(run.iteration, metrics)
        if run.rollout and run.iteration % self.config.log_interval == 0:
            self.trackers.use("the console", lambda console: console.show_replies(run.rollout))

    def complete(self, run: Run, metrics: Metrics) -> bool:
        return self.trackers is not None and self.trackers.complete(run.iteration, metrics)

    def pause(self) -> AbstractContextManager[None]:
        """Hide the live line while the block runs."""
        return self.trackers.pause() if self.trackers else nullcontext()

    def show_table(self, step: int, columns: list[str], rows: list[list[Any]]) -> None:
        """Log rows of the ledger as a table to wandb and TensorBoard."""
        for name in ("wandb", "TensorBoard"):
            if self.trackers:
                self.trackers.use(name, lambda tracker: tracker.log_table(step, columns, rows))

    def end(self, error: BaseException | None) -> None:
        """Closes at the very end, because wandb waits until all metrics are uploaded."""
        if self.trackers:
            self.trackers.close()
        elif self.wandb:
            with suppress(Exception):
                self.wandb.close()


def check_packages(config: Config) -> None:
    """Raises UserError when a tracker that the configuration asks for is not installed, before anything is loaded."""
    if config.use_wandb and not config.disable_wandb:
        check_installed("wandb", "use_wandb")
    if config.use_tensorboard:
        check_installed("tensorboard", "use_tensorboard")
