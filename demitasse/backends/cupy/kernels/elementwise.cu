// Sums, copies and scales of whole arrays.

// y = a * first + b * second; y may be either of them.
KERNEL weighted_sum(const Real* a, const Real* b, Real* y, Index count, Real first, Real second) {
  EACH(i, count) y[i] = first * a[i] + second * b[i];
}

// y = factor * x; y may be x.
KERNEL scaled(const Real* x, Real* y, Index count, Real factor) {
  EACH(i, count) y[i] = factor * x[i];
}

// y = a * b; y may be either of them.
KERNEL product(const Real* a, const Real* b, Real* y, Index count) {
  EACH(i, count) y[i] = a[i] * b[i];
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
// `first` columns in. count: elements copied.
KERNEL into_columns(const Real* __restrict__ x, Real* __restrict__ y, Index count, Index width,
                    Index full, Index first) {
  EACH(i, count) y[i / width * full + first + i % width] = x[i];
}

KERNEL from_columns(const Real* __restrict__ x, Real* __restrict__ y, Index count, Index width,
                    Index full, Index first) {
  EACH(i, count) y[i] = x[i / width * full + first + i % width];
}

// x and y (outer, dim, inner), s and b (dim,): y = x * s + b; y may be x.
KERNEL scale(const Real* x, const Real* __restrict__ s, const Real* __restrict__ b, Real* y,
             Index count, Index dim, Index inner, Index has_bias) {
  EACH(i, count) {
    const Index d = i / inner % dim;
    const Real value = x[i] * s[d];
    y[i] = has_bias ? value + b[d] : value;
  }
}

// ds += sums of dy * x where wanted, db += sums of dy where wanted. One block for an element of s.
KERNEL add_scale_gradients(const Real* __restrict__ x, const Real* __restrict__ dy, Real* ds,
                           Real* db, Index dim, Index outer, Index inner, Index want_s,
                           Index want_b) {
  __shared__ Real shared[MOST_THREADS];
  EACH_ROW(d, dim) {
    Real first = 0, second = 0;
    EACH_IN_ROW(k, outer * inner) {
      const Index at = (k / inner * dim + d) * inner + k % inner;
      first += dy[at] * x[at];
      second += dy[at];
    }
    first = block_sum(first, shared);
    second = block_sum(second, shared);
    if (threadIdx.x == 0) {
      if (want_s) ds[d] += first;
      if (want_b) db[d] += second;
    }
  }
}
