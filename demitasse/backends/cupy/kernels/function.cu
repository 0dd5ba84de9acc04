// Functions of every element that few nets have; apart from the others, since to compile them takes
// longer. Source and destination may be one array.

KERNEL absolute(const Stored* x, Stored* y, Index count) {
  map(x, y, count, [](Real value) { return fabs(value); });
}

KERNEL absolute_gradient(const Stored* x, const Stored* dy, Stored* dx, Index count) {
  map(x, dy, dx, count, [](Real value, Real d) {
    return d * (value != value ? value : (Real)((value > 0) - (value < 0)));
  });
}

// log(1 + exp(x)), which no large x makes infinite.
KERNEL bnll(const Stored* x, Stored* y, Index count) {
  map(x, y, count, [](Real value) {
    return (value < 0 ? (Real)0 : value) + log1p(exp(-fabs(value)));
  });
}

KERNEL bnll_gradient(const Stored* x, const Stored* dy, Stored* dx, Index count) {
  map(x, dy, dx, count, [](Real value, Real d) {
    const Real e = exp(value > 50 ? (Real)50 : value);
    return d * (e / (e + 1));
  });
}

KERNEL clip(const Stored* x, Stored* y, Index count, Real low, Real high) {
  map(x, y, count, [=](Real value) {
    const Real below = value > high ? high : value;
    return below < low ? low : below;
  });
}

KERNEL clip_gradient(const Stored* x, const Stored* dy, Stored* dx, Index count, Real low, Real high) {
  map(x, dy, dx, count, [=](Real value, Real d) {
    return d * (Real)(value >= low && value <= high);
  });
}

KERNEL elu(const Stored* x, Stored* y, Index count, Real alpha) {
  map(x, y, count, [=](Real value) { return value > 0 ? value : alpha * expm1(value); });
}

// In place x is the result, which is above 0 where the input is, as alpha is not below 0. As in
// Caffe, y is what the top holds, which a later layer may have overwritten.
KERNEL elu_gradient(const Stored* x, const Stored* y, const Stored* dy, Stored* dx, Index count,
                    Real alpha) {
  map(x, y, dy, dx, count, [=](Real value, Real result, Real d) {
    return d * (value > 0 ? 1 : result + alpha);
  });
}

KERNEL exponential(const Stored* x, Stored* y, Index count, Real inner, Real outer) {
  map(x, y, count, [=](Real value) { return exp(value * inner) * outer; });
}

KERNEL exponential_gradient(const Stored* y, const Stored* dy, Stored* dx, Index count, Real inner,
                            Real outer) {
  (void)outer;
  map(y, dy, dx, count, [=](Real value, Real d) { return d * value * inner; });
}

KERNEL logarithm(const Stored* x, Stored* y, Index count, Real scale, Real shift, Real outer) {
  map(x, y, count, [=](Real value) { return log(value * scale + shift) * outer; });
}

KERNEL logarithm_gradient(const Stored* x, const Stored* dy, Stored* dx, Index count, Real scale,
                          Real shift, Real outer) {
  map(x, dy, dx, count, [=](Real value, Real d) {
    return d * (scale * outer) / (value * scale + shift);
  });
}

// The power of a number, 1 where it is 0, and exact where it is a small integer.
__device__ inline Real raised(Real value, Real by) {
  if (by == 0) return 1;
  if (by == 1) return value;
  return by == 2 ? value * value : pow(value, by);
}

// (shift + scale x)^by; where that is the same for every x, also for one that is no number.
KERNEL power(const Stored* x, Stored* y, Index count, Real by, Real scale, Real shift) {
  map(x, y, count, [=](Real value) {
    return raised(by * scale == 0 ? shift : value * scale + shift, by);
  });
}

KERNEL power_gradient(const Stored* x, const Stored* dy, Stored* dx, Index count, Real by, Real scale,
                      Real shift) {
  const Real slope = by * scale;
  map(x, dy, dx, count, [=](Real value, Real d) {
    if (slope == 0) return d * slope;
    return d * (slope * raised(value * scale + shift, by - 1));
  });
}

// The part of x that passes, between 0 and 1.
__device__ inline Real gate(Real value, Real beta) {
  return (Real)0.5 * tanh((Real)0.5 * beta * value) + (Real)0.5;
}

KERNEL swish(const Stored* x, Stored* y, Index count, Real beta) {
  map(x, y, count, [=](Real value) { return value * gate(value, beta); });
}

// As in Caffe, y is what the top holds, which a later layer may have overwritten.
KERNEL swish_gradient(const Stored* x, const Stored* y, const Stored* dy, Stored* dx, Index count,
                      Real beta) {
  map(x, y, dy, dx, count, [=](Real value, Real result, Real d) {
    const Real passed = gate(value, beta), by = beta * result;
    return d * (by + passed * (1 - by));
  });
}

KERNEL hard_swish(const Stored* x, Stored* y, Index count) {
  map(x, y, count, [=](Real value) {
    const Real above = value + 3 > 0 ? value + 3 : 0;
    return value * (above < 6 ? above : 6) / 6;
  });
}

KERNEL hard_swish_gradient(const Stored* x, const Stored* dy, Stored* dx, Index count) {
  map(x, dy, dx, count, [=](Real value, Real d) {
    if (value >= 3) return d;
    return value <= -3 ? d * 0 : d * ((2 * value + 3) / 6);
  });
}
