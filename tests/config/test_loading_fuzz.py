"""Whatever stands in a configuration or on the command line: it loads, or a UserError says where; never anything else."""

import copy
import functools
import io
import math
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import ROOT
from shipped import CONFIGS, SCHEMAS

from rlhf_dialog import UserError, load_config
from rlhf_dialog.commands.options import flags_and_texts
from rlhf_dialog.commands.train import TrainOptions
from rlhf_dialog.config.batch_plan import batch_plan
from rlhf_dialog.config.loading import dump_yaml, find_config, load_settings, parse_arguments
from rlhf_dialog.config.schema import Config, Settings

pytestmark = pytest.mark.thorough
FUZZ = settings(
    max_examples=300,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
HUGE = [10**30, -(10**30), 1e308, -1e308, math.nan, math.inf, "9" * 400, "x" * 2000, 2**63, "1e999", -0.0]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.dates(),
    st.binary(max_size=6),
    st.sampled_from([*HUGE, "", "NLPReward", "CompositeReward", "chat_template", "true", "1e5", "~", "\0", "\ud800"]),
)
KEYS = st.one_of(
    st.sampled_from([*Config.model_fields, "args", "id", "parts", "weight", "env", "use_eval", "eval_metrics"]),
    st.text(max_size=8),
    st.integers(-2, 2),
    st.none(),
    st.booleans(),
)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


def schema_of(path: Path) -> type[Settings]:
    return SCHEMAS.get(path.stem, SCHEMAS.get(path.stem.split("_")[0], Config))


def survive(path: Path, schema: type[Settings], overrides: dict[str, Any] | None = None) -> str:
    """The message of the UserError, or nothing when it loads; what loads can be printed, and loads again as it was."""
    try:
        loaded = load_config(path, overrides) if schema is Config else load_settings(schema, path, overrides)
    except UserError as error:
        return str(error)
    if isinstance(loaded, Config):
        assert batch_plan(loaded).num_optimizer_steps > 0
    again = schema.model_validate(yaml.safe_load(dump_yaml(loaded)))
    assert again.model_dump() == loaded.model_dump()
    return ""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "fuzzed.yaml"


def spoil(tree: dict[str, Any], at: list[str], how: str, value: Any) -> str:
    """Change the entry at the end of the path `at`; returns the key that is wrong now."""
    node: Any = tree
    for name in at[:-1]:
        node = node[name]
    leaf = at[-1]
    if how == "delete":
        del node[leaf]
    elif how == "rename":
        node[leaf + "_x"] = node.pop(leaf)
        return leaf + "_x"
    else:
        node[leaf] = {"retype": value, "nest": {leaf: node[leaf]}, "list": [node[leaf]]}[how]
    return leaf


def paths(tree: Any, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every path to a key of nested mappings."""
    found = []
    for key, value in tree.items() if isinstance(tree, dict) else ():
        found += [(*prefix, key), *paths(value, (*prefix, key))]
    return found


@FUZZ
@given(content=st.binary(max_size=80) | st.text(max_size=80).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes(place, content):
    place.write_bytes(content)
    assert str(place) in survive(place, Config)


CLASSES = st.fixed_dictionaries({}, optional={"id": SCALARS, "args": TREES, "x": SCALARS})
GROUPS = {
    "reward_class": TREES | CLASSES,
    "vec_info_class": TREES | CLASSES,
    "env": TREES | st.builds(dict, args=TREES),
}


@FUZZ
@given(tree=st.dictionaries(KEYS, TREES, max_size=4), groups=st.fixed_dictionaries({}, optional=GROUPS))
def test_any_structure(place, tree, groups):
    tree |= groups
    place.write_text(yaml.dump(tree), encoding="utf-8", errors="surrogatepass")
    message = survive(place, Config)
    assert str(place) in message


@functools.cache
def shipped(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
@settings(FUZZ, max_examples=200)
@given(data=st.data())
def test_a_shipped_configuration_with_one_mistake(place, path, data):
    tree = copy.deepcopy(shipped(path))
    at = data.draw(st.sampled_from(paths(tree)))
    how = data.draw(st.sampled_from(["delete", "rename", "retype", "retype", "nest", "list"]))
    value = data.draw(SCALARS | st.sampled_from(HUGE))
    key = spoil(tree, list(at), how, value)
    place.write_text(yaml.dump(tree), encoding="utf-8", errors="surrogatepass")
    message = survive(place, schema_of(path))
    if message:
        assert str(place) in message
        assert any(word in message for word in (key, *at[-2:], "not valid YAML", "cannot be read")), message
    assert len(message) < 3000
    assert message or how != "rename" or "args" in at


WORDS = st.lists(
    st.one_of(
        st.sampled_from(
            ["--", "--config", "--help", "--smoke", "--lr", "--lr=", "--=1", "--env.args", "--a..b", "--env."]
        ),
        st.builds("--{}={}".format, KEYS, SCALARS),
        st.builds("--{}.{}".format, KEYS, KEYS),
        st.builds("--reward_class.args.parts.{}.{}={}".format, st.integers(-1, 5) | KEYS, KEYS, SCALARS),
        SCALARS.map(str),
        TREES.map(lambda tree: yaml.dump(tree, default_flow_style=True)),
    ),
    max_size=6,
)


@pytest.mark.parametrize("name", ["nlp_ppo.yaml", "quickstart.yaml", "sft_quickstart.yaml"])
@FUZZ
@given(words=WORDS)
def test_any_words(name, words):
    path = ROOT / "configs" / name
    with redirect_stderr(io.StringIO()):
        message = words_survive(path, words)
    assert not message or str(path) in message or "--" in message, message


def words_survive(path: Path, words: list[str]) -> str:
    try:
        _, overrides, _ = parse_arguments(words, flags_and_texts(TrainOptions)[0])
    except UserError as error:
        return str(error)
    return survive(path, schema_of(path), overrides)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "", ".", "\ud800", "configs", "../" * 2000])
def test_any_name_of_a_config(name):
    with pytest.raises(UserError, match="not found"):
        find_config(name)


@pytest.mark.parametrize(
    "text",
    [
        "env: &a {args: *a}",
        "reward_class: {id: NLPReward, args: &a {intent_model: [*a]}}",
        "a: &a [x]\nlr: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\ngamma: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]\n"
        "seed: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c]\nclip_param: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d]\n"
        "run_dir: &f [*e, *e, *e, *e, *e, *e, *e, *e, *e]\ndevice: &g [*f, *f, *f, *f, *f, *f, *f, *f, *f]\n"
        "env: &h [*g, *g, *g, *g, *g, *g, *g, *g, *g]\ngae_lambda: [*h, *h, *h, *h, *h, *h, *h, *h, *h]",
        "{" * 3000,
        "lr: " + "[" * 3000,
        "lr: " + "9" * 6000,
        "a: &a\n  <<: *a",
        "reward_class: {id: [NLPReward], args: 3}",
        "seed: 0x" + "f" * 9000,
    ],
    ids=range(9),
)
def test_yaml_that_is_meant_badly(place, text):
    place.write_text(text, encoding="utf-8")
    message = survive(place, Config)
    assert str(place) in message
    assert len(message) < 6000


@pytest.mark.parametrize("args", ["&a {intent_model: *a}", "&a {intent_model: [1, {b: *a}]}"])
def test_what_holds_itself_is_refused_where_anything_may_stand(place, args):
    place.write_text(
        f"model_path: m\nenv: {{args: {{data_path: d}}}}\nreward_class: {{id: NLPReward, args: {args}}}\n",
        encoding="utf-8",
    )
    assert "alias" in survive(place, Config)
    text = place.read_text(encoding="utf-8").replace(args, "{intent_model: [&b [1], *b]}")
    place.write_text(text, encoding="utf-8")
    assert survive(place, Config) == ""
