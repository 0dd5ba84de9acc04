"""Which share of a work is a process's."""

import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, ErrorCode
from demitasse.inference.prediction import Shard, find_shard

ARRAY = {
    "SLURM_ARRAY_TASK_ID": "14",
    "SLURM_ARRAY_TASK_MIN": "10",
    "SLURM_ARRAY_TASK_STEP": "2",
    "SLURM_ARRAY_TASK_COUNT": "5",
}
MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
ALONE = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("total", [0, 1, 10, 19])
def test_shares_are_neighbours_and_leave_nothing_out(total, count):
    shares = [Shard(index, count).part_of(total) for index in range(count)]

    assert [number for share in shares for number in share] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("0/1", {}, "0/1"),
        ("3/8", MPI, "3/8"),
        ("auto", MPI, "1/4"),
        ("auto/4", MPI, "1/4"),
        ("auto", ARRAY, "2/5"),
        ("auto", {**ARRAY, **ALONE}, "2/5"),
        ("auto", ALONE, "0/1"),
        ("auto/16", {"JOB_COMPLETION_INDEX": "15"}, "15/16"),
        ("auto", {"PMI_RANK": "2", "PMI_SIZE": "3"}, "2/3"),
        ("auto", {"SLURM_PROCID": "5", "SLURM_NTASKS": "6"}, "5/6"),
        ("auto", {**MPI, "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, "1/4"),
    ],
)
def test_a_shard_is_found(text, environment, expected):
    assert str(find_shard(text, environment)) == expected


def test_it_is_told_who_says_so():
    assert find_shard("auto", ARRAY).where == "a Slurm array (SLURM_ARRAY_TASK_ID)"


@pytest.mark.parametrize(
    ("text", "environment", "code", "mentions"),
    [
        ("", {}, ErrorCode.INVALID, ['"i/n"', '"auto/n"']),
        ("3", {}, ErrorCode.INVALID, ["'3'", '"i/n"']),
        ("-1/3", {}, ErrorCode.INVALID, ["'-1/3'", '"i/n"']),
        ("3/3", {}, ErrorCode.OUT_OF_RANGE, "3 of 3"),
        ("0/0", {}, ErrorCode.OUT_OF_RANGE, "0 of 0"),
        ("0/200000", {}, ErrorCode.OUT_OF_RANGE, "100000"),
        ("auto", {}, ErrorCode.MISSING, "--shard i/n"),
        ("auto", {"JOB_COMPLETION_INDEX": "1"}, ErrorCode.MISSING, "--shard auto/n"),
        ("auto/3", MPI, ErrorCode.CONFLICT, ["3", "Open MPI", "4"]),
        ("auto", {**MPI, **ARRAY}, ErrorCode.CONFLICT, ["Open MPI", "Slurm"]),
        ("auto/2", {"JOB_COMPLETION_INDEX": "two"}, ErrorCode.INVALID, "'two'"),
        ("auto/2", {"JOB_COMPLETION_INDEX": "2"}, ErrorCode.OUT_OF_RANGE, "2 of 2"),
    ],
)
def test_what_says_no_shard_is_refused(text, environment, code, mentions):
    with expect_error(ConfigError, code, mentions=mentions):
        find_shard(text, environment)
