"""Try the chat template of a folder before it is used: a program in it may never end."""

import contextlib
import os
import resource
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf_dialog.errors import UserError

SECONDS = 10  # of processor time
USER, AGENT = {"role": "user", "content": "Hello ."}, {"role": "assistant", "content": "Hi ."}
CHATS = ([USER], [USER, AGENT, USER], [{"role": "system", "content": "Be kind ."}, USER, AGENT, USER])
TRIED: dict[str, bool] = {}  # template -> whether its trial ended


def try_template(tokenizer: PreTrainedTokenizerBase, path: str, key: str) -> None:
    """Render the templates of a tokenizer in a child process. Raises UserError when one does not end, or ends the child.

    What a template raises is reported where it is used. `key` named the `path`.
    """
    templates: Any = tokenizer.chat_template or {}
    for template in templates.values() if isinstance(templates, dict) else [templates]:
        if template not in TRIED:
            TRIED[template] = _ends(tokenizer, template)
        if not TRIED[template]:
            raise UserError(
                f"the chat template was not rendered within {SECONDS} processor seconds, or crashed",
                where=f"{key}: '{path}'",
                remedy="correct its chat_template.jinja, or use another model",
            )


def _ends(tokenizer: PreTrainedTokenizerBase, template: str) -> bool:
    child = os.fork()
    if child:
        return os.WIFEXITED(os.waitpid(child, 0)[1])
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        for chat in CHATS:
            for answer in (True, False):
                with contextlib.suppress(Exception):  # of any kind
                    tokenizer.apply_chat_template(
                        chat, chat_template=template, tokenize=False, add_generation_prompt=answer
                    )
    finally:
        os._exit(0)  # not the exit of this program, which would clean up what is its parent's
