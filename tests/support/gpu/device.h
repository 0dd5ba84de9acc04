// Enough of CUDA C++ for g++ to compile our kernels, and to run them as a GPU would: every thread
// of a block, with barriers.
//
// The threads of a block take turns. One that comes to a barrier is parked on a stack of its own
// (a fibre) until all have come there; one that comes to none needs no stack, so kernels without
// barriers are loops. Blocks run one after another, and __shared__ memory is poison in each.

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("of_a_block")))

struct dim3 {
  unsigned int x = 1, y = 1, z = 1;
};
struct uint3 {
  unsigned int x = 0, y = 0, z = 0;
};
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static const int warpSize = 32;

#define VECTOR2(name, T) struct alignas(2 * sizeof(T)) name { T x, y; };
#define VECTOR4(name, T) struct alignas(sizeof(T) > 4 ? 16 : 4 * sizeof(T)) name { T x, y, z, w; };
static inline unsigned int __float_as_uint(float value) {
  unsigned int bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
static inline float __uint_as_float(unsigned int bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Half precision: 5 bits of exponent, 10 of fraction; rounded to nearest even.
#define HALF_CONVERSIONS
static inline unsigned short half_bits(float value) {
  const unsigned int bits = __float_as_uint(value), sign = bits >> 16 & 0x8000;
  const float size = fabsf(value);
  if (value != value) return (unsigned short)(sign | 0x7E00);
  if (size >= 65520.0f) return (unsigned short)(sign | 0x7C00);
  if (size < 6.103515625e-05f) {  // below the normal numbers: a whole number of 2^-24
    return (unsigned short)(sign | (unsigned int)nearbyintf(size * 16777216.0f));
  }
  const unsigned int rest = bits & 0x7FFFFFFF;
  const unsigned int rounded = rest + 0x0FFF + (rest >> 13 & 1);
  return (unsigned short)(sign | ((rounded - 0x38000000) >> 13));
}
static inline float half_value(unsigned short bits) {
  const unsigned int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const unsigned int sign = (unsigned int)(bits & 0x8000) << 16;
  if (exponent == 31) return __uint_as_float(sign | 0x7F800000 | fraction << 13);
  const float size = exponent == 0 ? (float)fraction / 16777216.0f
                                   : __uint_as_float((exponent + 112) << 23 | fraction << 13);
  return sign ? -size : size;
}

VECTOR2(float2, float)
VECTOR4(float4, float)
VECTOR2(double2, double)
VECTOR4(double4, double)
VECTOR2(int2, int)
VECTOR4(int4, int)
VECTOR2(uint2, unsigned int)
VECTOR4(uint4, unsigned int)
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline double2 make_double2(double x, double y) { return {x, y}; }

extern "C" char __start_of_a_block[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_of_a_block[] __attribute__((weak, visibility("hidden")));

namespace gpu {

enum State { ready, at_barrier, at_warp_barrier, finished };

struct Fibre {
  ucontext_t beginning;
  jmp_buf here;
  std::vector<char> stack;
  unsigned int thread = 0;
  State state = ready;
  int site = 0;
  bool begun = false;
};

struct Block {
  std::vector<Fibre*> fibres, idle;
  std::vector<unsigned int> order;
  unsigned int next = 0, done = 0;
  void (*body)(void*) = nullptr;
  void* argument = nullptr;
  bool used_barriers = false;
  char trouble[200] = "";
};

static Block block;
static Fibre* current;
static jmp_buf scheduler;
static const size_t STACK = 64 << 10;

static unsigned int thread_count() { return blockDim.x * blockDim.y * blockDim.z; }

static void stand(unsigned int thread) {
  threadIdx.x = thread % blockDim.x;
  threadIdx.y = thread / blockDim.x % blockDim.y;
  threadIdx.z = thread / blockDim.x / blockDim.y;
}

// What a fibre does: threads, one after another, until none is left to begin.
static void work() {
  for (;;) {
    while (block.next < block.order.size()) {
      current->thread = block.order[block.next++];
      stand(current->thread);
      block.body(block.argument);
      ++block.done;
    }
    current->state = finished;
    if (!_setjmp(current->here)) _longjmp(scheduler, 1);
  }
}

static void enter(Fibre* fibre) {
  current = fibre;
  if (_setjmp(scheduler)) return;
  if (fibre->begun) _longjmp(fibre->here, 1);
  fibre->begun = true;
  getcontext(&fibre->beginning);
  fibre->stack.resize(STACK);
  fibre->beginning.uc_stack.ss_sp = fibre->stack.data();
  fibre->beginning.uc_stack.ss_size = STACK;
  fibre->beginning.uc_link = nullptr;
  makecontext(&fibre->beginning, work, 0);
  setcontext(&fibre->beginning);
}

static Fibre* a_fibre() {
  if (block.idle.empty()) {
    block.fibres.push_back(new Fibre());
    return block.fibres.back();
  }
  Fibre* fibre = block.idle.back();
  block.idle.pop_back();
  return fibre;
}

static void park(State state, int site) {
  Fibre* me = current;
  me->state = state;
  me->site = site;
  block.used_barriers = true;
  if (!_setjmp(me->here)) _longjmp(scheduler, 1);
  stand(me->thread);
}

// Let go on all threads that have come to one barrier; false where there is none such.
static bool release(std::vector<Fibre*>& parked) {
  const unsigned int all = thread_count();
  std::vector<Fibre*> going;
  bool whole = parked.size() == all;
  for (Fibre* f : parked) whole = whole && f->state == at_barrier && f->site == parked[0]->site;
  if (whole) {
    going.swap(parked);
  } else {
    for (unsigned int first = 0; first < all && going.empty(); first += 32) {
      const unsigned int last = first + 32 < all ? first + 32 : all;
      std::vector<Fibre*> mine, others;
      for (Fibre* f : parked) {
        const bool here = f->thread >= first && f->thread < last && f->state == at_warp_barrier;
        (here ? mine : others).push_back(f);
      }
      if (mine.size() == last - first) going.swap(mine), parked.swap(others);
    }
  }
  if (going.empty()) return false;
  for (Fibre* fibre : going) {
    fibre->state = ready;
    enter(fibre);
    if (fibre->state == finished) block.idle.push_back(fibre);
    else parked.push_back(fibre);
  }
  return true;
}

// Run all threads of the current block; false where not all came to a barrier that some came to.
static bool run_block() {
  block.next = block.done = 0;
  std::vector<Fibre*> parked;
  while (block.next < block.order.size()) {
    Fibre* fibre = a_fibre();
    fibre->state = ready;
    enter(fibre);
    if (fibre->state == finished) block.idle.push_back(fibre);
    else parked.push_back(fibre);
  }
  while (!parked.empty()) {
    if (!release(parked)) {
      snprintf(block.trouble, sizeof block.trouble,
               "block %u: %u threads wait at a barrier (line %d), %u are through, the others wait "
               "elsewhere", blockIdx.x, (unsigned)parked.size(), parked[0]->site, block.done);
      block.fibres.clear();  // their stacks stay in the middle of a kernel
      block.idle.clear();
      return false;
    }
  }
  return true;
}

struct Launch {
  unsigned int grid[3], threads[3];
  int order;  // 0 as numbered, 1 the other way round, else shuffled by this number
};

static void put_in_order(std::vector<unsigned int>& order, unsigned int count, int how) {
  order.resize(count);
  for (unsigned int i = 0; i < count; ++i) order[i] = how == 1 ? count - 1 - i : i;
  if (how < 2) return;
  uint64_t state = 0x9E3779B97F4A7C15ull * (uint64_t)how;
  for (unsigned int i = count; i > 1; --i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    std::swap(order[i - 1], order[(state >> 33) % i]);
  }
}

#ifdef FLUSH_DENORMALS  // as -ftz=true does, which cupy adds
struct Flush {
  const unsigned int before = __builtin_ia32_stmxcsr();
  Flush() { __builtin_ia32_ldmxcsr(before | 0x8040); }
  ~Flush() { __builtin_ia32_ldmxcsr(before); }
};
#else
struct Flush {
  Flush() {}
};
#endif

static int launch(const Launch& given, void (*body)(void*), void* argument, char* trouble) {
  const Flush flush;
  blockDim = {given.threads[0], given.threads[1], given.threads[2]};
  gridDim = {given.grid[0], given.grid[1], given.grid[2]};
  block.body = body;
  block.argument = argument;
  put_in_order(block.order, thread_count(), given.order);
  std::vector<unsigned int> blocks;
  put_in_order(blocks, gridDim.x * gridDim.y * gridDim.z, given.order);
  block.used_barriers = true;
  for (unsigned int number : blocks) {
    blockIdx.x = number % gridDim.x;
    blockIdx.y = number / gridDim.x % gridDim.y;
    blockIdx.z = number / gridDim.x / gridDim.y;
    if (block.used_barriers && __start_of_a_block)
      memset(__start_of_a_block, 0xFF, __stop_of_a_block - __start_of_a_block);
    block.used_barriers = false;
    if (!run_block()) {
      strcpy(trouble, block.trouble);
      return 1;
    }
  }
  return 0;
}

// -- a kernel's signature, and its call with pointers to its arguments --------------------------

template <typename T>
static void describe(std::vector<char>& text) {
  using Bare = std::remove_cv_t<std::remove_pointer_t<T>>;
  char line[64];
  const char kind = std::is_floating_point_v<Bare> ? 'f' : std::is_same_v<Bare, bool> ? 'b'
                    : std::is_signed_v<Bare> ? 'i' : std::is_unsigned_v<Bare> ? 'u' : 'V';
  size_t size = 0, alignment = 1;
  if constexpr (!std::is_void_v<Bare>) size = sizeof(Bare), alignment = alignof(Bare);
  const int n = snprintf(line, sizeof line, "%d %d %c %zu %zu\n", (int)std::is_pointer_v<T>,
                         (int)std::is_const_v<std::remove_pointer_t<T>>, kind, size, alignment);
  text.insert(text.end(), line, line + n);
}

template <typename... A>
static const char* signature(void (*)(A...)) {
  static std::vector<char> text;
  if (text.empty()) {
    (describe<A>(text), ...);
    text.push_back(0);
  }
  return text.data();
}

template <typename... A, size_t... I>
static void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*(A*)arguments[I]...);
}

template <typename... A>
static void call(void (*kernel)(A...), void** arguments) {
  call(kernel, arguments, std::index_sequence_for<A...>());
}

}  // namespace gpu

#define KERNEL_OF_THE_HOST(name)                                                              \
  extern "C" const char* signature_of_##name() { return gpu::signature(name); }               \
  extern "C" int launch_of_##name(const gpu::Launch* how, void** arguments, char* trouble) {  \
    return gpu::launch(                                                                       \
        *how, [](void* given) { gpu::call(name, (void**)given); }, arguments, trouble);       \
  }

#define __syncthreads() gpu::park(gpu::at_barrier, __LINE__)
#define __syncwarp(...) gpu::park(gpu::at_warp_barrier, __LINE__)

namespace gpu {
static char exchanged[2][1024][16];
static unsigned char turn[1024];

template <typename T>
static T shuffle(T value, unsigned int mask, int from, int line) {
  static_assert(sizeof(T) <= 16);
  (void)mask;
  const unsigned int me = current->thread, now = turn[me] ^= 1;
  memcpy(exchanged[now][me], &value, sizeof value);
  park(at_warp_barrier, line);
  T result;
  memcpy(&result, exchanged[now][(me & ~31u) + (unsigned int)from], sizeof result);
  return result;
}
static inline int lane() { return (int)(current->thread % 32); }
static inline int within(int lane_wanted, int width) {
  const int me = lane(), first = me / width * width;
  return lane_wanted < first || lane_wanted >= first + width ? me : lane_wanted;
}
}  // namespace gpu

#define __shfl_sync(mask, value, source, ...) \
  gpu::shuffle(value, mask, (source) & 31, __LINE__)
#define __shfl_down_sync(mask, value, delta, ...) \
  gpu::shuffle(value, mask, gpu::within(gpu::lane() + (int)(delta), 32), __LINE__)
#define __shfl_up_sync(mask, value, delta, ...) \
  gpu::shuffle(value, mask, gpu::within(gpu::lane() - (int)(delta), 32), __LINE__)
#define __shfl_xor_sync(mask, value, flip, ...) \
  gpu::shuffle(value, mask, gpu::lane() ^ (int)(flip), __LINE__)

// Threads take turns, so what is read and written in one go is atomic.
template <typename T>
static inline T atomicAdd(T* at, T value) {
  const T before = *at;
  *at += value;
  return before;
}
template <typename T>
static inline T __ldg(const T* at) {
  return *at;
}
static inline void __threadfence() {}

using std::erf;
using std::erfc;
using std::exp;
using std::expm1;
using std::expm1;
using std::fabs;
using std::fma;
using std::fmax;
using std::fmin;
using std::log;
using std::log1p;
using std::log1p;
using std::pow;
using std::sqrt;
using std::tanh;
template <typename A, typename B>
static inline auto max(A a, B b) -> std::common_type_t<A, B> { return a > b ? a : b; }
template <typename A, typename B>
static inline auto min(A a, B b) -> std::common_type_t<A, B> { return a < b ? a : b; }
