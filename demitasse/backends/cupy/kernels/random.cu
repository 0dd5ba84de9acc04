// Philox4x32-10, word for word what demitasse/backends/random.py computes.
//
// Source: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

// Write words [first, first + count) of a pass. Shape: out (count,), 32-bit words.
KERNEL philox(unsigned int* out, long long blocks, long long first, long long count,
              unsigned int key_low, unsigned int key_high, unsigned int stream,
              unsigned int pass_low, unsigned int pass_high) {
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < blocks; i += step) {
    const unsigned long long block = (unsigned long long)(first / 4 + i);
    unsigned int c0 = (unsigned int)block;
    unsigned int c1 = stream ^ (unsigned int)(block >> 32);
    unsigned int c2 = pass_low, c3 = pass_high;
    unsigned int k0 = key_low, k1 = key_high;
    for (int round = 0; round < 10; ++round) {
      const unsigned long long a = (unsigned long long)c0 * 0xD2511F53u;
      const unsigned long long b = (unsigned long long)c2 * 0xCD9E8D57u;
      c0 = (unsigned int)(b >> 32) ^ c1 ^ k0;
      c2 = (unsigned int)(a >> 32) ^ c3 ^ k1;
      c1 = (unsigned int)b;
      c3 = (unsigned int)a;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    const unsigned int words[4] = {c0, c1, c2, c3};
    for (int j = 0; j < 4; ++j) {
      const long long place = (long long)(block * 4) + j - first;
      if (place >= 0 && place < count) out[place] = words[j];
    }
  }
}
