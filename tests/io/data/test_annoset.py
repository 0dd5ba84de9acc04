"""Databases of images and the objects in them."""

import json
from contextlib import closing

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.io.data.databases.annotation_files import LABEL_TYPES, read_labels, read_objects
from demitasse.io.data.databases.database import open_db, records
from demitasse.io.data.databases.datum import datum_to_array, objects_in
from demitasse.io.data.images.codecs import read_image
from demitasse.io.data.imageset import Annotations, ImageSet, convert_imageset
from demitasse.io.proto import AnnotatedDatum

Image = pytest.importorskip("PIL.Image")

LABELS = {"cat": 3, "dog": 1, "17": 5}

XML = """<annotation><size><width>40</width><height>20</height></size>
<object><name>dog</name><difficult>1</difficult>
  <part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>
  <bndbox><xmin>10</xmin><ymin>5</ymin><xmax>30</xmax><ymax>20</ymax></bndbox></object>
<object><name>cat</name><bndbox><xmax>40</xmax><ymax>10</ymax></bndbox></object>
<object><name>dog</name>
  <bndbox><xmin>20</xmin><ymin>0</ymin><xmax>40</xmax><ymax>2</ymax></bndbox></object>
</annotation>"""

JSON = json.dumps(
    {
        "image": {"height": 20, "width": 40},
        "annotation": [
            {"category_id": 17, "bbox": [10, 5, 20, 15], "iscrowd": 1},
            {"category_id": "cat", "bbox": [0, 0, 40, 10]},
        ],
    }
)

WANT = {
    "xml": [
        (1, (0.25, 0.25, 0.75, 1), True),
        (3, (0, 0, 1, 0.5), False),
        (1, (0.5, 0, 1, 0.1), False),
    ],
    "json": [(5, (0.25, 0.25, 0.75, 1), True), (3, (0, 0, 1, 0.5), False)],
    "txt": [(2, (0.25, 0.25, 0.75, 1), False), (7, (0, 0, 1, 0.5), False)],
}
CONTENT = {"xml": XML, "json": JSON, "txt": "2 10 5 30 20\n7 0 0 40 10\n9 9\n"}


@pytest.fixture
def photos(tmp_path):
    """Two images of 20 x 40 pixels, one with a file of objects of each kind, and their lists."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, 20, 40, 3), np.uint8)
    for name, image in zip("ab", pixels, strict=True):
        Image.fromarray(image).save(tmp_path / f"{name}.png")
    for kind, content in CONTENT.items():
        (tmp_path / f"a.{kind}").write_text(content, "utf-8-sig")
        (tmp_path / f"{kind}.list").write_text(f"a.png a.{kind}\nb.png b.{kind}\n")
    return tmp_path


def convert(photos, kind="xml", backend="LMDB", **fields):
    """Make a database; return its keys and records."""
    how = ImageSet(annotations=Annotations(kind, LABELS), **fields)
    convert_imageset(
        f"{photos}/", photos / f"{kind}.list", photos / "db", how, backend=backend, skip=False
    )
    with (
        closing(open_db(photos / "db", backend)) as database,
        closing(database.new_cursor()) as cursor,
    ):
        return {key: AnnotatedDatum.FromString(bytes(v)) for key, v in records(cursor)}


@pytest.mark.parametrize("kind", LABEL_TYPES)
def test_files_say_what_is_where(photos, kind):
    objects = read_objects(photos / f"a.{kind}", kind, LABELS, (20, 40))

    assert objects == WANT[kind]


@pytest.mark.parametrize("kind", LABEL_TYPES)
@pytest.mark.parametrize("database", ["LMDB", "LEVELDB"])
def test_records_hold_an_image_and_its_objects(photos, kind, database):
    found = convert(photos, kind, database)

    assert list(found) == [b"00000000_a.png", b"00000001_b.png"]
    first, second = found.values()
    np.testing.assert_array_equal(datum_to_array(first.datum), read_image(photos / "a.png"))
    assert first.type == AnnotatedDatum.BBOX
    assert first.datum.label == -1
    assert len(objects_in(first)) == len(WANT[kind])
    assert not second.annotation_group  # there is no such file


def test_classes_stand_in_the_order_in_which_they_come(photos):
    found = convert(photos)[b"00000000_a.png"]

    groups = [
        (g.group_label, [a.instance_id for a in g.annotation]) for g in found.annotation_group
    ]
    assert groups == [(1, [0, 1]), (3, [0])]


def test_labels_of_classification_are_labels(photos):
    (photos / "list").write_text("a.png 4\n")
    how = ImageSet(annotations=Annotations(), encode_type="png", check_size=True)

    convert_imageset(f"{photos}/", photos / "list", photos / "db", how)

    with closing(open_db(photos / "db", "LMDB")) as database, closing(database.new_cursor()) as c:
        record = AnnotatedDatum.FromString(bytes(c.value()))
    assert record.datum.label == 4
    assert record.datum.data == (photos / "a.png").read_bytes()
    assert not record.HasField("type")


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ({"min_dim": 30}, (30, 60)),
        ({"min_dim": 10}, (20, 40)),
        ({"max_dim": 30}, (15, 30)),
        ({"min_dim": 30, "max_dim": 50}, (25, 50)),
        ({"max_dim": 33, "resize_height": 9, "resize_width": 9}, (16, 33)),
        ({"resize_height": 9, "resize_width": 7}, (9, 7)),
    ],
)
def test_sizes_are_opencvs(photos, fields, size):
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed")
    image = cv2.imread(str(photos / "a.png"))

    pixels = datum_to_array(convert(photos, **fields)[b"00000000_a.png"].datum)

    height, width = size
    if "resize_height" in fields and "max_dim" not in fields:
        want = cv2.resize(image, (width, height))
    else:
        longest = fields.get("max_dim", 0)
        enlarged = max(fields.get("min_dim", 0), 20) / 20
        scale = longest / 40 if longest and enlarged * 40 > longest else enlarged
        want = cv2.resize(image, None, fx=float(np.float32(scale)), fy=float(np.float32(scale)))
    assert want.shape[:2] == size
    np.testing.assert_array_equal(pixels, want.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("xml", "<annotation><object></annotation>"),
        ("xml", "<annotation><object><bndbox/></object></annotation>"),
        ("xml", "<annotation><size><height>0</height><width>0</width></size></annotation>"),
        ("xml", '<!DOCTYPE a [<!ENTITY b "c">]><annotation/>'),
        ("json", "[1]"),
        ("json", "[" * 100_000),
        ("json", '{"annotation": [{"bbox": [1, 2, 3], "category_id": "cat"}]}'),
        (
            "json",
            '{"annotation": [{"bbox": [1, 2, 3, Infinity], "category_id": 1, "iscrowd": NaN}]}',
        ),
        ("json", f'{{"annotation": [{{"bbox": [1, 2, 3, {"9" * 400}], "category_id": 1}}]}}'),
        ("json", '{"annotation": [], "image": {"height": Infinity, "width": 1}}'),
        ("txt", "cat 1 2 3 4"),
    ],
)
def test_damaged_files_are_told(tmp_path, kind, content):
    file = tmp_path / "damaged"
    file.write_text(content)

    with expect_error(DataError, mentions="damaged"):  # the name of the file
        read_objects(file, kind, LABELS, (20, 40))


def test_a_damaged_file_of_objects_is_named_rather_than_its_image(photos):
    (photos / "a.xml").write_text("none")

    with expect_error(DataError, ErrorCode.UNREADABLE, place=str(photos / "a.xml")):
        convert(photos)


def test_an_impossible_name_of_a_file_of_objects_is_a_bad_record(photos):
    (photos / "list").write_text(f"a.png a.xml\nb.png {'b' * 3000}.xml\n")
    how = ImageSet(annotations=Annotations("xml", LABELS))

    done = convert_imageset(f"{photos}/", photos / "list", photos / "db", how)

    assert done == (1, 1)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_xml_that_would_grow_is_refused_in_every_encoding(tmp_path, encoding):
    file = tmp_path / "growing.xml"
    entities = "".join(f'<!ENTITY e{i + 1} "{f"&e{i};" * 10}">' for i in range(8))
    text = f'<!DOCTYPE a [<!ENTITY e0 "0123456789">{entities}]><annotation>&e8;</annotation>'
    file.write_text(text, encoding=encoding)

    with expect_error(DataError, ErrorCode.UNREADABLE, mentions="'a'"):  # the doctype
        read_objects(file, "xml", LABELS, (20, 40))


@pytest.mark.parametrize("side", ["-1", "0", str(1 << 32), "9" * 400])
@pytest.mark.parametrize("kind", ["xml", "json"])
def test_an_image_that_no_memory_could_hold_is_refused(tmp_path, kind, side):
    file = tmp_path / "large"
    box = "<object><name>cat</name><bndbox/></object>"
    file.write_text(
        f"<a><size><height>{side}</height><width>5</width></size>{box}</a>"
        if kind == "xml"
        else f'{{"image": {{"height": {side}, "width": 5}}, "annotation": []}}'
    )

    with expect_error(DataError, ErrorCode.OUT_OF_RANGE):
        read_objects(file, kind, LABELS, (20, 40))


def test_a_class_that_the_map_does_not_have_ends_the_conversion(photos):
    (photos / "a.xml").write_text(XML.replace("cat", "cow"))

    with expect_error(ConfigError, ErrorCode.UNKNOWN, mentions="'cow'"):
        convert(photos)


def test_a_box_beyond_its_image_is_kept_with_a_warning(photos, caplog):
    (photos / "a.xml").write_text(XML.replace("<xmax>30<", "<xmax>50<"))

    found = convert(photos)[b"00000000_a.png"]

    assert objects_in(found)[0, 4] == 1.25
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert all(name in record.getMessage() for name in ("a.xml", "50.0", "20 x 40"))


def test_names_that_are_there_twice_are_refused_when_told(tmp_path):
    file = tmp_path / "map"
    file.write_text('item { name: "a" label: 1 } item { name: "a" label: 2 }')

    assert read_labels(file) == {"a": 2}
    with expect_error(ConfigError, ErrorCode.DUPLICATE, field="name"):
        read_labels(file, check=True)
