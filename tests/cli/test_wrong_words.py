"""Wrong words on the command line: one line of cause, one of remedy, exit code 2, and nothing is written."""

import re
from pathlib import Path

import pytest
from helpers.commands import fails
from helpers.scenes import MODEL, SMALL, scene_folder

import gpaco
from gpaco.cli.main import main

WRONG = [
    ("trian digits", "no command 'trian'; did you mean 'train'?"),
    ("--hepl", "no such option: --hepl (Possible options: --help)"),
    ("train digits --epoch 3", "no such option: --epoch (Possible options: --epochs)"),
    ("train", "missing argument 'DATA'"),
    ("train digits more --out OUT", "more"),
    ("train digits --out OUT --set train.seed=1 train.epochs=2", "write --set before each KEY=VALUE, or see"),
    ("train digits --out OUT --epochs many", "--epochs"),
    ("train digits --out OUT --epochs -1", "--epochs -1: train.epochs must be a whole number, at least 1, got -1"),
    ("train digits --out OUT --method gpcao", "did you mean 'gpaco'?"),
    ("train digits --out OUT --set method.alhpa=1", "'alhpa'; did you mean 'alpha'?"),
    ("train digits --out OUT --set optimiser.lr=0.1", "no section 'optimiser'; did you mean 'optimizer'?"),
    ("train digits --out OUT --set method.alpha", "method.alpha has no value\n  --set method.alpha=VALUE"),
    ("train digits --out OUT --recipe imagenet", "no recipe 'imagenet'"),
    ("train digits --out OUT --epochs ten", "invalid value for '--epochs': it must be a whole number"),
    ("train digits --out OUT --device gpu", "no device 'gpu'\n  devices are cpu, cuda"),
    ("train digist --out OUT", "did you mean 'digits'?"),
    ("train nowhere --out OUT --model resnt8", "no model 'resnt8'; did you mean 'resnet8'?"),  # before data is read
    ("train nowhere --out OUT --weights none.safetensors", "there is no file none.safetensors"),
    ("train nowhere --out OUT --task segmentation --model upernet-resnt18", "no encoder 'resnt18'"),
    ("compare digits --out OUT --methods ce,gpaco,ce", "the method 'ce' is given twice"),
    ("show defualt", "no recipe, run or method 'defualt'; did you mean 'default'?"),
    ("recipes imagnet-lt", "did you mean 'imagenet-lt'?"),
    ("evaluate OUT", "OUT does not exist"),
    ("evaluate RUN --prior unifrom", "no file 'unifrom'; did you mean 'uniform'?"),
    ("evaluate RUN --checkpoint lst", "best or last"),
    ("evaluate RUN --many 5 --few 50", "few"),
    ("evaluate RUN --many nan", "must not be above many (nan)"),
    ("evaluate SEGMENTER --few nan", "few (nan) must not be above"),
    ("evaluate SEGMENTER --scales 1,nan", "scales must be numbers above 0, got [1.0, nan]"),
    ("predict RUN one.png --out rows.txt", "use a name that ends in .csv or .jsonl"),
    ("evaluate SEGMENTER --scales half", "--scales half is not a list of numbers"),
    ("evaluate SEGMENTER --scales 1,inf", "scales must be numbers above 0"),
    ("evaluate SEGMENTER --window 32/64", "windows of 32 pixels with a stride of 64 leave gaps"),
    ("evaluate SEGMENTER --prior uniform", "--tune-prior and --restrict are for classifiers"),
    ("predict SEGMENTER one.png --out rows.csv", "rows.csv is a file name"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("runs")
    quick = {"epochs": 1, "report": False, "say": lambda line: None}
    gpaco.train("digits", out=home / "run", method="ce", long_tail=20, batch_size=64, **quick)
    scenes = {"task": "segmentation", "model": MODEL, "settings": SMALL}
    gpaco.train(scene_folder(home / "data"), out=home / "segmenter", **quick, **scenes)
    return {"RUN": str(home / "run"), "SEGMENTER": str(home / "segmenter")}


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[words for words, _ in WRONG])
def test_a_wrong_word_is_exit_2_with_cause_and_remedy_and_nothing_is_written(
    words: str,
    message: str,
    runs: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.png").touch()
    with pytest.raises(SystemExit) as left:
        main([runs.get(word, word) for word in words.split()])
    errors = capsys.readouterr().err
    assert left.value.code == 2, errors
    assert re.fullmatch(r"error: \S.*\n  \S.*\n", errors), errors
    assert message in errors
    assert [path.name for path in tmp_path.iterdir()] == ["one.png"]


def test_debug_shows_where_an_error_came_from_and_may_stand_anywhere(capfd: pytest.CaptureFixture[str]) -> None:
    for words in (["--debug", "show", "defualt"], ["show", "defualt", "--debug"]):
        with pytest.raises(ValueError, match="no recipe, run or method 'defualt'"):
            main(words)


@pytest.mark.process
def test_wrong_words_in_a_process_of_its_own() -> None:
    assert "(Possible options: --method" in fails("train", "digits", "--methd", "ce", "--out", "nowhere")


def test_a_line_break_in_a_name_does_not_break_the_lines_of_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["evaluate", "no\nrun"])
    assert capfd.readouterr().err.startswith("error: no\\nrun does not exist\n  ")
