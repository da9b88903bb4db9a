from __future__ import annotations

import numpy as np
import pytest

from detent.errors import DataError
from detent.evaluation.dataset import Labels, class_folders, find_labels, read_label_file
from detent.tasks.labels import TagLabels


def make(folder, *names):
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("folders", "numbers"),
    [
        (["cat", "dog", "bee"], {"bee": 0, "cat": 1, "dog": 2}),
        (["10", "9", "2"], {"10": 10, "9": 9, "2": 2}),
        (["1", "2b"], {"1": 0, "2b": 1}),
    ],
)
def test_class_folders(tmp_path, folders, numbers):
    make(tmp_path, *(f"{folder}/deep/x.jpg" for folder in folders))
    found = find_labels(tmp_path)
    assert found.data == tmp_path
    assert found.labels.by_name == {f"{folder}/deep/x.jpg": number for folder, number in numbers.items()}
    assert found.labels.assumed_classes == (None if "9" in folders else len(folders))


def test_a_list_of_classes_numbers_the_folders(tmp_path):
    make(tmp_path, "n02/a.jpg", "n00/b.jpg")
    (tmp_path / "classes.txt").write_text("n00 tench, a fish\nn01\nn02\n")
    labels = class_folders(tmp_path)
    assert labels.by_name == {"n02/a.jpg": 2, "n00/b.jpg": 0}
    assert labels.assumed_classes is None
    (tmp_path / "classes.txt").write_text("n00\nn01\n")
    with pytest.raises(DataError, match=r"classes.txt has no line for the class folder 'n02'"):
        class_folders(tmp_path)


@pytest.mark.parametrize(
    "names", [["a.jpg", "b.jpg"], ["a.jpg", "cat/b.jpg", "dog/c.jpg"], ["only/a.jpg", "only/b.jpg"]]
)
def test_no_labels(tmp_path, names):
    assert find_labels(make(tmp_path, *names)).labels is None


def test_folders_of_inputs_are_no_classes(tmp_path):
    make(tmp_path, "ids/0.npy", "mask/0.npy")
    assert find_labels(tmp_path, ["ids", "mask"]).labels is None
    assert find_labels(tmp_path).labels is not None


def test_two_folders_of_one_number(tmp_path):
    with pytest.raises(DataError, match=r"the same number \(01, 1\)"):
        find_labels(make(tmp_path, "1/a.jpg", "01/b.jpg"))


@pytest.mark.parametrize(
    "text",
    [
        "file,label\na.jpg,3\nsub/b.jpg,0\n",
        "a.jpg,3\nsub/b.jpg,0\n",
        "\ufeffa.jpg;3\r\n\r\nsub\\b.jpg;0\r\n",
        "image\tsplit\tclass\na.jpg\tval\t3\nsub/b.jpg\tval\t0\n",
        "label,file\n3,images/a.jpg\n0,./sub/b.jpg\n",
        '"a.jpg",3\n"sub/b.jpg", 0\n',
        "a.jpg 3\nsub/b.jpg   0\n",
    ],
)
@pytest.mark.parametrize("name", ["labels.csv", "labels.txt"])
def test_label_files(tmp_path, text, name):
    make(tmp_path, "images/a.jpg", "images/sub/b.jpg")
    (tmp_path / name).write_text(text, newline="")
    found = find_labels(tmp_path)
    assert found.data == tmp_path / "images"
    assert found.labels.by_name == {"a.jpg": 3, "sub/b.jpg": 0}
    assert found.labels.described == name


def test_images_beside_the_labels(tmp_path):
    make(tmp_path, "one two.jpg")
    (tmp_path / "labels.txt").write_text("one two.jpg 7")
    found = find_labels(tmp_path)
    assert found.data == tmp_path
    assert found.labels.by_name == {"one two.jpg": 7}


def test_labels_in_order(tmp_path):
    (tmp_path / "labels.txt").write_text("4\n0\n2\n")
    labels = read_label_file(tmp_path / "labels.txt", tmp_path)
    np.testing.assert_array_equal(labels.assign(["a", "b", "c"], "here"), [4, 0, 2])
    with pytest.raises(DataError, match=r"labels.txt has 3 labels, but there are 2 samples from x/"):
        labels.assign(["a", "b"], "from x/")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("file,label\na.jpg,seven\n", "line 2: the label 'seven' is not a whole number"),
        ("a.jpg,seven\nb.jpg,8\n", "line 1: expected the header file,label"),
        ("a.jpg,1\nb.jpg\n", "line 2: expected file,label, found 'b.jpg'"),
        ("a.jpg,1\n\na.jpg,2\n", "line 3: 'a.jpg' has a label already"),
        ("name,number\na.jpg,1\n", "line 1: expected the header"),
        ("1\n2.5\n", "line 2: the label '2.5'"),
    ],
)
def test_label_files_that_make_no_sense(tmp_path, text, message):
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        find_labels(tmp_path)


def test_two_label_files(tmp_path):
    for name in ("labels.csv", "labels.txt"):
        (tmp_path / name).write_text("a.jpg,1")
    with pytest.raises(DataError, match=r"has both labels.csv and labels.txt"):
        find_labels(tmp_path)


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "labels.csv").write_bytes(b"a.jpg,1\n\xff\xfe,2")
    with pytest.raises(DataError, match="not a text file in UTF-8"):
        find_labels(tmp_path)


def test_samples_and_labels_must_pair():
    labels = Labels(dict.fromkeys("abcdef", 0), (), "labels.csv")
    np.testing.assert_array_equal(labels.assign(list("fedcba"), "from x/"), np.zeros(6))
    with pytest.raises(DataError, match=r"'g', 'h', 'i' and 2 more from x/ have no label in labels.csv"):
        labels.assign(list("abcdefghijk"), "from x/")
    with pytest.raises(DataError, match=r"'g' from x/ has no label"):
        labels.assign(list("abcdefg"), "from x/")
    with pytest.raises(
        DataError, match=r"labels for 'c', 'd', 'e' and 1 more, which are not among the samples from x/"
    ):
        labels.assign(["a", "b"], "from x/")


def test_rows_have_the_label_of_their_file():
    labels = Labels({"cat/many.npy": 3, "dog/a[1].jpg": 1}, (), "2 class folders")
    names = ["cat/many.npy[0]", "cat/many.npy[1]", "dog/a[1].jpg"]
    np.testing.assert_array_equal(labels.assign(names, "here"), [3, 3, 1])
    with pytest.raises(DataError, match=r"'bird/x.npy\[0\]' here has no label"):
        labels.assign([*names, "bird/x.npy[0]"], "here")


@pytest.mark.parametrize("row", ["a.png," + "9" * 30, "a.png," + "9" * 5000, '"' + "a" * 200_000 + ",1"])
def test_labels_that_no_number_can_be_and_cells_without_an_end(tmp_path, row):
    (tmp_path / "labels.csv").write_text(f"file,label\n{row}\n")
    with pytest.raises(DataError, match="labels.csv, line 2"):
        read_label_file(tmp_path / "labels.csv", tmp_path)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("file,labels\na.png,0 2\nb.png,\nc.png,1\n", None),
        ("image,tags\nimages/a.png,0|2\nimages/b.png,\nimages/c.png,1\n", None),
        ('file,label\na.png,"0,2"\nb.png,\nc.png,1\n', None),
        ("file,sun,sea,cat\na.png,1,0,1\nb.png,0,0,0\nc.png,0,1,0\n", 3),
    ],
)
def test_several_labels_of_a_sample_are_tags(tmp_path, text, columns):
    make(tmp_path / "images", "a.png", "b.png", "c.png")
    (tmp_path / "labels.csv").write_text(text)
    found = find_labels(tmp_path).labels
    assert isinstance(found, TagLabels)
    assert (dict(found.tags), found.columns) == ({"a.png": [0, 2], "b.png": [], "c.png": [1]}, columns)
    table = found.assign(["a.png", "b.png", "c.png"], "here").truths(["c.png", "a.png"], 3)
    assert table.tolist() == [[False, True, False], [True, False, True]]
    with pytest.raises(DataError, match="2 tags|tag 2"):
        found.truths(["a.png"], 2)
    with pytest.raises(DataError, match=r"d\.png"):
        found.assign(["a.png", "b.png", "c.png", "d.png"], "here")


def test_a_sample_of_no_class_is_not_one_of_no_tags(tmp_path):
    (tmp_path / "labels.csv").write_text("file,label\na.png,3\nb.png,\n")
    with pytest.raises(DataError, match=r"'b\.png' has no label"):
        find_labels(tmp_path)


def test_a_column_of_labels_beside_another_of_0_and_1_is_one_label(tmp_path):
    make(tmp_path / "images", "a.png", "b.png")
    (tmp_path / "labels.csv").write_text("file,label,fold\na.png,1,0\nb.png,0,1\n")
    found = find_labels(tmp_path).labels
    assert isinstance(found, Labels) and dict(found.by_name) == {"a.png": 1, "b.png": 0}


def test_a_sample_with_two_lines_of_tags_is_an_error(tmp_path):
    (tmp_path / "labels.csv").write_text("file,sun,sea\na.png,1,0\na.png,0,1\n")
    with pytest.raises(DataError, match=r"line 3: 'a\.png' has tags already"):
        find_labels(tmp_path)
