"""Load models and tokenizers from a folder or the Hugging Face Hub, with one clear error.

A folder is treated as data: none of its pickles is read and none of its code is run, unless the options allow it;
docs/SECURITY.md has the rules.
"""

import inspect
import logging
import os
import pickle
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging
from transformers.utils.import_utils import is_peft_available
from transformers.utils.peft_utils import find_adapter_config_file

from rlhf_dialog.data import hub
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import check_files
from rlhf_dialog.json_files import load_json
from rlhf_dialog.models.load_report import check_report, without_table
from rlhf_dialog.terminal import make_visible

logger = logging.getLogger(__name__)
transformers_logging.disable_progress_bar()  # its bars count weight shards
for _handler in logging.getLogger("transformers").handlers:
    _handler.addFilter(make_visible)  # its reports quote the names of tensors
# saving a model imports DeepSpeed where it is installed, also for runs that do not use it; those that do name the accelerator
logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator" not in record.getMessage())
FILES = {"a tokenizer": "tokenizer.json, tokenizer_config.json, config.json"}
KINDS = {"AutoModelForCausalLM": "a causal LM", "AutoModel": "an encoder", "AutoTokenizer": "a tokenizer"}
PLAIN_WHEN_LOADED = ("mxfp4", "fp8", "mxfp8")  # quantized weights that the library can make plain ones of
TEMPLATE_SECONDS = 10  # of processor time
USER, AGENT = {"role": "user", "content": "Hello ."}, {"role": "assistant", "content": "Hi ."}
CHATS = ([USER], [USER, AGENT, USER], [{"role": "system", "content": "Be kind ."}, USER, AGENT, USER])
TRIED_TEMPLATES: dict[str, bool] = {}  # template -> whether its trial ended
ADVICE = "give a whole folder: this one lacks a file, is damaged or edited, or needs newer transformers and tokenizers"


def load_pretrained(auto_class: Any, path: str, key: str, *, only_trunk: bool = False, **options: Any) -> Any:
    """`auto_class.from_pretrained(path)`, from a local folder or the Hub.

    `key` is the configuration key that named the path. Only safetensors are read and no code is run, unless the options hold
    `use_safetensors=None` or `trust_remote_code=True`. Raises UserError when nothing is found, it cannot be loaded, or it
    lacks weights that the model computes with (`only_trunk`: its hidden states; the head is not read, or is new).
    """
    source = os.path.expanduser(path)
    options = {"trust_remote_code": False} | options
    hub.check_folder(path, key)
    if not hub.is_local(path):
        options["local_files_only"] = not hub.hub_reachable()
    if auto_class.__name__ != "AutoTokenizer":
        options = {"use_safetensors": True} | options
    is_model = auto_class.__name__ not in ("AutoTokenizer", "AutoConfig")
    with_report = options.pop("output_loading_info", False)
    if is_model:
        options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    with readable(
        path, key, KINDS.get(auto_class.__name__, "a classifier"), lambda error: _reason(key, error, options)
    ):
        _check_names(Path(source))
        if auto_class.__name__ != "AutoTokenizer":
            _check_weight_files(path, Path(source), key, options)
            config = _check_model_folder(path, source, key, options)
        if is_model:
            _check_kind(auto_class, path, key, config, options, only_trunk)
        with _pickle_guard(path, key, options.get("use_safetensors", True) is None), without_table():
            loaded = auto_class.from_pretrained(source, **options)
        if is_model:
            model, report = loaded
            scores = auto_class.__name__ == "AutoModelForSequenceClassification"
            check_report(model, report, path, key, only_trunk, scores)
            return loaded if with_report else model
        limit = getattr(loaded, "model_max_length", 1)
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 1:
            raise UserError(f"{key}: model_max_length of '{path}' is {limit!r:.100}, not a number of tokens")
        return loaded


def stored_weights(path: str, key: str, trust_remote_code: bool, allow_pickle_weights: bool) -> dict[str, Tensor]:
    """The weights of a causal LM in the type of its config.json; none where that is not of 16 bits."""
    hub.check_folder(path, key)
    with readable(path, key, "a causal LM"):
        config = PreTrainedConfig.get_config_dict(os.path.expanduser(path), local_files_only=True)[0]
    if "float16" not in str(config):
        return {}
    safe = None if allow_pickle_weights else True
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code, "use_safetensors": safe}
    return dict(load_pretrained(AutoModelForCausalLM, path, key, dtype="auto", **options).state_dict())


@contextmanager
def readable(path: str, key: str, kind: str, reason: Callable[[BaseException], str] | None = None) -> Iterator[None]:
    """Raises UserError for everything that the parsers of other people raise in the block, which reads `path` as a `kind`.

    They have no common error: tokenizers raises plain Exceptions, and PanicException, which is a BaseException.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
            raise
        files = FILES.get(kind, "config.json, model.safetensors")
        raise UserError(
            f"{key}: '{path}' cannot be loaded as {kind} (from {files}). {(reason or _parsers_words)(error)}"
        ) from error


def num_ids(tokenizer: PreTrainedTokenizerBase) -> int:
    """One more than the largest id; with holes among the ids this is more than the number of tokens."""
    return max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=-1))


def try_template(tokenizer: PreTrainedTokenizerBase, path: str, key: str) -> None:
    """Render the templates of a tokenizer in a child process. Raises UserError when one does not end, or ends the child.

    What a template raises is reported where it is used.
    """
    templates: Any = tokenizer.chat_template or {}
    for template in templates.values() if isinstance(templates, dict) else [templates]:
        if template not in TRIED_TEMPLATES:
            TRIED_TEMPLATES[template] = _ends(tokenizer, template)
        if not TRIED_TEMPLATES[template]:
            what = f"the chat template was not rendered within {TEMPLATE_SECONDS} processor seconds, or crashed"
            raise UserError(
                what, where=f"{key}: '{path}'", remedy="correct its chat_template.jinja, or use another model"
            )


def _ends(tokenizer: PreTrainedTokenizerBase, template: str) -> bool:
    child = os.fork()
    if child:
        return os.WIFEXITED(os.waitpid(child, 0)[1])
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (TEMPLATE_SECONDS, TEMPLATE_SECONDS))
        for chat in CHATS:
            for answer in (True, False):
                with suppress(Exception):  # of any kind
                    tokenizer.apply_chat_template(
                        chat, chat_template=template, tokenize=False, add_generation_prompt=answer
                    )
    finally:
        os._exit(0)  # not the exit of this program, which would clean up what is its parent's


def warn_of_remote_code(paths: dict[str, str | None]) -> None:
    """Warn which folders and Hub names may run their own code; `paths`: configuration key -> folder or Hub name."""
    named = ", ".join(f"{key} '{path}'" for key, path in paths.items() if path)
    logger.warning("trust_remote_code: true, so code from these sources may run with all your permissions: %s", named)


@contextmanager
def _pickle_guard(path: str, key: str, allowed: bool) -> Iterator[None]:
    """Inside the block, `torch.load` reads only tensors, or nothing: an index or a config.json can name any file."""
    load = torch.load

    def load_checked(*args: Any, **options: Any) -> Any:
        if not allowed:
            raise UserError(f"{key}: '{path}' names a pickled weight file; convert it to safetensors{_or_allow(key)}")
        return load(*args, **{**options, "weights_only": True})

    torch.load = load_checked
    try:
        yield
    finally:
        torch.load = load


def _or_allow(key: str) -> str:
    """An argument of chat.py or evaluate.py has no configuration to allow pickles in."""
    return "" if key.startswith("--") else ", or set allow_pickle_weights: true if you trust the file"


def _check_model_folder(path: str, source: str, key: str, options: dict[str, Any]) -> dict[str, Any]:
    """Its config.json. Raises UserError when it would load something from elsewhere, OSError when there is none."""
    is_local = options.get("local_files_only", False)
    if (os.path.isdir(source) or is_peft_available()) and find_adapter_config_file(source, local_files_only=is_local):
        raise UserError(f"{key}: '{path}' is an adapter (adapter_config.json); merge it into its base model first")
    config = PreTrainedConfig.get_config_dict(source, local_files_only=is_local)[0]
    if not options["trust_remote_code"] and (kernel := _kernel_of(config)):
        raise UserError(
            f"{key}: the config.json of '{path}' asks to run code from '{kernel}' on the Hub; remove that entry"
        )
    return config  # type: ignore[no-any-return]


def _check_weight_files(path: str, folder: Path, key: str, options: dict[str, Any]) -> None:
    """Raises UserError when a folder has no weights in a form that is read, or lacks a file that its index names."""
    where = f"{key}: '{path}'"
    names = sorted(file.name for file in folder.glob("*"))
    tried = ["model.safetensors"] + ["pytorch_model.bin"] * (options["use_safetensors"] is None)
    whole = [name for name in tried if name in names or f"{name}.index.json" in names]
    if whole and whole[0] not in names:
        index = f"{whole[0]}.index.json"
        for name in sorted({*load_json(folder / index).get("weight_map", {}).values()}):
            if not (folder / str(name)).exists():
                raise UserError(f"lacks {name}, which {index} names", where=where, remedy="get that file as well")
    if whole or [name for name in names if name.endswith((".bin", ".pth")) and name != "training_args.bin"]:
        return
    if parts := [name for name in names if re.search(r"-of-\d+\.safetensors$", name)]:
        what = f"has {parts[0]}, but no model.safetensors.index.json that names it"
        raise UserError(what, where=where, remedy="get that file as well")
    if other := [name for name in names if name.endswith((".gguf", ".h5", ".msgpack", ".onnx"))]:
        what = f"has weights in another format alone ({other[0]})"
        raise UserError(what, where=where, remedy="give the folder of the same model with safetensors")


def _check_kind(
    auto_class: Any, path: str, key: str, config: dict[str, Any], options: dict[str, Any], only_trunk: bool
) -> None:
    """Raises UserError, by the name of its type, for a model that is not computed here."""
    where, kind, named = f"{key}: '{path}'", str(config.get("model_type")), auto_class.__name__
    quantized = config.get("quantization_config")
    method = str(quantized.get("quant_method", "quantized")) if isinstance(quantized, dict) else ""
    again = "quantization_config" in options  # load_in_4bit
    if method and (again or method not in PLAIN_WHEN_LOADED):
        what = f"has {method} weights, which are not {'quantized again' if again else 'trained or computed here'}"
        raise UserError(what, where=where, remedy="give the model that it was made from, in 16 or 32 bits")
    codes = config.get("auto_map") or {}
    if kind not in CONFIG_MAPPING or (options["trust_remote_code"] and named in codes):
        return
    config_class = CONFIG_MAPPING[kind]
    wanted = KINDS.get(named, "a classifier")
    if named != "AutoModelForSequenceClassification" and config.get(
        "is_encoder_decoder", getattr(config_class, "is_encoder_decoder", False)
    ):
        raise UserError(f"is an encoder-decoder ({kind}), which is not supported", where=where, remedy=f"give {wanted}")
    if config_class not in auto_class._model_mapping:
        what = f"is a model of the type {kind}, for which transformers has no {named}"
        raise UserError(what, where=where, remedy=f"give {wanted}, such as the folder of its language model alone")
    model_class = auto_class._model_mapping[config_class]
    if named == "AutoModelForCausalLM" and "past_key_values" not in inspect.signature(model_class.forward).parameters:
        what = f"is a model of the type {kind}, which is not supported: {model_class.__name__} takes no past_key_values"
        raise UserError(what, where=where, remedy="give a model with attention")
    if named == "AutoModelForSequenceClassification" and not only_trunk:
        own = str(codes.get(named) or codes.get("AutoModel") or "").rpartition(".")[2]
        usual = {model_class.__name__, getattr(AutoModel._model_mapping.get(config_class, None), "__name__", "")}
        if own and own not in usual:
            what = f"is computed by a class of its own ({own} in auto_map), which is not {model_class.__name__}"
            raise UserError(
                what, where=where, remedy="its code is not run here; give a model of a class of transformers"
            )


def _check_names(folder: Path) -> None:
    """Raises UserError where a JSON file of a folder names a file of weights, or of a tokenizer, that is not in it."""
    for path in [*folder.glob("*.index.json"), folder / "config.json", folder / "tokenizer_config.json"]:
        if path.is_file():
            tree = load_json(path)
            names = [*tree.get("weight_map", {}).values(), tree.get("transformers_weights")]
            names += tree.get("fast_tokenizer_files") or []
            check_files(folder, [name for name in names if isinstance(name, str)])


def _kernel_of(node: Any) -> str | None:
    """The repository of compiled code that a config.json names as an implementation of its attention or experts."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if not isinstance(node, dict):
        return None
    for key, value in node.items():
        values = value.values() if isinstance(value, dict) else (value,)
        if "_implementation" in f"_{key}" and (found := [v for v in values if isinstance(v, str) and "/" in v]):
            return found[0]
        if found_below := _kernel_of(value):
            return found_below
    return None


def _reason(key: str, error: BaseException, options: dict[str, Any]) -> str:
    if isinstance(error, pickle.UnpicklingError):
        return "Its pickled weights hold something other than tensors, or are damaged; none of their code was run"
    if options.get("local_files_only"):
        return "It is not a local folder or a downloaded model, and the Hub cannot be reached; give a local folder"
    text = str(error)
    if "safetensors" in text and isinstance(error, OSError) and options.get("use_safetensors"):
        return f"It has no safetensors weights; convert them{_or_allow(key)}"
    if "trust_remote_code" in text:
        how = "allow it with --trust_remote_code" if key.startswith("--") else "set trust_remote_code: true"
        return f"It asks to run its own code; {how} if you trust it"
    return _parsers_words(error)


def _parsers_words(error: BaseException) -> str:
    text = " ".join(str(error).split())[:300].rstrip(".")
    return f"{text or type(error).__name__}; {ADVICE}"
