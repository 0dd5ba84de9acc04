// cuBLAS and cuBLASLt for the stand-in: the functions we call. Arguments are checked here as strictly as the real
// library does; products are handed to Python, which queues them.

typedef int (*Multiply)(void* handle, int device, unsigned long long stream, int math_mode,
                        int width, int ta, int tb, int m, int n, int k, double alpha, const void* a,
                        int lda, long long step_a, const void* b, int ldb, long long step_b,
                        double beta, void* c, int ldc, long long step_c, int batch,
                        const void* bias, void* workspace, unsigned long long bytes);
typedef int (*Device)();

static Multiply multiply = nullptr;
static Device device = nullptr;

enum { OK = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15, NO_WORKSPACE = 99 };

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
    case NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
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
                  batch, nullptr, nullptr, 0);
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

// -- cuBLASLt: one product with a bias -------------------------------------------------------------

struct Described {
  int compute, scale, first, second, epilogue;
  const void* bias;
};

struct Matrix {
  int type;
  unsigned long long rows, columns;
  long long leading;
};

struct Preference {
  unsigned long long workspace;
  unsigned reductions;
};

// What the heuristics say. An algorithm has the sizes and types that it is for, and its workspace.
struct Found {
  unsigned long long algorithm[8];
  unsigned long long workspace;
  int state;
  float waves;
  int reserved[4];
};

static unsigned long long bytes_of(int type) { return type == 0 ? 4 : 2; }

template <typename T>
static int set(T* field, const void* value, unsigned long long size) {
  if (!value || size != sizeof(T)) return INVALID_VALUE;
  *field = *(const T*)value;
  return OK;
}

static bool fits(const Matrix* matrix, bool transposed, unsigned long long rows,
                 unsigned long long columns) {
  const bool right = transposed ? matrix->rows == columns && matrix->columns == rows
                                : matrix->rows == rows && matrix->columns == columns;
  return right && matrix->leading >= (long long)matrix->rows;
}

static int check(const Described* product, const Matrix* a, const Matrix* b, const Matrix* c,
                 const Matrix* d) {
  if (!product || !a || !b || !c || c != d) return INVALID_VALUE;
  const int type = a->type;
  if ((type != 0 && type != 2 && type != 14) || b->type != type || d->type != type) return NOT_SUPPORTED;
  if (product->compute != 68 && !(product->compute == 77 && type == 0)) return NOT_SUPPORTED;
  if (product->scale != 0 || product->epilogue != 4 || !product->bias) return NOT_SUPPORTED;
  const unsigned long long k = product->first ? a->rows : a->columns;
  const bool right = fits(a, product->first, d->rows, k) && fits(b, product->second, k, d->columns);
  return right ? OK : INVALID_VALUE;
}

static void describe(unsigned long long* words, const Described* product, const Matrix* a,
                     const Matrix* b, const Matrix* d) {
  words[0] = 17;
  words[1] = (unsigned long long)(product->compute * 4 + product->first * 2 + product->second);
  words[2] = a->rows;
  words[3] = b->rows;
  words[4] = d->rows;
  words[5] = d->columns;
  words[6] = (unsigned long long)d->type;
}

extern "C" {

const char* cublasLtGetStatusName(int status) { return cublasGetStatusName(status); }

int cublasLtCreate(Handle** handle) { return cublasCreate_v2(handle); }

int cublasLtMatmulDescCreate(Described** made, int compute, int scale) {
  *made = new Described{compute, scale, 0, 0, 1, nullptr};
  return OK;
}

int cublasLtMatmulDescDestroy(Described* one) {
  delete one;
  return OK;
}

int cublasLtMatmulDescSetAttribute(Described* one, int attribute, const void* value,
                                   unsigned long long size) {
  switch (attribute) {
    case 3: return set(&one->first, value, size);
    case 4: return set(&one->second, value, size);
    case 7: return set(&one->epilogue, value, size);
    case 8: return set(&one->bias, value, size);
    default: return INVALID_VALUE;
  }
}

int cublasLtMatrixLayoutCreate(Matrix** made, int type, unsigned long long rows,
                               unsigned long long columns, long long leading) {
  *made = new Matrix{type, rows, columns, leading};
  return OK;
}

int cublasLtMatrixLayoutDestroy(Matrix* one) {
  delete one;
  return OK;
}

int cublasLtMatmulPreferenceCreate(Preference** made) {
  *made = new Preference{0, 7};
  return OK;
}

int cublasLtMatmulPreferenceDestroy(Preference* one) {
  delete one;
  return OK;
}

int cublasLtMatmulPreferenceSetAttribute(Preference* one, int attribute, const void* value,
                                         unsigned long long size) {
  switch (attribute) {
    case 1: return set(&one->workspace, value, size);
    case 3: return set(&one->reductions, value, size);
    default: return INVALID_VALUE;
  }
}

int cublasLtMatmulAlgoGetHeuristic(Handle* handle, Described* product, Matrix* a, Matrix* b,
                                   Matrix* c, Matrix* d, Preference* preference, int most,
                                   Found* found, int* count) {
  if (!handle || !preference || most != 1) return INVALID_VALUE;
  if (preference->reductions & 4) return INVALID_VALUE;  // ours adds nothing up in 16 bits
  if (const int status = check(product, a, b, c, d)) return status;
  if (handle->device != device()) return INVALID_VALUE;
  *found = Found();
  describe(found->algorithm, product, a, b, d);
  found->workspace = preference->workspace < 5000 ? preference->workspace : 5000;
  found->algorithm[7] = found->workspace;
  *count = 1;
  return OK;
}

int cublasLtMatmul(Handle* handle, Described* product, const float* alpha, const void* a, Matrix* la,
                   const void* b, Matrix* lb, const float* beta, const void* c, Matrix* lc, void* d,
                   Matrix* ld, const unsigned long long* algorithm, void* workspace, unsigned long long bytes,
                   void* stream) {
  if (!handle || !algorithm || c != d || *beta != 0) return INVALID_VALUE;
  if (const int status = check(product, la, lb, lc, ld)) return status;
  unsigned long long words[7];
  describe(words, product, la, lb, ld);
  for (int i = 0; i < 7; ++i) {
    if (words[i] != algorithm[i]) return INVALID_VALUE;  // the algorithm is for another one
  }
  const void* all[] = {a, b, c, product->bias, workspace};
  for (const void* one : all) {
    if (!one || (unsigned long long)one % 256) return INVALID_VALUE;  // as the heuristics expect
  }
  if (bytes < algorithm[7]) return NO_WORKSPACE;
  const int width = (la->type == 14 ? -1 : 1) * (int)bytes_of(la->type);
  const int k = (int)(product->first ? la->rows : la->columns);
  return multiply(handle, handle->device, (unsigned long long)stream, product->compute == 77 ? 3 : 0,
                  width, product->first, product->second, (int)ld->rows, (int)ld->columns, k, *alpha,
                  a, (int)la->leading, 0, b, (int)lb->leading, 0, *beta, d, (int)ld->leading, 0, 1,
                  product->bias, workspace, bytes);
}
}
