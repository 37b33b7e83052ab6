"""accelerate prepares the models of several processes and of DeepSpeed; the engines (`engine.py`) make the steps."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.lora import trainable_parameters


class Preparer:
    """The one `Accelerator` of a run, without its mixed precision: models have their own (`models/precision.py`)."""

    def __init__(self, world: World, documents: dict[str, dict[str, Any]]):
        """`documents`: DeepSpeed's configuration of each model, by name; empty without DeepSpeed.

        Raises UserError when accelerate refuses them, or this machine.
        """
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
        from accelerate.utils import DeepSpeedPlugin, DistributedDataParallelKwargs
        from transformers.integrations.deepspeed import unset_hf_deepspeed_config

        self.world = world
        AcceleratorState._reset_state(reset_partial_state=True)  # of an earlier run in this process
        try:
            with self._answers():
                plugins = {
                    name: DeepSpeedPlugin(hf_ds_config=one, zero3_init_flag=False) for name, one in documents.items()
                }
                steps = [one["gradient_accumulation_steps"] for one in documents.values()]
                self.accelerator = Accelerator(
                    mixed_precision="no",
                    cpu=world.device.type == "cpu" and not plugins,
                    deepspeed_plugins=plugins or None,
                    gradient_accumulation_steps=max(steps, default=1),
                    kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
                )
        except (ValueError, NotImplementedError) as error:
            raise UserError(f"accelerate refuses this configuration: {error}") from error
        self.unset = unset_hf_deepspeed_config
        self.unset()

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """What accelerate would ask the environment for: the run has decided it."""
        before = dict(os.environ)
        for name in ("ACCELERATE_CONFIG_DS_FIELDS", "ACCELERATE_USE_CPU"):  # are in the documents and in the device
            os.environ.pop(name, None)
        os.environ["ACCELERATE_TORCH_DEVICE"] = str(self.world.device)
        os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"  # else DDP gets the device of LOCAL_RANK
        os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def data_parallel(self, module: nn.Module) -> DistributedDataParallel:
        if getattr(module, "adapter", None) is not None:  # the rest belongs to nobody or to another engine
            trained = trainable_parameters(module)
            others = [name for name, _ in module.named_parameters(remove_duplicate=False) if name not in trained]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, others)
        with self._answers(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*broadcast_buffers", FutureWarning)  # torch 2.6 knows no newer name
            prepared = self.accelerator.prepare_model(module)
        assert isinstance(prepared, DistributedDataParallel)
        return prepared

    def zero_engine(self, name: str, module: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        """DeepSpeed's engine of the module, by the document of this name. Raises ValueError or AssertionError."""
        self.accelerator.state.select_deepspeed_plugin(name)
        self.accelerator.deepspeed_engine_wrapped = None  # of accelerate's `backward`, which makes steps too
        engine, _ = self.accelerator.prepare(module, optimizer)
        assert type(engine).__name__ == "DeepSpeedEngine"
        self.unset()  # else a model that is loaded after stage 3 gets empty weights
        return engine
