"""What the tail report says: intervals, flows, priors, calibration, odd labels, CSV files, and bad input."""

import csv
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.images import class_folders, tree_hash
from helpers.made_runs import HOSTILE, evidence, tail_run, write_run
from sklearn.metrics import confusion_matrix

import gpaco
from gpaco.data.leaks import record
from gpaco.data.readers.read import read
from gpaco.data.samples import Samples
from gpaco.errors import UserError
from gpaco.metrics.classification import adjust, ece
from gpaco.metrics.intervals import intervals, paired_intervals, wilson
from gpaco.pages.classification import calibration, flows, images, whatif
from gpaco.pages.classification.evidence import Evidence, gather, log_priors
from gpaco.pages.classification.summary import paired, sentence, smooth, summary
from gpaco.pages.classification.tables import tables
from gpaco.pages.render import percent, safe_json, thumbnail
from gpaco.tasks.classification.logits import softmax
from gpaco.tasks.classification.splits import splits_of
from gpaco.training.run import Run


@pytest.fixture(scope="module")
def tail(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tail_run(tmp_path_factory.mktemp("tail") / "gpaco")


@pytest.fixture(scope="module")
def cross_entropy(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tail_run(tmp_path_factory.mktemp("tail") / "ce", seed=1, method="ce")


def known(run: Run) -> Evidence:
    return gather([run])[0]


def page_data(page: Path) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    return json.loads(text)


# Summary


@pytest.mark.slow
def test_intervals_cover_the_truth_however_few_images_a_class_has() -> None:
    rng, tries = np.random.default_rng(5), 200
    group = {size: np.array(["few"] * size) for size in (5, 40)}
    for size, number, rates in itertools.product((5, 40), (1, 2, 4, 30), ("equal", "any", "extreme")):
        covered = {"macro": 0, "paired": 0}
        for _ in range(tries):
            n = np.full(size, number)
            p = {"equal": np.full(size, 0.7), "any": rng.uniform(0, 1, size)}.get(rates)
            p = rng.choice([0.03, 0.97], size) if p is None else p
            right = rng.binomial(n, p)
            bounds = intervals(right, n - right, group[size])["few"]
            covered["macro"] += float(bounds["low"] or 0) <= p.mean() <= float(bounds["high"] or 0)
            better, worse = 0.3 * (1 - p), 0.3 * p
            won = rng.binomial(n, better)
            lost = rng.binomial(n - won, worse / (1 - better))
            row = paired_intervals(won, lost, n - won - lost, group[size])["few"]
            covered["paired"] += float(row["low"] or 0) <= (better - worse).mean() <= float(row["high"] or 0)
        assert min(covered.values()) >= 0.86 * tries, (size, number, rates, covered)


def test_classes_that_are_all_right_or_all_wrong_give_no_interval_of_zero_width() -> None:
    for right, wrong in (([4, 0], [0, 4]), ([10, 10, 0], [0, 0, 10]), ([5, 0, 5, 0], [0, 5, 0, 5])):
        few = np.array(["few"] * len(right))
        found = intervals(np.array(right), np.array(wrong), few)["few"]
        assert float(found["low"] or 0) + 0.05 < np.mean(np.array(right) > 0) < float(found["high"] or 0) - 0.05
        row = paired_intervals(np.array(right), np.array(wrong), np.zeros(len(right), int), few)["few"]
        assert float(row["low"] or 0) + 0.05 < float(row["difference"] or 0) < float(row["high"] or 0) - 0.05


def test_where_all_images_are_right_the_interval_is_wilsons() -> None:
    groups = np.array(["many", "few"])
    found = intervals(np.array([30, 0]), np.array([0, 20]), groups)
    assert (found["many"]["low"], found["many"]["high"]) == wilson(30, 30)
    assert (found["few"]["low"], found["few"]["high"]) == wilson(0, 20)
    assert found["medium"] == {"low": None, "high": None}


def test_values_are_those_of_metrics_json_and_lie_in_their_intervals(tail: Run) -> None:
    for row in summary(known(tail))["figures"]:
        assert row["value"] == tail.metrics[row["figure"]]
        assert row["low"] < row["value"] < row["high"]


def test_a_paired_difference_is_that_of_the_figures_and_narrower_than_two_intervals(tail: Run, tmp_path: Path) -> None:
    one = known(tail)
    better = one.logits.copy()
    better[np.arange(0, 300, 4), one.labels[::4]] += 1.5
    other = evidence(tmp_path / "other", better, one.labels, one.counts)
    rows = {row["figure"]: row for row in paired(one, other) or []}
    for key, row in rows.items():
        assert row["difference"] == pytest.approx(other.metrics[key] - one.metrics[key])
        assert row["low"] <= row["difference"] <= row["high"]
    own = intervals(
        *(np.bincount(one.labels[mask]) for mask in (one.predictions == one.labels, one.predictions != one.labels)),
        one.groups,
    )
    assert rows["top1"]["high"] - rows["top1"]["low"] < own["top1"]["high"] - own["top1"]["low"]
    mirrored = {row["figure"]: row for row in paired(other, one) or []}
    assert mirrored["few"]["difference"] == pytest.approx(-rows["few"]["difference"])


def test_images_are_matched_by_name_and_others_give_no_difference(tail: Run, tmp_path: Path) -> None:
    one = known(tail)
    order = np.random.default_rng(0).permutation(300)
    shuffled = evidence(
        tmp_path / "shuffled",
        one.logits[order] * 2 + np.eye(12)[one.labels[order]],
        one.labels[order],
        one.counts,
        names=tuple(one.images[k] for k in order),
    )
    plain = evidence(tmp_path / "plain", one.logits * 2 + np.eye(12)[one.labels], one.labels, one.counts)
    assert paired(one, shuffled) == paired(one, plain)
    elsewhere = evidence(
        tmp_path / "else", one.logits, one.labels, one.counts, names=tuple(f"other/{k}" for k in range(300))
    )
    assert paired(one, elsewhere) is None


def test_runs_that_agree_on_every_image_have_a_difference_of_0_with_an_honest_interval(tail: Run) -> None:
    one = known(tail)
    row = next(row for row in paired(one, one) or [] if row["figure"] == "few")
    images = int((one.groups[one.labels] == "few").sum())
    assert row["difference"] == 0
    assert row["high"] == -row["low"] == (wilson(0, images) or (0, 0))[1]


def test_the_sentence_says_who_is_best_and_who_cannot_be_told_apart(tmp_path: Path) -> None:
    labels = np.repeat([0, 1], 100)
    strong, weak = np.eye(2)[labels] * 4, np.tile([1.0, 0.0], (200, 1))
    strong[195:] = weak[195:]
    runs = {"strong": strong, "also": strong.copy(), "weak": weak}
    runs["also"][190:195] = weak[190:195]
    made = [write_run(tmp_path / name, logits, labels, [500, 5]) for name, logits in runs.items()]

    def said(*chosen: Run) -> str:
        found = gather(chosen)
        return sentence(found, [summary(one) | {"pull": flows.head_pull(one)} for one in found])

    assert "On rare classes, strong is best: 95% recognized, against 0% by weak" in said(made[0], made[2])
    assert "strong and also" not in said(made[0], made[2])
    assert "recognized far less often than frequent ones: 0% of the time against 100%" in said(made[2])
    assert "against 100%. Never recognized: 1 of 2 classes." in said(made[2])
    assert "do not differ significantly: 95% and 95%" in said(
        made[0], write_run(tmp_path / "same", strong, labels, [500, 5])
    )
    assert re.search(r"strong is best: 95%.* 0% by weak and 90% by also", said(made[2], *made[:2]))


def test_the_smooth_curve_stays_between_the_recalls_and_follows_a_trend() -> None:
    counts = np.geomspace(1000, 5, 50).astype(int)
    recalls = [*np.linspace(0.9, 0.1, 49).tolist(), None]
    curve = [row["recall"] for row in smooth(counts, recalls)]
    assert min(recalls[:49]) <= min(curve) < max(curve) <= max(recalls[:49])
    assert curve == sorted(curve)
    assert smooth(np.array([5, 5, 5]), [0.1, 0.2, 0.3]) == []


# Where errors go


def test_flows_add_up_to_the_confusion_matrix(tail: Run) -> None:
    one = known(tail)
    matrix = confusion_matrix(one.labels, one.predictions)
    for row in flows.flows(one):
        mine = one.groups == row["from"]
        assert row["images"] == matrix[mine].sum()
        assert row["right"] == np.trace(matrix[np.ix_(mine, mine)])
        assert row["right"] + sum(row["to"].values()) == row["images"]
    pairs = flows.confused_pairs(one)
    off = {(a, b): int(matrix[a, b]) for a in range(12) for b in range(12) if a != b and matrix[a, b]}
    assert pairs == off
    around = flows.neighbors(pairs, 12)
    assert around[11]["to"] == sorted([[b, n] for (a, b), n in off.items() if a == 11], key=lambda p: (-p[1], p[0]))[:5]


def test_head_pull_counts_errors_into_more_frequent_classes_and_knows_chance(tail: Run) -> None:
    one = known(tail)
    pull = flows.head_pull(one)["few"]
    wrong = [(a, b) for a, b in zip(one.labels, one.predictions, strict=True) if a != b and one.groups[a] == "few"]
    assert pull["errors"] == len(wrong)
    assert pull["up"] == sum(one.counts[b] > one.counts[a] for a, b in wrong)
    others = [[one.counts[b] > one.counts[a] for b in range(12) if b != a] for a, _ in wrong]
    assert pull["expected"] == pytest.approx(np.mean([np.mean(row) for row in others]))


def test_pairs_go_to_more_frequent_classes_and_one_of_one_does_not_come_first(tmp_path: Path) -> None:
    labels = np.array([1] * 20 + [2])
    logits = np.eye(3)[[0] * 12 + [1] * 8 + [0]]
    one = evidence(tmp_path / "run", logits, labels, [100, 50, 5])
    rows = flows.strongest_pairs(one, flows.confused_pairs(one))
    assert [(row["class"], row["images"], row["of"]) for row in rows] == [(1, 12, 20), (2, 1, 1)]
    assert rows[0]["asymmetry"] == 1


# What if


@pytest.mark.parametrize("method", ["ce", "gpaco"])
def test_right_images_at_every_position_are_those_of_adjusted_logits(method: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    counts = np.array([300, 300, 90, 40, 12, 12, 3, 0])
    labels = rng.integers(0, 8, 400)
    logits = rng.normal(0, 2, (400, 8)) + 2 * np.eye(8)[labels]
    one = evidence(tmp_path / "run", logits, labels, counts, method=method)
    right = whatif.along(one, counts)
    priors = log_priors(counts)
    for position in range(201):
        weight = abs(position - 100) / 100
        wanted = weight * priors["train" if position < 100 else "reversed"]
        winners = adjust(one.logits, one.assumed, wanted).argmax(1)
        np.testing.assert_array_equal(right[:, position], np.bincount(labels[winners == labels], minlength=8))
    raw = 0 if method == "ce" else 100
    assert right[:, raw].sum() == round(one.metrics["top1"] * 400)


@pytest.mark.slow
def test_the_slider_starts_from_what_the_sampler_showed_as_evaluate_does(tmp_path: Path) -> None:
    quick: dict[str, Any] = {"epochs": 3, "batch_size": 64, "lr": 0.05, "report": False, "say": lambda line: None}
    run = gpaco.train("digits", out=tmp_path / "run", method="ce", sampler="sqrt", long_tail=20, **quick)
    one = gather([run])[0]
    right = whatif.along(one, one.counts).sum(0)
    assert whatif.raw_position(one, one.counts) == 50  # the square root is half of the log
    assert right[50] == round(run.metrics["top1"] * len(one.labels))
    for prior, position in (("train", 0), ("uniform", 100)):
        assert right[position] == round(gpaco.evaluate(run, prior=prior)["top1"] * len(one.labels))
    assert right[0] < right[50] < right[100]


def test_raw_logits_of_proportions_that_the_slider_does_not_pass_have_no_position(tmp_path: Path) -> None:
    one = evidence(tmp_path / "run", np.zeros((3, 3)), [0, 1, 2], [60, 30, 10], method="ce")
    assert whatif.raw_position(one, one.counts) == 0
    assert whatif.raw_position(one, np.array([60, 10, 30])) is None


def test_ties_in_raw_logits_go_to_the_first_class_as_in_metrics_json(tmp_path: Path) -> None:
    labels = np.array([0, 1, 2, 1])
    one = evidence(tmp_path / "run", np.zeros((4, 3)), labels, [50, 10, 10])
    assert whatif.along(one, one.counts)[:, 100].tolist() == [1, 0, 0]
    assert one.metrics["top1"] == 0.25


def test_bins_give_back_the_calibration_error_of_metrics_json(tail: Run) -> None:
    one = known(tail)
    for name, key in (("all", "ece"), ("few", "ece_few")):
        bins = [row for row in calibration.reliability(one) if row["group"] == name]
        total = sum(row["images"] for row in bins)
        gap = sum(row["images"] * abs(row["accuracy"] - row["confidence"]) for row in bins) / total
        assert gap == pytest.approx(tail.metrics[key])
        assert (
            next(row for row in calibration.tempered(one)["rows"] if row["group"] == name)["before"]
            == tail.metrics[key]
        )


def test_the_error_class_by_class_is_the_mean_of_each_class_alone(tail: Run) -> None:
    one = known(tail)
    p = softmax(one.logits)
    alone = [ece(p[:, c], one.labels == c) for c in range(12)]
    assert calibration.classwise_ece(one) == pytest.approx(np.mean(alone))


def test_the_temperature_undoes_a_scaling_and_fixes_the_error(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1.5, (3000, 6))
    labels = np.array([rng.choice(6, p=row) for row in softmax(logits)])  # calibrated by making
    for scale in (1.0, 4.0):
        one = evidence(tmp_path / str(scale), scale * logits, labels, [90, 50, 30, 20, 10, 5])
        found = calibration.tempered(one)
        assert found["temperature"] == pytest.approx(scale, rel=0.1)
        everything = found["rows"][0]
        assert everything["after"] < 0.03
    assert everything["before"] > 0.2


def test_too_few_images_have_no_temperature(tmp_path: Path) -> None:
    one = evidence(tmp_path / "run", np.eye(3), [0, 1, 2], [9, 5, 3])
    assert calibration.tempered(one)["temperature"] is None


# Missed images and odd labels


def test_wrong_labels_are_found_and_a_class_that_is_not_learned_is_not_judged(tmp_path: Path) -> None:
    labels = np.repeat([0, 1, 2], 50)
    truth = labels.copy()
    labels[[3, 4]] = 1  # two images of class 0 that somebody called class 1
    logits = 6 * np.eye(3)[truth] + np.random.default_rng(0).normal(0, 0.3, (150, 3))
    logits[100:] = [6, 0, 0]  # class 2 is always taken for class 0
    one = evidence(tmp_path / "run", logits, labels, [100, 30, 5])
    assert sorted(images.suspects(one)) == [3, 4]
    (first, *_) = images.confused_classes(one, {3, 4})
    assert (first["class"], first["taken_for"], first["missed"], first["test"]) == (2, 0, 50, 50)


def test_a_training_prior_does_not_make_rare_labels_look_wrong(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    counts = np.array([5000, 5])
    labels = np.repeat([0, 1], 60)
    balanced = 5 * np.eye(2)[labels] + rng.normal(0, 0.5, (120, 2))
    one = evidence(tmp_path / "ce", balanced + np.log(counts / counts.sum()), labels, counts, method="ce")
    assert one.metrics["few"] < 0.1  # with its prior the model misses nearly all of them
    assert images.suspects(one) == []


def test_the_album_keeps_each_thumbnail_once_and_stops_when_it_is_full() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (5, 40, 60, 3), np.uint8)
    samples = Samples(np.zeros(5, int), ("a",), images=pixels)
    size = len(thumbnail(pixels[0], images.SIDE, images.QUALITY))
    album = images.Album()
    album.room = int(2.5 * size)
    assert [album.add(samples, i) for i in (0, 0, 1, 2, 1)] == [0, 0, 1, None, 1]
    assert all(uri.startswith("data:image/jpeg;base64,") for uri in album.thumbnails)
    assert thumbnail(pixels[0, :8, :8], 72, 72).startswith("data:image/png;base64,")


# The page and its files


def test_numbers_in_the_page_are_those_of_the_csv_files_and_of_metrics_json(
    tail: Run, cross_entropy: Run, tmp_path: Path
) -> None:
    page = gpaco.report([cross_entropy, tail], tmp_path / "report.html")
    data = page_data(page)
    assert json.loads((tmp_path / "report_files" / "report.json").read_text()) == data
    for run, shown in zip((cross_entropy, tail), data["runs"], strict=True):
        metrics = run.metrics
        for row in shown["figures"]:
            assert row["value"] == metrics[row["figure"]]
        for column in ("recall", "precision", "f1", "test", "train"):
            assert shown[column] == [row[column] for row in metrics["per_class"]]
        assert [list(pair) for pair in zip(shown["low"], shown["high"], strict=True)] == [
            row["interval"] for row in metrics["per_class"]
        ]
        assert shown["metrics"] == {key: metrics[key] for key in shown["metrics"]}
    for name, (header, rows) in tables(data).items():
        with (tmp_path / "report_files" / f"{name}.csv").open(newline="") as file:
            head, *found = list(csv.reader(file))
        assert head == list(header)
        assert found == [["" if value is None else str(value) for value in row] for row in rows]
    figures = {row["figure"]: row["value"] for row in data["runs"][1]["figures"]}
    written = re.findall(r'data-figure="(\w+)">([\d.]+)', page.read_text())
    assert written[5:10] == [(key, percent(value)) for key, value in figures.items()]


def test_two_pages_in_a_folder_do_not_share_their_files(tail: Run, tmp_path: Path) -> None:
    gpaco.report(tail, tmp_path / "report.html")
    gpaco.report(tail, tmp_path / "other.html", with_images=False)
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "report_files", "other.html", "other_files"}
    tables = ("summary", "differences", "classes", "pairs", "labels_to_check", "corruptions")
    for folder in ("report_files", "other_files"):
        names = {path.name for path in (tmp_path / folder).iterdir()}
        assert names == {".gpaco-report", "report.json", *(f"{name}.csv" for name in tables)}


def test_hostile_names_stay_text_in_the_page_and_whole_in_the_csv(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 4
    logits = rng.normal(0, 1, (80, 4)) + np.eye(4)[labels]
    names = tuple(f"</script><img src=x onerror=alert({i})>" for i in range(80))
    run = write_run(tmp_path / "run", logits, labels, [200, 50, 5, 5], classes=HOSTILE, names=names)
    text = gpaco.report(run, tmp_path / "report.html", names=['"><svg onload=alert(3)>']).read_text()
    assert text.count("<script") == 2  # the data and ours
    assert "<img" not in text
    assert "<svg onload" not in text
    assert page_data(tmp_path / "report.html")["classes"] == list(HOSTILE)
    with (tmp_path / "report_files" / "classes.csv").open(newline="", encoding="utf-8") as file:
        assert [row["class"] for row in csv.DictReader(file)] == list(HOSTILE)
    assert safe_json({"a": "</script><!-- & "}).isascii()


def test_names_that_are_not_text_do_not_stop_the_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", np.eye(2), [0, 1], [3, 2], classes=("a\udcff", "b"))
    assert "a\\udcff" in gpaco.report(run, tmp_path / "report.html").read_text()


def test_no_host_is_named_and_no_other_script_could_run(tail: Run, tmp_path: Path) -> None:
    assert_alone(gpaco.report(tail, tmp_path / "report.html").read_text())


def assert_alone(page: str) -> None:
    """Nothing in the page is fetched from anywhere: no address at all, and a policy that forbids the browser to."""
    assert "://" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert not re.search(r"url\(|@import|<link|<iframe|fetch\(|XMLHttpRequest|WebSocket", page)
    assert set(re.findall(r'(?:src|href)="([^"]?)', page)) == {"#"}
    assert "default-src 'none'" in page


# Images of the data


@pytest.mark.slow
def test_images_come_from_the_data_and_leave_it_alone(tmp_path: Path) -> None:
    data = class_folders(tmp_path / "data", {"ant": 60, "bee": 20, "cat": 8})
    run = gpaco.train(data, out=tmp_path / "run", epochs=1, method="ce", say=lambda line: None)
    before = tree_hash(data)
    shown = page_data(gpaco.report(run, tmp_path / "again.html"))
    assert tree_hash(data) == before
    written = page_data(run.folder / "report.html")
    assert written["thumbnails"] == shown["thumbnails"] != []
    entry = shown["runs"][0]["confused"][0]
    assert entry["images"][0]["thumbnail"] is not None
    assert 0 < len(entry["own"]) <= 3
    assert sum(map(len, shown["thumbnails"])) < 1_500_000
    assert page_data(gpaco.report(run, tmp_path / "none.html", with_images=False))["thumbnails"] == []
    (data / "aardvark").mkdir()
    (data / "aardvark" / "0.png").write_bytes((data / "ant" / "0.png").read_bytes())
    assert "has changed" in page_data(gpaco.report(run, tmp_path / "more.html"))["runs"][0]["no_images"]
    (data / "cat").rename(tmp_path / "moved")
    assert "has changed" in page_data(gpaco.report(run, tmp_path / "less.html"))["runs"][0]["no_images"]
    data.rename(tmp_path / "gone")
    data = page_data(gpaco.report(run, tmp_path / "gone.html"))
    assert "does not exist" in data["runs"][0]["no_images"]
    assert data["thumbnails"] == []


@pytest.mark.slow
def test_an_image_that_was_left_out_or_broke_later_takes_no_other_off_the_page(tmp_path: Path) -> None:
    data = class_folders(tmp_path / "data", {"ant": 150, "bee": 20, "cat": 8})
    (data / "ant" / "0.png").write_bytes(b"no image")
    options = {"epochs": 1, "method": "ce", "on_bad_image": "skip", "say": lambda line: None}
    run = gpaco.train(data, out=tmp_path / "run", **options)
    shown = page_data(gpaco.report(run, tmp_path / "again.html"))
    assert shown["thumbnails"] == page_data(run.folder / "report.html")["thumbnails"] != []
    (data / "ant" / "1.png").write_bytes(b"none either")
    assert page_data(gpaco.report(run, tmp_path / "later.html"))["thumbnails"]


def test_a_run_notes_its_data_and_the_page_shows_it(tmp_path: Path) -> None:
    data = class_folders(tmp_path / "data", {"ant": 30, "bee": 12})
    (data / "ant" / "copy.png").write_bytes((data / "ant" / "0.png").read_bytes())
    (data / "ant" / "Thumbs.db").write_bytes(b"of Windows")
    settings = ["data.allow_leakage=true"]
    run = gpaco.train(data, out=tmp_path / "run", epochs=1, method="ce", settings=settings, say=lambda line: None)
    noted = json.loads((run.folder / "data.json").read_text())
    splits = splits_of(run.recipe)
    assert noted == json.loads(json.dumps(record(splits, limit=1000)))
    copies = noted["copies"]["within_a_part"] + noted["copies"]["in_two_parts"]
    assert any("ant/copy.png" in " ".join(group) and "ant/0.png" in " ".join(group) for group in copies)
    assert noted["parts"]["train"]["sha256"] == splits.train.list_hash
    assert record(splits, limit=5)["copies"] is None
    page = (run.folder / "report.html").read_text()
    assert "ant/copy.png" in page
    assert "left out: files that are not images (1 .db)" in page
    assert "<dt>unreadable files</dt><dd>none</dd>" in page
    assert noted["parts"]["test"]["sha256"] in page
    assert f"gpaco train {run.folder}/recipe.toml --out {run.folder}-again" in page
    assert f"SHA-256 <code>{_weights(run)}" in page


def _weights(run: Run) -> str:
    newest = max(run.folder.glob("checkpoints/step-*"))
    return json.loads((newest / "MANIFEST.json").read_text())["model.safetensors"]


def test_the_hash_of_a_list_changes_with_names_labels_and_order() -> None:
    train = read("digits").train
    some = [train.subset([0, 1, 2]), train.subset([1, 0, 2]), train.subset([0, 1])]
    assert len({part.list_hash for part in some}) == 3
    assert train.subset([0, 1, 2]).list_hash == some[0].list_hash


# Bad input


@pytest.mark.parametrize(
    ("what", "message"),
    [("predictions.npz", "has no predictions.npz"), ("metrics.json", "has not finished its first epoch")],
)
def test_a_run_without_its_files_is_an_error_with_a_remedy(what: str, message: str, tmp_path: Path) -> None:
    run = tail_run(tmp_path / "run")
    (run.folder / what).unlink()
    with pytest.raises(UserError, match=message):
        gpaco.report(run, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"no archive"])
def test_damaged_predictions_are_an_error_with_a_remedy(content: bytes, tmp_path: Path) -> None:
    run = tail_run(tmp_path / "run")
    (run.folder / "predictions.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"predictions\.npz is damaged"):
        gpaco.report(run, tmp_path / "page.html")


def test_predictions_of_another_run_are_refused(tmp_path: Path) -> None:
    run, other = tail_run(tmp_path / "run"), tail_run(tmp_path / "other", images=60)
    (run.folder / "predictions.npz").write_bytes((other.folder / "predictions.npz").read_bytes())
    with pytest.raises(UserError, match="does not belong to the metrics"):
        gpaco.report(run, tmp_path / "page.html")


def test_runs_with_other_classes_are_not_put_on_one_page(tail: Run, tmp_path: Path) -> None:
    other = tail_run(tmp_path / "other", classes=tuple(f"other {c}" for c in range(12)))
    with pytest.raises(UserError, match="do not have the same classes"):
        gpaco.report([tail, other], tmp_path / "page.html")


def test_a_page_needs_a_run_and_a_name_that_ends_in_html(tail: Run, tmp_path: Path) -> None:
    for function in (gpaco.report, gpaco.evaluate, gpaco.predict):
        with pytest.raises(UserError, match="give one or more runs"):
            function([], tmp_path / "page.html")
    with pytest.raises(UserError, match=r"ends in \.html"):
        gpaco.report(tail, tmp_path / "page.pdf")


@pytest.mark.parametrize(
    ("labels", "counts", "note"),
    [
        ([0, 0, 1, 1], [50, 30, 25], "1 class has no test images"),
        ([0, 1, 2, 0], [500, 300, 200], "No class is in the group medium or few"),
        ([0, 1, 2, 2], [500, 0, 200], "No class is in the group medium"),
        ([], [50, 30, 5], "3 classes have no test images"),
    ],
    ids=["class without test images", "empty groups", "class without training images", "no test images"],
)
def test_what_is_missing_is_a_note(labels: list[int], counts: list[int], note: str, tmp_path: Path) -> None:
    logits = np.random.default_rng(0).normal(0, 1, (len(labels), 3))
    run = write_run(tmp_path / "run", logits, labels, counts)
    other = write_run(tmp_path / "other", logits, labels, counts)
    for runs in (run, [run, other]):
        data = page_data(gpaco.report(runs, tmp_path / "page.html"))
        assert any(note in text for text in data["notes"]), data["notes"]
    assert "nan" not in (tmp_path / "page_files" / "summary.csv").read_text()


def test_a_single_class_has_a_page_too(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", np.zeros((5, 1)), [0] * 5, [10])
    assert page_data(gpaco.report(run, tmp_path / "page.html"))["runs"][0]["recall"] == [1.0]


def test_runs_on_other_images_or_counts_are_compared_with_a_note(tail: Run, tmp_path: Path) -> None:
    elsewhere = tail_run(tmp_path / "else", names=tuple(f"x/{i}" for i in range(300)))
    data = page_data(gpaco.report([tail, elsewhere], tmp_path / "page.html"))
    assert data["differences"] == [None, None]
    assert any("not tested on the same images" in note for note in data["notes"])
    assert data["sentence"].endswith("They were tested on different images, so this is not a comparison.")
    one = known(tail)
    more = write_run(tmp_path / "more", one.logits, one.labels, one.counts * 2)
    data = page_data(gpaco.report([tail, more], tmp_path / "page.html"))
    assert any("different numbers of training images" in note for note in data["notes"])
    assert data["runs"][1]["train"] == (one.counts * 2).tolist()


def test_runs_are_called_by_what_tells_them_apart(tmp_path: Path) -> None:
    def names(*folders: str) -> list[str]:
        runs = [Run(tmp_path / folder) for folder in folders]
        for run in runs:
            if not run.folder.exists():
                tail_run(run.folder, images=24)
        return [one.name for one in gather(runs)]

    assert names("a/seed-0", "b/seed-0") == ["a", "b"]
    assert names("a/seed-0", "b/seed-1") == ["a/seed-0", "b/seed-1"]
    assert names("a/seed-0") == ["seed-0"]
    assert names("a/seed-0", "a/seed-0") == ["seed-0 (1)", "seed-0 (2)"]
