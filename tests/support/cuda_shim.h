// Enough of CUDA C++ for g++ to compile our kernels, to be run by the host.
//
// A kernel becomes an ordinary function that the threads of a test call. Where a thread stands in
// the grid is its own; __shared__ memory is one for all threads, so blocks run one after another.

#include <cmath>
#include <mutex>
#include <condition_variable>

#define __global__
#define __device__
#define __shared__ static
#define __restrict__

struct Place {
  unsigned int x = 0, y = 0, z = 0;
};
struct Extent {
  unsigned int x = 1, y = 1, z = 1;
};

static thread_local Place threadIdx, blockIdx;
static thread_local Extent blockDim, gridDim;

static std::mutex shim_lock;
static std::condition_variable shim_all_here;
static unsigned int shim_waiting = 0, shim_round = 0;

static void __syncthreads() {
  if (blockDim.x == 1) return;
  std::unique_lock<std::mutex> lock(shim_lock);
  const unsigned int round = shim_round;
  if (++shim_waiting == blockDim.x) {
    shim_waiting = 0;
    ++shim_round;
    shim_all_here.notify_all();
    return;
  }
  shim_all_here.wait(lock, [round] { return shim_round != round; });
}

extern "C" void shim_stand(unsigned int thread, unsigned int threads, unsigned int block,
                           unsigned int blocks) {
  threadIdx.x = thread;
  blockDim.x = threads;
  blockIdx.x = block;
  gridDim.x = blocks;
}

using std::erfc;
using std::exp;
using std::fma;
using std::log;
using std::pow;
using std::sqrt;
using std::tanh;
