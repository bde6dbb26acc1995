"""Build the package and install it where nothing else is: `make release-check` (about five minutes, 6 GB on the disk).

Checks the contents and metadata of wheel and sdist, runs `gpaco demo` from another folder, and resolves every extra.
"""

import email
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 2 * 2**20  # bytes of a wheel


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gpaco-release-") as name:
        home = Path(name)
        run(sys.executable, "-m", "build", "--outdir", home / "dist", ROOT)
        (wheel,), (sdist,) = (home / "dist").glob("*.whl"), (home / "dist").glob("*.tar.gz")
        check_wheel(wheel)
        check_sdist(sdist)
        install(wheel, home)
    print("release-check: everything is in place")


def check_wheel(wheel: Path) -> None:
    """Nothing but the package and its metadata, small, with license and description."""
    expect(wheel.stat().st_size < LIMIT, f"the wheel has {wheel.stat().st_size:,} bytes, at most {LIMIT:,}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (place,) = {entry.split("/")[0] for entry in names if entry.endswith(".dist-info/METADATA")}
        about = email.message_from_bytes(archive.read(f"{place}/METADATA"))
    foreign = [entry for entry in names if not entry.startswith(("gpaco/", f"{place}/"))]
    expect(not foreign, f"the wheel holds {foreign[:3]}")
    expect(not [entry for entry in names if entry.endswith((".pyc", ".so"))], "the wheel holds compiled files")
    expect(f"{place}/licenses/LICENSE" in names, "the wheel has no LICENSE")
    expect("gpaco/py.typed" in names, "the wheel has no py.typed")
    expect(about["License-Expression"] == "MIT", "the metadata name no license")
    expect(about["Requires-Python"] is not None and bool(about["Summary"]), "the metadata lack Python or a summary")
    expect("# gpaco" in str(about.get_payload()), "the metadata have no description")
    version = re.findall(r'__version__ = "(.*)"', (ROOT / "gpaco" / "__init__.py").read_text())[0]
    expect(about["Version"] == version, f"the wheel is {about['Version']}, the package {version}")
    log = (ROOT / "CHANGELOG.md").read_text()
    expect(f"## [{version}]" in log, f"CHANGELOG.md has no section {version}")


def check_sdist(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    top = {name.split("/")[1] for name in names if "/" in name}
    allowed = {"gpaco", "tests", "examples", "benchmarks", "docs", "constraints.txt", "Makefile", "CHANGELOG.md"}
    allowed |= {"CITATION.cff", "PKG-INFO", "README.md", "LICENSE", "pyproject.toml", ".gitignore"}
    expect(top <= allowed, f"the sdist holds {sorted(top - allowed)}")
    expect(not any("/generated/" in name or "/_build/" in name for name in names), "the sdist holds a built site")


def install(wheel: Path, home: Path) -> None:
    """Install the wheel in an empty environment, use it from another folder, and resolve every extra."""
    run(sys.executable, "-m", "venv", home / "env")
    pip = [home / "env" / "bin" / "pip", "--disable-pip-version-check", "--quiet"]
    run(*pip, "install", "-c", ROOT / "constraints.txt", wheel)
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    python = home / "env" / "bin" / "python"
    run(python, "-c", "import gpaco; gpaco.GPaCoLoss(3, class_counts=[5, 3, 1]); gpaco.train", cwd=elsewhere)
    run(home / "env" / "bin" / "gpaco", "demo", "--out", "demo", cwd=elsewhere)
    expect((elsewhere / "demo" / "report.html").is_file(), "gpaco demo wrote no page")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in extras:
        run(*pip, "install", "--dry-run", "-c", ROOT / "constraints.txt", f"gpaco[{extra}] @ {wheel.as_uri()}")
    shutil.rmtree(home / "env")


def run(*command: object, cwd: Path | None = None) -> None:
    print("$", *command, flush=True)
    subprocess.run(list(map(str, command)), cwd=cwd, check=True, stdout=subprocess.DEVNULL)


def expect(true: bool, otherwise: str) -> None:
    if not true:
        raise SystemExit(f"release-check: {otherwise}")


if __name__ == "__main__":
    main()
