#include "hpcdl/ops/matmul/cublas_lt.h"

#include "hpcdl/core/cuda_runtime.h"

#if __has_include(<cublasLt.h>)

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <span>

namespace hpcdl::cuda {
namespace {

#define HPCDL_LT(name) decltype(&::name) name = nullptr
/// The library's calls that are used here.
struct Library {
  HPCDL_LT(cublasLtCreate);
  HPCDL_LT(cublasLtMatmul);
  HPCDL_LT(cublasLtMatmulDescCreate);
  HPCDL_LT(cublasLtMatmulDescDestroy);
  HPCDL_LT(cublasLtMatmulDescSetAttribute);
  HPCDL_LT(cublasLtMatrixLayoutCreate);
  HPCDL_LT(cublasLtMatrixLayoutDestroy);
  HPCDL_LT(cublasLtMatrixLayoutSetAttribute);
  HPCDL_LT(cublasLtMatmulPreferenceCreate);
  HPCDL_LT(cublasLtMatmulPreferenceDestroy);
  HPCDL_LT(cublasLtMatmulPreferenceSetAttribute);
  HPCDL_LT(cublasLtMatmulAlgoGetHeuristic);
  bool whole = true;

  Library() {
    const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VERSION / 10000);
    void* so = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto find = [&](auto& f, const char* call) {
      f = so ? reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(so, call)) : nullptr;
      whole = whole && f;
    };
    find(cublasLtCreate, "cublasLtCreate");
    find(cublasLtMatmul, "cublasLtMatmul");
    find(cublasLtMatmulDescCreate, "cublasLtMatmulDescCreate");
    find(cublasLtMatmulDescDestroy, "cublasLtMatmulDescDestroy");
    find(cublasLtMatmulDescSetAttribute, "cublasLtMatmulDescSetAttribute");
    find(cublasLtMatrixLayoutCreate, "cublasLtMatrixLayoutCreate");
    find(cublasLtMatrixLayoutDestroy, "cublasLtMatrixLayoutDestroy");
    find(cublasLtMatrixLayoutSetAttribute, "cublasLtMatrixLayoutSetAttribute");
    find(cublasLtMatmulPreferenceCreate, "cublasLtMatmulPreferenceCreate");
    find(cublasLtMatmulPreferenceDestroy, "cublasLtMatmulPreferenceDestroy");
    find(cublasLtMatmulPreferenceSetAttribute, "cublasLtMatmulPreferenceSetAttribute");
    find(cublasLtMatmulAlgoGetHeuristic, "cublasLtMatmulAlgoGetHeuristic");
  }
};
#undef HPCDL_LT

const Library& library() {
  static const Library l;
  return l;
}

void lt(cublasStatus_t status, const char* call) {
  require(status == CUBLAS_STATUS_SUCCESS, "matmul", "{} failed with cuBLAS status {}", call, static_cast<int>(status));
}

/// Lets the library load what it needs on first use while the stream is being captured.
class Relaxed {
 public:
  Relaxed() { check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode"); }
  ~Relaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// One handle per device, never destroyed, since captured work may refer to its kernels.
cublasLtHandle_t handle(int device) {
  static std::map<int, cublasLtHandle_t> handles;
  auto& h = handles[device];
  if (!h) lt(library().cublasLtCreate(&h), "cublasLtCreate");
  return h;
}

cudaDataType_t type_of(DType d) {
  switch (d) {
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    case DType::f8_e4m3: return CUDA_R_8F_E4M3;
    case DType::f8_e5m2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
  }
}

/// Row-major D = A B is column-major D^T = B^T A^T: b is the library's first operand, the columns of D are its rows.
struct Call {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
  const void* added = nullptr;  // C
  float alpha = 1, beta = 0;

  explicit Call(const Gemm& g, const LtScales* scales) : alpha(g.out.scale) {
    const auto& l = library();
    const auto& o = g.out;
    lt(l.cublasLtMatmulDescCreate(&desc, g.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
       "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, g.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, g.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    epilogue(o);
    if (scales) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(scales->b));
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(scales->a));
#if CUBLAS_VERSION >= 120900
      if (scales->rows)
        for (const auto what : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
          set(what, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
#endif
    }
    a = layout(g.b.dtype, g.b.transposed ? g.k : g.n, g.b.transposed ? g.n : g.k, g.b.ld, g.batch, g.b.batch_stride);
    b = layout(g.a.dtype, g.a.transposed ? g.m : g.k, g.a.transposed ? g.k : g.m, g.a.ld, g.batch, g.a.batch_stride);
    d = layout(o.dtype, g.n, g.m, o.ld, g.batch, o.batch_stride);
    const bool other = o.residual != nullptr;
    c = layout(o.dtype, g.n, g.m, other ? o.residual_ld : o.ld, g.batch,
               other ? o.residual_batch_stride : o.batch_stride);
    added = other ? o.residual : o.d;
    beta = other || o.accumulate ? 1.0f : 0.0f;
  }
  ~Call() {
    const auto& l = library();
    for (auto* x : {a, b, c, d})
      if (x) l.cublasLtMatrixLayoutDestroy(x);
    if (desc) l.cublasLtMatmulDescDestroy(desc);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  template <class V> void set(cublasLtMatmulDescAttributes_t what, V value) {
    lt(library().cublasLtMatmulDescSetAttribute(desc, what, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }
  void epilogue(const GemmResult& o) {
    const bool relu = o.activation == GemmActivation::relu, gelu = o.activation == GemmActivation::gelu_tanh;
    int kind = relu   ? CUBLASLT_EPILOGUE_RELU
               : gelu ? (o.z ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU)
                      : CUBLASLT_EPILOGUE_DEFAULT;
    if (o.bias) {
      kind = kind == CUBLASLT_EPILOGUE_DEFAULT ? CUBLASLT_EPILOGUE_BIAS : kind | CUBLASLT_EPILOGUE_BIAS;
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, o.bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int>(type_of(o.bias_dtype)));
    }
    if (o.z) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, o.z);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, o.z_ld);
    }
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, kind);
  }
  static cublasLtMatrixLayout_t layout(DType type, std::int64_t rows, std::int64_t cols, std::int64_t ld,
                                       std::int64_t batch, std::int64_t stride) {
    const auto& l = library();
    cublasLtMatrixLayout_t x = nullptr;
    lt(l.cublasLtMatrixLayoutCreate(&x, type_of(type), static_cast<std::uint64_t>(rows),
                                    static_cast<std::uint64_t>(cols), ld),
       "cublasLtMatrixLayoutCreate");
    const auto count = static_cast<std::int32_t>(batch);
    lt(l.cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
       "cublasLtMatrixLayoutSetAttribute");
    lt(l.cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
       "cublasLtMatrixLayoutSetAttribute");
    return x;
  }
};

/// The alignment in bytes that the library may expect of each operand, as its first and second (b, a) and its results.
/// That of the rows of an operand whose address is a multiple of 16, and else that of an element: one choice wherever a
/// program's arena places the operands.
struct Alignments {
  std::uint32_t a = 16, b = 16, results = 16;

  explicit Alignments(const Gemm& g)
      : a(of(g.b.data, g.b.dtype, g.b.ld, g.b.batch_stride)), b(of(g.a.data, g.a.dtype, g.a.ld, g.a.batch_stride)) {
    const auto& o = g.out;
    for (const auto one :
         {of(o.d, o.dtype, o.ld, o.batch_stride), of(o.residual, o.dtype, o.residual_ld, o.residual_batch_stride),
          of(o.z, o.dtype, o.z_ld, 0)})
      results = std::min(results, one);
  }
  std::int64_t bits() const { return a | b << 8 | results << 16; }

 private:
  static std::uint32_t of(const void* p, DType d, std::int64_t ld, std::int64_t stride) {
    const auto element = static_cast<std::uint64_t>(dtype_bytes(d));
    if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0) return static_cast<std::uint32_t>(element);
    const std::uint64_t bytes =
        (static_cast<std::uint64_t>(ld) | static_cast<std::uint64_t>(stride) | 16 / element) * element;
    return static_cast<std::uint32_t>(bytes & (~bytes + 1));
  }
};

/// What the library's choice depends on: sizes, types, strides, alignment, epilogue.
using Key = std::array<std::int64_t, 14>;
Key key_of(int device, const Gemm& g, const LtScales* scales) {
  const auto& o = g.out;
  const std::int64_t bits = static_cast<int>(g.compute) | static_cast<int>(o.dtype) << 6 |
                            static_cast<int>(o.bias_dtype) << 12 | static_cast<int>(o.activation) << 18 |
                            g.a.transposed << 21 | g.b.transposed << 22 | (o.bias != nullptr) << 23 |
                            (o.z != nullptr) << 24 | (o.residual != nullptr) << 25 | o.accumulate << 26 | g.tf32 << 27 |
                            (scales ? 1 + scales->rows : 0) << 28 | std::int64_t{g.a.dtype != g.compute} << 30;
  return {device,
          g.m,
          g.n,
          g.k,
          g.batch,
          bits,
          g.a.ld,
          g.b.ld,
          o.ld,
          g.a.batch_stride,
          g.b.batch_stride,
          o.batch_stride,
          o.residual ? o.residual_ld : o.z_ld,
          Alignments(g).bits()};
}

/// The first choices of the library, best first.
struct Algorithms {
  std::array<cublasLtMatmulAlgo_t, kCublasLtChoices> list = {};
  int count = 0;
};

/// The library's first choices, at most `most`, among those that are reproducible bit for bit.
Algorithms ask(int device, const Gemm& g, int most, const LtScales* scales) {
  const auto& l = library();
  const Call call(g, scales);
  cublasLtMatmulPreference_t preference = nullptr;
  lt(l.cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const std::size_t bytes = kCublasLtBytes;
  l.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
  const Alignments align(g);
  const auto expect = [&](cublasLtMatmulPreferenceAttributes_t what, std::uint32_t bytes_of_it) {
    l.cublasLtMatmulPreferenceSetAttribute(preference, what, &bytes_of_it, sizeof bytes_of_it);
  };
  expect(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align.a);
  expect(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align.b);
  expect(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align.results);
  expect(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align.results);
  const std::uint32_t schemes =
      CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;  // sums of shares stay f32
  l.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                         sizeof schemes);
  cublasLtMatmulHeuristicResult_t results[kCublasLtChoices] = {};
  int count = 0;
  const auto status = l.cublasLtMatmulAlgoGetHeuristic(handle(device), call.desc, call.a, call.b, call.c, call.d,
                                                       preference, most, results, &count);
  l.cublasLtMatmulPreferenceDestroy(preference);
  Algorithms found;
  if (status != CUBLAS_STATUS_SUCCESS) return found;
  for (const auto& result : std::span(results).first(static_cast<std::size_t>(count)))
    if (result.state == CUBLAS_STATUS_SUCCESS) found.list[static_cast<std::size_t>(found.count++)] = result.algo;
  return found;
}

/// False if the library has no suitable epilogue, and for f32 with its gelu, which is an approximation.
bool expressible(const Gemm& g, const LtScales* scales) {
  const auto& o = g.out;
#if CUBLAS_VERSION < 120900
  if (scales && scales->rows) return false;
#endif
  if (g.compute == DType::f32 &&
      (o.dtype != DType::f32 || (o.activation != GemmActivation::none && o.activation != GemmActivation::relu)))
    return false;
  if ((g.a.dtype != g.compute && !scales) || g.b.dtype != g.compute || g.k == 0) return false;
  if (o.activation == GemmActivation::gelu_erf || (o.z && o.activation != GemmActivation::gelu_tanh)) return false;
  if (o.residual && (o.accumulate || o.residual_is_z)) return false;
  if ((o.residual || o.accumulate) && o.dtype != DType::f32)
    return false;  // some of its kernels round the product before they add C
  const bool activated = o.activation != GemmActivation::none;
  return !(activated && (o.accumulate || (o.residual && !o.residual_inside)));
}

/// The first choice is asked for alone: that takes less time, and few products need another one.
std::optional<cublasLtMatmulAlgo_t> algorithm(Stream& s, const Gemm& g, int choice, const LtScales* scales) {
  static std::mutex mutex;
  static std::map<Key, Algorithms> first, all;
  const std::lock_guard lock(mutex);
  const int device = s.device().index;
  auto& known = choice == 0 ? first : all;
  const Key key = key_of(device, g, scales);
  auto it = known.find(key);
  if (it == known.end()) {
    const Relaxed relaxed;
    it = known.emplace(key, ask(device, g, choice == 0 ? 1 : kCublasLtChoices, scales)).first;
  }
  if (choice >= it->second.count) return std::nullopt;
  return it->second.list[static_cast<std::size_t>(choice)];
}

}  // namespace

bool fits_cublas_lt(Stream& s, const Gemm& g, int choice, const LtScales* scales) {
  return expressible(g, scales) && library().whole && algorithm(s, g, choice, scales).has_value();
}

void run_cublas_lt(Stream& s, const Gemm& g, void* workspace, std::size_t bytes, int choice, const LtScales* scales) {
  const auto found = algorithm(s, g, choice, scales);
  require(found.has_value(), "matmul", "cuBLASLt has no way to compute this product: fits_cublas_lt() says so first");
  const Call call(g, scales);
  const Relaxed relaxed;
  lt(library().cublasLtMatmul(handle(s.device().index), call.desc, &call.alpha, g.b.data, call.a, g.a.data, call.b,
                              &call.beta, call.added, call.c, g.out.d, call.d, &*found, workspace, bytes, queue(s)),
     "cublasLtMatmul");
}

}  // namespace hpcdl::cuda

#else

namespace hpcdl::cuda {

bool fits_cublas_lt(Stream&, const Gemm&, int, const LtScales*) { return false; }
void run_cublas_lt(Stream&, const Gemm&, void*, std::size_t, int, const LtScales*) {
  fail("matmul", "this build has no cuBLASLt");
}

}  // namespace hpcdl::cuda

#endif
