// A stand-in for cuBLAS on host memory: the functions we call, column-major and strict about what
// the real one is strict about.

extern "C" {

struct Handle {
  void* stream;
  void* workspace;
  unsigned long long workspace_bytes;
  int math_mode;
};

const char* cublasGetStatusName(int status) {
  return status == 7 ? "CUBLAS_STATUS_INVALID_VALUE" : "CUBLAS_STATUS_OF_THE_TEST";
}

int cublasCreate_v2(Handle** handle) {
  *handle = new Handle();
  return 0;
}

int cublasDestroy_v2(Handle* handle) {
  delete handle;
  return 0;
}

int cublasSetStream_v2(Handle* handle, void* stream) {
  handle->stream = stream;
  handle->workspace = nullptr;  // as the real one does
  return 0;
}

int cublasSetWorkspace_v2(Handle* handle, void* workspace, unsigned long long bytes) {
  handle->workspace = workspace;
  handle->workspace_bytes = bytes;
  return 0;
}

int cublasSetMathMode(Handle* handle, int mode) {
  handle->math_mode = mode;
  return 0;
}
}

template <typename T>
static int gemm(Handle* handle, int trans_a, int trans_b, int m, int n, int k, const T* alpha,
                const T* a, int lda, long long step_a, const T* b, int ldb, long long step_b,
                const T* beta, T* c, int ldc, long long step_c, int batch) {
  const int rows_a = trans_a ? k : m, rows_b = trans_b ? n : k;
  if (!handle || m < 0 || n < 0 || k < 0 || batch < 0) return 7;
  if (lda < (rows_a > 1 ? rows_a : 1) || ldb < (rows_b > 1 ? rows_b : 1)) return 7;
  if (ldc < (m > 1 ? m : 1)) return 7;
  if (handle->workspace == nullptr) return 99;  // ours always sets one
  for (int i = 0; i < batch; ++i, a += step_a, b += step_b, c += step_c) {
    for (int column = 0; column < n; ++column) {
      for (int row = 0; row < m; ++row) {
        T total = 0;
        for (int j = 0; j < k; ++j) {
          const T left = trans_a ? a[row * (long long)lda + j] : a[j * (long long)lda + row];
          const T right = trans_b ? b[j * (long long)ldb + column] : b[column * (long long)ldb + j];
          total += left * right;
        }
        T& out = c[column * (long long)ldc + row];
        out = *beta == 0 ? *alpha * total : *alpha * total + *beta * out;
      }
    }
  }
  return 0;
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

GEMM(S, float)
GEMM(D, double)
