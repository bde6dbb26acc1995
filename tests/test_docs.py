"""What README and docs say is true: commands parse, blocks run, links lead somewhere, quoted messages exist."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from helpers import images, scenes
from markdown_it import MarkdownIt

from gpaco.cli.main import app
from gpaco.recipes import recipe as recipes

ROOT = Path(__file__).parents[1]
AT_THE_TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in AT_THE_TOP), *sorted((ROOT / "docs").glob("*.md"))]
# A block that begins with one of these needs what a test does not have. It is parsed, not run; docs/index.md says so.
MARKS = ("# real ImageNet", "# real CIFAR-100", "# several GPUs", "# cluster", "# downloads", "# in a clone")
MARKS += ("# while the server runs",)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
PLACEHOLDER = re.compile(r"(?<![\w/.$=-])[A-Z][A-Z_0-9]+\b(?!=)")  # DATA, RUN: the block is a form to fill in
EXTERNAL = {
    "awk",
    "cd",
    "curl",
    "git",
    "hf",
    "kubectl",
    "pip",
    "sbatch",
    "uv",
}  # the first words of commands that are not ours


class Block(NamedTuple):
    page: Path
    line: int
    kind: str  # "" if it is indented
    text: str

    @property
    def commands(self) -> list[str]:
        """The command lines of the block, without remarks."""
        joined = self.text.replace("\\\n", " ").splitlines()
        lines = [re.split(r"\s{2,}(?![\s-])|\s+# ", line.strip())[0] for line in joined]
        return [line for line in lines if re.match(r"(gpaco|torchrun|python|make) ", line) or _external(line)]

    @property
    def runs(self) -> bool:
        """Whether a test runs the block: it has Python or a command of ours, and nothing is left to fill in."""
        ours = self.kind == "python" or any(line.startswith("gpaco ") for line in self.commands)
        return ours and not self.needs_more

    @property
    def needs_more(self) -> bool:
        """Whether the block shows that it cannot run as it is, by its first line or by words in capitals."""
        return self.text.startswith(MARKS) or any(map(PLACEHOLDER.search, self.commands))


def _external(line: str) -> bool:
    return line.split(" ")[0] in EXTERNAL


def blocks(page: Path) -> list[Block]:
    tokens = MarkdownIt().parse(page.read_text())
    found = [token for token in tokens if token.type in ("fence", "code_block")]
    return [Block(page, (token.map or [0])[0] + 1, token.info, token.content) for token in found]


def inline_code(page: Path) -> Iterator[str]:
    """What stands between backticks in the prose and the tables of a page."""
    for token in MarkdownIt().enable("table").parse(page.read_text()):
        for child in token.children or []:
            if child.type == "code_inline":
                yield child.content


ALL_BLOCKS = [block for page in PAGES for block in blocks(page)]


def gpaco_words(command: str) -> list[str]:
    """The words after `gpaco`, also of a command under torchrun; those in brackets are optional and kept."""
    command = re.sub(r"^torchrun .*? -m ", "", command)
    words = shlex.split(re.sub(r"(=\[[^\]]*\])|[\[\]]|\.\.\.", lambda found: found[1] or " ", command))
    return words[1:] if words[0] == "gpaco" else []


def parse(words: list[str], group: Any) -> dict[str, Any]:
    name, *rest = words
    if name.startswith("-"):
        return {}
    command = group.commands[name]
    return dict(command.make_context(name, rest).params)


def test_every_command_in_the_docs_is_one_that_gpaco_takes() -> None:
    group: Any = typer.main.get_command(app)
    wrong = []
    for block in ALL_BLOCKS:
        for command in block.commands:
            try:
                known = parse(words, group) if (words := gpaco_words(command)) else {}
                name = known.get("recipe")
                if isinstance(name, str) and not PLACEHOLDER.fullmatch(name) and not name.endswith(".toml"):
                    recipes.load(name)
            except Exception as error:
                wrong.append(f"{block.page.name}:{block.line} {command}: {error!r}")
    assert not wrong


def test_every_command_and_option_in_a_sentence_is_one_that_gpaco_takes() -> None:
    group: Any = typer.main.get_command(app)
    parameters = [p for command in (group, *group.commands.values()) for p in command.params]
    options = {"--debug", "--help", *(option for p in parameters for option in (*p.opts, *p.secondary_opts))}
    options |= {"--max-restarts"}  # of torchrun
    options |= {option for file in (ROOT / "benchmarks").glob("*.py") for option in OPTION.findall(file.read_text())}
    wrong = []
    for page in PAGES:
        for code in inline_code(page):
            try:
                if code.startswith(("gpaco ", "torchrun ")) and (words := gpaco_words(code)):
                    parse(words, group)
            except Exception as error:
                # A sentence may leave out what is clear.
                if type(error).__name__ not in ("MissingParameter", "BadOptionUsage"):
                    wrong.append(f"{page.name} {code}: {error!r}")
            if code.startswith("--") and not options.issuperset(OPTION.findall(code)):
                wrong.append(f"{page.name} {code}")
    assert not wrong


def test_every_block_that_is_not_run_is_marked_and_every_block_is_valid_in_its_language() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for block in ALL_BLOCKS:
        where = f"{block.page.name}:{block.line}"
        if block.kind == "python":
            ast.parse(block.text)
            continue
        if block.kind == "json":
            json.loads(block.text)
        assert not re.search(r"^(from|import) \w|gpaco\.\w+\(", block.text, re.MULTILINE), (
            f"{where} is Python, unmarked"
        )
        for command in block.commands:
            words = shlex.split(command)
            assert block.needs_more or not _external(command), f"{where} {command}: nothing says that no test runs it"
            assert words[:2] != ["pip", "install"] or all(
                extra in extras for word in words for extra in re.findall(r"^\.\[(.*)\]$", word)
            ), f"{where} {command}: no such extra"


def test_the_pages_say_how_blocks_that_no_test_runs_are_marked() -> None:
    said = " ".join((ROOT / "docs" / "index.md").read_text().split())
    assert all(f"`{mark}`" in said for mark in MARKS)


def test_every_torchrun_in_the_docs_has_options_that_torchrun_takes() -> None:
    from torch.distributed.run import get_args_parser

    found = [command for block in ALL_BLOCKS for command in block.commands if command.startswith("torchrun ")]
    assert len(found) > 2
    for command in found:
        assert get_args_parser().parse_args(shlex.split(command)[1:]).training_script == "gpaco", command


def test_every_script_and_make_target_in_the_docs_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for command in (*(command for block in blocks(page) for command in block.commands), *inline_code(page)):
            first, second, *_ = [*command.split(), "", ""]
            if first == "make" and second:
                assert second in targets, f"{page.name}: {command}"
            if first == "python" and second.endswith(".py"):
                assert (ROOT / second).is_file(), f"{page.name}: {command}"


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub and MyST make them."""
    tokens = MarkdownIt().parse(page.read_text())
    titles = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(page: Path) -> Iterator[str]:
    for token in MarkdownIt().enable("table").parse(page.read_text()):
        for child in token.children or []:
            if child.type in ("link_open", "image"):
                yield str(child.attrs.get("href") or child.attrs.get("src"))


def test_every_link_leads_to_a_file_and_a_heading_that_exist() -> None:
    for page in PAGES:
        for link in links(page):
            if "://" in link:
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            made = target.parent.name == "generated"  # by docs/generate.py
            assert made or target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def test_every_message_that_troubleshooting_explains_is_in_the_code() -> None:
    code = " ".join(path.read_text() for path in (ROOT / "gpaco").rglob("*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # strings that go on in the next line
    messages = re.findall(r"^### `(.*)`$", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    assert len(messages) > 15
    for message in messages:
        for piece in message.split("..."):
            assert piece.strip() in code, message


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages assume: photos by class, new and unlabeled photos, images with masks."""
    folder = tmp_path_factory.mktemp("desk")
    for name, count, color in (("beagle", 24, 60), ("persian", 14, 120), ("pug", 8, 200)):
        for i in range(count):
            path = images.save(folder / "photos" / name / f"{i}.jpg", seed=color + i, width=96, height=80)
            assert path.is_file()
    images.class_folders(folder, {"new": 3, "unlabeled": 12}, seed=500)
    scenes.scene_folder(folder / "scenes")
    return folder


# Commands of the page where the story of another page begins, with fewer epochs.
FIRST = "gpaco train photos/ --epochs 2 --set train.report=false --out runs/first"
EARLIER = {
    "export.md": FIRST,
    "methods.md": f"{FIRST.replace('first', 'a')}\n{FIRST.replace('first', 'b')} --seed 1",
    "mine.md": FIRST,
    "serve.md": f"{FIRST}\ngpaco export runs/first --out model.onnx",
}


PAGES_TO_RUN = [page for page in PAGES if any(block.runs for block in blocks(page))]


@pytest.mark.extensive
@pytest.mark.process
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES_TO_RUN, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run_one_after_another(page: Path, desk: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", *map(str, desk.iterdir()), str(tmp_path)], check=True)
    bin_folder = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    python: list[str] = []  # the Python blocks so far: a page is one story
    earlier = Block(page, 0, "bash", EARLIER.get(page.name, ""))
    for block in (earlier, *blocks(page)):
        if not block.runs or (page.name == "README.md" and block.kind == "python"):  # test_examples.py trains with it
            continue
        if block.kind == "python":
            python.append(block.text)
            program = [sys.executable, "-W", "ignore", "-c", "\n".join(python)]
        else:
            ours = [line for line in block.commands if line.startswith("gpaco ")]
            program = ["bash", "-euc", "\n".join(ours)]
        done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=800)
        assert done.returncode == 0, f"{page.name}:{block.line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.extensive
@pytest.mark.process
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        str(ROOT / "docs"),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "generated" / "api.html").is_file()
    for page in tmp_path.rglob("*.html"):
        assert "http-equiv" not in page.read_text()
