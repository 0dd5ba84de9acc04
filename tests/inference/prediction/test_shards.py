"""Which share of a work is a process's."""

import pytest

from demitasse.errors import ConfigError
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
    ("text", "environment", "message"),
    [
        ("", {}, 'a shard is "i/n", "auto" or "auto/n"'),
        ("3", {}, 'a shard is "i/n"'),
        ("-1/3", {}, 'a shard is "i/n"'),
        ("3/3", {}, "says shard 3 of 3"),
        ("0/0", {}, "says shard 0 of 0"),
        ("0/200000", {}, "which is 1 to 100000"),
        ("auto", {}, "nothing says which shard this is"),
        ("auto", {"JOB_COMPLETION_INDEX": "1"}, "does not say how many.*--shard auto/n"),
        ("auto/3", MPI, "--shard says 3 shards, Open MPI .* says 4"),
        ("auto", {**MPI, **ARRAY}, "both say which shard"),
        ("auto/2", {"JOB_COMPLETION_INDEX": "two"}, "'two', which is no number"),
        ("auto/2", {"JOB_COMPLETION_INDEX": "2"}, "says shard 2 of 2"),
    ],
)
def test_what_says_no_shard_is_refused(text, environment, message):
    with pytest.raises(ConfigError, match=message):
        find_shard(text, environment)
