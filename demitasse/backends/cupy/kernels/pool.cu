// Pooling over depth, height and width: windows clipped as Caffe clips them; gradients are gathered,
// so that they are added up in the same order every time. Missing axes are of size 1. `inner` planes
// lie side by side, element by element: all channels of an image with channels last, otherwise 1.
//
// Source: Caffe, src/caffe/layers/pooling_layer.cpp.

// Sizes of a plane, then of the windows, along each axis.
#define WINDOWS                                                                                 \
  Index depth, Index height, Index width, Index kernel_d, Index kernel_h, Index kernel_w,       \
      Index stride_d, Index stride_h, Index stride_w, Index pad_d, Index pad_h, Index pad_w,    \
      Index out_d, Index out_h, Index out_w, Index inner

// The first element of a window on its axis, and the one after the last.
__device__ inline Index first_of(Index start) { return start > 0 ? start : 0; }
__device__ inline Index end_of(Index start, Index kernel, Index size) {
  return start + kernel < size ? start + kernel : size;
}

// The first window that an element is in, `place` counted from the first pad.
__device__ inline Index first_window(Index place, Index kernel, Index stride) {
  return place < kernel ? 0 : (place - kernel) / stride + 1;
}

// x (planes, depth, height, width) -> y, winners (planes, out_d, out_h, out_w); a winner is the
// index in its plane of the first largest value, or -1 where no value is above the smallest float.
// mask: the winners as numbers of the net's dtype, where has_mask. count: size of y.
KERNEL max_pool(const Stored* __restrict__ x, Stored* y, int* winners, Real* mask, Index count,
                WINDOWS, Index has_winners, Index has_mask) {
  EACH(i, count) {
    const Index at = i / inner, side = i % inner;
    const Index out_x = at % out_w, out_y = at / out_w % out_h, out_z = at / (out_w * out_h) % out_d;
    const Stored* plane = x + at / (out_w * out_h * out_d) * depth * height * width * inner + side;
    const Index front = out_z * stride_d - pad_d;
    const Index top = out_y * stride_h - pad_h, left = out_x * stride_w - pad_w;
    const Index back = end_of(front, kernel_d, depth);
    const Index bottom = end_of(top, kernel_h, height), right = end_of(left, kernel_w, width);
    Real best = (Real)-3.402823466385288598e38f;
    Index winner = -1;
    for (Index slice = first_of(front); slice < back; ++slice) {
      for (Index row = first_of(top); row < bottom; ++row) {
        for (Index column = first_of(left); column < right; ++column) {
          const Index place = (slice * height + row) * width + column;
          const Real value = plane[place * inner];
          if (value > best) {
            best = value;
            winner = place;
          }
        }
      }
    }
    y[i] = best;
    if (has_winners) winners[i] = (int)winner;
    if (has_mask) mask[i] = (Real)winner;
  }
}

// winners, dy (planes, out_d, out_h, out_w) -> dx (planes, depth, height, width). count: size of dx.
KERNEL max_pool_gradient(const int* __restrict__ winners, const Stored* __restrict__ dy,
                         Stored* __restrict__ dx, Index count, WINDOWS) {
  EACH(i, count) {
    const Index place = i / inner % (depth * height * width);
    const Index start = i / inner / (depth * height * width) * out_d * out_h * out_w;
    const Index z = place / (width * height) + pad_d;
    const Index y = place / width % height + pad_h, x = place % width + pad_w;
    const Index first_z = first_window(z, kernel_d, stride_d);
    const Index first_y = first_window(y, kernel_h, stride_h);
    const Index first_x = first_window(x, kernel_w, stride_w);
    Real total = 0;
    for (Index out_z = first_z; out_z < out_d && out_z * stride_d <= z; ++out_z) {
      for (Index out_y = first_y; out_y < out_h && out_y * stride_h <= y; ++out_y) {
        for (Index out_x = first_x; out_x < out_w && out_x * stride_w <= x; ++out_x) {
          const Index at = (start + (out_z * out_h + out_y) * out_w + out_x) * inner + i % inner;
          if (winners[at] == place) total += dy[at];
        }
      }
    }
    dx[i] = total;
  }
}

// How many elements a window counts along one axis: padding counts, up to `after` behind the end;
// where it does not count, `after` is below 0.
__device__ inline Index counted(Index start, Index kernel, Index size, Index after) {
  if (after >= 0) return end_of(start, kernel, size + after) - start;
  const Index length = end_of(start, kernel, size) - first_of(start);
  return length > 0 ? length : 0;
}

// x (planes, depth, height, width) -> y (planes, out_d, out_h, out_w). count: size of y.
KERNEL average_pool(const Stored* __restrict__ x, Stored* __restrict__ y, Index count, WINDOWS,
                    Index after_d, Index after_h, Index after_w) {
  EACH(i, count) {
    const Index at = i / inner, side = i % inner;
    const Index out_x = at % out_w, out_y = at / out_w % out_h, out_z = at / (out_w * out_h) % out_d;
    const Stored* plane = x + at / (out_w * out_h * out_d) * depth * height * width * inner + side;
    const Index front = out_z * stride_d - pad_d;
    const Index top = out_y * stride_h - pad_h, left = out_x * stride_w - pad_w;
    const Index back = end_of(front, kernel_d, depth);
    const Index bottom = end_of(top, kernel_h, height), right = end_of(left, kernel_w, width);
    Real total = 0;
    for (Index slice = first_of(front); slice < back; ++slice) {
      for (Index row = first_of(top); row < bottom; ++row) {
        for (Index column = first_of(left); column < right; ++column) {
          total += plane[((slice * height + row) * width + column) * inner];
        }
      }
    }
    y[i] = total / (Real)(counted(front, kernel_d, depth, after_d)
                          * counted(top, kernel_h, height, after_h)
                          * counted(left, kernel_w, width, after_w));
  }
}

// dy (planes, out_d, out_h, out_w) -> dx (planes, depth, height, width). count: size of dx.
KERNEL average_pool_gradient(const Stored* __restrict__ dy, Stored* __restrict__ dx, Index count,
                             WINDOWS, Index after_d, Index after_h, Index after_w) {
  EACH(i, count) {
    const Index place = i / inner % (depth * height * width), side = i % inner;
    const Stored* plane = dy + i / inner / (depth * height * width) * out_d * out_h * out_w * inner + side;
    const Index z = place / (width * height) + pad_d;
    const Index y = place / width % height + pad_h, x = place % width + pad_w;
    const Index first_z = first_window(z, kernel_d, stride_d);
    const Index first_y = first_window(y, kernel_h, stride_h);
    const Index first_x = first_window(x, kernel_w, stride_w);
    Real total = 0;
    for (Index out_z = first_z; out_z < out_d && out_z * stride_d <= z; ++out_z) {
      const Index slices = counted(out_z * stride_d - pad_d, kernel_d, depth, after_d);
      for (Index out_y = first_y; out_y < out_h && out_y * stride_h <= y; ++out_y) {
        const Index rows = counted(out_y * stride_h - pad_h, kernel_h, height, after_h);
        for (Index out_x = first_x; out_x < out_w && out_x * stride_w <= x; ++out_x) {
          const Index columns = counted(out_x * stride_w - pad_w, kernel_w, width, after_w);
          total += plane[((out_z * out_h + out_y) * out_w + out_x) * inner]
                   / (Real)(slices * rows * columns);
        }
      }
    }
    dx[i] = total;
  }
}
