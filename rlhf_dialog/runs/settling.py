"""What the configuration of a run leaves open: settled before its weights are loaded, and not changed after that."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from rlhf_dialog.config.loading import replace_keys
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.chat_template import fix_date
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import FAULTS
from rlhf_dialog.models.chat_agent import settle_separator
from rlhf_dialog.models.loading import read_tokenizer
from rlhf_dialog.runs import checkpoint, identity


def settle_config(config: Config, world: World, resumed: Path | None = None) -> Config:
    """The configuration with what ends its turns and the day that its chat template writes; all ranks call it.

    `resumed`: the checkpoints of a run that goes on; what it began with (`identity.begun_keys`) comes first. Raises UserError
    when a tokenizer that is asked cannot be read.
    """
    if resumed is not None and (begun := world.on_main(lambda: _begun_keys(config, resumed))):
        config = replace_keys(config, begun, str(resumed))
    config = settle_separator(config)
    return config.model_copy(update={"date_string": config.date_string or written_day(config)})


def _begun_keys(config: Config, checkpoints: Path) -> dict[str, Any]:
    """What the newest checkpoint says; nothing where none can be read."""
    with suppress(UserError, *FAULTS):
        if (source := checkpoint.newest_checkpoint(checkpoints)) is not None:
            return identity.begun_keys(config, checkpoint.read_state(checkpoints, source)[1])
    return {}


def written_day(config: Config) -> str | None:
    """Today, where the chat template of the run writes a day; else None. Raises UserError for a tokenizer that cannot be read."""
    path, key = config.env.args.tokenizer_path, "env.args.tokenizer_path"
    path, key = (path, key) if path else (config.model_path, "model_path")
    return fix_date(read_tokenizer(path, key, config.trust_remote_code), None)
