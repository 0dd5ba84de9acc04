// What every kernel here begins with. The text of this file is put in front of the others.
//
// Compiler options choose Real, the dtype of the net (float or double); WIDE, which is 1 where an
// array has so many elements that an int could overflow; and STORED, which is 1 where values are kept
// as half, 2 where they are kept as bfloat16, and 0 where they are kept as Real. A kernel works for any number of blocks and
// threads, one thread included.

#if WIDE
typedef long long Index;
#else
typedef int Index;
#endif

#define KERNEL extern "C" __global__ void

// Run the body for every i below count, spread over all threads.
#define EACH(i, count)                                                           \
  for (Index i = (Index)blockIdx.x * (Index)blockDim.x + (Index)threadIdx.x;     \
       i < (count); i += (Index)gridDim.x * (Index)blockDim.x)

// Run the body for every row below count, one block for a row.
#define EACH_ROW(row, count) \
  for (Index row = (Index)blockIdx.x; row < (count); row += (Index)gridDim.x)

// Run the body for every k below count, spread over the threads of the block.
#define EACH_IN_ROW(k, count) \
  for (Index k = (Index)threadIdx.x; k < (count); k += (Index)blockDim.x)

// -- values in 16 bits -----------------------------------------------------------------------------

#if STORED == 0
typedef Real Stored;
#else

#ifndef HALF_CONVERSIONS  // other compilers bring their own
__device__ inline unsigned short half_bits(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

__device__ inline float half_value(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
#endif

// Rounded to nearest even; NaN stays NaN.
__device__ inline unsigned short bfloat16_bits(float value) {
  const unsigned int bits = __float_as_uint(value);
  if (value != value) return (unsigned short)(bits >> 16 | 0x40);
  return (unsigned short)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

__device__ inline float bfloat16_value(unsigned short half) {
  return __uint_as_float((unsigned int)half << 16);
}

// A value that is widened where it is read and rounded where it is written.
struct alignas(2) Stored {
  unsigned short bits;

  Stored() = default;
#if STORED == 1
  __device__ Stored(Real value) : bits(half_bits(value)) {}
  __device__ operator Real() const { return half_value(bits); }
#else
  __device__ Stored(Real value) : bits(bfloat16_bits(value)) {}
  __device__ operator Real() const { return bfloat16_value(bits); }
#endif
};
#endif

// As many stored values as one load of 16 bytes brings.
#define LANES ((int)(16 / sizeof(Stored)))

// Most threads in a block; their number is a power of two.
#define MOST_THREADS 512

// Return the sum of value over the threads of the block, to all of them, always added up in the
// same order. shared: MOST_THREADS values.
__device__ inline Real block_sum(Real value, Real* shared) {
  const int me = (int)threadIdx.x;
  shared[me] = value;
  __syncthreads();
  for (int half = (int)blockDim.x / 2; half > 0; half /= 2) {
    if (me < half) shared[me] += shared[me + half];
    __syncthreads();
  }
  const Real total = shared[0];
  __syncthreads();
  return total;
}

// Return the largest value over the threads of the block, to all of them.
__device__ inline Real block_max(Real value, Real* shared) {
  const int me = (int)threadIdx.x;
  shared[me] = value;
  __syncthreads();
  for (int half = (int)blockDim.x / 2; half > 0; half /= 2) {
    if (me < half && shared[me + half] > shared[me]) shared[me] = shared[me + half];
    __syncthreads();
  }
  const Real largest = shared[0];
  __syncthreads();
  return largest;
}

// -- sixteen bytes at a time -----------------------------------------------------------------------

struct alignas(16) Pack {
  Real lane[LANES];
};

// A number of elements that the compiler knows: LANES, or 1 where they do not come in packs.
template <int N>
struct Lanes {
  static constexpr int number = N;
};

// Whether all these arrays begin where a Pack may.
template <class... T>
__device__ inline bool aligned(const T*... arrays) {
  return (((unsigned long long)arrays | ...) % 16) == 0;
}

// Return the N elements from `at` on; in one load where they are a pack of an aligned array.
template <int N>
__device__ inline Pack load(const Real* x, Index at, bool whole, Lanes<N>) {
  if (N == LANES && whole) return *(const Pack*)(x + at);
  Pack pack = {};
  for (int k = 0; k < N; ++k) pack.lane[k] = x[at + k];
  return pack;
}

// Write N elements from `at` on.
template <int N>
__device__ inline void store(Real* y, Index at, bool whole, Lanes<N>, const Pack& pack) {
  if (N == LANES && whole) {
    *(Pack*)(y + at) = pack;
    return;
  }
  for (int k = 0; k < N; ++k) y[at + k] = pack.lane[k];
}

#if STORED
struct alignas(16) StoredPack {
  Stored lane[LANES];
};

// The same of values in 16 bits, which are computed with as Real.
template <int N>
__device__ inline Pack load(const Stored* x, Index at, bool whole, Lanes<N>) {
  Pack pack = {};
  if (N == LANES && whole) {
    const StoredPack stored = *(const StoredPack*)(x + at);
    for (int k = 0; k < N; ++k) pack.lane[k] = stored.lane[k];
    return pack;
  }
  for (int k = 0; k < N; ++k) pack.lane[k] = x[at + k];
  return pack;
}

template <int N>
__device__ inline void store(Stored* y, Index at, bool whole, Lanes<N>, const Pack& pack) {
  if (N == LANES && whole) {
    StoredPack stored;
    for (int k = 0; k < N; ++k) stored.lane[k] = pack.lane[k];
    *(StoredPack*)(y + at) = stored;
    return;
  }
  for (int k = 0; k < N; ++k) y[at + k] = pack.lane[k];
}
#endif

// Call body(i, lanes) for the first of every LANES elements below count, and for each that is left
// over, spread over all threads.
template <class Body>
__device__ inline void each_pack(Index count, Body body) {
  const Index packs = count / LANES, done = packs * LANES;
  EACH(p, packs) body(p * LANES, Lanes<LANES>());
  EACH(i, count - done) body(done + i, Lanes<1>());
}

// The same, spread over the threads of the block.
template <class Body>
__device__ inline void each_pack_in_row(Index count, Body body) {
  const Index packs = count / LANES, done = packs * LANES;
  EACH_IN_ROW(p, packs) body(p * LANES, Lanes<LANES>());
  EACH_IN_ROW(i, count - done) body(done + i, Lanes<1>());
}

// y = f(x) of every element.
template <class T, class F>
__device__ inline void map(const T* x, T* y, Index count, F f) {
  const bool whole = aligned(x, y);
  each_pack(count, [&](Index i, auto lanes) {
    Pack pack = load(x, i, whole, lanes);
    for (int k = 0; k < lanes.number; ++k) pack.lane[k] = f(pack.lane[k]);
    store(y, i, whole, lanes, pack);
  });
}

// y = f(a, b) of every element.
template <class T, class F>
__device__ inline void map(const T* a, const T* b, T* y, Index count, F f) {
  const bool whole = aligned(a, b, y);
  each_pack(count, [&](Index i, auto lanes) {
    Pack pack = load(a, i, whole, lanes);
    const Pack other = load(b, i, whole, lanes);
    for (int k = 0; k < lanes.number; ++k) pack.lane[k] = f(pack.lane[k], other.lane[k]);
    store(y, i, whole, lanes, pack);
  });
}

// y = f(a, b, c) of every element.
template <class T, class F>
__device__ inline void map(const T* a, const T* b, const T* c, T* y, Index count, F f) {
  const bool whole = aligned(a, b, c, y);
  each_pack(count, [&](Index i, auto lanes) {
    Pack pack = load(a, i, whole, lanes);
    const Pack second = load(b, i, whole, lanes), third = load(c, i, whole, lanes);
    for (int k = 0; k < lanes.number; ++k) {
      pack.lane[k] = f(pack.lane[k], second.lane[k], third.lane[k]);
    }
    store(y, i, whole, lanes, pack);
  });
}

// -- arrays of (samples, channels, plane) ----------------------------------------------------------

// Call body(i, c, lanes) for the first of every N elements, where c is its channel, spread over all
// threads. N divides the plane. A thread divides before its first element, and then only adds.
template <int N, class Body>
__device__ inline void walk_channels(Index count, Index channels, Index plane, Body body) {
  const Index width = plane / N, step = (Index)gridDim.x * (Index)blockDim.x;
  Index i = (Index)blockIdx.x * (Index)blockDim.x + (Index)threadIdx.x;
  if (i >= count / N) return;
  Index c = i / width % channels, place = i % width;
  const Index step_c = step / width % channels, step_place = step % width;
  for (; i < count / N; i += step) {
    body(i * N, c, Lanes<N>());
    c += step_c;
    place += step_place;
    if (place >= width) {
      place -= width;
      ++c;
    }
    if (c >= channels) c -= channels;
  }
}

// The same, with as many elements at a time as belong to one channel.
template <class Body>
__device__ inline void each_in_channels(Index count, Index channels, Index plane, Body body) {
  if (plane % LANES == 0) {
    walk_channels<LANES>(count, channels, plane, body);
  } else {
    walk_channels<1>(count, channels, plane, body);
  }
}

// The channels of adjacent elements: of(x) has the value of an array (channels,) for each lane.
struct OneChannel {
  Index c;

  __device__ Pack of(const Real* x) const {
    Pack pack;
    for (int k = 0; k < LANES; ++k) pack.lane[k] = x[c];
    return pack;
  }
};

struct AdjacentChannels {
  Index first;

  __device__ Pack of(const Real* x) const { return load(x, first, aligned(x), Lanes<LANES>()); }
};

// The same for arrays with channels last, too, whose plane is 1: adjacent elements then have adjacent
// channels. body(i, channels of the lanes, lanes).
template <class Body>
__device__ inline void each_with_channels(Index count, Index channels, Index plane, Body body) {
  if (plane == 1 && channels % LANES == 0) {
    walk_channels<1>(count / LANES, channels / LANES, 1, [&](Index i, Index c, auto) {
      body(i * LANES, AdjacentChannels{c * LANES}, Lanes<LANES>());
    });
  } else {
    each_in_channels(count, channels, plane, [&](Index i, Index c, auto lanes) {
      body(i, OneChannel{c}, lanes);
    });
  }
}

// Call body(at, lanes) for the first of every N elements of channel c, beginning with its `first`
// and before its `last`, spread over the threads of the block. N divides the plane and `first`.
template <int N, class Body>
__device__ inline void walk_channel(Index c, Index channels, Index plane, Index first, Index last,
                                    Body body) {
  const Index width = plane / N, end = last / N, step = (Index)blockDim.x;
  Index k = first / N + (Index)threadIdx.x;
  if (k >= end) return;
  Index n = k / width, place = k % width;
  const Index step_n = step / width, step_place = step % width;
  for (; k < end; k += step) {
    body((n * channels + c) * plane + place * N, Lanes<N>());
    n += step_n;
    place += step_place;
    if (place >= width) {
      place -= width;
      ++n;
    }
  }
}

// A share of the elements of one channel, which one block adds up. A channel has `samples * plane`
// elements and is cut into `parts` of `length`, a multiple of LANES, the last of which is shorter.
struct Part {
  Index c, first, last;

  __device__ Part(Index row, Index parts, Index length, Index many)
      : c(row / parts), first(row % parts * length), last(many) {
    if (last - first > length) last = first + length;
    if (last < first) last = first;
  }

  __device__ Index count() const { return last - first; }

  // Call body(at, lanes) for all elements, in an order that depends on the sizes alone.
  template <class Body>
  __device__ void each(Index channels, Index plane, Body body) const {
    if (plane % LANES == 0) {
      walk_channel<LANES>(c, channels, plane, first, last, body);
    } else {
      walk_channel<1>(c, channels, plane, first, last, body);
    }
  }
};

// -- arrays of (rows, channels): channels last -----------------------------------------------------

// Packs of adjacent channels that a block adds up.
#define PACKS 8

// A share of the elements of adjacent channels, which one block adds up: `length` rows, or fewer at
// the end. A thread has the N channels from `c` on, of every row that is `step` after the one before.
template <int N>
struct Strip {
  Index channels, part, parts, first, last, wide, c;

  __device__ Strip(Index row, Index channels, Index many, Index parts, Index length)
      : channels(channels), part(row % parts), parts(parts), first(part * length), last(many),
        wide(width()), c((row / parts * wide + (Index)threadIdx.x % wide) * N) {
    if (last - first > length) last = first + length;
  }

  // Threads that are side by side.
  __device__ static Index width() {
    return (Index)blockDim.x < PACKS ? (Index)blockDim.x : PACKS;
  }

  // Number of rows.
  __device__ Index count() const { return last - first; }

  // Values of an array (channels,) for the channels of the thread, where they are wanted.
  __device__ Pack of(const Real* x, bool wanted) const {
    return wanted && c < channels ? load(x, c, aligned(x), Lanes<N>()) : Pack();
  }

  // Call body(at, lanes) for all elements of the thread, in an order that depends on sizes alone.
  template <class Body>
  __device__ void each(Body body) const {
    if (c >= channels) return;
    const Index step = (Index)blockDim.x / wide;
    for (Index row = first + (Index)threadIdx.x / wide; row < last; row += step) {
      body(row * channels + c, Lanes<N>());
    }
  }

  // Add up each lane over the threads of the block that have its channel, to all of them, always in
  // the same order.
  __device__ void sum(Pack& pack) const {
    __shared__ Real shared[MOST_THREADS];
    const int me = (int)threadIdx.x, side = (int)wide;
    for (int k = 0; k < N; ++k) {
      shared[me] = pack.lane[k];
      __syncthreads();
      for (int half = (int)blockDim.x / 2; half >= side; half /= 2) {
        if (me < half) shared[me] += shared[me + half];
        __syncthreads();
      }
      pack.lane[k] = shared[me % side];
      __syncthreads();
    }
  }

  // Call body(k, c, at) for each lane, its channel, and the place of the part of this channel in an
  // array (channels, parts); in one of the threads that have it.
  template <class Body>
  __device__ void write(Body body) const {
    if ((Index)threadIdx.x >= wide || c >= channels) return;
    for (int k = 0; k < N; ++k) body(k, c + k, (c + k) * parts + part);
  }
};

// Call body(strip) for the parts of all channels, one block for a part of adjacent ones.
template <int N, class Body>
__device__ inline void walk_strips(Index channels, Index many, Index parts, Index length, Body body) {
  const Index across = Strip<N>::width() * N, strips = (channels + across - 1) / across;
  EACH_ROW(row, strips * parts) body(Strip<N>(row, channels, many, parts, length));
}

template <class Body>
__device__ inline void each_strip(Index channels, Index many, Index parts, Index length, Body body) {
  if (channels % LANES == 0) {
    walk_strips<LANES>(channels, many, parts, length, body);
  } else {
    walk_strips<1>(channels, many, parts, length, body);
  }
}

// -- formulas that several kernels must agree on to the bit ----------------------------------------

// The rectifier, and its slope at a value.
__device__ inline Real rectified(Real value, Real slope) {
  return value < 0 ? 0 + slope * value : value;
}

__device__ inline Real rectifier_slope(Real value, Real slope) {
  return (value > 0) + slope * (value <= 0);
}
