// Softmax along the middle axis of (outer, classes, inner), its gradient, and the loss on top.
// Kernels named _rows are for inner = 1, one block for a row; the others have a thread for
// each position, which is one of outer * inner.
//
// Source: Caffe, src/caffe/layers/softmax_layer.cpp and softmax_loss_layer.cpp.

KERNEL softmax_rows(const Stored* x, Stored* y, Index outer, Index classes) {
  __shared__ Real shared[MOST_THREADS];
  EACH_ROW(row, outer) {
    const Stored* source = x + row * classes;
    Stored* target = y + row * classes;
    Real largest = source[0];
    EACH_IN_ROW(k, classes) {
      const Real value = source[k];
      largest = value > largest ? value : largest;
    }
    largest = block_max(largest, shared);
    Real total = 0;
    EACH_IN_ROW(k, classes) total += exp(source[k] - largest);
    total = block_sum(total, shared);
    EACH_IN_ROW(k, classes) target[k] = exp(source[k] - largest) / total;
  }
}

// count = outer * inner.
KERNEL softmax_places(const Stored* x, Stored* y, Index count, Index classes, Index inner) {
  EACH(i, count) {
    const Index start = i / inner * classes * inner + i % inner;
    Real largest = x[start];
    for (Index k = 1; k < classes; ++k) {
      const Real value = x[start + k * inner];
      largest = value > largest ? value : largest;
    }
    Real total = 0;
    for (Index k = 0; k < classes; ++k) total += exp(x[start + k * inner] - largest);
    for (Index k = 0; k < classes; ++k) {
      y[start + k * inner] = exp(x[start + k * inner] - largest) / total;
    }
  }
}

// dx = (dy - sum of dy * y) * y. dx may be dy.
KERNEL softmax_rows_gradient(const Stored* y, const Stored* dy, Stored* dx, Index outer,
                             Index classes) {
  __shared__ Real shared[MOST_THREADS];
  EACH_ROW(row, outer) {
    const Index start = row * classes;
    Real total = 0;
    EACH_IN_ROW(k, classes) total += dy[start + k] * y[start + k];
    total = block_sum(total, shared);
    EACH_IN_ROW(k, classes) dx[start + k] = (dy[start + k] - total) * y[start + k];
  }
}

KERNEL softmax_places_gradient(const Stored* y, const Stored* dy, Stored* dx, Index count,
                               Index classes, Index inner) {
  EACH(i, count) {
    const Index start = i / inner * classes * inner + i % inner;
    Real total = 0;
    for (Index k = 0; k < classes; ++k) total += dy[start + k * inner] * y[start + k * inner];
    for (Index k = 0; k < classes; ++k) {
      const Index at = start + k * inner;
      dx[at] = (dy[at] - total) * y[at];
    }
  }
}

// The first pass of the loss: totals = sums of -log(probability of the label), counts = number of
// positions whose label is not ignored, for each part of the positions, one block's work. NaN for a
// label that is no class. Shapes: probabilities (outer, classes, inner), labels (places,), totals
// and counts (parts,).
KERNEL softmax_loss(const Real* __restrict__ probabilities, const Real* __restrict__ labels,
                    Real* __restrict__ totals, Real* __restrict__ counts, Index places,
                    Index classes, Index inner, Index has_ignored, Index ignored, Index parts,
                    Index length) {
  __shared__ Real shared[MOST_THREADS];
  EACH_ROW(row, parts) {
    const Part part(row, parts, length, places);
    Real total = 0, counted = 0;
    EACH_IN_ROW(k, part.count()) {
      const Index i = part.first + k;
      const long long label = (long long)labels[i];
      if (has_ignored && label == (long long)ignored) continue;
      const bool known = label >= 0 && label < (long long)classes;
      const Index at = (i / inner * classes + (known ? (Index)label : 0)) * inner + i % inner;
      const Real smallest = (Real)1.1754943508222875e-38;
      const Real p = probabilities[at];
      total -= known ? log(p < smallest ? smallest : p) : log((Real)-1);
      counted += 1;
    }
    total = block_sum(total, shared);
    counted = block_sum(counted, shared);
    if (threadIdx.x == 0) {
      totals[row] = total;
      counts[row] = counted;
    }
  }
}

// dx = (probabilities - 1 at the label) * weight / divisor, 0 where the label is ignored.
// count: size of dx.
KERNEL softmax_loss_gradient(const Real* __restrict__ probabilities,
                             const Real* __restrict__ labels, const Real* __restrict__ weight,
                             const Real* __restrict__ divisor, Real* __restrict__ dx, Index count,
                             Index classes, Index inner, Index has_ignored, Index ignored) {
  const Real scale = weight[0] / divisor[0];
  const bool whole = aligned(probabilities, labels, dx);
  each_in_channels(count, classes, inner, [&](Index i, Index k, auto lanes) {
    const Index n = i / (classes * inner), place = i - (n * classes + k) * inner;
    Pack pack = load(probabilities, i, whole, lanes);
    const Pack given = load(labels, n * inner + place, whole, lanes);
    for (int lane = 0; lane < lanes.number; ++lane) {
      const long long label = (long long)given.lane[lane];
      const Real value = pack.lane[lane] - (label == (long long)k ? (Real)1 : (Real)0);
      pack.lane[lane] = has_ignored && label == (long long)ignored ? (Real)0 : value * scale;
    }
    store(dx, i, whole, lanes, pack);
  });
}
