"""Everything heavy that tests import: a worker of pytest-xdist imports it once when it starts, so that no test pays for it."""

# ruff: noqa: F401
from unittest import mock

import accelerate
import datasets
import matplotlib.pyplot
import nltk
import peft
import sacrebleu
import trl
import wandb
from torch.utils.tensorboard import SummaryWriter
from transformers import (
    AutoModelForCausalLM,
    BertForSequenceClassification,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2ForCausalLM,
    Trainer,
)

with mock.patch("inspect.getfile", side_effect=OSError):  # else gradio reads its sources to write a .pyi beside each
    import gradio
    import gradio.route_utils
