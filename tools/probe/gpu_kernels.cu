// Sources: PTX ISA, "Warp-level matrix instructions" and "Asynchronous warpgroup level matrix instructions".

#include "tools/probe/gpu_kernels.h"

#include "hpcdl/cuda/wgmma.cuh"

namespace hpcdl::gpu {

namespace {

__device__ __forceinline__ unsigned scrambled(unsigned x) {
  x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
  return x ^ x >> 16;
}

// Random bits that are normal numbers of a type, with exponents near that of 1, so that no sum overflows.
struct Bf16 {
  static __device__ unsigned bits(unsigned r) { return (r & 0x80ff80ffu) | 0x3f003f00u; }
};
struct F16 {
  static __device__ unsigned bits(unsigned r) { return (r & 0x87ff87ffu) | 0x38003800u; }
};
struct Tf32 {
  static __device__ unsigned bits(unsigned r) { return (r & 0x80ffffffu) | 0x3f000000u; }
};
struct I8 {
  static __device__ unsigned bits(unsigned r) { return r; }
};
struct F8 {
  static __device__ unsigned bits(unsigned r) { return (r & 0x8f8f8f8fu) | 0x30303030u; }
};

constexpr int kThreads = 256, kBlocks = 8;  // per multiprocessor, of loops whose blocks are small

/// `kSums` independent chains of multiply-adds in every thread.
template <class T> __global__ void __launch_bounds__(kThreads) spin_cuda(std::int64_t rounds, int* flag) {
  constexpr int kSums = 16;
  T sum[kSums];
  const unsigned seed = blockIdx.x * kThreads + threadIdx.x;
  const T a = T(1) - T(scrambled(seed) & 0xffff) / T(1 << 20), b = T(scrambled(seed + 1) & 0xffff) / T(1 << 20);
  for (int i = 0; i < kSums; ++i) sum[i] = T(i) / T(7);
  for (std::int64_t r = 0; r < rounds; ++r)
#pragma unroll
    for (int k = 0; k < 8; ++k)
#pragma unroll
      for (int i = 0; i < kSums; ++i) sum[i] = sum[i] * a + b;
  T all = 0;
  for (int i = 0; i < kSums; ++i) all += sum[i];
  if (all == T(-12345) || seed == 0) *flag = 1;
}
constexpr double kCudaOps = 2.0 * 16 * 8;

// One m16n8 product per warp.
__device__ __forceinline__ void mma(Bf16, float* d, const unsigned* a, const unsigned* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma(F16, float* d, const unsigned* a, const unsigned* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma(Tf32, float* d, const unsigned* a, const unsigned* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma(I8, int* d, const unsigned* a, const unsigned* b) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <class Type, class Sum> __global__ void __launch_bounds__(kThreads) spin_mma(std::int64_t rounds, int* flag) {
  constexpr int kSums = 8;
  Sum d[kSums][4] = {};
  unsigned a[2][4], b[kSums][2];
  const unsigned seed = (blockIdx.x * kThreads + threadIdx.x) * 64;
  for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = Type::bits(scrambled(seed + i));
  for (int i = 0; i < 2 * kSums; ++i) b[i / 2][i % 2] = Type::bits(scrambled(seed + 16 + i));
  for (std::int64_t r = 0; r < rounds; ++r)
#pragma unroll
    for (int k = 0; k < 8; ++k)
#pragma unroll
      for (int i = 0; i < kSums; ++i) mma(Type{}, d[i], a[k % 2], b[i]);
  Sum all = 0;
  for (int i = 0; i < kSums; ++i) all += d[i][0] + d[i][1] + d[i][2] + d[i][3];
  if (all == Sum(-12345) || seed == 0) *flag = 1;
}
/// Per warp and round; an instruction takes 32 bytes of each row of A.
template <int kElementBytes> constexpr double kMmaOps = 2.0 * 8 * 8 * 16 * 8 * (32 / kElementBytes);

// ---- wgmma: 64 x 256 products of a warpgroup, both factors in shared memory in rows of 128 bytes, swizzled ----

#define HPCDL_REGISTERS                                                                                               \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%"  \
  "30,%31,"                                                                                                           \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%" \
  "60,%61,%62,%63,"                                                                                                   \
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%" \
  "92,%93,%94,%95,"                                                                                                   \
  "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%"  \
  "119,%120,%121,%122,%123,"                                                                                          \
  "%124,%125,%126,%127}"
#define HPCDL_4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define HPCDL_16(c, i) HPCDL_4(c, i), HPCDL_4(c, i + 4), HPCDL_4(c, i + 8), HPCDL_4(c, i + 12)
#define HPCDL_128(c)                                                                                   \
  HPCDL_16(c, 0), HPCDL_16(c, 16), HPCDL_16(c, 32), HPCDL_16(c, 48), HPCDL_16(c, 64), HPCDL_16(c, 80), \
      HPCDL_16(c, 96), HPCDL_16(c, 112)
#define HPCDL_WGMMA(Type, Sum, c, shape_and_types, scales)                                                          \
  __device__ __forceinline__ void wgmma(Type, Sum* d, std::uint64_t a, std::uint64_t b) {                           \
    asm volatile("wgmma.mma_async.sync.aligned." shape_and_types " " HPCDL_REGISTERS ", %128, %129, 1" scales ";\n" \
                 : HPCDL_128(c)                                                                                     \
                 : "l"(a), "l"(b));                                                                                 \
  }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
HPCDL_WGMMA(Bf16, float, "+f", "m64n256k16.f32.bf16.bf16", ", 1, 1, 0, 0")
HPCDL_WGMMA(F16, float, "+f", "m64n256k16.f32.f16.f16", ", 1, 1, 0, 0")
HPCDL_WGMMA(Tf32, float, "+f", "m64n256k8.f32.tf32.tf32", ", 1, 1")
HPCDL_WGMMA(I8, int, "+r", "m64n256k32.s32.s8.s8", "")
HPCDL_WGMMA(F8, float, "+f", "m64n256k32.f32.e4m3.e4m3", ", 1, 1")
#endif

constexpr int kGroups = 2, kStages = 2;               // warpgroups; tiles that they go through
constexpr int kTileA = 64 * 128, kTileB = 256 * 128;  // bytes
constexpr int kWgmmaBytes = kStages * (kGroups * kTileA + kTileB) + 1024;
constexpr int kSteps = 4;  // of 32 bytes in a row

template <class Type, class Sum>
__global__ void __launch_bounds__(128 * kGroups, 1) spin_wgmma(std::int64_t rounds, int* flag) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char raw[];
  auto* tiles = reinterpret_cast<unsigned char*>((reinterpret_cast<std::uintptr_t>(raw) + 1023) / 1024 * 1024);
  auto* words = reinterpret_cast<unsigned*>(tiles);
  for (unsigned i = threadIdx.x; i < (kWgmmaBytes - 1024) / 4; i += blockDim.x)
    words[i] = Type::bits(scrambled(blockIdx.x * 65536 + i));
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  Sum d[128];
  for (auto& x : d) x = 0;
  const auto* b = tiles + kStages * kGroups * kTileA;
  const std::uint64_t first_a = cuda::wgmma_descriptor<cuda::Major::k>(tiles + threadIdx.x / 128 * kStages * kTileA),
                      first_b = cuda::wgmma_descriptor<cuda::Major::k>(b);
  for (std::int64_t r = 0; r < rounds; ++r) {
    cuda::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kStages * kSteps; ++k) {
      const int stage = k / kSteps, in_row = k % kSteps * 32;
      wgmma(Type{}, d, first_a + (stage * kTileA + in_row) / 16, first_b + (stage * kTileB + in_row) / 16);
    }
    cuda::wgmma_commit();
    cuda::wgmma_wait<0>();
  }
  Sum all = 0;
  for (const auto x : d) all += x;
  if (all == Sum(-12345) || (blockIdx.x == 0 && threadIdx.x == 0)) *flag = 1;
#else
  (void)Type::bits(0);
#endif
}
/// Per block and round.
template <int kElementBytes>
constexpr double kWgmmaOps = 2.0 * kGroups * kStages * kSteps * 64 * 256 * (32 / kElementBytes);

struct Loop {
  Spin what;
  void (*kernel)(std::int64_t, int*);
  int blocks, threads, shared;  // per multiprocessor; of a block
  double operations;            // of a block in a round
};

template <class T> Loop on_cuda(const char* dtype) {
  return {{"cuda", dtype}, spin_cuda<T>, kBlocks, kThreads, 0, kCudaOps * kThreads};
}
template <class Type, class Sum, int kBytes> Loop on_mma(const char* dtype) {
  return {{"mma", dtype}, spin_mma<Type, Sum>, 4, kThreads, 0, kMmaOps<kBytes> * kThreads / 32};
}
template <class Type, class Sum, int kBytes> Loop on_wgmma(const char* dtype) {
  return {{"wgmma", dtype}, spin_wgmma<Type, Sum>, 1, 128 * kGroups, kWgmmaBytes, kWgmmaOps<kBytes>};
}

const std::vector<Loop>& loops() {
  static const std::vector<Loop> all{on_cuda<float>("f32"),
                                     on_cuda<double>("f64"),
                                     on_mma<Tf32, float, 4>("tf32"),
                                     on_mma<Bf16, float, 2>("bf16"),
                                     on_mma<F16, float, 2>("f16"),
                                     on_mma<I8, int, 1>("i8"),
                                     on_wgmma<Tf32, float, 4>("tf32"),
                                     on_wgmma<Bf16, float, 2>("bf16"),
                                     on_wgmma<F16, float, 2>("f16"),
                                     on_wgmma<I8, int, 1>("i8"),
                                     on_wgmma<F8, float, 1>("f8")};
  return all;
}

// ---- memory ----

constexpr int kVectors = 8;                                  // 16-byte accesses in flight per thread
constexpr std::int64_t kChunk = 16LL * kVectors * kThreads;  // bytes of a block at a time

__device__ __forceinline__ uint4 load(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
__device__ __forceinline__ void store(uint4* p, uint4 v) { __stcg(p, v); }

template <Way way>
__global__ void __launch_bounds__(kThreads) sweep_memory(uint4* x, std::int64_t chunks, std::int64_t repeats) {
  constexpr int kStep = kVectors * kThreads;
  unsigned odd = 0;
  for (std::int64_t r = 0; r < repeats; ++r)
    for (std::int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
      uint4* at = x + c * kStep + threadIdx.x;
      uint4 v[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i)
        v[i] = way == Way::write ? make_uint4(r, c, i, threadIdx.x) : load(at + i * kThreads);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (way == Way::read) odd ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
        if (way == Way::update) v[i].x += 1;
        if (way != Way::read) store(at + (way == Way::copy ? chunks * kStep : 0) + i * kThreads, v[i]);
      }
    }
  if (odd == 0x12345678u) x[0].x = odd;
}

template <Way way>
void start_sweep(void* x, std::int64_t chunks, std::int64_t repeats, int multiprocessors, cudaStream_t s) {
  const auto blocks = std::min<std::int64_t>(chunks, repeats > 1 ? 4 * multiprocessors : chunks);
  sweep_memory<way><<<static_cast<unsigned>(blocks), kThreads, 0, s>>>(static_cast<uint4*>(x), chunks, repeats);
}

constexpr int kSharedReads = 32;

__global__ void __launch_bounds__(1024) sweep_shared(std::int64_t rounds, int* flag) {
  __shared__ uint4 words[1024 + kSharedReads * 16];
  for (int i = threadIdx.x; i < 1024 + kSharedReads * 16; i += blockDim.x) words[i] = make_uint4(i, i, i, i);
  __syncthreads();
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(words + threadIdx.x));
  unsigned odd = 0;
  for (std::int64_t r = 0; r < rounds; ++r)
#pragma unroll
    for (int i = 0; i < kSharedReads; ++i) {
      uint4 v;
      asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "r"(at + i * 256));
      odd ^= v.x ^ v.y ^ v.z ^ v.w;
    }
  if (odd == 0x12345678u || (blockIdx.x == 0 && threadIdx.x == 0)) *flag = 1;
}

__global__ void nothing() {}

}  // namespace

const std::vector<Spin>& spins() {
  static const std::vector<Spin> all = [] {
    std::vector<Spin> list;
    for (const auto& l : loops()) list.push_back(l.what);
    return list;
  }();
  return all;
}

double spin(std::size_t which, int multiprocessors, std::int64_t rounds, int* flag, cudaStream_t s) {
  const Loop& l = loops()[which];
  const auto blocks = static_cast<unsigned>(multiprocessors * l.blocks);
  if (l.shared > 48 << 10 &&
      cudaFuncSetAttribute(reinterpret_cast<const void*>(l.kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                           l.shared) != cudaSuccess) {
    (void)cudaGetLastError();  // on a GPU with less shared memory the flag stays 0
    return 0;
  }
  l.kernel<<<blocks, static_cast<unsigned>(l.threads), static_cast<std::size_t>(l.shared), s>>>(rounds, flag);
  return l.operations * blocks * static_cast<double>(rounds);
}

const char* way_name(Way w) {
  constexpr const char* names[] = {"read", "write", "copy", "update"};
  return names[static_cast<int>(w)];
}

double sweep(Way w, void* x, std::int64_t bytes, std::int64_t repeats, int multiprocessors, cudaStream_t s) {
  const std::int64_t chunks = bytes / (w == Way::copy ? 2 : 1) / kChunk;
  switch (w) {
    case Way::read: start_sweep<Way::read>(x, chunks, repeats, multiprocessors, s); break;
    case Way::write: start_sweep<Way::write>(x, chunks, repeats, multiprocessors, s); break;
    case Way::copy: start_sweep<Way::copy>(x, chunks, repeats, multiprocessors, s); break;
    case Way::update: start_sweep<Way::update>(x, chunks, repeats, multiprocessors, s); break;
  }
  const double passes = w == Way::copy || w == Way::update ? 2 : 1;
  return passes * static_cast<double>(chunks * kChunk * repeats);
}

double read_shared(int multiprocessors, std::int64_t rounds, int* flag, cudaStream_t s) {
  constexpr int kPerProcessor = 2;
  sweep_shared<<<static_cast<unsigned>(kPerProcessor * multiprocessors), 1024, 0, s>>>(rounds, flag);
  return 16.0 * 1024 * kSharedReads * kPerProcessor * multiprocessors * static_cast<double>(rounds);
}

void launch_empty(cudaStream_t s) { nothing<<<1, 32, 0, s>>>(); }

}  // namespace hpcdl::gpu
