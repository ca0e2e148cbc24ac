/* A driver without a GPU, for tests of what the host does: libcuda.so.1.

   Device memory is memory of the host. Copies and fills are done at once, kernels are
   noted only: stub_log() has a line for whatever would have reached a GPU, with the bytes
   of the arguments. An image is the text "stub" and the sizes of a kernel's parameters, or
   a cubin, of whose arguments nothing is noted. A function that is not here is not found by the bindings either.

   STUB_COUNT is the number of GPUs, STUB_VERSION that of the driver, STUB_PINNED=1 makes
   all memory of the host known to it, STUB_FAIL is a list of functions that fail, like
   "cuLaunchKernel=719,cuInit=100", and STUB_QUIET=1 turns the log off. stub_fail(text)
   changes the list. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef uint64_t Address;
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_CONTEXT = 201, NOT_FOUND = 500 };
enum { PARAMETERS = 64, OPERATIONS = 256 };

/* What is counted and noted. */

static char text[1 << 20];
static size_t filled;
static long live, allocations, launches;
static char failing[256];
static int quiet = -1;

const char *stub_log(void) { return text; }
void stub_clear(void) { text[filled = 0] = 0; }
long stub_live(void) { return live; }
long stub_allocations(void) { return allocations; }
long stub_launches(void) { return launches; }
void stub_fail(const char *list) { snprintf(failing, sizeof failing, "%s", list); }

static void note(const char *line) {
  if (quiet < 0) quiet = getenv("STUB_QUIET") != NULL;
  size_t length = strlen(line);
  if (quiet || filled + length + 2 > sizeof text) return;
  filled += sprintf(text + filled, "%s\n", line);
}

static int number(const char *name, int otherwise) {
  const char *value = getenv(name);
  return value ? atoi(value) : otherwise;
}

static Result fault(const char *name) {
  static int read;
  if (!read++ && getenv("STUB_FAIL")) stub_fail(getenv("STUB_FAIL"));
  if (!failing[0]) return OK;
  for (const char *at = failing; (at = strstr(at, name)); at += strlen(name))
    if (at[strlen(name)] == '=') return atoi(at + strlen(name) + 1);
  return OK;
}

#define FAULT() do { Result r_ = fault(__func__); if (r_) return r_; } while (0)

/* The driver, its devices and contexts. */

static __thread void *current;
#define CONTEXT ((void *)0x1000)
#define NEEDS_CONTEXT() do { if (!current) return NO_CONTEXT; } while (0)

Result cuInit(unsigned flags) { FAULT(); return OK; }
Result cuDriverGetVersion(int *v) { *v = number("STUB_VERSION", 13000); return OK; }
Result cuDeviceGetCount(int *n) { *n = number("STUB_COUNT", 1); return OK; }
Result cuDeviceGet(int *d, int n) { *d = n; return OK; }
Result cuDeviceGetName(char *name, int size, int d) {
  snprintf(name, size, "stub");
  return OK;
}
Result cuDeviceGetUuid_v2(char *uuid, int d) { memset(uuid, d, 16); return OK; }
Result cuDeviceGetAttribute(int *value, int which, int d) {
  switch (which) {
    case 75: *value = 9; break;            /* compute capability */
    case 97: *value = 227 * 1024; break;   /* shared memory by leave */
    case 115: *value = 1; break;           /* memory pools */
    default: *value = 0;
  }
  return OK;
}
Result cuDevicePrimaryCtxRetain(void **c, int d) { *c = CONTEXT; return OK; }
Result cuDevicePrimaryCtxRelease_v2(int d) { return OK; }
Result cuCtxGetCurrent(void **c) { *c = current; return OK; }
Result cuCtxSetCurrent(void *c) { current = c; return OK; }
Result cuCtxPushCurrent_v2(void *c) { current = c; return OK; }
Result cuCtxPopCurrent_v2(void **c) { *c = current; return OK; }
Result cuCtxSynchronize(void) { NEEDS_CONTEXT(); return OK; }
Result cuCtxGetDevice(int *d) { NEEDS_CONTEXT(); *d = 0; return OK; }
Result cuCtxGetDevice_v2(int *d, void *c) { *d = 0; return OK; }
Result cuCtxGetStreamPriorityRange(int *low, int *high) { *low = *high = 0; return OK; }
Result cuGetErrorName(Result e, const char **s) {
  switch (e) {
    case NO_MEMORY: *s = "CUDA_ERROR_OUT_OF_MEMORY"; return OK;
    case 200: *s = "CUDA_ERROR_INVALID_IMAGE"; return OK;
    case 719: *s = "CUDA_ERROR_LAUNCH_FAILED"; return OK;
    default: *s = "CUDA_ERROR_INVALID_VALUE"; return OK;
  }
}
Result cuGetErrorString(Result e, const char **s) { *s = "words of the stub"; return OK; }

/* Streams, and what is captured from them. */

typedef struct {
  int kind;
  Address target, source;
  size_t size;
  int value;
  void (*run)(const void *);
  char data[256], line[1024];
} Operation;
enum { LAUNCH, COPY, FILL, CALL };
typedef struct { int count; Operation *operations[OPERATIONS]; } Graph;
typedef struct { Graph *capture; } Stream;

Result cuStreamCreateWithPriority(void **s, unsigned flags, int priority) {
  NEEDS_CONTEXT();
  *s = calloc(1, sizeof(Stream));
  return OK;
}
Result cuStreamDestroy_v2(void *s) { free(s); return OK; }
Result cuStreamGetCtx(void *s, void **c) { *c = CONTEXT; return OK; }
Result cuStreamSynchronize(Stream *s) {
  FAULT();
  note("wait");
  return s->capture ? 900 : OK;
}
Result cuStreamBeginCapture_v2(Stream *s, int mode) {
  FAULT();
  s->capture = calloc(1, sizeof(Graph));
  return OK;
}
Result cuStreamIsCapturing(Stream *s, int *status) { *status = s->capture != NULL; return OK; }
Result cuStreamGetCaptureInfo_v3(Stream *s, int *status, uint64_t *id, void **graph,
                                 void *nodes, void *edges, size_t *count) {
  *status = s->capture != NULL;
  if (id) *id = 1;
  if (graph) *graph = s->capture;
  return OK;
}
Result cuStreamGetCaptureInfo_v2(Stream *s, int *status, uint64_t *id, void **graph,
                                 void *nodes, size_t *count) {
  return cuStreamGetCaptureInfo_v3(s, status, id, graph, nodes, NULL, count);
}
Result cuStreamEndCapture(Stream *s, void **graph) {
  FAULT();
  *graph = s->capture;
  s->capture = NULL;
  return OK;
}

static void act(const Operation *op) { /* for one thread at a time */
  static char busy;
  while (__atomic_test_and_set(&busy, __ATOMIC_ACQUIRE)) {}
  if (op->kind == LAUNCH) launches++;
  if (op->kind == COPY) memcpy((void *)op->target, (void *)op->source, op->size);
  if (op->kind == FILL) memset((void *)op->target, op->value, op->size);
  if (op->kind == CALL) op->run(op->data);
  note(op->line);
  __atomic_clear(&busy, __ATOMIC_RELEASE);
}

static Result enter(Stream *s, const Operation *op) {
  if (!s->capture) {
    act(op);
    return OK;
  }
  Graph *graph = s->capture;
  if (graph->count == OPERATIONS) return INVALID;
  Operation *kept = malloc(sizeof *kept);
  *kept = *op;
  graph->operations[graph->count++] = kept;
  return OK;
}

/* For stubs of libraries: what they would enter into a stream, as a function. */
Result stub_enter(Stream *s, const char *line, void (*run)(const void *),
                  const void *data, size_t size) {
  Operation op = {.kind = CALL, .run = run};
  if (!s || size > sizeof op.data) return INVALID;
  memcpy(op.data, data, size);
  snprintf(op.line, sizeof op.line, "%s", line);
  return enter(s, &op);
}

Result cuGraphInstantiateWithParams(void **exec, void *graph, void *parameters) {
  FAULT();
  *exec = graph; /* the graph itself; it is not freed before the process ends */
  return OK;
}
Result cuUserObjectCreate(void **object, void *p, void *destroy, unsigned n, unsigned f) {
  *object = CONTEXT;
  return OK;
}
Result cuUserObjectRelease(void *object, unsigned n) { return OK; }
Result cuGraphRetainUserObject(void *graph, void *object, unsigned n, unsigned f) {
  return OK;
}
Result cuGraphReleaseUserObject(void *graph, void *object, unsigned n) { return OK; }
Result cuGraphExecUpdate(void *exec, void *graph, void *result) { return INVALID; }
Result cuGraphDestroy(void *graph) { return OK; }
Result cuGraphExecDestroy(void *exec) { return OK; }
Result cuGraphLaunch(Graph *graph, Stream *s) {
  FAULT();
  for (int n = 0; n < graph->count; n++) act(graph->operations[n]);
  return OK;
}

/* Memory: an allocation has its size before it, at the distance of an alignment. */

enum { ALIGNMENT = 256 };

Result cuMemAllocFromPoolAsync(Address *p, size_t size, void *pool, Stream *s) {
  FAULT();
  if (size > (size_t)1 << 32) return NO_MEMORY;
  char *start = aligned_alloc(ALIGNMENT, (size + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  *(size_t *)start = size;
  live += size;
  allocations++;
  *p = (Address)(start + ALIGNMENT);
  return OK;
}
Result cuMemFreeAsync(Address p, Stream *s) {
  char *start = (char *)p - ALIGNMENT;
  live -= *(size_t *)start;
  free(start);
  return OK;
}
Result cuDeviceGetMemPool(void **pool, int d) { *pool = (void *)0x2000; return OK; }
Result cuDeviceGetDefaultMemPool(void **pool, int d) { return cuDeviceGetMemPool(pool, d); }
Result cuMemPoolGetAttribute(void *pool, int which, uint64_t *value) {
  *value = live;
  return OK;
}
Result cuMemPoolSetAttribute(void *pool, int which, void *value) { return OK; }
Result cuMemGetInfo_v2(size_t *free, size_t *total) { *free = 1u << 30; *total = 1u << 31; return OK; }
enum { MEMORY_TYPE = 2, MANAGED = 8, ORDINAL = 9, ON_DEVICE = 2 };
Result cuPointerGetAttribute(void *value, int which, Address p) {
  if (which == ORDINAL) return *(int *)value = 0, OK;
  return number("STUB_PINNED", 0) ? OK : INVALID;
}
Result cuPointerGetAttributes(unsigned n, int *which, void **values, Address p) {
  for (unsigned k = 0; k < n; k++) {
    if (which[k] == MEMORY_TYPE) *(int *)values[k] = ON_DEVICE;
    if (which[k] == MANAGED) *(char *)values[k] = 0;
    if (which[k] == ORDINAL) *(int *)values[k] = 0;
  }
  return OK;
}

static Result copy(const char *what, Address to, Address from, size_t size, Stream *s) {
  Operation op = {.kind = COPY, .target = to, .source = from, .size = size};
  snprintf(op.line, sizeof op.line, "%s %zu", what, size);
  return enter(s, &op);
}
Result cuMemcpyHtoDAsync_v2(Address to, Address from, size_t size, Stream *s) {
  FAULT();
  NEEDS_CONTEXT();
  return copy("write", to, from, size, s);
}
Result cuMemcpyDtoHAsync_v2(Address to, Address from, size_t size, Stream *s) {
  FAULT();
  NEEDS_CONTEXT();
  return copy("read", to, from, size, s);
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t size, Stream *s) {
  FAULT();
  NEEDS_CONTEXT();
  return copy("copy", to, from, size, s);
}
Result cuMemsetD8Async(Address to, unsigned char value, size_t size, Stream *s) {
  FAULT();
  NEEDS_CONTEXT();
  Operation op = {.kind = FILL, .target = to, .size = size, .value = value};
  snprintf(op.line, sizeof op.line, "fill %d %zu", value, size);
  return enter(s, &op);
}

/* Code and launches. */

typedef struct { char name[128]; int count, sizes[PARAMETERS]; int shared; } Kernel;
typedef struct { Kernel kernel; } Library;

Result cuLibraryLoadData(Library **library, const char *image, void *a, void *b, unsigned n,
                         void *c, void *d, unsigned m) {
  FAULT();
  int known = !strncmp(image, "stub", 4);
  if (!known && strncmp(image, "\x7f" "ELF", 4)) return 200;
  *library = calloc(1, sizeof(Library));
  Kernel *kernel = &(*library)->kernel;
  char *end;
  for (const char *at = image + 4; known; at = end) {
    long size = strtol(at, &end, 10);
    if (end == at || kernel->count == PARAMETERS) break;
    kernel->sizes[kernel->count++] = size;
  }
  kernel->shared = 48 * 1024;
  return OK;
}
Result cuLibraryUnload(Library *library) { return OK; }
Result cuLibraryGetKernel(Kernel **kernel, Library *library, const char *name) {
  FAULT();
  *kernel = &library->kernel;
  snprintf(library->kernel.name, sizeof library->kernel.name, "%s", name);
  return OK;
}
Result cuKernelSetAttribute(int which, int value, Kernel *kernel, int d) {
  FAULT();
  if (which == 8) kernel->shared = value;
  return OK;
}
Result cuLaunchKernel(Kernel *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                      unsigned by, unsigned bz, unsigned shared, Stream *s, void **args,
                      void **extra) {
  FAULT();
  if (!gx || !bx || bx > 1024 || (int)shared > kernel->shared) return INVALID;
  Operation op = {.kind = LAUNCH};
  if (quiet != 1) {
    int at = snprintf(op.line, 256, "launch %s %u %u %u", kernel->name, gx, bx, shared);
    for (int n = 0; n < kernel->count; n++) {
      at += sprintf(op.line + at, " ");
      for (int k = 0; k < kernel->sizes[n]; k++)
        at += sprintf(op.line + at, "%02x", ((unsigned char *)args[n])[k]);
    }
  }
  return enter(s, &op);
}
typedef struct {
  unsigned gx, gy, gz, bx, by, bz, shared;
  Stream *stream;
  void *attributes;
  unsigned count;
} Config;
Result cuLaunchKernelEx(const Config *c, Kernel *kernel, void **args, void **extra) {
  return cuLaunchKernel(kernel, c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->shared,
                        c->stream, args, extra);
}

/* How the bindings find all this. */

Result cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags,
                           int *status) {
  static void *self;
  if (!self) {
    Dl_info info;
    dladdr((void *)cuInit, &info);
    self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }
  char longer[128];
  *found = NULL;
  for (int n = 3; n > 1 && !*found; n--) {
    snprintf(longer, sizeof longer, "%s_v%d", name, n);
    *found = dlsym(self, longer);
  }
  if (!*found) *found = dlsym(self, name);
  if (status) *status = *found ? 0 : 1;
  return *found ? OK : NOT_FOUND;
}
Result cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, found, version, flags, NULL);
}
