/* cuBLAS without a GPU, for tests of how it is called: libcublas.so.13.

   Matrices are in memory of the host, since the driver is stub_driver.c. Products are
   computed in the order of its streams, by loops over columns first. Where a stream was
   set after the workspace, or there was none, a product fails, as it might while a graph
   is recorded. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 15, INVALID = 7, TF32 = 3 };
typedef struct { void *stream, *workspace; size_t size; int math; } Handle;
typedef struct {
  int wide, flip_a, flip_b, m, n, k, lda, ldb, ldc, count;
  double alpha, beta;
  const void *a, *b;
  void *c;
  long long next_a, next_b, next_c;
} Product;

int stub_enter(void *stream, const char *line, void (*run)(const void *),
               const void *data, size_t size);

int cublasCreate_v2(Handle **h) {
  if (getenv("STUB_NO_BLAS")) return 1;
  *h = calloc(1, sizeof(Handle));
  (*h)->math = TF32;
  return OK;
}
int cublasSetMathMode(Handle *h, int mode) { h->math = mode; return OK; }
int cublasSetStream_v2(Handle *h, void *stream) {
  h->stream = stream;
  h->workspace = NULL;
  return OK;
}
int cublasSetWorkspace_v2(Handle *h, void *p, size_t size) {
  if ((uintptr_t)p % 256) return INVALID;
  h->workspace = p;
  h->size = size;
  return OK;
}

static double at(const void *p, int wide, long long where) {
  return wide ? ((const double *)p)[where] : ((const float *)p)[where];
}

static void run(const void *data) {
  Product p;
  memcpy(&p, data, sizeof p);
  for (int g = 0; g < p.count; g++)
    for (int j = 0; j < p.n; j++)
      for (int i = 0; i < p.m; i++) {
        long long where = g * p.next_c + (long long)j * p.ldc + i;
        double sum = 0;
        for (int q = 0; q < p.k; q++) {
          long long x = p.flip_a ? (long long)i * p.lda + q : (long long)q * p.lda + i;
          long long y = p.flip_b ? (long long)q * p.ldb + j : (long long)j * p.ldb + q;
          sum += at(p.a, p.wide, g * p.next_a + x) * at(p.b, p.wide, g * p.next_b + y);
        }
        sum *= p.alpha;
        if (p.beta) sum += p.beta * at(p.c, p.wide, where);
        if (p.wide) ((double *)p.c)[where] = sum;
        else ((float *)p.c)[where] = sum;
      }
}

static int gemm(Handle *h, const char *name, Product p) {
  int rows_a = p.flip_a ? p.k : p.m, rows_b = p.flip_b ? p.n : p.k;
  if (p.m < 0 || p.n < 0 || p.k < 0 || p.count < 0) return INVALID;
  if (p.lda < rows_a || p.ldb < rows_b || p.ldc < p.m) return INVALID;
  if (!h->stream || !h->workspace || h->math) return NOT_SUPPORTED;
  char line[256];
  snprintf(line, sizeof line, "%s %c%c %d %d %d x %d", name, "NT"[p.flip_a],
           "NT"[p.flip_b], p.m, p.n, p.k, p.count);
  return stub_enter(h->stream, line, run, &p, sizeof p) ? INVALID : OK;
}

#define GEMM(LETTER, TYPE)                                                             \
  int cublas##LETTER##gemm_v2(Handle *h, int ta, int tb, int m, int n, int k,          \
                              const TYPE *alpha, const void *a, int lda,               \
                              const void *b, int ldb, const TYPE *beta, void *c,       \
                              int ldc) {                                               \
    Product p = {sizeof(TYPE) == 8, ta, tb, m, n, k, lda, ldb, ldc, 1,                 \
                 *alpha, *beta, a, b, c};                                              \
    return gemm(h, #LETTER "gemm", p);                                                 \
  }                                                                                    \
  int cublas##LETTER##gemmStridedBatched(                                              \
      Handle *h, int ta, int tb, int m, int n, int k, const TYPE *alpha,               \
      const void *a, int lda, long long next_a, const void *b, int ldb,                \
      long long next_b, const TYPE *beta, void *c, int ldc, long long next_c,          \
      int count) {                                                                     \
    Product p = {sizeof(TYPE) == 8, ta, tb, m, n, k, lda, ldb, ldc, count,             \
                 *alpha, *beta, a, b, c, next_a, next_b, next_c};                      \
    return gemm(h, #LETTER "gemmStridedBatched", p);                                   \
  }

GEMM(S, float)
GEMM(D, double)
