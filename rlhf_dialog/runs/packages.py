"""The packages that a run needs only for what its configuration asks for."""

from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import check_installed


def check_packages(config: Config) -> None:
    """Raises UserError when a tracker that the configuration asks for is not installed, before anything is loaded."""
    if config.use_wandb and not config.disable_wandb:
        check_installed("wandb", "use_wandb")
    if config.use_tensorboard:
        check_installed("tensorboard", "use_tensorboard")
