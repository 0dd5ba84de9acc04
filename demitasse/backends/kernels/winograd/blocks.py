"""Blocks of strips of tiles, their division among threads, and scratch memory.

A block of strips goes through stages. A thread with a chunk of its own runs all stages of each of
the chunk's blocks. If all threads work on the same block, each stage is a call of the kernel, since
a stage reads the other threads' results of the stage before. Between calls the team waits only for
running parts; at a barrier it would wait for a thread without a core.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Scratch, Struct, Values
from demitasse.backends.kernels.language.values import FLOAT, Word, choose, chunk, minimum
from demitasse.backends.kernels.winograd import WinogradSchedule, odd_lines


class StripFields(Struct):
    """Division of strips among threads."""

    strips: Word
    strips_per_block: Word
    chunks: Word
    shared: Word
    """1 if all threads share one chunk, else 0."""
    block_index: Word
    first_stage: Word
    """The first stage of a block that is run, counted from 0."""
    end_stage: Word
    """End of the stages, exclusive."""
    tile_rows: Word
    """Rows of tiles of an image."""
    tile_columns: Word
    """Columns of tiles of an image."""
    private: Scratch
    """Scratch of each thread, ``private_bytes`` apart."""
    private_bytes: Word
    stacks: Scratch
    """Stack of each chunk, ``stack_bytes`` apart."""
    stack_bytes: Word


class Block:
    """Block of strips, in the kernel.

    Attributes:
        first: Index of the first strip.
        strips, tiles: Numbers of strips and tiles.
        chunk: Index of the chunk.
        again: 1 after the chunk's first block, else 0.
        scratch, stack: Addresses of this thread's scratch and of the chunk's stack.
    """

    def __init__(
        self, k: Kernel, f: StripFields, *, first: Word, strips: Word, chunk: Word, again: Word,
        thread: Word, threads: Word,
    ) -> None:  # fmt: skip
        shared = f.shared > 0
        self._k, self._f = k, f
        self._member, self._members = choose(shared, thread, 0), choose(shared, threads, 1)
        self.first, self.strips, self.chunk, self.again = first, strips, chunk, again
        self.tiles = strips * f.tile_columns
        self.scratch = f.private + f.private_bytes * thread
        self.stack = f.stacks + f.stack_bytes * chunk

    def bounds(self, count: Word) -> tuple[Word, Word]:
        """Return the begin and end of this thread's part of ``count`` items of the block."""
        return chunk(count, self._member, self._members)

    @contextmanager
    def stage(self, number: int) -> Iterator[None]:
        """Write the instructions of a stage, counted from 0."""
        f = self._f
        with self._k.when((f.first_stage <= number) & (f.end_stage > number)):
            yield


class Strip(NamedTuple):
    """A row of tiles of an image, in the kernel; ``tile`` is the first one's index in the block."""

    image: Word
    row: Word
    tile: Word


@contextmanager
def each_block(k: Kernel, f: StripFields) -> Iterator[Block]:
    """Write a loop over the blocks of strips, chunk by chunk."""
    thread, threads = k.thread()
    shared = f.shared > 0
    chunks = choose(shared, 1, f.chunks)
    with k.loop(chunks, choose(shared, 0, thread), choose(shared, 1, threads)) as mine:
        first, last = chunk(f.strips, mine.i, chunks)
        blocks = (last - first + f.strips_per_block - 1) // f.strips_per_block
        begin, end = choose(shared, f.block_index, 0), choose(shared, f.block_index + 1, blocks)
        with k.loop(end, begin) as block_index:
            start = first + block_index.i * f.strips_per_block
            yield Block(
                k, f, first=start, strips=minimum(f.strips_per_block, last - start), chunk=mine.i,
                again=minimum(block_index.i, 1), thread=thread, threads=threads,
            )  # fmt: skip


@contextmanager
def each_strip(k: Kernel, f: StripFields, block: Block) -> Iterator[Strip]:
    """Write a loop over the strips of this thread's part of a block."""
    first, last = block.bounds(block.strips)
    with k.loop(last, first) as strip:
        number = block.first + strip.i
        yield Strip(number // f.tile_rows, number % f.tile_rows, strip.i * f.tile_columns)


class ScratchLayout:
    """Division of the scratch memory of a kernel over strips.

    Each thread's part has the copy of a strip. Behind the threads' parts, each chunk has a stack:
    the transformed tiles of a block, and their sums.

    Attributes:
        size: Number of elements.
        sums_bytes: Bytes from a stack's beginning to the output.
    """

    def __init__(self, tiling: WinogradSchedule) -> None:
        down, across = tiling.filtering
        columns = tiling.grid[1] * across.outputs + across.side
        copy = down.side * columns * tiling.width
        tiles, sums = (
            tiling.positions * stride
            for stride in (tiling.tile_position_stride, tiling.sum_position_stride)
        )
        private, stack = odd_lines(copy), odd_lines(tiles + sums)
        self._threads = tiling.threads * private
        self.size = self._threads + (1 if tiling.shared else tiling.chunks) * stack
        self.sums_bytes = FLOAT * tiles
        self._tiling = tiling
        self._bytes = {"private_bytes": FLOAT * private, "stack_bytes": FLOAT * stack}

    def calls(self, stages: int) -> list[Values]:
        """Return values of the fields of strips for each call of a kernel, in order.

        Each of a block's stages is a call if all threads work on the same block.
        """
        tiling = self._tiling
        if not tiling.shared:
            return [self._values(0, range(stages))]
        blocks = -(-tiling.strips // tiling.strips_per_block)
        return [
            self._values(block_index, range(stage, stage + 1))
            for block_index in range(blocks)
            for stage in range(stages)
        ]

    def _values(self, block_index: int, stages: range) -> Values:
        tiling = self._tiling
        return StripFields.values(
            strips=tiling.strips,
            strips_per_block=tiling.strips_per_block,
            chunks=tiling.chunks,
            shared=int(tiling.shared),
            block_index=block_index,
            first_stage=stages.start,
            end_stage=stages.stop,
            tile_rows=tiling.grid[0],
            tile_columns=tiling.grid[1],
            **self._bytes,
        )

    def divide(self, memory: np.ndarray) -> dict[str, np.ndarray]:
        """Return the threads' part of some memory, and the stacks'.

        Raises:
            ValueError: The memory has less than :attr:`size` elements.
        """
        if memory.size < self.size:
            message = f"{memory.size} elements of scratch memory were given; give {self.size}"
            raise ValueError(message)
        private, stacks = memory[: self._threads], memory[self._threads : self.size]
        return {"strips.private": private, "strips.stacks": stacks}
