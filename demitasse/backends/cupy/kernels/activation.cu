// Functions of every element. Source and destination may be one array.

KERNEL relu(const Stored* x, Stored* y, Index count, Real slope) {
  map(x, y, count, [=](Real value) { return rectified(value, slope); });
}

// x, or y where the layer ran in place: both are above 0 at the same places.
KERNEL relu_gradient(const Stored* x, const Stored* dy, Stored* dx, Index count, Real slope) {
  map(x, dy, dx, count, [=](Real value, Real d) { return d * rectifier_slope(value, slope); });
}

KERNEL sigmoid(const Stored* x, Stored* y, Index count) {
  map(x, y, count, [](Real value) { return (Real)0.5 * tanh((Real)0.5 * value) + (Real)0.5; });
}

KERNEL sigmoid_gradient(const Stored* y, const Stored* dy, Stored* dx, Index count) {
  map(y, dy, dx, count, [](Real value, Real d) { return d * value * (1 - value); });
}

KERNEL hyperbolic_tangent(const Stored* x, Stored* y, Index count) {
  map(x, y, count, [](Real value) { return tanh(value); });
}

KERNEL hyperbolic_tangent_gradient(const Stored* y, const Stored* dy, Stored* dx, Index count) {
  map(y, dy, dx, count, [](Real value, Real d) { return d * (1 - value * value); });
}

// The tail of the normal distribution from a >= 0 on, by erfc, which is exact there, where 1 + erf
// would cancel. What rounding erfc's argument has cost is made up for: it grows with a^2.
__device__ inline Real normal_tail(Real a) {
  const Real root = (Real)0.70710678118654752440;
  const Real lost = (Real)(0.70710678118654752440 - (double)root - 4.8336466567264567e-17);
  const Real at = root * a;
  const Real beside = fma(root, a, -at) + lost * a;
  return (Real)0.5 * (erfc(at) - (Real)1.12837916709551257390 * exp(-at * at) * beside);
}

// So that 0 and infinity are never multiplied: beyond this the tail is 0 in double precision.
__device__ inline Real within_tail(Real value) {
  const Real a = fabs(value);
  return a > 40 ? (Real)40 : a;
}

KERNEL gelu(const Stored* x, Stored* y, Index count) {
  map(x, y, count, [](Real value) {
    const Real a = within_tail(value);
    return (value > 0 ? value : (Real)0) - a * normal_tail(a);
  });
}

KERNEL gelu_gradient(const Stored* x, const Stored* dy, Stored* dx, Index count) {
  map(x, dy, dx, count, [](Real value, Real d) {
    const Real a = within_tail(value);
    const Real density = (Real)0.39894228040143267794 * exp((Real)-0.5 * a * a);
    const Real slope = normal_tail(a) - a * density;  // at -a
    return d * (value > 0 ? 1 - slope : slope);
  });
}
