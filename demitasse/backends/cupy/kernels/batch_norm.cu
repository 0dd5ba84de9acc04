// Normalisation of channels. Arrays are (samples, channels, plane); statistics are (channels,).
//
// Source: Caffe, src/caffe/layers/batch_norm_layer.cpp.

// Mean and deviation of each channel, which also go into the running sums. One block for a channel.
// correction: makes the variance unbiased.
KERNEL batch_statistics(const Real* __restrict__ x, Real* __restrict__ mean,
                        Real* __restrict__ deviation, Real* __restrict__ sum_of_means,
                        Real* __restrict__ sum_of_variances, Real* __restrict__ factor,
                        Index channels, Index samples, Index plane, Real eps, Real fraction,
                        Real correction) {
  __shared__ Real shared[MOST_THREADS];
  const Index many = samples * plane;
  EACH_ROW(c, channels) {
    Real total = 0;
    EACH_IN_ROW(k, many) total += x[(k / plane * channels + c) * plane + k % plane];
    const Real average = block_sum(total, shared) / (Real)many;
    total = 0;
    EACH_IN_ROW(k, many) {
      const Real centred = x[(k / plane * channels + c) * plane + k % plane] - average;
      total += centred * centred;
    }
    const Real variance = block_sum(total, shared) / (Real)many;
    if (threadIdx.x == 0) {
      mean[c] = average;
      deviation[c] = sqrt(variance + eps);
      sum_of_means[c] = sum_of_means[c] * fraction + average;
      sum_of_variances[c] = sum_of_variances[c] * fraction + variance * correction;
      if (c == 0) factor[0] = factor[0] * fraction + 1;
    }
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

// y = (x - mean) / deviation; y may be x. The same goes to `normalised` where it is to be kept.
KERNEL normalise(const Real* x, const Real* __restrict__ mean, const Real* __restrict__ deviation,
                 Real* y, Real* normalised, Index count, Index channels, Index plane, Index keep) {
  EACH(i, count) {
    const Index c = i / plane % channels;
    const Real value = (x[i] - mean[c]) / deviation[c];
    y[i] = value;
    if (keep) normalised[i] = value;
  }
}

// flat = mean of dy, along = mean of dy * y, for each channel. One block for a channel.
KERNEL gradient_means(const Real* __restrict__ y, const Real* __restrict__ dy,
                      Real* __restrict__ flat, Real* __restrict__ along, Index channels,
                      Index samples, Index plane) {
  __shared__ Real shared[MOST_THREADS];
  const Index many = samples * plane;
  EACH_ROW(c, channels) {
    Real first = 0, second = 0;
    EACH_IN_ROW(k, many) {
      const Index at = (k / plane * channels + c) * plane + k % plane;
      first += dy[at];
      second += dy[at] * y[at];
    }
    first = block_sum(first, shared);
    second = block_sum(second, shared);
    if (threadIdx.x == 0) {
      flat[c] = first / (Real)many;
      along[c] = second / (Real)many;
    }
  }
}

// dx = (dy - flat - along * y) / deviation; dx may be dy.
KERNEL normalise_gradient(const Real* __restrict__ y, const Real* dy,
                          const Real* __restrict__ deviation, const Real* __restrict__ flat,
                          const Real* __restrict__ along, Real* dx, Index count, Index channels,
                          Index plane) {
  EACH(i, count) {
    const Index c = i / plane % channels;
    dx[i] = (dy[i] - flat[c] - along[c] * y[i]) / deviation[c];
  }
}

// dx = dy / deviation; dx may be dy.
KERNEL stored_gradient(const Real* dy, const Real* __restrict__ deviation, Real* dx, Index count,
                       Index channels, Index plane) {
  EACH(i, count) dx[i] = dy[i] / deviation[i / plane % channels];
}
