"""What lies in a folder."""


def names(folder):
    return {path.name for path in folder.iterdir()}


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
