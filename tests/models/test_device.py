"""Which of the visible GPUs a process takes, and the line that says so; torch.cuda is replaced."""

import logging

import pytest
import torch

from rlhf_dialog.commands.command_line import check_device
from rlhf_dialog.commands.options import DeviceOption
from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed import process_group
from rlhf_dialog.errors import UserError
from rlhf_dialog.models import device
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.terminal import log_once
from tests.parts.saved_models import save
from tests.parts.tiny import gpt2

CONFIG = {"model_path": "gpt2", "env": {"args": {"data_path": "x"}}, "reward_class": {"id": "MeteorReward"}}


@pytest.fixture(autouse=True)
def nothing_said_yet():
    log_once.cache_clear()


@pytest.fixture
def gpus(monkeypatch, caplog):
    """Call it with the number of visible GPUs and the launcher's rank; returns the numbers of those that were taken."""
    caplog.set_level(logging.INFO, logger="rlhf_dialog")

    def see(visible: int, local_rank: int | None = None) -> list[int]:
        taken: list[int] = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: visible > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
        monkeypatch.setattr(torch.cuda, "set_device", taken.append)
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        if local_rank is not None:
            monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        return taken

    return see


def train(**keys):
    return process_group.start(Config.model_validate(CONFIG | keys))


def test_without_a_launcher_the_first_visible_gpu_is_taken_and_said_once(gpus, caplog):
    taken = gpus(2)
    for way in (lambda: device.choose_device("auto"), lambda: check_device("cuda"), train):
        way()
        assert taken.pop() == 0
    assert [line for line in caplog.messages if "GPU" in line] == ["on cuda:0, the first of 2 visible GPUs"]


@pytest.mark.parametrize(
    ("visible", "local_rank", "keys", "number"),
    [
        (4, 3, {}, 3),
        (2, None, {"local_rank": 1}, 1),  # as the DeepSpeed launcher has it
        (1, 3, {}, 0),  # srun --gpus-per-task=1: LOCAL_RANK is 3, and the only device has the number 0
    ],
)
def test_under_a_launcher_that_of_the_local_rank_is_taken(gpus, caplog, visible, local_rank, keys, number):
    taken = gpus(visible, local_rank)
    assert train(**keys).device == torch.device("cuda", number)
    assert taken == [number]
    assert f"on cuda:{number}, that of local rank" in caplog.text


@pytest.mark.parametrize(("asked", "visible", "expected"), [("cpu", 2, "cpu"), ("auto", 0, "cpu"), ("cuda", 1, "cuda")])
def test_the_device_that_a_key_asks_for(gpus, caplog, asked, visible, expected):
    taken = gpus(visible)
    assert device.choose_device(asked) == expected
    assert (taken == [], caplog.messages == []) == (expected == "cpu", expected == "cpu")


def test_a_gpu_that_is_not_there(gpus):
    gpus(0)
    with pytest.raises(UserError, match=r"^device: cuda, but torch finds no CUDA device"):
        device.choose_device("cuda")
    taken = gpus(2)
    check_device("cuda:1")  # is left as it is
    assert taken == []
    with pytest.raises(UserError, match="cuda:2"):
        check_device("cuda:2")


def test_attention_is_never_cudnns(gpus, tmp_path):
    """It makes a plan for each shape, and decoding has a new shape at every token."""
    gpus(0)
    folder = save(tmp_path, gpt2(n_layer=1, n_embd=16))
    for way in (lambda: ChatAgent.load(folder, device="cpu"), lambda: DeviceOption().on_device(), train):
        torch.backends.cuda.enable_cudnn_sdp(True)
        way()
        assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize(
    ("flags", "found"),
    [("fma avx512f avx512_bf16 amx_bf16", "amx"), ("fma avx512_bf16", "avx512_bf16"), ("avx2 fma", ""), (None, "")],
)
def test_the_bfloat16_instructions_of_a_processor(tmp_path, flags, found):
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"model name\t: Some\nflags\t\t: {flags}\n")
    assert device.cpu_bfloat16(tmp_path / "cpuinfo") == found
