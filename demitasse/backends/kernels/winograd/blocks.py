"""Blocks of strips of tiles, their division among threads, and scratch memory.

A block of strips goes through stages. A thread with a chunk of its own runs all stages of each of
the chunk's blocks. If all threads work on the same block, each stage is a call of the kernel, since
a stage reads the other threads' results of the stage before. Between calls the team waits only for
running parts; at a barrier it would wait for a thread without a core.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Arguments, Scratch, Struct, Values
from demitasse.backends.kernels.language.values import FLOAT, Word, choose, chunk
from demitasse.backends.kernels.winograd import WinogradSchedule, odd_lines


class TileFields(Struct):
    """Transformed tiles of a block in a stack: a matrix (tiles, channels) at each position."""

    start_bytes: Word
    """Bytes from the beginning of the stack."""
    tile_bytes: Word
    position_bytes: Word


class BlockFields(Struct):
    """Division of strips into blocks, and among threads."""

    strips: Word
    tile_rows: Word
    """Rows of tiles of an image."""
    tile_columns: Word
    """Columns of tiles of an image."""
    chunks: Word
    blocks: Word
    """Blocks of a chunk."""
    shared: Word
    """1 if all threads share one chunk, else 0."""
    first_block: Word
    """The first block of a chunk in this call."""
    end_block: Word
    first_stage: Word
    """The first stage of a block in this call, counted from 0."""
    end_stage: Word
    tiles: TileFields
    """Tiles of the input."""
    sums: TileFields
    """Tiles of the output."""
    scratch: Scratch
    """Scratch of each thread, and behind them the stack of each chunk."""
    private_bytes: Word
    """Bytes of a thread's scratch."""
    stacks_bytes: Word
    """Bytes of all threads' scratch."""
    stack_bytes: Word


class Strip(NamedTuple):
    """A row of tiles of an image, in the kernel; ``tile`` is the first one's index in the block."""

    image: Word
    row: Word
    tile: Word


class Block(NamedTuple):
    """Block of strips, in the kernel.

    Attributes:
        first: Index of the first strip.
        strips, tiles: Numbers of strips and tiles.
        chunk: Index of the chunk.
        again: 0 for the chunk's first block, else more.
        private, stack: Addresses of this thread's scratch and of the chunk's stack.
        member, members: Number of this thread, and of all threads that share the block.
    """

    k: Kernel
    fields: BlockFields
    first: Word
    strips: Word
    tiles: Word
    chunk: Word
    again: Word
    private: Word
    stack: Word
    member: Word
    members: Word

    def bounds(self, count: Word | int) -> tuple[Word, Word]:
        """Return the begin and end of this thread's part of ``count`` items of the block."""
        return chunk(self.k.word(count), self.member, self.members)

    def place(self, tiles: TileFields, position: Word | int = 0, tile: Word | int = 0) -> Word:
        """Return the address of a tile's channels at a position."""
        here = tiles.position_bytes * position + tiles.tile_bytes * tile
        return self.stack + tiles.start_bytes + here

    @contextmanager
    def stage(self, number: int) -> Iterator[None]:
        """Write the instructions of a stage, counted from 0."""
        f = self.fields
        with self.k.when((f.first_stage <= number) & (f.end_stage > number)):
            yield

    @contextmanager
    def each_strip(self) -> Iterator[Strip]:
        """Write a loop over the strips of this thread's part."""
        begin, end = self.bounds(self.strips)
        rows, columns = self.fields.tile_rows, self.fields.tile_columns
        with self.k.loop(end, begin) as strip:
            number = self.first + strip.i
            yield Strip(number // rows, number % rows, strip.i * columns)


@contextmanager
def each_block(k: Kernel, f: BlockFields) -> Iterator[Block]:
    """Write a loop over the blocks of strips, chunk by chunk."""
    thread, threads = k.thread()
    shared = f.shared > 0
    member, members = choose(shared, thread, 0), choose(shared, threads, 1)
    # every thread takes the only chunk, or its own ones
    with (
        k.loop(f.chunks, thread - member, threads // members) as own,
        k.loop(f.end_block, f.first_block) as block,
    ):
        first, last = chunk(f.strips, own.i * f.blocks + block.i, f.chunks * f.blocks)
        yield Block(
            k,
            f,
            first=first,
            strips=last - first,
            tiles=(last - first) * f.tile_columns,
            chunk=own.i,
            again=block.i,
            private=f.scratch + thread * f.private_bytes,
            stack=f.scratch + f.stacks_bytes + own.i * f.stack_bytes,
            member=member,
            members=members,
        )


class BlockedKernel:
    """Base of kernels that work on blocks of strips.

    Args:
        kernel: Address of the kernel.
        struct: The kernel's arguments: ``blocks``, and those of which ``given`` has the values.
        stages: Stages of a block.

    Attributes:
        scratch_size: Elements of scratch memory for a run.
        stacks_start: Elements of scratch memory before the first chunk's stack.
    """

    def __init__(
        self, schedule: WinogradSchedule, kernel: SupportsIndex, struct: type[Struct], stages: int,
        **given: Any,
    ) -> None:  # fmt: skip
        (down, across), (_, columns) = schedule.filtering, schedule.grid
        pixels = down.side * (columns * across.outputs + across.side)  # a strip, with its zeros
        private = odd_lines(pixels * schedule.width)
        tiles = schedule.positions * schedule.tile_position_stride
        stack = odd_lines(tiles + schedule.positions * schedule.sum_position_stride)
        self.schedule, self._kernel = schedule, kernel
        self.stacks_start = schedule.tuning.threads * private
        self.scratch_size = self.stacks_start + schedule.chunks * stack

        def arguments(blocks: range, stages: range) -> Arguments:
            fields = BlockFields.values(
                strips=schedule.strips,
                tile_rows=schedule.grid[0],
                tile_columns=columns,
                chunks=schedule.chunks,
                blocks=schedule.blocks,
                shared=int(schedule.shared),
                first_block=blocks.start,
                end_block=blocks.stop,
                first_stage=stages.start,
                end_stage=stages.stop,
                tiles=_tiles(0, schedule.tile_stride, schedule.tile_position_stride),
                sums=_tiles(tiles, schedule.sum_stride, schedule.sum_position_stride),
                private_bytes=FLOAT * private,
                stacks_bytes=FLOAT * self.stacks_start,
                stack_bytes=FLOAT * stack,
            )
            return Arguments(struct.values(blocks=fields, **given))

        if schedule.shared:
            each = product(range(schedule.blocks), range(stages))
            self._calls = [arguments(range(n, n + 1), range(s, s + 1)) for n, s in each]
        else:
            self._calls = [arguments(range(schedule.blocks), range(stages))]

    def run(self, scratch: np.ndarray, each: Mapping[str, np.ndarray]) -> None:
        """Run the kernel on all blocks, with arrays for the addresses that lack a value.

        Raises:
            ValueError: The scratch memory has less than :attr:`scratch_size` elements.
        """
        if scratch.size < self.scratch_size:
            message = (
                f"{scratch.size} elements of scratch memory were given; give {self.scratch_size}"
            )
            raise ValueError(message)
        each = {"blocks.scratch": scratch, **each}
        for call in self._calls:
            call.run(self._kernel, self.schedule.tuning.threads, each)


def _tiles(start: int, stride: int, position_stride: int) -> Values:
    return TileFields.values(
        start_bytes=FLOAT * start, tile_bytes=FLOAT * stride, position_bytes=FLOAT * position_stride
    )
