// What is done to images that come as bytes.

// y = (byte - mean) * scale, in the order of the host, which rounds twice too.
//
// bytes, y (N, C, h, w). places (N, 3): first row and column of what was cut out, and 1 where it is
// turned left to right. mean: of whole records, (mean_c, mean_h, mean_w), any of them 1; or none,
// where mean_c is 0.
KERNEL centred(const unsigned char* __restrict__ bytes, const int* __restrict__ places,
               const Real* mean, Real* y, Index count, Index C, Index h, Index w,
               Index mean_c, Index mean_h, Index mean_w, Real scale) {
  EACH(i, count) {
    const Index x = i % w, row = i / w % h, c = i / w / h % C;
    const int* place = places + 3 * (i / w / h / C);
    const Index from = place[2] ? w - 1 - x : x;
    Real value = (Real)bytes[i - x + from];
    if (mean_c) {
      const Index plane = mean_c > 1 ? c : 0;
      const Index line = mean_h > 1 ? place[0] + row : 0;
      const Index at = mean_w > 1 ? place[1] + from : 0;
      value -= mean[(plane * mean_h + line) * mean_w + at];
    }
    y[i] = value * scale;
  }
}
