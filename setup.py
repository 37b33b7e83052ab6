"""What pyproject.toml cannot say: the YAMLs and JSONs of the root go into the installed package."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
SHIPPED = ("configs/*.yaml", "configs/*.json", "configs/schemas/*.json", "ds_configs/*.json")


class BuildWithConfigs(build_py):
    """Copies configs/ and ds_configs/ to rlhf_dialog/; an editable install uses those of the checkout."""

    def run(self) -> None:
        super().run()
        for source, target in self._shipped().items():
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(source), str(target))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), *map(str, self._shipped().values())]

    def _shipped(self) -> dict[Path, Path]:
        """Each file with the place that it gets; none for an editable install."""
        if self.editable_mode:
            return {}
        files = [path for pattern in SHIPPED for path in sorted(ROOT.glob(pattern))]
        return {path: Path(self.build_lib) / "rlhf_dialog" / path.relative_to(ROOT) for path in files}


setup(cmdclass={"build_py": BuildWithConfigs})
