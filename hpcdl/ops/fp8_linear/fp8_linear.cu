#include <algorithm>
#include <utility>

#include "hpcdl/core/choose_way.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/cuda/tensor_map.h"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/fp8_linear/fp8_tile.cuh"
#include "hpcdl/ops/fp8_linear/fp8_ways.h"
#include "hpcdl/ops/matmul/cublas_lt.h"

namespace hpcdl::cuda {
namespace {

enum Way { kTiles, kLibrary, kPlain, kWays };
constexpr std::string_view kNames[kWays] = {"tiles", "cublasLt", "plain"};

int attribute(cudaDeviceAttr which, const Stream& s) {
  int v = 0;
  check(cudaDeviceGetAttribute(&v, which, s.device().index), "cudaDeviceGetAttribute");
  return v;
}

void require_fp8(const Stream& s) {
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, s),
            minor = attribute(cudaDevAttrComputeCapabilityMinor, s);
  require(major * 10 + minor >= 89, Fp8Linear::name,
          "expected a GPU of compute capability 8.9 or later, which multiplies 8-bit floats, got {}.{}: use bf16",
          major, minor);
}

bool aligned(const View& v, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(v.data()) % static_cast<std::uintptr_t>(bytes) == 0;
}

// ---------------------------------------------------------------- any GPU, any alignment

/// A block of 16 x 16 threads, one sum each.
template <class A, class B>
__global__ void plain_product(Fp8Problem p, const A* a, const B* b, int k, long long a_ld, long long b_ld,
                              bool blocks) {
  constexpr int kSide = 16;
  __shared__ float as[kSide][kSide + 1], bs[kSide][kSide + 1];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int row = static_cast<int>(blockIdx.x) * kSide + y, col = static_cast<int>(blockIdx.y) * kSide + x,
            b_row = static_cast<int>(blockIdx.y) * kSide + y;
  float sum = 0, part = 0;
  for (int k0 = 0; k0 < k; k0 += kSide) {
    as[y][x] = row < p.m ? from_f8(a[row * a_ld + k0 + x]) : 0.0f;
    bs[y][x] = b_row < p.n ? from_f8(b[b_row * b_ld + k0 + x]) : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSide; ++i) part = ::fmaf(as[y][i], bs[x][i], part);
    __syncthreads();
    const int block = k0 / static_cast<int>(kF8Block);
    if ((k0 + kSide) % kF8Block != 0 && k0 + kSide < k) continue;
    if (blocks && row < p.m && col < p.n)
      part *= p.a_scale[static_cast<long long>(row) * p.k_blocks + block] *
              p.b_scale[static_cast<long long>(col / kF8Block) * p.k_blocks + block];
    sum += part;
    part = 0;
  }
  float v[1] = {};
  if (row < p.m && col < p.n) {
    v[0] = blocks ? sum : sum * (p.a_scale[row * p.a_step] * p.b_scale[col * p.b_step]);
    if (p.bias) v[0] += fetch(p.bias, p.bias_dtype, col);
    activate(v, p.activation);
    if (p.residual) v[0] += fetch(p.residual, p.y_dtype, row * p.residual_ld + col);
    put(p.y, p.y_dtype, row * p.y_ld + col, v[0]);
  }
  if (p.amax) {
    const float most = warp_reduce(fmaxf(fabsf(v[0]), 0.0f), Max());
    if ((y * kSide + x) % kWarp == 0) atomicMax(reinterpret_cast<unsigned*>(p.amax), __float_as_uint(most));
  }
}

void run_plain(Stream& s, const Fp8Product& p, const Fp8Problem& problem) {
  const dim3 grid(blocks_for(p.m(), 16), blocks_for(p.n(), 16));
  require(grid.y <= 65535, Fp8Linear::name, "N must be below {} for operands that are not aligned to 16 bytes, got {}",
          65535 * 16, p.n());
  p.visit([&]<class A, class B>() {
    plain_product<A, B><<<grid, dim3(16, 16), 0, queue(s)>>>(problem, static_cast<const A*>(p.a.data()),
                                                             static_cast<const B*>(p.b.data()), static_cast<int>(p.k()),
                                                             p.a.row_stride(), p.b.row_stride(), p.blocks());
  });
  launched("fp8_linear");
}

// ---------------------------------------------------------------- Hopper

template <class A, class B, class S> void launch_tiles(Stream& s, const Fp8Maps& maps, const Fp8Problem& p) {
  constexpr int kBytes = Fp8Memory<S>::kBytes;
  allow_shared<fp8_tiles<A, B, S>>(s, kBytes);
  const int clusters = multiprocessors(s) / S::kCluster;
  launch_overlapped(queue(s), false, fp8_tiles<A, B, S>,
                    {.grid = static_cast<unsigned>(std::min(p.tiles_m * p.tiles_n, clusters) * S::kCluster),
                     .block = S::kThreads,
                     .shared = kBytes,
                     .cluster = S::kCluster},
                    "fp8_linear", maps, p);
}

template <class S> void run_tiles(Stream& s, const Fp8Product& p, Fp8Problem problem) {
  problem.tiles_m = static_cast<int>((p.m() + S::kM * S::kCluster - 1) / (S::kM * S::kCluster));
  problem.tiles_n = static_cast<int>((p.n() + S::kN - 1) / S::kN);
  Fp8Maps maps;
  maps.a = tensor_map(p.a.data(), DType::u8, {p.k(), p.m()}, {p.a.row_stride()}, {S::kDepth, S::kM});
  maps.b = tensor_map(p.b.data(), DType::u8, {p.k(), p.n()}, {p.b.row_stride()}, {S::kDepth, S::kN / S::kCluster});
  maps.y = problem.whole ? tensor_map(p.y.data(), p.y.dtype(), {p.n(), p.m()}, {p.y.row_stride()}, {64, 64}) : maps.a;
  p.visit([&]<class A, class B>() { launch_tiles<A, B, S>(s, maps, problem); });
}

bool fits_tiles(Stream& s, const Fp8Product& p) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const auto operand = [](const View& v) { return aligned(v, 16) && v.row_stride() % 16 == 0; };
  return has_sm90a(s) && operand(p.a) && operand(p.b) && p.m() < kMost && p.n() < kMost && p.k() < kMost &&
         (p.m() + 255) / 256 * ((p.n() + 127) / 128) < kMost;
}

Fp8Problem problem_of(const Fp8Product& p) {
  const std::int64_t element = dtype_bytes(p.y.dtype()), ld = p.y.row_stride();
  const auto pairs = [&](const View& v) { return v.row_stride() % 2 == 0 && aligned(v, 2 * element); };
  return {.m = static_cast<int>(p.m()),
          .n = static_cast<int>(p.n()),
          .k_blocks = static_cast<int>((p.k() + kF8Block - 1) / kF8Block),
          .a_scale = p.a_scale.ptr<float>(),
          .b_scale = p.b_scale.ptr<float>(),
          .a_step = p.a_scale.size() > 1,
          .b_step = p.b_scale.size() > 1,
          .bias = p.bias.data(),
          .residual = p.residual.data(),
          .bias_dtype = p.bias.dtype(),
          .y_dtype = p.y.dtype(),
          .activation = static_cast<GemmActivation>(p.activation),
          .y = p.y.data(),
          .y_ld = ld,
          .residual_ld = p.residual ? p.residual.row_stride() : 0,
          .amax = p.wants_amax() ? p.amax.ptr<float>() : nullptr,
          // The copy engine writes whole 16-byte pieces: a row that ends inside one would overwrite what follows it.
          .whole = element == 2 && aligned(p.y, 16) && ld % 8 == 0 && p.n() % 8 == 0,
          .pairs = pairs(p.y),
          .residual_pairs = p.residual && pairs(p.residual)};
}

// ---------------------------------------------------------------- cuBLASLt

Gemm gemm_of(const Fp8Product& p) {
  return {.m = p.m(),
          .n = p.n(),
          .k = p.k(),
          .compute = DType::f8_e4m3,
          .a = {p.a.data(), p.a.dtype(), p.a.row_stride()},
          .b = {p.b.data(), p.b.dtype(), p.b.row_stride(), true},
          .out = {.d = p.y.data(),
                  .dtype = p.y.dtype(),
                  .ld = p.y.row_stride(),
                  .bias = p.bias.data(),
                  .bias_dtype = p.bias.dtype(),
                  .activation = static_cast<GemmActivation>(p.activation),
                  .residual = p.residual.data(),
                  .residual_ld = p.residual ? p.residual.row_stride() : 0}};
}
LtScales scales_of(const Fp8Product& p) {
  return {p.a_scale.ptr<float>(), p.b_scale.ptr<float>(), p.a_scale.size() > 1 || p.b_scale.size() > 1};
}
bool fits_library(Stream& s, const Fp8Product& p) {
  const bool rows = p.a_scale.size() == p.m() && p.b_scale.size() == p.n(),
             tensor = p.a_scale.size() == 1 && p.b_scale.size() == 1;
  if (p.blocks() || !(rows || tensor) || p.wants_amax()) return false;
  const LtScales scales = scales_of(p);
  return fits_cublas_lt(s, gemm_of(p), 0, &scales);
}

/// A product as choose_way() sees it.
struct Fp8Call {
  Stream& s;
  const Fp8Product& p;

  static std::string_view op() { return Fp8Linear::name; }
  static std::string_view family() { return op(); }
  auto fields() const { return fields_of(p); }
  static std::string_view name(int id) { return kNames[id]; }
  static int number(std::string_view name) { return number_of(kNames, name); }
  bool fits(int id) const { return fp8_fits(s, p, id); }
  int preferred(int id) const { return fits(id) ? id : -1; }
  /// cuBLASLt's kernels are a little faster where there is one. H200, us, M x N x K (tiles | cuBLASLt): 8192^3 866 | 839,
  /// 4096^3 104 | 103, 65536 x 4096 x 4096 1812 | 1737, 2048^3 17 | 16, 256 x 4096 x 4096 15 | 11, 1 x 4096 x 4096 20 | 8;
  /// K = 4112, whose rows do not begin at multiples of 128 bytes, 8191 x 4096: 285 | 220.
  int built_in() const { return fits_library(s, p) ? kLibrary : fits_tiles(s, p) ? kTiles : kPlain; }
  std::string words() const { return "fp8_linear " + words_of(p); }
  std::any operands() const { return {}; }
};

}  // namespace

std::span<const std::string_view> fp8_way_names() { return kNames; }

bool fp8_fits(Stream& s, const Fp8Product& p, int way) {
  if (way == kLibrary) return fits_library(s, p);
  return way == kPlain || fits_tiles(s, p);
}

int fp8_way(Stream& s, const Fp8Product& p) { return choose_way(Fp8Call{s, p}); }

void fp8_linear_by(int way, Stream& s, const Fp8Product& p, bool promoted) {
  if (p.wants_amax()) check(cudaMemsetAsync(p.amax.data(), 0, sizeof(float), queue(s)), "cudaMemsetAsync");
  if (p.y.size() == 0) return;
  if (way == kLibrary) {
    const LtScales scales = scales_of(p);
    return run_cublas_lt(s, gemm_of(p), workspace(s), kCublasLtBytes, 0, &scales);
  }
  const Fp8Problem problem = problem_of(p);
  if (way == kPlain) run_plain(s, p, problem);
  else if (p.blocks()) run_tiles<Fp8Tile<true>>(s, p, problem);
  else if (promoted) run_tiles<Fp8Tile<false>>(s, p, problem);
  else run_tiles<Fp8Tile<false, false>>(s, p, problem);
}

void fp8_linear(Stream& s, const Fp8Product& p) {
  require_fp8(s);
  fp8_linear_by(p.y.size() == 0 ? static_cast<int>(kPlain) : fp8_way(s, p), s, p);
}

}  // namespace hpcdl::cuda
