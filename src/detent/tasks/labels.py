"""Labels of tags, of objects, of pixels and of pairs, as people keep them on disk.

| task    | labels                                              | one of them                                          |
| ------- | --------------------------------------------------- | ---------------------------------------------------- |
| tag     | a table of file and labels                          | `cat.jpg,3 17`, or a column for each: `cat.jpg,0,1`  |
| detect  | a folder of NAME.txt beside the images (YOLO)       | `class cx cy w h`, as shares of the image            |
| detect  | a .json file (COCO instances)                       | `bbox: [x, y, w, h]` in pixels, `iscrowd`            |
| segment | a folder of NAME.png                                | the class of each pixel; 255 is ignored              |
| embed   | a .npz file with `first`, `second` and `score`      | how alike two samples are: tokens, arrays or numbers |

An image without a .txt file has no objects. A polygon in such a file stands for its bounding box. COCO's categories are
the model's classes by their names, if the model has names; else by their order, if there are as many of them; else by
their own numbers, as torchvision's models have them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from detent.errors import DataError
from detent.observe.images import Size
from detent.observe.rows import load_npz, npz_shapes
from detent.settings import parse_json, read_text
from detent.tasks import Task
from detent.tasks.detection import Floats, Truths

IGNORED = 255  # A pixel of no class

PAIR_KEYS = ("first", "second", "score")
CLASS_LISTS = ("classes.txt", "notes.txt")  # files that labelling tools put among the labels

_MOST_CLASSES = 1 << 20
_SLACK = 0.001  # how far a share may be beyond 1: labels are rounded


@dataclass(frozen=True)
class ObjectList:
    """The objects of one image: boxes x1, y1, x2, y2, as shares of the image or in its pixels. `origin` names it."""

    boxes: Floats
    categories: npt.NDArray[np.int64]
    crowds: npt.NDArray[np.bool_]
    origin: str
    relative: bool = True
    size: Size | None = None

    def in_pixels(self, size: Size) -> Floats:
        """Return the boxes in pixels of an image of this height and width. Raise DataError if it is another image."""
        if self.relative:
            return self.boxes * np.array([size[1], size[0], size[1], size[0]], np.float32)
        if self.size is not None and self.size != size:
            raise DataError(
                f"{self.origin} is {self.size[1]}x{self.size[0]} by its labels, but the file is {size[1]}x{size[0]}: "
                "boxes in pixels do not fit. Use the images that were labelled."
            )
        return self.boxes


@dataclass(frozen=True)
class BoxLabels:
    """The objects of each image. `classes_of` translates categories to classes of a model."""

    task: ClassVar[Task] = Task.DETECT

    described: str
    objects: Mapping[str, ObjectList]
    categories: Mapping[int, str] | None = None
    open_names: bool = False
    note: str = ""

    def assign(self, names: Sequence[str], place: str) -> BoxLabels:
        """Return the labels of these samples, by their names. Raise DataError for one without its partner.

        With `open_names`, an image that is not named has no objects.
        """
        keys = _keys(names, self.objects, without_ending=self.open_names)
        found = {name: self.objects[key] for name, key in keys.items() if key is not None}
        if self.open_names:
            none = (np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, np.bool_))
            found = {name: found.get(name) or ObjectList(*none, name) for name in keys}
        missing = [name for name in names if name not in found]
        check_partners(missing, set(self.objects) - set(keys.values()), self.described, place)
        bare = sum(key is None for key in keys.values())
        said = f"{bare} of {len(names)} images have no label file and count as images without objects." if bare else ""
        return BoxLabels(self.described, found, self.categories, False, " ".join(filter(None, (self.note, said))))

    def classes_of(self, classes: int, names: Sequence[str], *, by_number: bool = False) -> Mapping[int, int]:
        """Return the class of each category, for a model with so many classes (0: unknown) of these names.

        `by_number` is for models whose answers are COCO's own numbers. Raise DataError if which is which is not known.
        """
        used = sorted({int(each) for objects in self.objects.values() for each in objects.categories})
        if self.categories is None:
            return self._numbered(used, classes)
        by_name = {name.casefold(): at for at, name in enumerate(names)}
        if by_name and all(self.categories[each].casefold() in by_name for each in used):
            return {each: by_name[self.categories[each].casefold()] for each in used}
        if by_number or len(self.categories) != classes > max(self.categories):
            return {each: each for each in used}
        ordered = {category: at for at, category in enumerate(sorted(self.categories))}
        if classes in (0, len(ordered)):
            return {each: ordered[each] for each in used}
        raise DataError(
            f"{self.described} has {len(ordered)} categories, but the model has {classes} classes: which of them is "
            "which is not known. Give the categories the names or the numbers that the model's classes have."
        )

    def _numbered(self, used: Sequence[int], classes: int) -> Mapping[int, int]:
        outside = [each for each in used if classes and each >= classes]
        if outside:
            image = next(one for one in self.objects.values() if outside[-1] in one.categories)
            box = image.categories.tolist().index(outside[-1]) + 1
            raise DataError(
                f"{image.origin}, box {box}, has the class {outside[-1]}, but the model has the classes 0 to "
                f"{classes - 1}. Labels count from 0, and they must be those of the model's own classes."
            )
        return {each: each for each in used}

    def truths(self, name: str, size: Size, classes: Mapping[int, int]) -> Truths:
        """Return the objects of an image in its pixels, in the classes of a model."""
        objects = self.objects[name]
        kinds = [classes[int(each)] for each in objects.categories]
        return Truths.of(objects.in_pixels(size), kinds, objects.crowds)


def _keys(names: Sequence[str], known: Mapping[str, Any], *, without_ending: bool) -> dict[str, str | None]:
    """Return under which key each sample is known: its path or, where that is unknown, its file name alone."""
    short: dict[str, str | None] = {}
    for key in known:
        last = PurePosixPath(key).name
        short[last] = None if last in short else key  # two of a name say nothing
    found = {}
    for name in names:
        path = PurePosixPath(name)
        if without_ending:
            path = path.with_suffix("")
        key = str(path)
        found[name] = key if key in known else short.get(path.name)
    return found


def read_yolo(folder: Path) -> BoxLabels:
    """Read a folder of text files, one for each image that has objects."""
    files = sorted(file for file in folder.rglob("*.txt") if file.name not in CLASS_LISTS)
    if not files:
        raise DataError(f"{folder} has no labels: there is no .txt file in it.")
    objects, polygons = {}, 0
    for file in files:
        found, outlined = _yolo_file(file)
        polygons += outlined
        objects[file.relative_to(folder).with_suffix("").as_posix()] = found
    if not any(len(each.categories) for each in objects.values()):
        raise DataError(f"All {len(files)} label files in {folder} are empty: there is no object to find.")
    note = f"{polygons} polygons in {folder} are judged by their bounding boxes." if polygons else ""
    return BoxLabels(f"{folder.name}/ (YOLO)", objects, None, True, note)


def _yolo_file(file: Path) -> tuple[ObjectList, int]:
    rows: list[list[float]] = []
    polygons = 0
    for number, line in enumerate(label_text(file).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        try:
            kind, *values = (float(cell) for cell in line.split())
        except ValueError:
            raise DataError(f"{where}: expected numbers, class cx cy w h, found '{line.strip()[:80]}'.") from None
        if not 0 <= kind < _MOST_CLASSES or kind != int(kind):
            raise DataError(f"{where}: the class {line.split()[0]} is not a whole number from 0.")
        if len(values) == 5:
            raise DataError(f"{where}: six numbers are a detection with its score, not a label: class cx cy w h.")
        if len(values) != 4 and (len(values) < 6 or len(values) % 2):
            raise DataError(f"{where}: expected class cx cy w h, found {len(values) + 1} numbers.")
        if not all(0.0 <= value <= 1.0 + _SLACK for value in values):
            raise DataError(
                f"{where}: the box lies outside the image ({' '.join(line.split()[1:5])}). Labels are shares of its "
                "width and height, from 0 to 1, not pixels."
            )
        if len(values) > 4:
            polygons += 1
            xs, ys = values[::2], values[1::2]
            rows.append([kind, min(xs), min(ys), max(xs), max(ys)])
        else:
            x, y, width, height = values
            rows.append([kind, x - width / 2, y - height / 2, x + width / 2, y + height / 2])
    table = np.array(rows, np.float64).reshape(-1, 5)
    kinds = table[:, 0].astype(np.int64)
    return ObjectList(table[:, 1:].astype(np.float32), kinds, np.zeros(len(kinds), np.bool_), str(file)), polygons


def read_coco(file: Path) -> BoxLabels:
    """Read a file of COCO's form: images, annotations and categories."""
    try:
        raw = parse_json(label_text(file))
    except ValueError as error:
        raise DataError(f"{file} is not valid JSON, or only part of it ({error}).") from error
    tables = {
        name: raw.get(name) if isinstance(raw, dict) else None for name in ("images", "annotations", "categories")
    }
    for name, table in tables.items():
        if not isinstance(table, list) or not all(isinstance(row, dict) for row in table):
            raise DataError(f"{file}: expected COCO's instances, with a list '{name}' of objects.")
    images = {_field(row, "id", file, "an image"): row for row in tables["images"] or ()}
    categories = {_field(row, "id", file, "a category"): str(row.get("name", "")) for row in tables["categories"] or ()}
    if not all(isinstance(each, int) and abs(each) < _MOST_CLASSES for each in categories):
        raise DataError(f"{file}: the id of a category is a whole number, not {next(iter(categories))!r}.")
    rows: dict[Any, list[tuple[list[float], int, bool]]] = {key: [] for key in images}
    for row in tables["annotations"] or ():
        _add_annotation(row, rows, images, categories, file)
    if not any(rows.values()):
        raise DataError(f"{file} has no annotations: there is no object to find.")
    objects = {}
    for key, image in images.items():
        name = str(_field(image, "file_name", file, f"image {key}"))
        origin = f"{name} in {file.name}"
        boxes = np.array([box for box, _, _ in rows[key]], np.float32).reshape(-1, 4)
        kinds = np.array([kind for _, kind, _ in rows[key]], np.int64)
        crowds = np.array([crowd for _, _, crowd in rows[key]], np.bool_)
        objects[name] = ObjectList(boxes, kinds, crowds, origin, False, _size_of(image))
    return BoxLabels(f"{file.name} (COCO)", objects, categories)


def _add_annotation(
    row: Mapping[str, Any],
    rows: Mapping[Any, list[tuple[list[float], int, bool]]],
    images: Mapping[Any, Mapping[str, Any]],
    categories: Mapping[int, str],
    file: Path,
) -> None:
    where = f"{file}: annotation {row.get('id', '?')}"
    image, category = _field(row, "image_id", file, where), _field(row, "category_id", file, where)
    if image not in images:
        raise DataError(f"{where} is of image {image}, which is not among its images.")
    if category not in categories:
        raise DataError(f"{where} has the category {category}, which is not among its categories.")
    box = row.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(_is_number(each) for each in box):
        raise DataError(f"{where} has no bbox of four numbers, x, y, width and height.")
    x, y, width, height = map(float, box)
    size = _size_of(images[image])
    slack = 2.0  # COCO itself has boxes that end a pixel outside
    outside = size is not None and (x + width > size[1] + slack or y + height > size[0] + slack)
    if min(x, y) < -slack or min(width, height) < 0 or outside:
        raise DataError(f"{where}: the box {box} lies outside its image, {images[image].get('file_name')}.")
    rows[image].append(([x, y, x + width, y + height], int(category), bool(row.get("iscrowd", 0))))


def _size_of(image: Mapping[str, Any]) -> Size | None:
    height, width = image.get("height"), image.get("width")
    return (height, width) if isinstance(height, int) and isinstance(width, int) else None


def _field(row: Mapping[str, Any], name: str, file: Path, what: str) -> Any:
    value = row.get(name)
    if not isinstance(value, (int, str)):
        raise DataError(f"{what if str(file) in what else f'{file}: {what}'} has no '{name}'.")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


@dataclass(frozen=True)
class TagLabels:
    """The tags of each sample. `columns` is how many tags the table knows, if it has a column for each."""

    task: ClassVar[Task] = Task.TAG

    described: str
    tags: Mapping[str, Sequence[int]]
    columns: int | None = None
    note: str = ""

    def assign(self, names: Sequence[str], place: str) -> TagLabels:
        """Return the labels of these samples, by their names. Raise DataError for one without its partner."""
        keys = _keys(names, self.tags, without_ending=False)
        missing = [name for name, key in keys.items() if key is None]
        check_partners(missing, set(self.tags) - set(keys.values()), self.described, place)
        found = {name: self.tags[key] for name, key in keys.items() if key is not None}
        return TagLabels(self.described, found, self.columns, self.note)

    def truths(self, names: Sequence[str], count: int) -> npt.NDArray[np.bool_]:
        """Return which of `count` tags each sample has. Raise DataError for a tag that the model does not have."""
        if self.columns is not None and self.columns != count:
            raise DataError(
                f"{self.described} has {self.columns} columns of tags, but the model has {count} tags. Each column is "
                "the model's tag at its place."
            )
        table = np.zeros((len(names), count), np.bool_)
        for row, name in enumerate(names):
            outside = [tag for tag in self.tags[name] if not 0 <= tag < count]
            if outside:
                raise DataError(
                    f"{name} has the tag {outside[0]} in {self.described}, but the model has the tags 0 to {count - 1}."
                )
            table[row, list(self.tags[name])] = True
        return table


@dataclass(frozen=True)
class MaskLabels:
    """A picture of classes for each image."""

    task: ClassVar[Task] = Task.SEGMENT

    described: str
    files: Mapping[str, Path]
    note: str = ""

    def assign(self, names: Sequence[str], place: str) -> MaskLabels:
        """Return the labels of these samples, by their names. Raise DataError for one without its partner."""
        keys = _keys(names, self.files, without_ending=True)
        missing = [name for name, key in keys.items() if key is None]
        check_partners(missing, set(self.files) - set(keys.values()), self.described, place, "mask")
        return MaskLabels(self.described, {name: self.files[key] for name, key in keys.items() if key is not None})

    def mask(self, name: str) -> npt.NDArray[np.int64]:
        """Return the class of each pixel of an image."""
        from PIL import Image

        file = self.files[name]
        try:
            with Image.open(file) as picture:
                mode, pixels = picture.mode, np.asarray(picture)
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(f"{file}: this mask cannot be read ({error}).") from error
        if pixels.ndim != 2:
            raise DataError(f"{file}: a mask has one number for each pixel, the index of its class, not {mode} colors.")
        return pixels.astype(np.int64)


def read_masks(folder: Path) -> MaskLabels:
    files = {file.relative_to(folder).with_suffix("").as_posix(): file for file in sorted(folder.rglob("*.png"))}
    if not files:
        raise DataError(f"{folder} has no labels: there is no .txt file (boxes) and no .png file (masks) in it.")
    return MaskLabels(f"{folder.name}/ (masks)", files)


@dataclass(frozen=True)
class PairLabels:
    """How alike two samples are, for each pair. `first` and `second` are places among the samples, in their order."""

    task: ClassVar[Task] = Task.EMBED

    described: str
    first: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64]
    score: npt.NDArray[np.float64]
    note: str = ""

    def assign(self, names: Sequence[str], place: str) -> PairLabels:
        """Return these labels. Raise DataError for a pair of samples that do not exist."""
        last = int(max(self.first.max(), self.second.max()))
        if last >= len(names) or min(self.first.min(), self.second.min()) < 0:
            raise DataError(f"{self.described} has a pair with sample {last}, but there are {len(names)} {place}.")
        return self


TaskLabels = TagLabels | BoxLabels | MaskLabels | PairLabels


@dataclass(frozen=True)
class PairFile:
    """The content of a file of pairs."""

    first: npt.NDArray[Any]
    second: npt.NDArray[Any]
    score: npt.NDArray[np.float64]
    name: str

    @property
    def holds_samples(self) -> bool:
        """Whether it holds the samples themselves, and not their numbers."""
        return self.first.ndim > 1

    def labels(self, kept: Sequence[int] = ()) -> PairLabels:
        """Return the pairs as labels; if the file holds samples, those of the pairs `kept` (see `samples`)."""
        described = f"{self.name} (pairs)"
        if not self.holds_samples:
            return PairLabels(described, self.first.astype(np.int64), self.second.astype(np.int64), self.score)
        places = 2 * np.arange(len(kept), dtype=np.int64)
        return PairLabels(described, places, places + 1, self.score[list(kept)])

    def samples(self, kept: Sequence[int]) -> npt.NDArray[Any]:
        """Return the samples of these pairs: first, second, first, second, ..."""
        both = np.stack([self.first[list(kept)], self.second[list(kept)]], axis=1)
        return both.reshape(-1, *self.first.shape[1:])


def is_pair_file(file: Path) -> bool:
    """Tell whether a file holds pairs with scores."""
    return file.suffix.lower() == ".npz" and file.is_file() and set(PAIR_KEYS) <= set(npz_shapes(file))


def read_pairs(file: Path) -> PairFile:
    arrays = load_npz(file)
    missing = [key for key in PAIR_KEYS if key not in arrays]
    if missing:
        raise DataError(f"{file}: pairs are arrays first, second and score; '{missing[0]}' is missing.")
    first, second, score = (arrays[key] for key in PAIR_KEYS)
    if first.shape != second.shape or score.shape != first.shape[:1]:
        raise DataError(
            f"{file}: expected one first, second and score for each pair, found the shapes {list(first.shape)}, "
            f"{list(second.shape)} and {list(score.shape)}."
        )
    if first.ndim == 1 and first.dtype.kind not in "iu":
        raise DataError(
            f"{file}: first and second are {first.dtype.name}; expected numbers of samples, or the samples."
        )
    if len(score) < 3 or not np.isfinite(score).all() or len(set(score.tolist())) < 2:
        raise DataError(f"{file}: a ranking needs at least three pairs, with finite scores that are not all equal.")
    return PairFile(first, second, score.astype(np.float64), file.name)


def label_text(file: Path) -> str:
    """Return the text of a file of labels. Raise DataError if it cannot be read."""
    try:
        return read_text(file)
    except OSError as error:
        raise DataError(f"Cannot read {file}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file} is not a text file in UTF-8 or marked UTF-16: {error.reason} at byte {error.start}."
        ) from error


def check_partners(
    missing: Sequence[str], unused: Collection[str], described: str, place: str, kind: str = "label"
) -> None:
    """Raise DataError for samples that have no label, or for labels of samples that are not there."""
    if missing:
        have = "has" if len(missing) == 1 else "have"
        raise DataError(
            f"{some(missing)} {place} {have} no {kind} in {described}. Add what is missing, or take the files out."
        )
    if unused:
        are = "is" if len(unused) == 1 else "are"
        raise DataError(
            f"{described} has {kind}s for {some(sorted(unused))}, which {are} not among the samples {place}. Put the "
            f"files there, or take the {kind}s out."
        )


def some(names: Sequence[str]) -> str:
    """List the first few names, and count the others."""
    shown = ", ".join(f"'{name}'" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
