"""Parts that are put together come from anywhere: damaged ones are refused by name."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import DataError, ErrorCode
from demitasse.inference.prediction import join_parts
from demitasse.io.weights.npz import write_npz

SOUND = {
    "prob": np.zeros((2, 3), np.float32),
    "items": np.array(["a", "b"]),
    "made_from": np.array("these items"),
}
SOURCE = b'{"made_from": "these items"}\n'


@pytest.fixture
def parts(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    return folder


def part(folder, index, count=2, kind="npz"):
    return folder / f"part-{index:05}-of-{count:05}.{kind}"


@pytest.mark.parametrize(
    ("changed", "code", "mentions"),
    [
        ({"items": None}, ErrorCode.CORRUPT, "'items'"),
        ({"items": np.array([1, 2])}, ErrorCode.CORRUPT, "'items'"),
        ({"made_from": None}, ErrorCode.CORRUPT, "--force"),
        ({"made_from": np.array(["these items", "others"])}, ErrorCode.CORRUPT, "--force"),
        ({"prob": None}, ErrorCode.INCOMPATIBLE, ""),
        ({"prob": np.zeros((2, 4), np.float32)}, ErrorCode.INCOMPATIBLE, ""),
        ({"prob": np.zeros((2, 3), np.float64)}, ErrorCode.INCOMPATIBLE, ""),
        ({"prob": np.zeros((1, 3), np.float32)}, ErrorCode.CORRUPT, ["'prob'", "(1, 3)"]),
    ],
)
def test_arrays_of_another_form_are_refused(parts, changed, code, mentions):
    write_npz(part(parts, 0), SOUND)
    write_npz(part(parts, 1), {k: v for k, v in {**SOUND, **changed}.items() if v is not None})

    with expect_error(DataError, code, mentions=mentions) as refused:
        join_parts(parts, parts / "all.npz")

    assert refused.value.source == str(part(parts, 1))
    assert not (parts / "all.npz").exists()


@pytest.mark.parametrize("place", ["start", "middle", "end"])
def test_damaged_archives_are_refused(parts, place):
    for index in range(2):
        write_npz(part(parts, index), SOUND)
        content = bytearray(part(parts, index).read_bytes())
        at = {"start": 0, "middle": content.index(b"\x93NUMPY") + 130, "end": len(content) - 25}
        content[at[place]] ^= 1
        part(parts, index).write_bytes(content)

    with expect_error(DataError, mentions="part-00000-of-00002.npz"):
        join_parts(parts, parts / "all.npz")


@pytest.mark.parametrize(
    "content",
    [b"", b"none\n", b"[" * 999 + b"\n", b'{"made_from": null}\n', b'{"made_from": [1]}\n'],
)
def test_lines_that_are_no_part_are_refused(parts, content):
    part(parts, 0, 1, "jsonl").write_bytes(content)

    with expect_error(DataError, ErrorCode.CORRUPT, mentions="part-00000-of-00001.jsonl"):
        join_parts(parts, parts / "all.jsonl")


def test_lines_that_are_no_text_are_refused(parts):
    part(parts, 0, 1, "jsonl").write_bytes(SOURCE + b"\xff\xfe\n")

    with expect_error(DataError, ErrorCode.UNREADABLE, mentions=["part-00000-of-00001", "0xff"]):
        join_parts(parts, parts / "all.jsonl")


def test_lines_end_where_newlines_are(parts):
    line = '{"item": "a\u2028b"}\n'.encode()
    part(parts, 0, 1, "jsonl").write_bytes(SOURCE + line)

    join_parts(parts, parts / "all.jsonl")

    assert (parts / "all.jsonl").read_bytes() == line


def test_there_are_no_parts_of_none(parts):
    write_npz(part(parts, 0, 0), SOUND)

    with expect_error(DataError, ErrorCode.NOT_FOUND, mentions=str(parts)):
        join_parts(parts, parts / "all.npz")
