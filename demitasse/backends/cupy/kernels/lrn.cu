// Local response normalisation across channels: y = x * scale^-beta, where scale is
// k + alpha / size * (sum of squares over a window of channels). Each element adds up its own
// window: nothing is carried from one to the next, so no error grows.
//
// Source: Caffe, src/caffe/layers/lrn_layer.cpp.

// x, scale, y (N, channels, plane); count: their size. The scale is kept where has_scale.
KERNEL lrn_across(const Stored* __restrict__ x, Real* scale, Stored* y, Index count,
                  Index channels, Index plane, Index size, Real alpha_over_size, Real beta, Real k,
                  Index has_scale) {
  EACH(i, count) {
    const Index c = i / plane % channels;
    const Index first = c - (size - 1) / 2 > 0 ? c - (size - 1) / 2 : 0;
    const Index last = c + size / 2 < channels ? c + size / 2 : channels - 1;
    Real total = 0;
    for (Index other = first; other <= last; ++other) {
      const Real value = x[i + (other - c) * plane];
      total += value * value;
    }
    const Real s = k + alpha_over_size * total;
    if (has_scale) scale[i] = s;
    y[i] = x[i] * pow(s, -beta);
  }
}

// dx = dy * scale^-beta - 2 alpha beta / size * x * (sum of dy * y / scale over the channels whose
// windows hold this one). factor: 2 alpha beta / size.
KERNEL lrn_across_gradient(const Stored* __restrict__ x, const Stored* __restrict__ y,
                           const Real* __restrict__ scale, const Stored* __restrict__ dy,
                           Stored* __restrict__ dx, Index count, Index channels, Index plane,
                           Index size, Real beta, Real factor) {
  EACH(i, count) {
    const Index c = i / plane % channels;
    const Index first = c - size / 2 > 0 ? c - size / 2 : 0;
    const Index last = c + (size - 1) / 2 < channels ? c + (size - 1) / 2 : channels - 1;
    Real total = 0;
    for (Index other = first; other <= last; ++other) {
      const Index at = i + (other - c) * plane;
      total += dy[at] * y[at] / scale[at];
    }
    dx[i] = dy[i] * pow(scale[i], -beta) - factor * x[i] * total;
  }
}

// The same within a channel: scale is 1 + rate * (sum of squares over a window of pixels), and the
// windows that hold a pixel are those of the pixels in its own. size: of a window's side, odd.
KERNEL lrn_within(const Stored* __restrict__ x, Real* scale, Stored* y, Index count, Index height,
                  Index width, Index size, Real rate, Real beta, Index has_scale) {
  EACH(i, count) {
    const Index column = i % width, row = i / width % height, reach = size / 2;
    const Stored* plane = x + (i - row * width - column);
    const Index top = row > reach ? row - reach : 0, left = column > reach ? column - reach : 0;
    const Index bottom = row + reach < height ? row + reach : height - 1;
    const Index right = column + reach < width ? column + reach : width - 1;
    Real total = 0;
    for (Index r = top; r <= bottom; ++r) {
      for (Index c = left; c <= right; ++c) {
        const Real value = plane[r * width + c];
        total += value * value;
      }
    }
    const Real s = 1 + rate * total;
    if (has_scale) scale[i] = s;
    y[i] = x[i] * pow(s, -beta);
  }
}

// factor: 2 rate beta.
KERNEL lrn_within_gradient(const Stored* __restrict__ x, const Stored* __restrict__ y,
                           const Real* __restrict__ scale, const Stored* __restrict__ dy,
                           Stored* __restrict__ dx, Index count, Index height, Index width,
                           Index size, Real beta, Real factor) {
  EACH(i, count) {
    const Index column = i % width, row = i / width % height, reach = size / 2;
    const Index plane = i - row * width - column;
    const Index top = row > reach ? row - reach : 0, left = column > reach ? column - reach : 0;
    const Index bottom = row + reach < height ? row + reach : height - 1;
    const Index right = column + reach < width ? column + reach : width - 1;
    Real total = 0;
    for (Index r = top; r <= bottom; ++r) {
      for (Index c = left; c <= right; ++c) {
        const Index at = plane + r * width + c;
        total += dy[at] * y[at] / scale[at];
      }
    }
    dx[i] = dy[i] * pow(scale[i], -beta) - factor * x[i] * total;
  }
}
