// Philox4x64-10, word for word what demitasse/backends/random.py computes.
//
// Source: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

typedef unsigned long long word64;

// Return the upper half of a product of two 64-bit words, from products of their halves.
__device__ inline word64 upper_half(word64 x, word64 y) {
  const word64 x0 = x & 0xFFFFFFFFull, x1 = x >> 32, y0 = y & 0xFFFFFFFFull, y1 = y >> 32;
  const word64 low = x0 * y0, left = x1 * y0, right = x0 * y1;
  const word64 middle = (low >> 32) + (left & 0xFFFFFFFFull) + (right & 0xFFFFFFFFull);
  return x1 * y1 + (left >> 32) + (right >> 32) + (middle >> 32);
}

// Compute block number `block` of a pass: four words of 64 bits, which are eight of 32 bits.
__device__ inline void philox_block(word64 block, word64 key, word64 stream, word64 pass,
                                    word64* words) {
  word64 c0 = block, c1 = stream, c2 = pass, c3 = 0, k0 = key, k1 = 0;
  for (int round = 0; round < 10; ++round) {
    const word64 a = c0 * 0xD2E7470EE14C6C93ull, b = c2 * 0xCA5A826395121157ull;
    const word64 a_high = upper_half(c0, 0xD2E7470EE14C6C93ull);
    const word64 b_high = upper_half(c2, 0xCA5A826395121157ull);
    c0 = b_high ^ c1 ^ k0;
    c2 = a_high ^ c3 ^ k1;
    c1 = b;
    c3 = a;
    k0 += 0x9E3779B97F4A7C15ull;
    k1 += 0xBB67AE8584CAA73Bull;
  }
  words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

// Run the body for every i below count, spread over all threads.
#define EACH_BLOCK(i, count)                                                            \
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < (count);     \
       i += (long long)gridDim.x * blockDim.x)

// Write words [first, first + count) of a pass. Shape: out (count,), 32-bit words.
KERNEL philox(unsigned int* out, long long blocks, long long first, long long count, word64 key,
              word64 stream, word64 pass) {
  EACH_BLOCK(i, blocks) {
    const word64 block = (word64)(first / 8 + i);
    word64 words[4];
    philox_block(block, key, stream, pass, words);
    for (int j = 0; j < 8; ++j) {
      const long long place = (long long)(block * 8) + j - first;
      if (place >= 0 && place < count) out[place] = (unsigned int)(words[j / 2] >> (j % 2 * 32));
    }
  }
}

// mask = factor where the word of an element is above the threshold, else 0; y = x * mask, which may
// be x. pass (1,): the number of the pass. blocks: of eight elements.
KERNEL dropout(const Stored* x, Stored* y, Real* __restrict__ mask, const word64* __restrict__ pass,
               long long blocks, long long count, word64 key, word64 stream, word64 threshold,
               Real factor) {
  const bool whole = aligned(x, y, mask);
  EACH_BLOCK(i, blocks) {
    word64 words[4];
    philox_block((word64)i, key, stream, pass[0], words);
    const auto drop = [&](int first, auto lanes) {
      const Index at = (Index)(i * 8 + first);
      Pack value = load(x, at, whole, lanes), kept = {};
      for (int k = 0; k < lanes.number; ++k) {
        const int j = first + k;
        const word64 word = (words[j / 2] >> (j % 2 * 32)) & 0xFFFFFFFFull;
        kept.lane[k] = word > threshold ? factor : (Real)0;
        value.lane[k] *= kept.lane[k];
      }
      store(mask, at, whole, lanes, kept);
      store(y, at, whole, lanes, value);
    };
    if (i * 8 + 8 <= count) {
      for (int j = 0; j < 8; j += LANES) drop(j, Lanes<LANES>());
    } else {
      for (int j = 0; j < 8; ++j) {  // up to a constant, so that no index is left at run time
        if (i * 8 + j < count) drop(j, Lanes<1>());
      }
    }
  }
}
