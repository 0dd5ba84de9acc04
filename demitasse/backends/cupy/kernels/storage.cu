// Values from Real to 16 bits and back, and transposed.

KERNEL narrow(const Real* x, Stored* y, Index count) {
  const bool whole = aligned(x, y);
  each_pack(count, [&](Index i, auto lanes) {
    store(y, i, whole, lanes, load(x, i, whole, lanes));
  });
}

// y = x, or y + x with `add`.
KERNEL widen(const Stored* x, Real* y, Index count, Index add) {
  const bool whole = aligned(x, y);
  each_pack(count, [&](Index i, auto lanes) {
    Pack pack = load(x, i, whole, lanes);
    if (add) {
      const Pack other = load(y, i, whole, lanes);
      for (int k = 0; k < lanes.number; ++k) pack.lane[k] += other.lane[k];
    }
    store(y, i, whole, lanes, pack);
  });
}

// x (samples, rows, columns) -> samples of (columns, rows), in tiles of SIDE by SIDE that one block
// reads and writes row by row: write(at, value).
#define SIDE 32

template <class Write>
__device__ inline void transpose(const Stored* __restrict__ x, Index samples, Index rows,
                                 Index columns, Write write) {
  __shared__ Stored tile[SIDE][SIDE + 1];
  const Index down = (rows + SIDE - 1) / SIDE, across = (columns + SIDE - 1) / SIDE;
  EACH_ROW(t, samples * down * across) {
    const Index row = t / across % down * SIDE, column = t % across * SIDE;
    const Index first = t / (across * down) * rows * columns;
    EACH_IN_ROW(k, SIDE * SIDE) {
      const Index r = k / SIDE, c = k % SIDE;
      const bool inside = row + r < rows && column + c < columns;
      if (inside) tile[r][c] = x[first + (row + r) * columns + column + c];
    }
    __syncthreads();
    EACH_IN_ROW(k, SIDE * SIDE) {
      const Index r = k % SIDE, c = k / SIDE;
      const bool inside = row + r < rows && column + c < columns;
      if (inside) write(first + (column + c) * rows + row + r, tile[r][c]);
    }
    __syncthreads();
  }
}

// y = x transposed, bit by bit.
KERNEL transposed(const Stored* __restrict__ x, Stored* __restrict__ y, Index samples, Index rows,
                  Index columns) {
  transpose(x, samples, rows, columns, [&](Index at, const Stored& value) { y[at] = value; });
}

// y = x transposed, or y + x transposed with `add`.
KERNEL transposed_sum(const Stored* __restrict__ x, Real* y, Index samples, Index rows,
                      Index columns, Index add) {
  transpose(x, samples, rows, columns, [&](Index at, const Stored& value) {
    y[at] = add ? y[at] + (Real)value : (Real)value;
  });
}
