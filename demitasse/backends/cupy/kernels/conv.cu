// Convolution besides its matrix products: columns, their transpose, order of samples, bias.
//
// Columns hold what every tap of the window sees: (C * taps, N * places), so that all samples of a
// chunk, and all groups, are one batched matrix product.

// image (N, C, height, width) -> columns (C, kernel_h, kernel_w, N, out_h, out_w).
// count = C * N * out_h * out_w.
KERNEL im2col(const Stored* __restrict__ image, Stored* __restrict__ columns, Index count, Index samples,
              Index channels, Index height, Index width, Index kernel_h, Index kernel_w,
              Index stride_h, Index stride_w, Index pad_h, Index pad_w, Index dilation_h,
              Index dilation_w, Index out_h, Index out_w) {
  const Index length = samples * out_h * out_w;
  EACH(i, count) {
    const Index place = i % length, c = i / length;
    const Index out_x = place % out_w, out_y = place / out_w % out_h, n = place / (out_w * out_h);
    const Stored* plane = image + (n * channels + c) * height * width;
    Stored* column = columns + c * kernel_h * kernel_w * length + place;
    const Index top = out_y * stride_h - pad_h, left = out_x * stride_w - pad_w;
    for (Index r = 0; r < kernel_h; ++r) {
      const Index y = top + r * dilation_h;
      for (Index s = 0; s < kernel_w; ++s) {
        const Index x = left + s * dilation_w;
        const bool inside = y >= 0 && y < height && x >= 0 && x < width;
        *column = inside ? plane[y * width + x] : (Stored)0;
        column += length;
      }
    }
  }
}

// The transpose: every element of the image adds up the columns that saw it.
// columns (C, kernel_h, kernel_w, N, out_h, out_w) -> image (N, C, height, width).
// count = N * C * height * width.
KERNEL col2im(const Stored* __restrict__ columns, Stored* __restrict__ image, Index count, Index samples,
              Index channels, Index height, Index width, Index kernel_h, Index kernel_w,
              Index stride_h, Index stride_w, Index pad_h, Index pad_w, Index dilation_h,
              Index dilation_w, Index out_h, Index out_w) {
  const Index length = samples * out_h * out_w;
  EACH(i, count) {
    const Index x = i % width, y = i / width % height;
    const Index c = i / (width * height) % channels, n = i / (width * height * channels);
    const Stored* column = columns + c * kernel_h * kernel_w * length + n * out_h * out_w;
    Real total = 0;
    for (Index r = 0; r < kernel_h; ++r) {
      const Index top = y + pad_h - r * dilation_h, out_y = top / stride_h;
      if (top < 0 || top % stride_h || out_y >= out_h) continue;
      for (Index s = 0; s < kernel_w; ++s) {
        const Index left = x + pad_w - s * dilation_w, out_x = left / stride_w;
        if (left < 0 || left % stride_w || out_x >= out_w) continue;
        total += column[(r * kernel_w + s) * length + out_y * out_w + out_x];
      }
    }
    image[i] = total;
  }
}

// The same over any number of axes. geometry: six rows of `axes` numbers: size, kernel, stride,
// pad, dilation, out. count = C * N * places.
KERNEL im2col_nd(const Stored* __restrict__ image, Stored* __restrict__ columns,
                 const int* __restrict__ geometry, Index count, Index samples, Index channels,
                 Index axes, Index taps, Index places, Index plane) {
  const int *size = geometry, *kernel = size + axes, *stride = kernel + axes;
  const int *pad = stride + axes, *dilation = pad + axes, *out = dilation + axes;
  const Index length = samples * places;
  EACH(i, count) {
    const Index place = i % length, c = i / length;
    const Stored* source = image + (place / places * channels + c) * plane;
    for (Index tap = 0; tap < taps; ++tap) {
      Index rest = tap, spot = place % places, offset = 0, step = 1;
      bool inside = true;
      for (Index axis = axes; axis-- > 0;) {
        const Index at = spot % out[axis] * stride[axis] - pad[axis]
                         + rest % kernel[axis] * dilation[axis];
        inside = inside && at >= 0 && at < size[axis];
        offset += at * step;
        step *= size[axis];
        rest /= kernel[axis];
        spot /= out[axis];
      }
      columns[(c * taps + tap) * length + place] = inside ? source[offset] : (Stored)0;
    }
  }
}

// count = N * C * plane.
KERNEL col2im_nd(const Stored* __restrict__ columns, Stored* __restrict__ image,
                 const int* __restrict__ geometry, Index count, Index samples, Index channels,
                 Index axes, Index taps, Index places, Index plane) {
  const int *size = geometry, *kernel = size + axes, *stride = kernel + axes;
  const int *pad = stride + axes, *dilation = pad + axes, *out = dilation + axes;
  const Index length = samples * places;
  EACH(i, count) {
    const Index c = i / plane % channels, n = i / (plane * channels);
    Real total = 0;
    for (Index tap = 0; tap < taps; ++tap) {
      Index rest = tap, spot = i % plane, place = 0, step = 1;
      bool seen = true;
      for (Index axis = axes; axis-- > 0;) {
        const Index from = spot % size[axis] + pad[axis] - rest % kernel[axis] * dilation[axis];
        const Index at = from / stride[axis];
        seen = seen && from >= 0 && from % stride[axis] == 0 && at < out[axis];
        place += at * step;
        step *= out[axis];
        rest /= kernel[axis];
        spot /= size[axis];
      }
      if (seen) total += columns[(c * taps + tap) * length + n * places + place];
    }
    image[i] = total;
  }
}

// maps (N, M, places) -> rows (M, N, places).
KERNEL samples_to_rows(const Stored* __restrict__ maps, Stored* __restrict__ rows, Index count,
                       Index samples, Index channels, Index places) {
  EACH(i, count) {
    const Index place = i % places, n = i / places % samples, m = i / (places * samples);
    rows[i] = maps[(n * channels + m) * places + place];
  }
}

// rows (M, N, places) -> maps (N, M, places).
KERNEL rows_to_samples(const Stored* __restrict__ rows, Stored* __restrict__ maps, Index count,
                       Index samples, Index channels, Index places) {
  EACH(i, count) {
    const Index place = i % places, m = i / places % channels, n = i / (places * channels);
    maps[i] = rows[(m * samples + n) * places + place];
  }
}

// The same, and the bias (M,) added.
KERNEL rows_to_samples_with_bias(const Stored* __restrict__ rows, const Real* __restrict__ bias,
                                 Stored* __restrict__ maps, Index count, Index samples,
                                 Index channels, Index places) {
  EACH(i, count) {
    const Index place = i % places, m = i / places % channels, n = i / (places * channels);
    maps[i] = rows[(m * samples + n) * places + place] + bias[m];
  }
}

// maps (N, M, places) += bias (M,).
KERNEL add_bias(Stored* __restrict__ maps, const Real* __restrict__ bias, Index count, Index channels,
                Index places) {
  const bool whole = aligned(maps);
  each_with_channels(count, channels, places, [&](Index i, auto channel, auto lanes) {
    Pack pack = load(maps, i, whole, lanes);
    const Pack added = channel.of(bias);
    for (int k = 0; k < lanes.number; ++k) pack.lane[k] += added.lane[k];
    store(maps, i, whole, lanes, pack);
  });
}
