"""``demitasse largest-batch``."""

import json

import pytest
from cli_errors import failed_with
from wide_net import NET

from demitasse.errors import ErrorCode


@pytest.fixture
def path(tmp_path):
    written = tmp_path / "wide.prototxt"
    written.write_text(NET)
    return written


def test_the_verb(path, run):
    flags = f"{path} --device numpy --phase test --limit 8MiB --no-confirm"

    shown = run(f"largest-batch {flags}")
    told = json.loads(run(f"largest-batch {flags} --json").stdout)

    assert shown.exit_code == 0
    assert f"a batch of {told['batch']:,} fits in 8.0 MiB on numpy, phase TEST" in shown.stdout
    assert "it was not run" in shown.stdout
    assert told["use"]["total"] == sum(v for k, v in told["use"].items() if k != "total")


def test_the_verb_ends_with_4_where_nothing_fits(path, run):

    shown = run(f"largest-batch {path} --device numpy --limit 64KiB --no-confirm")

    failed_with(shown, 4, ErrorCode.OUT_OF_MEMORY)
