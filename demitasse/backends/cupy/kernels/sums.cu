// Sums over long rows: each row is cut into parts, one block's work each, and the sums of the parts
// are added up in a second pass. Where a row has one part, the first pass is all there is. How a row
// is cut depends on the sizes alone, and nothing is added up in another order from run to run.

// flat = sums of dy, along = sums of dy * x, over samples and plane; arrays (samples, channels,
// plane). flat, along (channels, parts): written where they are wanted, or added to: flat where bit 0
// of `add` is set, along where bit 1 is.
KERNEL channel_sums(const Stored* __restrict__ x, const Stored* __restrict__ dy, Real* flat,
                    Real* along, Index channels, Index samples, Index plane, Index parts,
                    Index length, Index want_flat, Index want_along, Index add) {
  __shared__ Real shared[MOST_THREADS];
  const bool whole = aligned(dy) && (!want_along || aligned(x));
  EACH_ROW(row, channels * parts) {
    const Part part(row, parts, length, samples * plane);
    Real first = 0, second = 0;
    part.each(channels, plane, [&](Index at, auto lanes) {
      const Pack d = load(dy, at, whole, lanes);
      for (int k = 0; k < lanes.number; ++k) first += d.lane[k];
      if (want_along) {
        const Pack value = load(x, at, whole, lanes);
        for (int k = 0; k < lanes.number; ++k) second += d.lane[k] * value.lane[k];
      }
    });
    if (want_flat) first = block_sum(first, shared);
    if (want_along) second = block_sum(second, shared);
    if (threadIdx.x == 0) {
      if (want_flat) flat[row] = add & 1 ? flat[row] + first : first;
      if (want_along) along[row] = add & 2 ? along[row] + second : second;
    }
  }
}

// The same with channels last, arrays (many, channels), one block for a part of adjacent channels.
KERNEL strip_sums(const Stored* __restrict__ x, const Stored* __restrict__ dy, Real* flat,
                  Real* along, Index channels, Index many, Index parts, Index length,
                  Index want_flat, Index want_along, Index add) {
  const bool whole = aligned(dy) && (!want_along || aligned(x));
  each_strip(channels, many, parts, length, [&](auto strip) {
    Pack first = {}, second = {};
    strip.each([&](Index at, auto lanes) {
      const Pack d = load(dy, at, whole, lanes);
      for (int k = 0; k < lanes.number; ++k) first.lane[k] += d.lane[k];
      if (want_along) {
        const Pack value = load(x, at, whole, lanes);
        for (int k = 0; k < lanes.number; ++k) second.lane[k] += d.lane[k] * value.lane[k];
      }
    });
    if (want_flat) strip.sum(first);
    if (want_along) strip.sum(second);
    strip.write([&](int k, Index, Index at) {
      if (want_flat) flat[at] = add & 1 ? flat[at] + first.lane[k] : first.lane[k];
      if (want_along) along[at] = add & 2 ? along[at] + second.lane[k] : second.lane[k];
    });
  });
}

// The second pass. one, two (rows, parts) -> flat, along (rows,). One block for a row.
KERNEL sum_parts(const Real* __restrict__ one, const Real* __restrict__ two, Real* flat,
                 Real* along, Index rows, Index parts, Index want_flat, Index want_along,
                 Index add) {
  __shared__ Real shared[MOST_THREADS];
  EACH_ROW(row, rows) {
    Real first = 0, second = 0;
    EACH_IN_ROW(k, parts) {
      if (want_flat) first += one[row * parts + k];
      if (want_along) second += two[row * parts + k];
    }
    if (want_flat) first = block_sum(first, shared);
    if (want_along) second = block_sum(second, shared);
    if (threadIdx.x == 0) {
      if (want_flat) flat[row] = add & 1 ? flat[row] + first : first;
      if (want_along) along[row] = add & 2 ? along[row] + second : second;
    }
  }
}

// loss = sum of totals / divisor, of which there is one in each part. divisor: `fixed`, or where
// that is 0 the sum of counts, at least 1. One block.
KERNEL loss_of_parts(const Real* __restrict__ totals, const Real* __restrict__ counts,
                     Real* __restrict__ loss, Real* __restrict__ divisor, Index parts, Real fixed) {
  __shared__ Real shared[MOST_THREADS];
  Real total = 0, counted = 0;
  EACH_IN_ROW(k, parts) {
    total += totals[k];
    counted += counts[k];
  }
  total = block_sum(total, shared);
  counted = block_sum(counted, shared);
  if (threadIdx.x == 0) {
    const Real by = fixed > 0 ? fixed : (counted > 1 ? counted : (Real)1);
    divisor[0] = by;
    loss[0] = total / by;
  }
}
