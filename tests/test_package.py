"""What importing costs, what is public, and what the package promises about itself."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import gpaco

ROOT = Path(gpaco.__file__).parents[1]
HEAVY = {"torchvision", "timm", "PIL", "cv2", "sklearn", "pandas", "rich", "typer"}


def loaded_after(statement: str) -> set[str]:
    """Top-level modules that a new Python has loaded after the statement."""
    printed = run_python(f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))")
    return {name.split(".")[0] for name in printed.split()}


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.process
def test_importing_gpaco_loads_nothing_third_party() -> None:
    assert loaded_after("import gpaco") - sys.stdlib_module_names == {"gpaco"}


@pytest.mark.process
def test_importing_the_loss_loads_torch_and_nothing_heavy_beside_it() -> None:
    loaded = loaded_after("from gpaco import GPaCoLoss")
    assert "torch" in loaded
    assert not loaded & HEAVY
    # Two seconds that only compiling needs.
    assert "False" in run_python("import sys; from gpaco import GPaCoLoss; print('torch._dynamo' in sys.modules)")


def test_public_names_stay_what_they_are_after_every_submodule_was_imported() -> None:
    modules = [path.stem for path in (ROOT / "gpaco").glob("*.py") if not path.stem.startswith("__")]
    for name in modules:
        import_module(f"gpaco.{name}")
    public = [name for name in gpaco.__all__ if not name.startswith("_")]
    itself = {name for name in public if gpaco._HOME[name] == f"gpaco.{name}"}
    assert itself == {"analysis"}
    assert all(callable(getattr(gpaco, name)) for name in public if name not in itself)
    assert set(modules) & set(public) == itself


@pytest.mark.process
def test_the_formulas_of_the_analysis_need_numpy_and_no_torch() -> None:
    loaded = loaded_after("from gpaco import analysis; analysis.extra_loss_curve(10, alpha=0.1, memory=100)")
    assert "numpy" in loaded
    assert not loaded & {"torch", *HEAVY}


def test_public_names_are_the_lazy_ones_and_each_has_a_docstring() -> None:
    assert set(gpaco.__all__) == {"__version__", *gpaco._HOME}
    assert dir(gpaco) == sorted(gpaco.__all__)
    assert all(getattr(gpaco, name).__doc__ for name in gpaco._HOME)


@pytest.mark.process
def test_an_unknown_name_is_an_attribute_error_that_lists_the_known_ones() -> None:
    run = subprocess.run([sys.executable, "-c", "import gpaco; gpaco.GPaco"], capture_output=True, text=True)
    assert run.returncode == 1
    assert "no attribute 'GPaco'; it has Classifier, GPaCoLoss, Memory" in run.stderr


def test_every_direct_dependency_is_pinned_and_every_extra_is_in_all() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().split()}
    extras = project["optional-dependencies"]
    (everything,) = extras.pop("all")
    assert everything == f"gpaco[{','.join(extras)}]"
    wanted = [*project["dependencies"], *(line for extra in extras.values() for line in extra)]
    assert all(re.split("[=>]=", line)[0].lower() in pinned for line in wanted)


def test_the_release_check_finds_a_version_that_was_forgotten_somewhere(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("release_check", ROOT / ".ci" / "release_check.py")
    assert spec
    assert spec.loader
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    assert check.check_version(ROOT) == gpaco.__version__
    (tmp_path / "gpaco").mkdir()
    files = ("gpaco/__init__.py", "CHANGELOG.md", "CITATION.cff")
    for name in files:
        for copied in files:
            shutil.copy(ROOT / copied, tmp_path / copied)
        forgotten = tmp_path / name
        forgotten.write_text(forgotten.read_text().replace(gpaco.__version__, "0.0.9"))
        with pytest.raises(SystemExit, match=r"release-check: .*0\.0\.9|CITATION"):
            check.check_version(tmp_path)
