"""The plan of the house: which room may import which, read from the code, imports inside functions included."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

GPACO = Path(__file__).parents[1] / "gpaco"
AT_THE_TOP = {"__init__", "__main__", "analysis", "errors"}

# From the top down. A room imports rooms below its own line only: rooms on one line do not know each other.
FLOORS = (
    ("cli",),
    ("api",),
    ("pages",),
    ("tasks",),
    ("training", "methods"),
    ("models",),
    ("metrics",),
    ("data", "losses", "recipes"),
    ("system",),
    ("errors",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


class Import(NamedTuple):
    """One of our modules that another one imports."""

    file: str  # dotted, without "gpaco."
    module: str
    line: int
    inside: bool  # a function

    def __str__(self) -> str:
        return f"{self.file.replace('.', '/')}.py:{self.line} imports {self.module}"


def dotted(path: Path) -> str:
    parts = path.relative_to(GPACO).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


FILES = {dotted(path): path for path in sorted(GPACO.rglob("*.py"))}


def imports_of(file: str) -> Iterator[Import]:
    tree = ast.parse(FILES[file].read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [name if name.removeprefix("gpaco.") in FILES else str(node.module) for name in names]
        for module in sorted(set(found)):
            if module.startswith("gpaco."):
                yield Import(file, module.removeprefix("gpaco."), node.lineno, id(node) in inner)


IMPORTS = [found for file in FILES for found in imports_of(file)]


def room(module: str) -> str:
    return module.split(".")[0]


def test_every_module_is_in_a_room() -> None:
    assert {name for name in FILES if "." not in name and not (GPACO / name).is_dir()} == AT_THE_TOP
    assert {room(name) for name in FILES} - AT_THE_TOP == set(FLOOR) - {"errors"}


def test_a_room_imports_only_rooms_below_it() -> None:
    walls = [found for found in IMPORTS if found.file not in ("__init__", "__main__", "analysis")]
    wrong = [
        str(found)
        for found in walls
        if room(found.file) != room(found.module) and FLOOR[room(found.file)] >= FLOOR.get(room(found.module), -1)
    ]
    assert not wrong, "\n".join(wrong)


def test_tasks_do_not_know_each_other_and_only_api_and_pages_know_both() -> None:
    wrong = []
    for found in IMPORTS:
        task = found.module.split(".")[1] if found.module.startswith("tasks.") and found.module.count(".") > 1 else ""
        own = found.file.split(".")[1] if found.file.startswith("tasks.") and found.file.count(".") > 1 else ""
        if task and own and task != own:
            wrong.append(str(found))
        if task and room(found.file) in ("training", "methods", "models", "metrics", "data", "losses", "recipes"):
            wrong.append(str(found))
    assert not wrong, "\n".join(wrong)


def test_imports_inside_functions_are_of_other_peoples_packages() -> None:
    # The command line imports a verb when it is called, so that `gpaco --help` does not wait for torch.
    allowed = ("cli", "__init__", "analysis")
    wrong = [str(found) for found in IMPORTS if found.inside and room(found.file) not in allowed]
    assert not wrong, "\n".join(wrong)


def test_no_imports_are_hidden_from_run_time() -> None:
    wrong = []
    for file, path in FILES.items():
        text = path.read_text(encoding="utf-8")
        if file not in ("__init__", "analysis") and "TYPE_CHECKING" in text:
            wrong.append(file)
    assert not wrong, "\n".join(wrong)


def test_files_have_no_cycle() -> None:
    edges: dict[str, set[str]] = {file: set() for file in FILES}
    for found in IMPORTS:
        if found.file != "__init__" and found.module in FILES and found.module != found.file:
            edges[found.file].add(found.module)
    done: set[str] = set()
    while ready := [file for file in edges if file not in done and edges[file] <= done]:
        done.update(ready)
    assert done == set(FILES), f"these import each other in a circle: {sorted(set(FILES) - done)}"


def test_a_rooms_init_is_a_docstring() -> None:
    for path in GPACO.rglob("__init__.py"):
        if path.parent in (GPACO, GPACO / "methods"):
            continue
        body = ast.parse(path.read_text(encoding="utf-8")).body
        assert len(body) == 1, f"{path} holds code"
        assert isinstance(body[0], ast.Expr), f"{path} has no docstring"


def test_both_tasks_have_the_same_files() -> None:
    """A difference between the tasks can be seen with `diff`: what one has, the other has under the same name."""
    shared = {"batches", "card", "check", "defaults", "evaluation", "export", "prediction", "predictor"}
    shared |= {"results", "robustness", "splits", "task"}
    for task in ("classification", "segmentation"):
        assert shared <= {path.stem for path in (GPACO / "tasks" / task).glob("*.py")}, task
