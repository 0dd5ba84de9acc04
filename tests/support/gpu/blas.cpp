// cuBLAS for the stand-in: the functions we call. Arguments are checked here as strictly as the real
// library does; products are handed to Python, which queues them.

typedef int (*Multiply)(void* handle, int device, unsigned long long stream, int math_mode,
                        int width, int ta, int tb, int m, int n, int k, double alpha, const void* a,
                        int lda, long long step_a, const void* b, int ldb, long long step_b,
                        double beta, void* c, int ldc, long long step_c, int batch);
typedef int (*Device)();

static Multiply multiply = nullptr;
static Device device = nullptr;

enum { OK = 0, INVALID_VALUE = 7, NO_WORKSPACE = 99 };

extern "C" {

struct Handle {
  int device;
  unsigned long long stream;
  void* workspace;
  unsigned long long workspace_bytes;
  int math_mode;
};

void stand_in_connect(Multiply new_multiply, Device new_device) {
  multiply = new_multiply;
  device = new_device;
}

const char* cublasGetStatusName(int status) {
  switch (status) {
    case INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case NO_WORKSPACE: return "CUBLAS_STATUS_NO_WORKSPACE_OF_OURS";
    default: return "CUBLAS_STATUS_INTERNAL_ERROR";
  }
}

int cublasCreate_v2(Handle** handle) {
  *handle = new Handle();
  (*handle)->device = device();
  return OK;
}

int cublasSetStream_v2(Handle* handle, void* stream) {
  handle->stream = (unsigned long long)stream;
  handle->workspace = nullptr;  // as the real one does
  return OK;
}

int cublasSetWorkspace_v2(Handle* handle, void* workspace, unsigned long long bytes) {
  if ((unsigned long long)workspace % 256) return INVALID_VALUE;
  handle->workspace = workspace;
  handle->workspace_bytes = bytes;
  return OK;
}

int cublasSetMathMode(Handle* handle, int mode) {
  handle->math_mode = mode;
  return OK;
}
}

template <typename T>
static int gemm_of(Handle* handle, int width, int trans_a, int trans_b, int m, int n, int k,
                   double alpha, const T* a, int lda, long long step_a, const T* b, int ldb,
                   long long step_b, double beta, T* c, int ldc, long long step_c, int batch) {
  const int rows_a = trans_a ? k : m, rows_b = trans_b ? n : k;
  if (!handle || m < 0 || n < 0 || k < 0 || batch < 0) return INVALID_VALUE;
  if (lda < (rows_a > 1 ? rows_a : 1) || ldb < (rows_b > 1 ? rows_b : 1)) return INVALID_VALUE;
  if (ldc < (m > 1 ? m : 1)) return INVALID_VALUE;
  if (handle->workspace == nullptr) return NO_WORKSPACE;  // ours always sets one
  return multiply(handle, handle->device, handle->stream, handle->math_mode, width, trans_a,
                  trans_b, m, n, k, alpha, a, lda, step_a, b, ldb, step_b, beta, c, ldc, step_c,
                  batch);
}

template <typename T>
static int gemm(Handle* handle, int trans_a, int trans_b, int m, int n, int k, const T* alpha,
                const T* a, int lda, long long step_a, const T* b, int ldb, long long step_b,
                const T* beta, T* c, int ldc, long long step_c, int batch) {
  return gemm_of<T>(handle, sizeof(T), trans_a, trans_b, m, n, k, *alpha, a, lda, step_a, b, ldb,
                    step_b, *beta, c, ldc, step_c, batch);
}

#define GEMM(letter, T)                                                                          \
  extern "C" int cublas##letter##gemm_v2(Handle* h, int ta, int tb, int m, int n, int k,         \
                                         const T* alpha, const T* a, int lda, const T* b,        \
                                         int ldb, const T* beta, T* c, int ldc) {                \
    return gemm<T>(h, ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);         \
  }                                                                                              \
  extern "C" int cublas##letter##gemmStridedBatched(                                             \
      Handle* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* a, int lda,       \
      long long sa, const T* b, int ldb, long long sb, const T* beta, T* c, int ldc,             \
      long long sc, int batch) {                                                                 \
    return gemm<T>(h, ta, tb, m, n, k, alpha, a, lda, sa, b, ldb, sb, beta, c, ldc, sc, batch);  \
  }

// Matrices of 16 bits, added up in float. The width that Python is told is negative for bfloat16.
extern "C" int cublasGemmStridedBatchedEx(Handle* h, int ta, int tb, int m, int n, int k,
                                          const float* alpha, const void* a, int type_a, int lda,
                                          long long sa, const void* b, int type_b, int ldb,
                                          long long sb, const float* beta, void* c, int type_c,
                                          int ldc, long long sc, int batch, int compute,
                                          int algorithm) {
  const bool half = type_a == 2, bfloat16 = type_a == 14;
  if (!(half || bfloat16) || type_b != type_a) return INVALID_VALUE;
  if (type_c != type_a && type_c != 0) return INVALID_VALUE;  // 0: the result is in float32
  if (compute != 68 || algorithm != -1) return INVALID_VALUE;
  const int width = (half ? 2 : -2) * (type_c == 0 ? 8 : 1);
  return gemm_of<void>(h, width, ta, tb, m, n, k, *alpha, a, lda, sa, b, ldb, sb, *beta, c,
                       ldc, sc, batch);
}

GEMM(S, float)
GEMM(D, double)
