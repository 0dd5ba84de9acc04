// Losses that compare two arrays element by element, and the accuracy of class scores.
//
// Source: Caffe, src/caffe/layers/euclidean_loss_layer.cpp, sigmoid_cross_entropy_loss_layer.cpp and
// accuracy_layer.cpp.

struct Euclidean {
  __device__ Real loss(Real a, Real b) const { return (a - b) * (a - b) / 2; }
  __device__ Real slope(Real a, Real b) const { return a - b; }
};

struct CrossEntropy {
  // log(1 + exp(-|x|)) + max(x, 0) - x t, which no large x makes infinite
  __device__ Real loss(Real x, Real t) const {
    return log1p(exp(x < 0 ? x : -x)) + (x < 0 ? (Real)0 : x) - x * t;
  }
  __device__ Real slope(Real x, Real t) const {
    return (Real)0.5 * tanh((Real)0.5 * x) + (Real)0.5 - t;
  }
};

// The first pass of a loss: sums over each part of the elements, one block's work, and how many of
// them count: those whose b is not to be ignored. totals, counts (parts,).
template <class Of>
__device__ inline void loss_sums(const Real* a, const Real* b, Real* totals, Real* counts,
                                 Index count, Index has_ignored, Index ignored, Index parts,
                                 Index length, Real* shared, Of of) {
  EACH_ROW(row, parts) {
    const Part part(row, parts, length, count);
    Real total = 0, counted = 0;
    EACH_IN_ROW(k, part.count()) {
      const Index i = part.first + k;
      if (has_ignored && (long long)b[i] == (long long)ignored) continue;
      total += of.loss(a[i], b[i]);
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

// Gradients: the slope times weight / divisor for a, and less than 0 by as much for b, where they
// are wanted; 0 for what is ignored.
template <class Of>
__device__ inline void loss_slopes(const Real* a, const Real* b, const Real* weight,
                                   const Real* divisor, Real* da, Real* db, Index count,
                                   Index has_ignored, Index ignored, Index want_a, Index want_b,
                                   Of of) {
  const Real scale = weight[0] / divisor[0];
  const bool whole = aligned(a, b, da, db);
  each_pack(count, [&](Index i, auto lanes) {
    Pack pack = load(a, i, whole, lanes);
    const Pack other = load(b, i, whole, lanes);
    for (int k = 0; k < lanes.number; ++k) {
      const bool counts = !has_ignored || (long long)other.lane[k] != (long long)ignored;
      pack.lane[k] = counts ? of.slope(pack.lane[k], other.lane[k]) * scale : (Real)0;
    }
    if (want_a) store(da, i, whole, lanes, pack);
    for (int k = 0; k < lanes.number; ++k) pack.lane[k] = -pack.lane[k];
    if (want_b) store(db, i, whole, lanes, pack);
  });
}

KERNEL euclidean_loss(const Real* __restrict__ a, const Real* __restrict__ b,
                      Real* __restrict__ totals, Real* __restrict__ counts, Index count,
                      Index has_ignored, Index ignored, Index parts, Index length) {
  __shared__ Real shared[MOST_THREADS];
  loss_sums(a, b, totals, counts, count, has_ignored, ignored, parts, length, shared,
            Euclidean());
}

KERNEL euclidean_loss_gradient(const Real* __restrict__ a, const Real* __restrict__ b,
                               const Real* __restrict__ weight, const Real* __restrict__ divisor,
                               Real* da, Real* db, Index count, Index has_ignored, Index ignored,
                               Index want_a, Index want_b) {
  loss_slopes(a, b, weight, divisor, da, db, count, has_ignored, ignored, want_a, want_b,
              Euclidean());
}

KERNEL cross_entropy_loss(const Real* __restrict__ x, const Real* __restrict__ t,
                          Real* __restrict__ totals, Real* __restrict__ counts, Index count,
                          Index has_ignored, Index ignored, Index parts, Index length) {
  __shared__ Real shared[MOST_THREADS];
  loss_sums(x, t, totals, counts, count, has_ignored, ignored, parts, length, shared,
            CrossEntropy());
}

KERNEL cross_entropy_loss_gradient(const Real* __restrict__ x, const Real* __restrict__ t,
                                   const Real* __restrict__ weight,
                                   const Real* __restrict__ divisor, Real* dx, Real* dt,
                                   Index count, Index has_ignored, Index ignored, Index want_x,
                                   Index want_t) {
  loss_slopes(x, t, weight, divisor, dx, dt, count, has_ignored, ignored, want_x, want_t,
              CrossEntropy());
}

// The first pass of the accuracy, over each part of the positions, one block's work: how many have
// fewer than top_k scores that reach the labelled one (which is not among these), how many labels
// are not ignored, and how many labelled scores are no numbers. Shapes: scores (outer, classes,
// inner), labels (positions,), rights, counts and odds (parts,).
KERNEL accuracy(const Real* __restrict__ scores, const Real* __restrict__ labels,
                Real* __restrict__ rights, Real* __restrict__ counts, Real* __restrict__ odds,
                Index positions, Index classes, Index inner, Index top_k, Index has_ignored,
                Index ignored, Index parts, Index length) {
  __shared__ Real shared[MOST_THREADS];
  EACH_ROW(row, parts) {
    const Part part(row, parts, length, positions);
    Real right = 0, counted = 0, odd = 0;
    for (Index i = part.first; i < part.last; ++i) {
      const long long label = (long long)labels[i];
      if (has_ignored && label == (long long)ignored) continue;
      counted += 1;
      if (label < 0 || label >= (long long)classes) continue;
      const Real* own = scores + i / inner * classes * inner + i % inner;
      const Real best = own[(Index)label * inner];
      Real reached = 0;
      EACH_IN_ROW(k, classes) reached += own[k * inner] >= best;
      // the labelled score reaches itself, unless it is no number: then none does
      right += block_sum(reached, shared) - 1 < (Real)top_k;
      odd += best != best;
    }
    if (threadIdx.x == 0) {
      rights[row] = right;
      counts[row] = counted;
      odds[row] = odd;
    }
  }
}

// The second pass. accuracy = sum of rights / fixed, or where that is 0 the sum of counts, at least
// 1. One block.
KERNEL accuracy_of_parts(const Real* __restrict__ rights, const Real* __restrict__ counts,
                         const Real* __restrict__ odds, Real* __restrict__ accuracy,
                         Real* __restrict__ odd, Index parts, Real fixed) {
  __shared__ Real shared[MOST_THREADS];
  Real right = 0, counted = 0, strange = 0;
  EACH_IN_ROW(k, parts) {
    right += rights[k];
    counted += counts[k];
    strange += odds[k];
  }
  right = block_sum(right, shared);
  counted = block_sum(counted, shared);
  strange = block_sum(strange, shared);
  if (threadIdx.x == 0) {
    accuracy[0] = right / (fixed > 0 ? fixed : (counted > 1 ? counted : (Real)1));
    odd[0] = strange;
  }
}
