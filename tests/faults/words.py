"""Command lines, recipes and tables with changed, missing and strange words."""

import io
import random
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from helpers import forked
from helpers.images import class_folders

from faults.promise import Promise, scratch
from faults.runs import PATIENCE, dice_of
from gpaco.cli.main import main
from gpaco.recipes.recipe import dumps
from gpaco.recipes.settings import Recipe

# Nothing of this trains: there is no folder "nowhere".
LINES = """
train nowhere --out out --method gpaco --epochs 3 --set method.alpha=0.1 --lr 0.1
train nowhere --out out --recipe cifar100-lt-if100-gpaco-400 --paper --seed 3
train nowhere --out out --task segmentation --model deeplabv3plus-resnet18 --size 64 --amp bf16
train nowhere --dry-run --train head --weights none --tune 5m --long-tail 20 --validation 0.2
compare nowhere --out out --methods ce,gpaco --seeds 2 --epochs 1
evaluate nowhere --prior uniform --many 5 --few 2 --checkpoint best
evaluate run data --scales 0.5,1 --flip --window 32/16
predict nowhere data --out rows.csv --prior train
report nowhere --out page.html
robustness nowhere --out out
export nowhere --out model.onnx
convert nowhere --out out
recipes cifar
show default
check data --json
demo --out data --seeds nowhere
mine nowhere data --out rows.csv --classes rare --n 5
serve nowhere --port 0
push nowhere me/name --dry-run --private
latency nowhere --device cpu --json
""".strip().splitlines()
STRANGE = (
    *("", "-", "--", "=", "a=b", "--set", "--out", "--epochs", "nan", "inf", "-1", "0", "1e400", "9" * 400, "x" * 300),
    *("é雪", "\udcff", "\u202egnp", "{0}", "%s", "$HOME", "~", "[", "]", "{}", "[[stage]]", "'", '"', "\\", "*", "a b"),
    *("method.alpha=nan", "train.epochs=", "stage.x.y=1", "optimizer.lr=1e999", "views.first=", "data.path=nowhere"),
    *(
        "None",
        "true",
        "auto",
        "\n",
        "\t",
        "1_000",
        "\uff10",
        "+1",
        "1,2",
        "1/0",
        "0x10",
        "--help",
        "--version",
        "--debug",
    ),
)
TABLE = "path,label,split\na/0.png,a,train\na/1.png,a,train\nb/0.png,b,train\nb/1.png,b,test\na/2.png,a,val\n"
EACH = 34  # command lines, recipes and tables of one attempt


def attempt(number: int, home: Path) -> int:
    with scratch(home, number) as folder:
        class_folders(folder / "data", {"a": 4, "b": 3})
        forked.printed("-m", "faults.words", number, cwd=folder, timeout=10 * PATIENCE)
    return 3 * EACH


def garbled(text: str, dice: random.Random) -> str:
    """The text with one character changed, left out, doubled or added."""
    at = dice.randrange(len(text) + 1)
    new = dice.choice("".join(STRANGE[15:30]) + "\0\x01\x7f,;=.#-_0aZ\n\t ")
    return dice.choice([text[:at] + text[at + 1 :], text[:at] + new + text[at:], text[:at] + new + text[at + 1 :]])


def mutated_words(dice: random.Random) -> list[str]:
    words = dice.choice(LINES).split()
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(words) + 1)
        kind = dice.choice(["replace", "insert", "delete", "repeat", "swap", "garble"])
        if kind == "insert" or at == len(words):
            words.insert(at, dice.choice(STRANGE))
        elif kind == "replace":
            words[at] = dice.choice(STRANGE)
        elif kind == "delete":
            del words[at]
        elif kind == "repeat":
            words.insert(at, words[at])
        elif kind == "swap":
            other = dice.randrange(len(words))
            words[at], words[other] = words[other], words[at]
        else:
            words[at] = garbled(words[at], dice).replace("\0", "")  # no argument has it
    return [word for word in words if word != "--debug"]


def mutated_text(text: str, dice: random.Random) -> bytes:
    rows = text.split("\n")
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(rows))
        kind = dice.choice(["garble", "value", "delete", "repeat", "swap", "cut"])
        if kind == "garble":
            rows[at] = garbled(rows[at], dice)
        elif kind == "value":
            left, mark, _ = rows[at].partition(dice.choice("=,"))
            rows[at] = left + mark + " " + dice.choice(STRANGE)
        elif kind == "delete":
            del rows[at]
        elif kind == "repeat":
            rows.insert(at, rows[at])
        elif kind == "swap":
            other = dice.randrange(len(rows))
            rows[at], rows[other] = rows[other], rows[at]
        else:
            rows = [*rows[:at], rows[at][: dice.randrange(len(rows[at]) + 1)]]
        rows = rows or [""]
    content = "\n".join(rows).encode("utf-8", "surrogateescape")
    return content if dice.random() < 0.9 else dice.randbytes(20) + content


def run_all(number: int) -> None:
    dice = dice_of("words", number)
    for _ in range(EACH):
        check(mutated_words(dice), (0, 2))
        Path("fuzzed.toml").write_bytes(mutated_text(dumps(Recipe()), dice))
        check(["train", "nowhere", "--recipe", "fuzzed.toml", "--out", "out"], (2,))
        name = dice.choice(["data/fuzzed.csv", "data/fuzzed.txt", "data/fuzzed.tsv"])
        Path(name).write_bytes(mutated_text(TABLE.replace(",", {"csv": ",", "txt": " ", "tsv": "\t"}[name[-3:]]), dice))
        check(["check", name], (0, 2))
        Path(name).unlink()


def check(words: list[str], codes: tuple[int, ...]) -> None:
    """Run a command in this process; it must end with one of these codes, and not with a traceback."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="surrogateescape")
    said = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
    code: object = None
    try:
        with redirect_stdout(out), redirect_stderr(said):
            main(words)
    except SystemExit as left:
        code = left.code
    said.seek(0)
    errors = said.read()
    assert code in codes, f"{words!r}: exit {code}\n{errors}"
    assert "Traceback" not in errors, f"{words!r}\n{errors}"
    if "error: " in errors:
        assert re.search(r"(^|\n)error: \S[^\n]*\n  \S[^\n]*\n?$", errors), f"{words!r}\n{errors}"
    elif code == 2:
        out.seek(0)
        assert "check" in words[:2], f"{words!r}: exit 2 without a word"
        assert re.search(r'problem: \S|"problems": \["', out.read()), f"{words!r}: exit 2 without a problem"


PROMISE = Promise(
    "Fuzzed command lines, recipes and tables: never a traceback, exit 2 with a cause and a remedy",
    attempt,
    attempts=2,
    goal=10_000,
)

if __name__ == "__main__":
    run_all(int(sys.argv[1]))
