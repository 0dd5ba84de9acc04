// Functions of every element. Source and destination may be one array.

KERNEL relu(const Real* x, Real* y, Index count, Real slope) {
  map(x, y, count, [=](Real value) { return rectified(value, slope); });
}

// x, or y where the layer ran in place: both are above 0 at the same places.
KERNEL relu_gradient(const Real* x, const Real* dy, Real* dx, Index count, Real slope) {
  map(x, dy, dx, count, [=](Real value, Real d) { return d * rectifier_slope(value, slope); });
}

KERNEL sigmoid(const Real* x, Real* y, Index count) {
  map(x, y, count, [](Real value) { return (Real)0.5 * tanh((Real)0.5 * value) + (Real)0.5; });
}

KERNEL sigmoid_gradient(const Real* y, const Real* dy, Real* dx, Index count) {
  map(y, dy, dx, count, [](Real value, Real d) { return d * value * (1 - value); });
}

KERNEL hyperbolic_tangent(const Real* x, Real* y, Index count) {
  map(x, y, count, [](Real value) { return tanh(value); });
}

KERNEL hyperbolic_tangent_gradient(const Real* y, const Real* dy, Real* dx, Index count) {
  map(y, dy, dx, count, [](Real value, Real d) { return d * (1 - value * value); });
}

// By erfc, which is exact in the tail, where 1 + erf would cancel.
KERNEL gelu(const Real* x, Real* y, Index count) {
  map(x, y, count, [](Real value) {
    return (Real)0.5 * value * erfc((Real)-0.70710678118654752440 * value);
  });
}

KERNEL gelu_gradient(const Real* x, const Real* dy, Real* dx, Index count) {
  map(x, dy, dx, count, [](Real value, Real d) {
    const Real below = (Real)0.5 * erfc((Real)-0.70710678118654752440 * value);
    const Real density = (Real)0.39894228040143267794 * exp((Real)-0.5 * value * value);
    return d * (below + value * density);
  });
}
