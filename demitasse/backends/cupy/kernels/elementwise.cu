// Sums, copies and scales of whole arrays.

// y = a * first + b * second; y may be either of them.
KERNEL weighted_sum(const Stored* a, const Stored* b, Stored* y, Index count, Real first, Real second) {
  map(a, b, y, count, [=](Real one, Real other) { return first * one + second * other; });
}

// The same, rectified.
KERNEL rectified_sum(const Stored* a, const Stored* b, Stored* y, Index count, Real first, Real second,
                     Real slope) {
  map(a, b, y, count, [=](Real one, Real other) {
    return rectified(first * one + second * other, slope);
  });
}

// y = a + b + c + d in this order, or as many of them as `number` says; y may be any of them.
KERNEL sum_of_few(const Stored* a, const Stored* b, const Stored* c, const Stored* d, Stored* y,
                  Index count, Index number) {
  const bool whole = aligned(a, b, c, d, y);
  each_pack(count, [&](Index i, auto lanes) {
    Pack sum = load(a, i, whole, lanes);
    const auto add = [&](const Stored* x) {
      const Pack other = load(x, i, whole, lanes);
      for (int k = 0; k < lanes.number; ++k) sum.lane[k] += other.lane[k];
    };
    add(b);
    if (number > 2) add(c);
    if (number > 3) add(d);
    store(y, i, whole, lanes, sum);
  });
}

// The gradients of a sum of two, where they are wanted: one = first * g, other = second * g. g is dy,
// times the slope of the rectifier at y where there is one, and is written to dy with `keep`. one may
// be dy.
KERNEL sum_gradients(const Stored* y, Stored* dy, Stored* one, Stored* other, Index count,
                     Index rectifies, Index keep, Index want_one, Index want_other, Real slope, Real first,
                     Real second) {
  const bool whole = aligned(y, dy, one, other);
  each_pack(count, [&](Index i, auto lanes) {
    Pack g = load(dy, i, whole, lanes);
    if (rectifies) {
      const Pack value = load(y, i, whole, lanes);
      for (int k = 0; k < lanes.number; ++k) g.lane[k] *= rectifier_slope(value.lane[k], slope);
    }
    Pack product = {};
    const auto write = [&](Stored* dx, Real factor) {
      for (int k = 0; k < lanes.number; ++k) product.lane[k] = factor * g.lane[k];
      store(dx, i, whole, lanes, product);
    };
    if (keep) store(dy, i, whole, lanes, g);
    if (want_other) write(other, second);
    if (want_one) write(one, first);
  });
}

// y = factor * x; y may be x.
KERNEL scaled(const Stored* x, Stored* y, Index count, Real factor) {
  map(x, y, count, [=](Real value) { return factor * value; });
}

// y = a * b; y may be a.
KERNEL product(const Stored* a, const Real* b, Stored* y, Index count) {
  const bool whole = aligned(a, b, y);
  each_pack(count, [&](Index i, auto lanes) {
    Pack pack = load(a, i, whole, lanes);
    const Pack other = load(b, i, whole, lanes);
    for (int k = 0; k < lanes.number; ++k) pack.lane[k] *= other.lane[k];
    store(y, i, whole, lanes, pack);
  });
}

// total (): the sum of a * b. One block.
KERNEL dot(const Real* a, const Real* b, Real* __restrict__ total, Index count) {
  __shared__ Real shared[MOST_THREADS];
  Real sum = 0;
  EACH_IN_ROW(i, count) sum += a[i] * b[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) total[0] = sum;
}

// Copy rows of `width` elements to or from the columns of a matrix whose rows are `full` wide,
// `first` columns in, N at a time. count: elements copied.
template <int N, class Copy>
__device__ inline void each_in_columns(Index count, Index width, Index full, Index first,
                                       Copy copy) {
  EACH(i, count / N) {
    const Index row = i / (width / N), at = i * N;
    copy(at, row * full + first + (at - row * width), Lanes<N>());
  }
}

// Whether rows and columns come in packs.
__device__ inline bool packed(Index width, Index full, Index first) {
  return width % LANES == 0 && full % LANES == 0 && first % LANES == 0;
}

KERNEL into_columns(const Stored* __restrict__ x, Stored* __restrict__ y, Index count, Index width,
                    Index full, Index first) {
  const bool whole = aligned(x, y);
  const auto copy = [&](Index apart, Index among, auto lanes) {
    store(y, among, whole, lanes, load(x, apart, whole, lanes));
  };
  if (packed(width, full, first)) {
    each_in_columns<LANES>(count, width, full, first, copy);
  } else {
    each_in_columns<1>(count, width, full, first, copy);
  }
}

KERNEL from_columns(const Stored* __restrict__ x, Stored* __restrict__ y, Index count, Index width,
                    Index full, Index first) {
  const bool whole = aligned(x, y);
  const auto copy = [&](Index apart, Index among, auto lanes) {
    store(y, apart, whole, lanes, load(x, among, whole, lanes));
  };
  if (packed(width, full, first)) {
    each_in_columns<LANES>(count, width, full, first, copy);
  } else {
    each_in_columns<1>(count, width, full, first, copy);
  }
}

// x and y (outer, dim, inner), s and b (dim,): y = x * s + b; y may be x.
KERNEL scale(const Stored* x, const Real* __restrict__ s, const Real* __restrict__ b, Stored* y,
             Index count, Index dim, Index inner, Index has_bias) {
  const bool whole = aligned(x, y);
  each_with_channels(count, dim, inner, [&](Index i, auto channel, auto lanes) {
    Pack pack = load(x, i, whole, lanes);
    const Pack factor = channel.of(s), bias = has_bias ? channel.of(b) : Pack();
    for (int k = 0; k < lanes.number; ++k) {
      const Real value = pack.lane[k];
      pack.lane[k] = has_bias ? fma(value, factor.lane[k], bias.lane[k]) : value * factor.lane[k];
    }
    store(y, i, whole, lanes, pack);
  });
}
