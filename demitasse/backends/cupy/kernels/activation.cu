// Functions of every element. Source and destination may be one array.

KERNEL relu(const Real* x, Real* y, Index count, Real slope) {
  EACH(i, count) {
    const Real value = x[i];
    y[i] = value < 0 ? 0 + slope * value : value;
  }
}

// x, or y where the layer ran in place: both are above 0 at the same places.
KERNEL relu_gradient(const Real* x, const Real* dy, Real* dx, Index count, Real slope) {
  EACH(i, count) dx[i] = dy[i] * ((x[i] > 0) + slope * (x[i] <= 0));
}

KERNEL sigmoid(const Real* x, Real* y, Index count) {
  EACH(i, count) y[i] = (Real)0.5 * tanh((Real)0.5 * x[i]) + (Real)0.5;
}

KERNEL sigmoid_gradient(const Real* y, const Real* dy, Real* dx, Index count) {
  EACH(i, count) dx[i] = dy[i] * y[i] * (1 - y[i]);
}

KERNEL hyperbolic_tangent(const Real* x, Real* y, Index count) {
  EACH(i, count) y[i] = tanh(x[i]);
}

KERNEL hyperbolic_tangent_gradient(const Real* y, const Real* dy, Real* dx, Index count) {
  EACH(i, count) dx[i] = dy[i] * (1 - y[i] * y[i]);
}

// By erfc, which is exact in the tail, where 1 + erf would cancel.
KERNEL gelu(const Real* x, Real* y, Index count) {
  EACH(i, count) {
    const Real value = x[i];
    y[i] = (Real)0.5 * value * erfc((Real)-0.70710678118654752440 * value);
  }
}

KERNEL gelu_gradient(const Real* x, const Real* dy, Real* dx, Index count) {
  EACH(i, count) {
    const Real value = x[i];
    const Real below = (Real)0.5 * erfc((Real)-0.70710678118654752440 * value);
    const Real density = (Real)0.39894228040143267794 * exp((Real)-0.5 * value * value);
    dx[i] = dy[i] * (below + value * density);
  }
}
