// Parameter updates: one launch for all parameters of a net. A table cuts the parameters into
// units, one block's work each.
//
// units (count, 6), for each: addresses of its first weight, gradient and two histories (the second
// is 0 where there is one), number of elements, index of its parameter.
// numbers: momentum, 1 - momentum, 1 + momentum, decay2, 1 - decay2, delta, l1, scale, 1, and then
// rate and decay of each parameter. scale: what gradients are multiplied with first. guard: where it
// is NaN or infinite, nothing is changed.
//
// Source: demitasse/training/update_rules.py, whose formulas these are.

struct Element {
  Real w, g, h, k;
};

// Run the statements on every element, named e, with the numbers of its parameter; they leave the
// value that is taken from the weight in e.g.
#define UPDATE(name, ...)                                                                          \
  KERNEL name(const long long* __restrict__ units, const Real* __restrict__ numbers,               \
              const Real* __restrict__ scale, const Real* __restrict__ guard, Index count) {       \
    if (guard[0] - guard[0] != 0) return;                                                          \
    const Real momentum = numbers[0], momentum_rest = numbers[1], momentum_more = numbers[2];      \
    const Real decay2 = numbers[3], decay2_rest = numbers[4], delta = numbers[5];                  \
    const bool l1 = numbers[6] != 0;                                                               \
    (void)momentum, (void)momentum_rest, (void)momentum_more;                                      \
    (void)decay2, (void)decay2_rest, (void)delta, (void)l1;                                        \
    EACH_ROW(row, count) {                                                                         \
      const long long* unit = units + 6 * row;                                                     \
      Real *data = (Real*)unit[0], *diff = (Real*)unit[1];                                         \
      Real *one = (Real*)unit[2], *two = (Real*)unit[3];                                           \
      const Real rate = numbers[9 + 2 * unit[5]], decay = numbers[10 + 2 * unit[5]];               \
      const bool whole = aligned(data, diff, one, two);                                            \
      each_pack_in_row((Index)unit[4], [&](Index i, auto lanes) {                                  \
        Pack w = load(data, i, whole, lanes), g = load(diff, i, whole, lanes);                     \
        Pack h = load(one, i, whole, lanes), k = two ? load(two, i, whole, lanes) : Pack();        \
        for (int lane = 0; lane < lanes.number; ++lane) {                                          \
          Element e = {w.lane[lane], g.lane[lane] * scale[0], h.lane[lane], k.lane[lane]};         \
          __VA_ARGS__                                                                              \
          h.lane[lane] = e.h;                                                                      \
          k.lane[lane] = e.k;                                                                      \
          g.lane[lane] = e.g;                                                                      \
          w.lane[lane] = e.w - e.g;                                                                \
        }                                                                                          \
        store(one, i, whole, lanes, h);                                                            \
        if (two) store(two, i, whole, lanes, k);                                                   \
        store(diff, i, whole, lanes, g);                                                           \
        store(data, i, whole, lanes, w);                                                           \
      });                                                                                          \
    }                                                                                              \
  }

// Add the decay to the gradient.
#define DECAY \
  if (decay != 0) e.g += decay * (l1 ? (Real)((e.w > 0) - (e.w < 0)) : e.w);

UPDATE(sgd, DECAY e.h = momentum * e.h + rate * e.g; e.g = e.h;)

UPDATE(nesterov, DECAY const Real before = momentum * e.h; e.h = before + rate * e.g;
       e.g = momentum_more * e.h - before;)

UPDATE(adagrad, DECAY e.h = e.h + e.g * e.g; e.g = rate * (e.g / (sqrt(e.h) + delta));)

UPDATE(rmsprop, DECAY e.h = decay2 * e.h + decay2_rest * (e.g * e.g);
       e.g = rate * (e.g / (sqrt(e.h) + delta));)

UPDATE(adadelta, DECAY e.h = momentum * e.h + momentum_rest * (e.g * e.g);
       const Real v = e.g * sqrt((e.k + delta) / (e.h + delta));
       e.k = momentum * e.k + momentum_rest * (v * v); e.g = rate * v;)

// rate is that times Adam's correction.
#define ADAM                                             \
  e.h = momentum * e.h + momentum_rest * e.g;            \
  e.k = decay2 * e.k + decay2_rest * (e.g * e.g);        \
  e.g = rate * (e.h / (sqrt(e.k) + delta));

UPDATE(adam, DECAY ADAM)

// decay is that times the rate.
UPDATE(adamw, ADAM if (decay != 0) e.g += decay * e.w;)

// partial (count,): the sums of squares of the units' gradients.
KERNEL sums_of_squares(const long long* __restrict__ units, Real* __restrict__ partial,
                       Index count) {
  __shared__ Real shared[MOST_THREADS];
  EACH_ROW(row, count) {
    const long long* unit = units + 6 * row;
    const Real* diff = (const Real*)unit[1];
    const bool whole = aligned(diff);
    Real total = 0;
    each_pack_in_row((Index)unit[4], [&](Index i, auto lanes) {
      const Pack pack = load(diff, i, whole, lanes);
      for (int k = 0; k < lanes.number; ++k) total += pack.lane[k] * pack.lane[k];
    });
    total = block_sum(total, shared);
    if (threadIdx.x == 0) partial[row] = total;
  }
}

// scale (): what keeps a norm within the limit. total (): the square of the norm. One thread.
KERNEL clip_scale(const Real* __restrict__ total, Real* __restrict__ scale, Real limit) {
  const Real norm = sqrt(total[0]);
  if (threadIdx.x == 0) scale[0] = norm > limit ? limit / norm : (Real)1;
}

// factors (2,): what scaled gradients are multiplied with, clipping included, and a guard, NaN where
// they are not finite. total (): the sum of their squares. state (2,): the loss scale, and how many
// updates it has lasted; as it was where guard is not finite. One thread. limit: of the norm, or
// below 0. The scale is halved after gradients that are not finite, and doubled after `interval`
// updates.
//
// Source: torch/amp/grad_scaler.py and aten/src/ATen/native/cuda/AmpKernels.cu of PyTorch.
KERNEL unscale(const Real* __restrict__ total, const Real* guard, Real* state,
               Real* __restrict__ factors, Real limit, Real interval) {
  if (threadIdx.x != 0) return;
  const Real scale = state[0], norm = sqrt(total[0]) / scale;
  const Real lost = total[0] - total[0], undone = guard[0] - guard[0];
  factors[0] = (limit >= 0 && norm > limit ? limit / norm : (Real)1) / scale;
  factors[1] = lost + undone;
  if (undone != 0) return;
  const Real lasted = lost != 0 ? (Real)0 : state[1] + 1;
  const bool grows = lasted >= interval;
  const Real next = lost != 0 ? scale / 2 : grows ? 2 * scale : scale;
  if (next >= (Real)1.1754943508222875e-38 && next - next == 0) state[0] = next;
  state[1] = grows ? 0 : lasted;
}

// total (): the sum of all values. One block.
KERNEL sum_of(const Real* __restrict__ values, Real* __restrict__ total, Index count) {
  __shared__ Real shared[MOST_THREADS];
  Real sum = 0;
  EACH_IN_ROW(i, count) sum += values[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) total[0] = sum;
}

// Copy the units' first arrays to their second ones.
KERNEL copies(const long long* __restrict__ units, Index count) {
  EACH_ROW(row, count) {
    const long long* unit = units + 6 * row;
    const Real* from = (const Real*)unit[0];
    Real* to = (Real*)unit[1];
    const bool whole = aligned(from, to);
    each_pack_in_row((Index)unit[4], [&](Index i, auto lanes) {
      store(to, i, whole, lanes, load(from, i, whole, lanes));
    });
  }
}
