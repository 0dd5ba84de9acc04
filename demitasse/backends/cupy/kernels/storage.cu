// Values from Real to 16 bits and back.

KERNEL narrow(const Real* x, Stored* y, Index count) {
  EACH(i, count) y[i] = x[i];
}

KERNEL widen(const Stored* x, Real* y, Index count) {
  EACH(i, count) y[i] = x[i];
}
