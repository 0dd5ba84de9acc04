// What every kernel here begins with. The text of this file is put in front of the others.
//
// Compiler options choose Real, the dtype of the net (float or double), and WIDE, which is 1 where an
// array has so many elements that an int could overflow. A kernel works for any number of blocks and
// threads, one thread included.

#if WIDE
typedef long long Index;
#else
typedef int Index;
#endif

#define KERNEL extern "C" __global__ void

// Run the body for every i below count, spread over all threads.
#define EACH(i, count)                                                           \
  for (Index i = (Index)blockIdx.x * (Index)blockDim.x + (Index)threadIdx.x;     \
       i < (count); i += (Index)gridDim.x * (Index)blockDim.x)

// Run the body for every row below count, one block for a row.
#define EACH_ROW(row, count) \
  for (Index row = (Index)blockIdx.x; row < (count); row += (Index)gridDim.x)

// Run the body for every k below count, spread over the threads of the block.
#define EACH_IN_ROW(k, count) \
  for (Index k = (Index)threadIdx.x; k < (count); k += (Index)blockDim.x)

// Most threads in a block; their number is a power of two.
#define MOST_THREADS 512

// Return the sum of value over the threads of the block, to all of them, always added up in the
// same order. shared: MOST_THREADS values.
__device__ inline Real block_sum(Real value, Real* shared) {
  const int me = (int)threadIdx.x;
  shared[me] = value;
  __syncthreads();
  for (int half = (int)blockDim.x / 2; half > 0; half /= 2) {
    if (me < half) shared[me] += shared[me + half];
    __syncthreads();
  }
  const Real total = shared[0];
  __syncthreads();
  return total;
}

// Return the largest value over the threads of the block, to all of them.
__device__ inline Real block_max(Real value, Real* shared) {
  const int me = (int)threadIdx.x;
  shared[me] = value;
  __syncthreads();
  for (int half = (int)blockDim.x / 2; half > 0; half /= 2) {
    if (me < half && shared[me + half] > shared[me]) shared[me] = shared[me + half];
    __syncthreads();
  }
  const Real largest = shared[0];
  __syncthreads();
  return largest;
}
