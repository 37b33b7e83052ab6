"""What `make site` does besides MkDocs: pages that lie outside of docs/, and links as they are on GitHub.

MkDocs calls the functions whose names begin with `on_` (mkdocs.yml names this file); it is not called by hand.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

OUTSIDE = {  # page in the checkout: its name on the site
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "reward_models/README.md": "REWARD_MODELS.md",
    "experiments/LOG.md": "LOG.md",
}
ROOT = Path(__file__).resolve().parents[1]
OUTSIDE |= {  # the pages of results, with their images and JSONs
    path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "experiments").as_posix()
    for path in sorted((ROOT / "experiments" / "results").rglob("*"))
    if path.is_file()
}
SOURCES = {page: source for source, page in OUTSIDE.items()}
# text right above a list or a table
BEGINS = re.compile(r"^(?! |[-*] |\||\d+\. )(.+\n)(?=[-*] |\||\d+\. )", flags=re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|`[^`]*`)*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of docs/, and those outside of it."""
    for source, page in OUTSIDE.items():
        path = posixpath.join(posixpath.dirname(config.config_file_path), source)
        files.append(File.generated(config, page, abs_src_path=path))
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Files, **_: Any) -> str:
    """The page with links between the places on the site; a link to a file that is not there becomes its text.

    The search leaves out the pages of experiments.
    """
    name = page.file.src_uri
    page.meta["search"] = {"exclude": name == "LOG.md" or name.startswith("results/")}
    parts = re.split(r"(^ *```.*?^ *```)", markdown, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [LINK.sub(lambda link: rewritten(link, name, files), part) for part in parts[::2]]
    parts[::2] = [BEGINS.sub(r"\1\n", part) for part in parts[::2]]  # MkDocs wants an empty line there, GitHub does not
    return "".join(parts)


def rewritten(link: re.Match[str], page: str, files: Files) -> str:
    """A link of that page, as it is written on the site."""
    image, text, address = link.groups()
    target, _, anchor = address.partition("#")
    if "://" in address or not target:
        return link[0]
    source = posixpath.dirname(SOURCES.get(page, f"docs/{page}"))
    wanted = posixpath.normpath(posixpath.join(source, target))
    place = OUTSIDE.get(wanted, wanted.removeprefix("docs/"))
    if wanted not in OUTSIDE and not wanted.startswith("docs/"):
        return str(text)
    if files.get_file_from_path(place) is None:
        return link[0]  # a dead link, which `--strict` names
    relative = posixpath.relpath(place, posixpath.dirname(page) or ".")
    return f"{image}[{text}]({relative}{'#' + anchor if anchor else ''})"
