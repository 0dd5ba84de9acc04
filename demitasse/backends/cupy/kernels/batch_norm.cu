// Normalisation of channels, with the factors and the rectifier that may follow it.
// Arrays are (samples, channels, plane); statistics and factors are (channels,).
//
// Source: Caffe, src/caffe/layers/batch_norm_layer.cpp, scale_layer.cpp and relu_layer.cpp.

// What follows a normalisation; slope: of the rectifier below 0.
struct After {
  const Real *s, *b;
  bool scales, shifts, rectifies;
  Real slope;

  // Scales and shifts of the lanes, by their channels.
  template <class Channels>
  __device__ Pack factors(Channels channels) const { return scales ? channels.of(s) : Pack(); }
  template <class Channels>
  __device__ Pack offsets(Channels channels) const { return shifts ? channels.of(b) : Pack(); }

  // The normalised value after scale and shift.
  __device__ Real affine(Real factor, Real offset, Real value) const {
    if (!scales) return value;
    return shifts ? fma(value, factor, offset) : value * factor;
  }

  __device__ Real value(Real factor, Real offset, Real normalised) const {
    const Real y = affine(factor, offset, normalised);
    return rectifies ? rectified(y, slope) : y;
  }

  // The gradient of what goes into the rectifier. Its sign is computed as in the forward pass, to
  // the bit.
  __device__ Real gradient(Real factor, Real offset, Real normalised, Real d) const {
    return rectifies ? d * rectifier_slope(affine(factor, offset, normalised), slope) : d;
  }
};

// The arguments that make one.
#define AFTER_ARRAYS const Real *__restrict__ s, const Real *__restrict__ b
#define AFTER_NUMBERS Index scales, Index shifts, Index rectifies, Real slope
#define AFTER \
  const After after = {s, b, scales != 0, shifts != 0, rectifies != 0, slope};

// Where the statistics of a batch go, and what they are added up with.
struct Statistics {
  Real *mean, *deviation, *sum_of_means, *sum_of_variances, *factor;
  Real eps, fraction, correction;

  // Write those of a channel. correction: makes the variance unbiased.
  __device__ void write(Index c, Real average, Real variance) const {
    mean[c] = average;
    deviation[c] = sqrt(variance + eps);
    sum_of_means[c] = sum_of_means[c] * fraction + average;
    sum_of_variances[c] = sum_of_variances[c] * fraction + variance * correction;
    if (c == 0) factor[0] = factor[0] * fraction + 1;
  }
};

#define STATISTICS_ARRAYS                                                                         \
  Real *__restrict__ mean, Real *__restrict__ deviation, Real *__restrict__ sum_of_means,         \
      Real *__restrict__ sum_of_variances, Real *__restrict__ factor
#define STATISTICS_NUMBERS Real eps, Real fraction, Real correction
#define STATISTICS                                                                            \
  const Statistics statistics = {mean,   deviation, sum_of_means, sum_of_variances,           \
                                 factor, eps,       fraction,     correction};

#ifndef KEPT
#define KEPT (STORED ? 4 : 8)
#endif

// The packs of a part that one thread reads, up to KEPT of them, in registers. The order of the
// elements is that of Part::each.
struct KeptPacks {
  Pack pack[KEPT ? KEPT : 1];

  __device__ static bool hold(Index plane, Index length) {
    return plane % LANES == 0 && length <= (Index)blockDim.x * LANES * KEPT;
  }

  // Call body(k) for the number of each pack that the thread has.
  template <class Body>
  __device__ void each(const Part& part, Body body) {
    const Index begin = part.first / LANES + (Index)threadIdx.x, end = part.last / LANES;
    for (int k = 0; k < KEPT; ++k) {
      if (begin + k * (Index)blockDim.x < end) body(k, begin + k * (Index)blockDim.x);
    }
  }
};

// The first pass of the statistics: the mean of each part of a channel, and the sum of squares of
// what is centred by it, one block for a part. means, squares (channels, parts). A channel of one
// part is done with that. A part that fits in the registers of its block is read once.
KERNEL part_statistics(const Stored* __restrict__ x, Real* __restrict__ means,
                       Real* __restrict__ squares, STATISTICS_ARRAYS, Index channels,
                       Index samples, Index plane, Index parts, Index length, STATISTICS_NUMBERS) {
  __shared__ Real shared[MOST_THREADS];
  const bool whole = aligned(x), keep = KeptPacks::hold(plane, length);
  const Index width = plane / LANES;
  STATISTICS
  EACH_ROW(row, channels * parts) {
    const Part part(row, parts, length, samples * plane);
    KeptPacks kept;
    Real total = 0;
    const auto add = [&](const Pack& pack, int lanes) {
      for (int k = 0; k < lanes; ++k) total += pack.lane[k];
    };
    if (keep) {
      kept.each(part, [&](int k, Index at) {
        const Index n = at / width, place = at - n * width;
        const Index from = (n * channels + part.c) * plane + place * LANES;
        kept.pack[k] = load(x, from, whole, Lanes<LANES>());
        add(kept.pack[k], LANES);
      });
    } else {
      part.each(channels, plane, [&](Index at, auto lanes) {
        add(load(x, at, whole, lanes), lanes.number);
      });
    }
    const Real average = block_sum(total, shared) / (Real)part.count();
    total = 0;
    const auto add_square = [&](const Pack& pack, int lanes) {
      for (int k = 0; k < lanes; ++k) {
        const Real centred = pack.lane[k] - average;
        total += centred * centred;
      }
    };
    if (keep) {
      kept.each(part, [&](int k, Index) { add_square(kept.pack[k], LANES); });
    } else {
      part.each(channels, plane, [&](Index at, auto lanes) {
        add_square(load(x, at, whole, lanes), lanes.number);
      });
    }
    total = block_sum(total, shared);
    if (threadIdx.x == 0) {
      means[row] = average;
      squares[row] = total;
      if (parts == 1) statistics.write(part.c, average, total / (Real)part.count());
    }
  }
}

// The same with channels last, x (many, channels), one block for a part of adjacent channels.
KERNEL strip_statistics(const Stored* __restrict__ x, Real* __restrict__ means,
                        Real* __restrict__ squares, STATISTICS_ARRAYS, Index channels, Index many,
                        Index parts, Index length, STATISTICS_NUMBERS) {
  const bool whole = aligned(x);
  STATISTICS
  each_strip(channels, many, parts, length, [&](auto strip) {
    Pack average = {}, square = {};
    strip.each([&](Index at, auto lanes) {
      const Pack pack = load(x, at, whole, lanes);
      for (int k = 0; k < lanes.number; ++k) average.lane[k] += pack.lane[k];
    });
    strip.sum(average);
    for (int k = 0; k < LANES; ++k) average.lane[k] /= (Real)strip.count();
    strip.each([&](Index at, auto lanes) {
      const Pack pack = load(x, at, whole, lanes);
      for (int k = 0; k < lanes.number; ++k) {
        const Real centred = pack.lane[k] - average.lane[k];
        square.lane[k] += centred * centred;
      }
    });
    strip.sum(square);
    strip.write([&](int k, Index c, Index at) {
      means[at] = average.lane[k];
      squares[at] = square.lane[k];
      if (parts == 1) statistics.write(c, average.lane[k], square.lane[k] / (Real)many);
    });
  });
}

// The second pass: the mean of the means, and the sum of squares around it, which is that around
// each part's own mean and what the part is off. One block for a channel.
KERNEL batch_statistics(const Real* __restrict__ means, const Real* __restrict__ squares,
                        STATISTICS_ARRAYS, Index channels, Index many, Index parts, Index length,
                        STATISTICS_NUMBERS) {
  __shared__ Real shared[MOST_THREADS];
  STATISTICS
  EACH_ROW(c, channels) {
    Real total = 0;
    EACH_IN_ROW(k, parts) {
      const Part part(c * parts + k, parts, length, many);
      total += means[c * parts + k] * (Real)part.count();
    }
    const Real average = block_sum(total, shared) / (Real)many;
    total = 0;
    EACH_IN_ROW(k, parts) {
      const Part part(c * parts + k, parts, length, many);
      const Real off = means[c * parts + k] - average;
      total += squares[c * parts + k] + off * off * (Real)part.count();
    }
    total = block_sum(total, shared);
    if (threadIdx.x == 0) statistics.write(c, average, total / (Real)many);
  }
}

// Mean and deviation from the running sums; 0 and sqrt(eps) while nothing was added to them.
KERNEL stored_statistics(const Real* __restrict__ sum_of_means,
                         const Real* __restrict__ sum_of_variances,
                         const Real* __restrict__ factor, Real* __restrict__ mean,
                         Real* __restrict__ deviation, Index channels, Real eps) {
  EACH(c, channels) {
    const Real scale = factor[0] == 0 ? (Real)0 : 1 / factor[0];
    mean[c] = sum_of_means[c] * scale;
    deviation[c] = sqrt(sum_of_variances[c] * scale + eps);
  }
}

// normalised = (x - mean) / deviation, where it is to be kept, and y is what follows makes of it;
// y may be x. stored: mean and deviation are the running sums, as stored_statistics takes them, and
// factor is their factor.
KERNEL normalise(const Stored* x, const Real* __restrict__ mean, const Real* __restrict__ deviation,
                 const Real* __restrict__ factor, AFTER_ARRAYS, Stored* y, Stored* normalised,
                 Index count, Index channels, Index plane, Index keep, Index stored, Real eps,
                 AFTER_NUMBERS) {
  const bool whole = aligned(x, y, normalised);
  AFTER
  each_with_channels(count, channels, plane, [&](Index i, auto channel, auto lanes) {
    Pack pack = load(x, i, whole, lanes);
    const Pack means = channel.of(mean), deviations = channel.of(deviation);
    const Pack factors = after.factors(channel), offsets = after.offsets(channel);
    for (int k = 0; k < lanes.number; ++k) {
      Real centre = means.lane[k], width = deviations.lane[k];
      if (stored) {
        const Real scale = factor[0] == 0 ? (Real)0 : 1 / factor[0];
        centre = centre * scale;
        width = sqrt(width * scale + eps);
      }
      pack.lane[k] = (pack.lane[k] - centre) / width;
    }
    if (keep) {
      store(normalised, i, whole, lanes, pack);
      // as backward will read them, so that the rectifier's sign is the same there
      for (int k = 0; k < lanes.number; ++k) pack.lane[k] = (Real)(Stored)pack.lane[k];
    }
    for (int k = 0; k < lanes.number; ++k) {
      pack.lane[k] = after.value(factors.lane[k], offsets.lane[k], pack.lane[k]);
    }
    store(y, i, whole, lanes, pack);
  });
}

// For each part of a channel, with g the gradient of what goes into the rectifier: flat = sum of g,
// along = sum of g * normalised; (channels, parts). One block for a part.
KERNEL gradient_sums(const Stored* __restrict__ normalised, const Stored* __restrict__ dy,
                     AFTER_ARRAYS, Real* __restrict__ flat, Real* __restrict__ along,
                     Index channels, Index samples, Index plane, Index parts, Index length,
                     AFTER_NUMBERS) {
  __shared__ Real shared[MOST_THREADS];
  const bool whole = aligned(normalised, dy);
  AFTER
  EACH_ROW(row, channels * parts) {
    const Part part(row, parts, length, samples * plane);
    const Real factor = scales ? s[part.c] : (Real)1, offset = shifts ? b[part.c] : (Real)0;
    Real first = 0, second = 0;
    part.each(channels, plane, [&](Index at, auto lanes) {
      const Pack value = load(normalised, at, whole, lanes), d = load(dy, at, whole, lanes);
      for (int k = 0; k < lanes.number; ++k) {
        const Real g = after.gradient(factor, offset, value.lane[k], d.lane[k]);
        first += g;
        second += g * value.lane[k];
      }
    });
    first = block_sum(first, shared);
    second = block_sum(second, shared);
    if (threadIdx.x == 0) {
      flat[row] = first;
      along[row] = second;
    }
  }
}

// The same with channels last, arrays (many, channels), one block for a part of adjacent channels.
KERNEL strip_gradient_sums(const Stored* __restrict__ normalised, const Stored* __restrict__ dy,
                           AFTER_ARRAYS, Real* __restrict__ flat, Real* __restrict__ along,
                           Index channels, Index many, Index parts, Index length, AFTER_NUMBERS) {
  const bool whole = aligned(normalised, dy);
  AFTER
  each_strip(channels, many, parts, length, [&](auto strip) {
    const Pack factors = strip.of(s, scales), offsets = strip.of(b, shifts);
    Pack first = {}, second = {};
    strip.each([&](Index at, auto lanes) {
      const Pack value = load(normalised, at, whole, lanes), d = load(dy, at, whole, lanes);
      for (int k = 0; k < lanes.number; ++k) {
        const Real g = after.gradient(factors.lane[k], offsets.lane[k], value.lane[k], d.lane[k]);
        first.lane[k] += g;
        second.lane[k] += g * value.lane[k];
      }
    });
    strip.sum(first);
    strip.sum(second);
    strip.write([&](int k, Index, Index at) {
      flat[at] = first.lane[k];
      along[at] = second.lane[k];
    });
  });
}

// ds = along and db = flat, the sums of gradient_sums, where they are wanted; they are added where
// bit 1 (ds) and bit 0 (db) of `add` are set. Then, where dx is wanted, which may be dy: g, times the
// scale, over the deviation; for the batch's own statistics without what g has in common with 1 and
// with the normalised values. many: samples * plane.
KERNEL normalise_gradient(const Stored* normalised, const Stored* dy,
                          const Real* __restrict__ deviation, const Real* __restrict__ flat,
                          const Real* __restrict__ along, AFTER_ARRAYS, Stored* dx, Real* ds,
                          Real* db, Index count, Index channels, Index plane, Index many,
                          Index measured, Index want_x, Index want_s, Index want_b, Index add,
                          AFTER_NUMBERS) {
  EACH(c, channels) {
    if (want_s) ds[c] = add & 2 ? ds[c] + along[c] : along[c];
    if (want_b) db[c] = add & 1 ? db[c] + flat[c] : flat[c];
  }
  if (!want_x) return;
  const bool whole = aligned(normalised, dy, dx);
  AFTER
  each_with_channels(count, channels, plane, [&](Index i, auto channel, auto lanes) {
    Pack d = load(dy, i, whole, lanes);
    Pack value = {};
    if (measured || rectifies) value = load(normalised, i, whole, lanes);
    const Pack factors = after.factors(channel), offsets = after.offsets(channel);
    const Pack deviations = channel.of(deviation);
    const Pack levels = measured ? channel.of(flat) : Pack();
    const Pack slants = measured ? channel.of(along) : Pack();
    for (int k = 0; k < lanes.number; ++k) {
      const Real scale = scales ? factors.lane[k] : (Real)1, width = deviations.lane[k];
      const Real level = levels.lane[k] / (Real)many, slant = slants.lane[k] / (Real)many;
      Real g = after.gradient(factors.lane[k], offsets.lane[k], value.lane[k], d.lane[k]);
      if (measured) g = g - level - slant * value.lane[k];
      d.lane[k] = g * scale / width;
    }
    store(dx, i, whole, lanes, d);
  });
}
