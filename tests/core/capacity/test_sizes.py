"""Sizes as people read and write them."""

import pytest

from demitasse.core.capacity import bytes_text, read_size


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"),
     (1 << 40, "1024.0 GiB")],
)  # fmt: skip
def test_sizes_are_readable(nbytes, text):
    assert bytes_text(nbytes) == text


@pytest.mark.parametrize(
    ("written", "nbytes"),
    [("8GiB", 8 << 30), ("8 gib", 8 << 30), ("1.5g", 3 << 29), ("500MB", 500_000_000), (7, 7),
     ("64 KiB", 64 << 10), ("10 bytes", 10), ("2T", 2 << 40), ("3b", 3)],
)  # fmt: skip
def test_sizes_are_read_as_they_are_written(written, nbytes):
    assert read_size(written) == nbytes


@pytest.mark.parametrize("written", ["", "much", "-1", "8 GiBs", "1e9", True, None])
def test_what_is_no_size_is_refused(written):
    with pytest.raises(ValueError, match="is no size of memory; write 8GiB"):
        read_size(written)


@pytest.mark.parametrize("written", [10**400, "1" + 400 * "0" + "TiB", "18000000000GiB"])
def test_what_no_memory_has_is_refused(written):
    with pytest.raises(ValueError, match="more memory than can be addressed"):
        read_size(written)
