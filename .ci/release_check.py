"""Build the package and install it where nothing else is: `make release-check` (about five minutes, 6 GB on the disk).

Checks the version, the contents and metadata of wheel and sdist, runs `gpaco demo` from another folder, and resolves
every extra.
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
LIMIT = 2 * 2**20  # bytes of a wheel, and of an sdist


def main() -> None:
    version = check_version(ROOT)
    with tempfile.TemporaryDirectory(prefix="gpaco-release-") as name:
        home = Path(name)
        run(sys.executable, "-m", "build", "--outdir", home / "dist", ROOT)
        (wheel,), (sdist,) = (home / "dist").glob("*.whl"), (home / "dist").glob("*.tar.gz")
        check_wheel(wheel, version)
        check_sdist(sdist)
        install(wheel, home)
    print("release-check: everything is in place")


def check_version(root: Path) -> str:
    """Return the version, the same in the package, in CITATION.cff and as the newest, dated section of CHANGELOG.md."""
    version = re.findall(r'^__version__ = "(.*)"', (root / "gpaco" / "__init__.py").read_text(), re.MULTILINE)[0]
    newest, date = re.findall(r"^## \[(.*?)\] - (.*)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    expect(newest == version, f"the newest section of CHANGELOG.md is {newest}, the package {version}")
    expect(bool(re.fullmatch(r"\d{4}-\d\d-\d\d", date)), f"section {newest} of CHANGELOG.md has no date: {date}")
    cited = (root / "CITATION.cff").read_text().splitlines()
    for line in (f"version: {version}", f"date-released: {date}"):
        expect(line in cited, f"CITATION.cff has no line {line!r}")
    return version


def check_wheel(wheel: Path, version: str) -> None:
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
    for name in ("Author", "Requires-Python", "Summary", "Keywords"):
        expect(bool(about[name]), f"the metadata have no {name}")
    expect("# gpaco" in str(about.get_payload()), "the metadata have no description")
    expect(about["Version"] == version, f"the wheel is {about['Version']}, the package {version}")


def check_sdist(sdist: Path) -> None:
    """What one needs to test and build the package, and nothing else, small."""
    expect(sdist.stat().st_size < LIMIT, f"the sdist has {sdist.stat().st_size:,} bytes, at most {LIMIT:,}")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    top = {name.split("/")[1] for name in names if "/" in name}
    wanted = {"gpaco", "tests", "examples", "benchmarks", "docs", "constraints.txt", "Makefile", "CHANGELOG.md"}
    wanted |= {
        "CITATION.cff",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "conftest.py",
        "LICENSE",
        "README.md",
        "SECURITY.md",
    }
    wanted |= {"PKG-INFO", "pyproject.toml", ".gitignore", "conftest.py"}
    expect(top == wanted, f"the sdist should hold {sorted(wanted)}, it is off by {sorted(top ^ wanted)}")
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
