#pragma once
// Tensor maps: descriptions of a tensor for the copy engine (tma.h). Made on the host, passed to a kernel by value.

#include <cuda.h>

#include <initializer_list>

#include "hpcdl/cuda/launch.h"

namespace hpcdl::cuda {

enum class Swizzle {
  none = CU_TENSOR_MAP_SWIZZLE_NONE,
  bytes32 = CU_TENSOR_MAP_SWIZZLE_32B,
  bytes64 = CU_TENSOR_MAP_SWIZZLE_64B,
  bytes128 = CU_TENSOR_MAP_SWIZZLE_128B
};

namespace detail {

/// The driver's encoder, found through the runtime, so that nothing links to the driver.
inline auto encode_tensor_map() {
  static const auto found = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &result),
          "cuTensorMapEncodeTiled");
#else
    check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &f, cudaEnableDefault, &result), "cuTensorMapEncodeTiled");
#endif
    require(result == cudaDriverEntryPointSuccess, "cuda",
            "the driver has no cuTensorMapEncodeTiled: it is older than 12.0");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(f);
  }();
  return found;
}

inline CUtensorMapDataType map_type(DType d) {
  switch (d) {
    case DType::bf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::f16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::f32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::i32: return CU_TENSOR_MAP_DATA_TYPE_INT32;
    case DType::u8: return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    default: fail("cuda", "a tensor map needs f32, f16, bf16, i32 or u8 elements, got {}", dtype_name(d));
  }
}

}  // namespace detail

/// True if the copy engine can address rows of `ld` elements at `data`: both are multiples of 16 bytes.
inline bool mappable(const void* data, DType d, std::int64_t ld) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && ld > 0 && ld * dtype_bytes(d) % 16 == 0 &&
         ld * dtype_bytes(d) < (std::int64_t{1} << 40);
}

/// A tensor of up to 5 dims, innermost first: `extents` of each, `strides` in elements of all but the innermost, and
/// `box`, the tile that one copy moves (at most 256 a dim; the innermost at most as wide as the swizzle). `every`: of
/// one dim only every such element, at most every 8th; the box then spans that many times more.
inline CUtensorMap tensor_map(const void* data, DType d, std::initializer_list<std::int64_t> extents,
                              std::initializer_list<std::int64_t> strides, std::initializer_list<int> box,
                              Swizzle swizzle = Swizzle::bytes128, std::initializer_list<int> every = {}) {
  const auto rank = extents.size();
  require(rank >= 1 && rank <= 5 && strides.size() + 1 == rank && box.size() == rank &&
              (every.size() == 0 || every.size() == rank),
          "cuda", "a tensor map of rank {} needs as many boxes and one stride less", rank);
  cuuint64_t sizes[5], steps[5];
  cuuint32_t tile[5], apart[5] = {1, 1, 1, 1, 1};
  for (std::size_t i = 0; i < rank; ++i)
    sizes[i] = static_cast<cuuint64_t>(extents.begin()[i]), tile[i] = static_cast<cuuint32_t>(box.begin()[i]);
  for (std::size_t i = 0; i + 1 < rank; ++i) steps[i] = static_cast<cuuint64_t>(strides.begin()[i] * dtype_bytes(d));
  for (std::size_t i = 0; i < every.size(); ++i)
    apart[i] = static_cast<cuuint32_t>(every.begin()[i]), tile[i] *= apart[i];
  CUtensorMap map;
  const CUresult r = detail::encode_tensor_map()(
      &map, detail::map_type(d), static_cast<cuuint32_t>(rank), const_cast<void*>(data), sizes, steps, tile, apart,
      CU_TENSOR_MAP_INTERLEAVE_NONE, static_cast<CUtensorMapSwizzle>(swizzle), CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(r == CUDA_SUCCESS, "cuda",
          "cuTensorMapEncodeTiled refused a tensor of rank {} (error {}): addresses and strides must be multiples of "
          "16 bytes",
          rank, static_cast<int>(r));
  return map;
}

}  // namespace hpcdl::cuda
