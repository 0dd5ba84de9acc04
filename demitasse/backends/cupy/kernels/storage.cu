// Values from Real to 16 bits and back.

KERNEL narrow(const Real* x, Stored* y, Index count) {
  const bool whole = aligned(x, y);
  each_pack(count, [&](Index i, auto lanes) {
    store(y, i, whole, lanes, load(x, i, whole, lanes));
  });
}

// y = x, or y + x with `add`.
KERNEL widen(const Stored* x, Real* y, Index count, Index add) {
  const bool whole = aligned(x, y);
  each_pack(count, [&](Index i, auto lanes) {
    Pack pack = load(x, i, whole, lanes);
    if (add) {
      const Pack other = load(y, i, whole, lanes);
      for (int k = 0; k < lanes.number; ++k) pack.lane[k] += other.lane[k];
    }
    store(y, i, whole, lanes, pack);
  });
}
