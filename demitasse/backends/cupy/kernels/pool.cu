// Pooling over height and width: windows clipped as Caffe clips them; gradients are gathered, so
// that they are added up in the same order every time.
//
// Source: Caffe, src/caffe/layers/pooling_layer.cpp.

// x (planes, height, width) -> y, winners (planes, out_h, out_w); a winner is the index in its
// plane of the first largest value, or -1 where no value is above the smallest float.
// mask: the winners as numbers of the net's dtype, where has_mask. count: size of y.
KERNEL max_pool(const Stored* __restrict__ x, Stored* y, int* winners, Real* mask, Index count,
                Index height, Index width, Index kernel_h, Index kernel_w, Index stride_h,
                Index stride_w, Index pad_h, Index pad_w, Index out_h, Index out_w,
                Index has_winners, Index has_mask) {
  EACH(i, count) {
    const Index out_x = i % out_w, out_y = i / out_w % out_h;
    const Stored* plane = x + i / (out_w * out_h) * height * width;
    const Index top = out_y * stride_h - pad_h, left = out_x * stride_w - pad_w;
    const Index bottom = top + kernel_h < height ? top + kernel_h : height;
    const Index right = left + kernel_w < width ? left + kernel_w : width;
    Real best = (Real)-3.402823466385288598e38f;
    Index winner = -1;
    for (Index row = top > 0 ? top : 0; row < bottom; ++row) {
      for (Index column = left > 0 ? left : 0; column < right; ++column) {
        const Real value = plane[row * width + column];
        if (value > best) {
          best = value;
          winner = row * width + column;
        }
      }
    }
    y[i] = best;
    if (has_winners) winners[i] = (int)winner;
    if (has_mask) mask[i] = (Real)winner;
  }
}

// winners, dy (planes, out_h, out_w) -> dx (planes, height, width). count: size of dx.
KERNEL max_pool_gradient(const int* __restrict__ winners, const Real* __restrict__ dy,
                         Real* __restrict__ dx, Index count, Index height, Index width,
                         Index kernel_h, Index kernel_w, Index stride_h, Index stride_w,
                         Index pad_h, Index pad_w, Index out_h, Index out_w) {
  EACH(i, count) {
    const Index column = i % width, row = i / width % height, place = row * width + column;
    const Index start = i / (width * height) * out_h * out_w;
    const Index y = row + pad_h, x = column + pad_w;
    const Index first_y = y < kernel_h ? 0 : (y - kernel_h) / stride_h + 1;
    const Index first_x = x < kernel_w ? 0 : (x - kernel_w) / stride_w + 1;
    Real total = 0;
    for (Index out_y = first_y; out_y < out_h && out_y * stride_h <= y; ++out_y) {
      for (Index out_x = first_x; out_x < out_w && out_x * stride_w <= x; ++out_x) {
        const Index at = start + out_y * out_w + out_x;
        if (winners[at] == place) total += dy[at];
      }
    }
    dx[i] = total;
  }
}

// How many elements a window counts along one axis: padding counts, up to one pad after the end.
__device__ inline Index counted(Index start, Index kernel, Index size, Index pad) {
  const Index end = start + kernel < size + pad ? start + kernel : size + pad;
  return end - start;
}

// x (planes, height, width) -> y (planes, out_h, out_w). count: size of y.
KERNEL average_pool(const Stored* __restrict__ x, Stored* __restrict__ y, Index count, Index height,
                    Index width, Index kernel_h, Index kernel_w, Index stride_h, Index stride_w,
                    Index pad_h, Index pad_w, Index out_h, Index out_w) {
  EACH(i, count) {
    const Index out_x = i % out_w, out_y = i / out_w % out_h;
    const Stored* plane = x + i / (out_w * out_h) * height * width;
    const Index top = out_y * stride_h - pad_h, left = out_x * stride_w - pad_w;
    const Index bottom = top + kernel_h < height ? top + kernel_h : height;
    const Index right = left + kernel_w < width ? left + kernel_w : width;
    Real total = 0;
    for (Index row = top > 0 ? top : 0; row < bottom; ++row) {
      for (Index column = left > 0 ? left : 0; column < right; ++column) {
        total += plane[row * width + column];
      }
    }
    y[i] = total / (Real)(counted(top, kernel_h, height, pad_h)
                          * counted(left, kernel_w, width, pad_w));
  }
}

// dy (planes, out_h, out_w) -> dx (planes, height, width). count: size of dx.
KERNEL average_pool_gradient(const Real* __restrict__ dy, Real* __restrict__ dx, Index count,
                             Index height, Index width, Index kernel_h, Index kernel_w,
                             Index stride_h, Index stride_w, Index pad_h, Index pad_w, Index out_h,
                             Index out_w) {
  EACH(i, count) {
    const Index column = i % width, row = i / width % height;
    const Real* plane = dy + i / (width * height) * out_h * out_w;
    const Index y = row + pad_h, x = column + pad_w;
    const Index first_y = y < kernel_h ? 0 : (y - kernel_h) / stride_h + 1;
    const Index first_x = x < kernel_w ? 0 : (x - kernel_w) / stride_w + 1;
    Real total = 0;
    for (Index out_y = first_y; out_y < out_h && out_y * stride_h <= y; ++out_y) {
      const Index rows = counted(out_y * stride_h - pad_h, kernel_h, height, pad_h);
      for (Index out_x = first_x; out_x < out_w && out_x * stride_w <= x; ++out_x) {
        const Index columns = counted(out_x * stride_w - pad_w, kernel_w, width, pad_w);
        total += plane[out_y * out_w + out_x] / (Real)(rows * columns);
      }
    }
    dx[i] = total;
  }
}
