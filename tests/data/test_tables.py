"""Tables and list files: what is read, noted and refused, each with its line, and that nothing is touched."""

from pathlib import Path

import pytest
from helpers.images import labeled, refused, save, watched
from hypothesis import given
from hypothesis import strategies as st

from gpaco.api.check import check
from gpaco.data.readers.read import read
from gpaco.errors import UserError


def table(folder: Path, text: str | bytes, name: str = "labels.csv") -> Path:
    """A table beside the images a.png, b.png, c d.png and sub/e,f.png."""
    for i, image in enumerate(("a.png", "b.png", "c d.png", "sub/e,f.png")):
        save(folder / image, seed=i)
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / name


def test_a_table_gives_paths_labels_and_splits(tmp_path: Path) -> None:
    text = 'id,file,species,split\n1,a.png,owl,train\n2,b.png,ant,train\n3,c d.png,owl,val\n4,"sub/e,f.png",ant,test\n'
    splits = watched(table(tmp_path, text))
    assert splits.reader == "CSV table"
    assert splits.classes == ("ant", "owl")
    assert labeled(splits.train) == [("a.png", "owl"), ("b.png", "ant")]
    assert labeled(splits.val) == [("c d.png", "owl")]
    assert labeled(splits.test) == [("sub/e,f.png", "ant")]
    assert splits.notes == ("columns: path = 'file', label = 'species', split = 'split'; not used: 'id'",)
    assert splits.train.load(1).shape == (10, 12, 3)


def test_odd_but_clear_tables_are_read_with_a_note(tmp_path: Path) -> None:
    for text, note in (
        (b"\xef\xbb\xbfpath,label\r\na.png,x\r\nb.png,y\r\n", "path = 'path'"),
        (b"path;label\na.png;x\nb.png;y\n", "separated by ';'"),
        (b"path , label\n a.png , x \n\n\n b.png , y", "label = 'label'"),
        (b'"path","label"\n"a.png","x"\n"b.png","y"\n', "path = 'path'"),
        (b"Image File Path,Class Name\na.png,x\nb.png,y\n", "path = 'Image File Path', label = 'Class Name'"),
        (b"filename,TARGET\na.png,x\nb.png,y\n", "label = 'TARGET'"),
        (b"image_class,image_name\nx,a.png\ny,b.png\n", "path = 'image_name', label = 'image_class'"),
        (b"path\tlabel\na.png\tx\nb.png\ty\n", "separated by tabs"),
        (b"path,label\na.png,x\nb.png,y\na.png,x\n./a.png,x\n", "dropped: 2 duplicate rows"),
    ):
        splits = watched(table(tmp_path, text))
        assert sorted(labeled(splits.train)) == [("a.png", "x"), ("b.png", "y")]
        assert note in "; ".join(splits.notes)


def test_text_that_is_not_utf8_is_read_as_latin1_with_a_note(tmp_path: Path) -> None:
    splits = watched(table(tmp_path, b"path;label\na.png;k\xe4fer\nb.png;owl\n"))
    assert splits.classes == ("käfer", "owl")
    assert "not UTF-8 (line 2), read as Latin-1" in splits.notes[0]


def test_whole_numbers_are_classes_in_numeric_order_and_anything_else_is_sorted_as_text(tmp_path: Path) -> None:
    for labels, classes in (
        (("10", "2", "9"), ("2", "9", "10")),
        (("-1", "1", "0"), ("-1", "0", "1")),
        (("2.0", "owl", "2"), ("2", "2.0", "owl")),
    ):
        rows = "".join(f"{name},{label}\n" for name, label in zip(("a.png", "b.png", "c d.png"), labels, strict=True))
        assert watched(table(tmp_path, "path,label\n" + rows)).classes == classes


def test_trouble_in_a_table_is_named_with_its_line(tmp_path: Path) -> None:
    for text, cause in (
        ("path,label\na.png,x\nb.png,\n", "line 3 of labels.csv has no label"),
        ("path,label\n,x\n", "line 2 of labels.csv has no path"),
        ("path,label\na.png\n", "line 2 of labels.csv has too few columns"),
        ("path,label\nsub/e,f.png,x\n", "line 2 of labels.csv has 3 columns"),
        ("path,label\na.png,x\nabsent.png,x\n", "1 of 2 images in labels.csv do not exist; the first is 'absent.png'"),
        ("path,label\nabsent.png,x\n", "none of the images in labels.csv exists"),
        ("path,label\na.png,x\nb.png,y\n\na.png,y\n", "lines 2 and 5 of labels.csv give 'a.png' two labels: 'x' and"),
        ("path,label\na.png,x\n../a.png,x\n", "line 3 of labels.csv points outside the data folder: '../a.png'"),
        ("path,label\n..\\a.png,x\n", "line 2 of labels.csv points outside the data folder: '../a.png'"),
        ("path,label\n/etc/passwd,x\n", "line 2 of labels.csv points outside"),
        ("path,label,split\na.png,x,train\nb.png,x,trian\n", "not train, val or test; did you mean 'train'?"),
        ("path,label,split\na.png,x,train\nb.png,y,test\n", "class without a training image: 'y' (only in val"),
        ("path,label,split\na.png,x,test\n", "no training images; read as CSV table"),
        ("path,lable\na.png,x\n", "no column with labels among 'path', 'lable'; did you mean 'lable'?"),
        ("one,two\n1,2\n", "no column with paths among 'one', 'two'"),
        ('path,label\n"a.png,x\nb.png,y\n', "labels.csv: unexpected end of data"),
        ("", "is empty"),
        ("path,label\n", "lists no images"),
        ("a.png,x\nb.png,y\n", "the first line of labels.csv is an image: 'a.png', 'x'"),
        ("img_0.png,class_cat\nimg_1.png,class_dog\n", "the first line of labels.csv is an image"),
    ):  # fmt: skip
        assert cause in refused(table(tmp_path, text)).cause
    utf_16 = refused(table(tmp_path, "path,label\na.png,x\n".encode("utf-16")))
    assert "not UTF-8 text" in utf_16.cause
    assert "save it as UTF-8" in utf_16.remedy


def test_absolute_paths_below_the_folder_or_root_are_inside_and_check_may_allow_others(tmp_path: Path) -> None:
    path = table(tmp_path / "in", f"path,label\n{tmp_path}/in/a.png,x\n{tmp_path}/in/b.png,y\n")
    assert labeled(watched(path).train) == [("a.png", "x"), ("b.png", "y")]
    (tmp_path / "other").mkdir()
    moved = path.rename(tmp_path / "other" / "labels.csv")
    with pytest.raises(UserError, match="points outside the data folder"):
        check(str(moved))
    for more in ({"root": str(tmp_path / "in")}, {"settings": ["data.allow_outside=true"]}):
        assert check(str(moved), **more)[0]["images"] == {"train": 2}
    with pytest.raises(UserError, match="check has no setting"):
        check(str(moved), settings=["data.seed=1"])


def test_a_table_may_be_written_on_windows(tmp_path: Path) -> None:
    save(tmp_path / "small" / "a" / "0.png")
    save(tmp_path / "back\\slash.png")
    path = table(tmp_path, "path,label\nsmall\\a\\0.png,x\nback\\slash.png,y\n")
    assert labeled(watched(path).train) == [("small/a/0.png", "x"), ("back\\slash.png", "y")]


def test_a_table_may_lead_outside_if_that_is_allowed(tmp_path: Path) -> None:
    outside = save(tmp_path / "out.png", seed=9)
    path = table(tmp_path / "in", f"path,label\na.png,x\n../out.png,x\n{outside},y\n")
    assert "--set data.allow_outside=true" in refused(path).remedy
    splits = watched(path, allow_outside=True)
    assert len(splits.train) == 3
    assert (splits.train.load(1) == splits.train.load(2)).all()


def test_a_table_reads_images_from_the_root_given(tmp_path: Path) -> None:
    table(tmp_path / "images", "")
    (tmp_path / "labels.csv").write_text("path,label\na.png,x\nb.png,y\n")
    assert "--root" in refused(tmp_path / "labels.csv").remedy
    assert len(watched(tmp_path / "labels.csv", root=tmp_path / "images").train) == 2
    assert "is not a folder" in refused(tmp_path / "labels.csv", root=tmp_path / "nowhere").cause


def test_a_table_of_missing_files_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = table(tmp_path, "path,label\n" + "".join(f"{i}.png,x\n" for i in range(10_000)))
    assert "none of the images" in refused(path).cause
    path.write_text("path,label\na.png,x\n" + "".join(f"{i}.png,x\n" for i in range(10_000)))
    assert "at least 100 of 101 images" in refused(path).cause


@given(
    st.text(max_size=200) | st.text(alphabet='apth,labe"\n\r;\t .01ng', max_size=60).map("path,label\na.png,".__add__)
)
def test_any_text_as_a_table_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    if not folder.exists():
        save(folder / "a.png")
    for name in ("any.csv", "any.txt"):
        (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            assert len(read(folder / name).train) == 1
        except UserError as error:
            lines = str(error).split("\n")
            if len(lines) != 2:
                raise AssertionError(f"not two lines: {lines}") from error


def test_a_tsv_is_separated_by_tabs(tmp_path: Path) -> None:
    splits = watched(table(tmp_path, "path\tlabel\nsub/e,f.png\tone, two\nb.png\ty\n", "labels.tsv"))
    assert splits.reader == "TSV table"
    assert splits.classes == ("one, two", "y")


def test_a_parquet_table_is_read_and_a_broken_one_refused(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    path = table(tmp_path, "", "labels.parquet")
    columns = {
        "picture": [b"\x89PNG", b"x"],
        "file_name": ["a.png", "b.png"],
        "label": pyarrow.array([10, 9]),
        "split": pyarrow.array(["train", "train"]).dictionary_encode(),
    }
    parquet.write_table(pyarrow.table(columns), path)
    splits = watched(path)
    assert splits.reader == "Parquet table"
    assert splits.classes == ("9", "10")
    assert labeled(splits.train) == [("a.png", "10"), ("b.png", "9")]
    parquet.write_table(pyarrow.table(columns | {"label": ["x", None]}), path)
    assert "line 2 of labels.parquet has no label" in refused(path).cause
    path.write_bytes(path.read_bytes()[:-20])
    assert "as Parquet" in refused(path).cause
    path.write_bytes(b"hello")
    assert "as Parquet" in refused(path).cause


def lists(folder: Path, **texts: str) -> Path:
    """List files `x_{name}.txt` beside some images; the path of the train list."""
    for i in range(6):
        save(folder / "n 01" / f"{i} x.png", seed=i)
    for name, text in texts.items():
        (folder / f"x_{name}.txt").write_bytes(text.encode())
    return folder / "x_train.txt"


def test_the_label_of_a_list_line_is_after_the_last_blank(tmp_path: Path) -> None:
    splits = watched(lists(tmp_path, train="\ufeffn 01/0 x.png 1\r\nn 01/1 x.png\t0\r\n\r\nn 01/2 x.png   1\r\n"))
    assert splits.reader == "list file"
    assert splits.classes == ("0", "1")
    assert labeled(splits.train) == [("n 01/0 x.png", "1"), ("n 01/1 x.png", "0"), ("n 01/2 x.png", "1")]


def test_a_train_list_finds_its_siblings(tmp_path: Path) -> None:
    texts = {"train": "n 01/0 x.png 0\nn 01/1 x.png 1\n", "val": "n 01/2 x.png 1\n", "test": "n 01/3 x.png 0\n"}
    splits = watched(lists(tmp_path, **texts))
    assert [(name, len(part)) for name, part in splits.parts()] == [("train", 2), ("val", 1), ("test", 1)]
    assert splits.notes == ("val list: x_val.txt", "test list: x_test.txt")
    assert watched(tmp_path / "x_test.txt").test is None


def test_lists_named_by_longer_words_or_in_capitals_are_siblings_too(tmp_path: Path) -> None:
    lists(tmp_path, train="n 01/0 x.png 0\nn 01/1 x.png 1\n", val="n 01/2 x.png 1\n", test="n 01/3 x.png 0\n")
    for split, name in {"train": "Training.txt", "val": "Validation.txt", "test": "Testing.txt"}.items():
        (tmp_path / f"x_{split}.txt").rename(tmp_path / name)
    assert watched(tmp_path / "Training.txt").notes == ("val list: Validation.txt", "test list: Testing.txt")


def test_the_counts_of_published_lists_are_checked_by_name(tmp_path: Path) -> None:
    path = lists(tmp_path, train="n 01/0 x.png 0\n").rename(tmp_path / "ImageNet_LT_train.txt")
    assert watched(path).notes == ("ImageNet_LT_train.txt has 1 images, the published list has 115846",)


def test_a_list_without_its_images_asks_for_their_root(tmp_path: Path) -> None:
    path = lists(tmp_path / "images", train="n 01/0 x.png 0\n").rename(tmp_path / "x_train.txt")
    error = refused(path)
    assert "none of the images in x_train.txt exists" in error.cause
    assert "--root" in error.remedy
    assert len(watched(path, root=tmp_path / "images").train) == 1


def test_trouble_in_a_list_is_named_with_its_line(tmp_path: Path) -> None:
    for text, cause in (
        ("n 01/0 x.png 0\nn 01/1 x.png 2\n", "class without a training image: '1'"),
        ("n 01/0 x.png 1\nn 01/1 x.png 2\n", "class without a training image: '0'"),
        ("n 01/0 x.png 0\nn 01/1 x.png 0.5\n", "line 2 of x_train.txt: the label '0.5' is not a class index"),
        ("n 01/0 x.png 99999999999\n", "is not a class index"),
        ("n 01/0 x.png cat\n", "the label 'cat' is not a class index"),
        ("n01/0x.png\n", "it needs a path and a label"),
        ("n 01/0 x.png 0\nn 01/9 x.png 0\n", "1 of 2 images in x_train.txt do not exist; the first is 'n 01/9 x.png'"),
        ("../n 01/0 x.png 0\n", "line 1 of x_train.txt points outside"),
        ("n 01/0 x.png 0\nn 01/0 x.png 1\n", "lines 1 and 2 of x_train.txt give 'n 01/0 x.png' two labels"),
        ("\n\n", "lists no images"),
    ):  # fmt: skip
        assert cause in refused(lists(tmp_path, train=text)).cause


def test_gaps_in_the_labels_of_a_list_can_be_allowed(tmp_path: Path) -> None:
    path = lists(tmp_path, train="n 01/0 x.png 1\nn 01/1 x.png 2\n")
    assert "number the labels from 0" in refused(path).remedy
    splits = watched(path, allow_empty_classes=True)
    assert splits.train.counts.tolist() == [0, 1, 1]
