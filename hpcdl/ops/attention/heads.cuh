#pragma once
// The operands of attention as its GPU kernels see them (.cu files).

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/ops/attention/codes.cuh"
#include "hpcdl/ops/attention/device_attention.h"

namespace hpcdl::cuda {

/// One operand: elements of head h of token t of sequence b begin at data + b * batch + t * token + h * head.
struct Heads {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t batch = 0, token = 0, head = 0;
  bool accumulate = false;

  __device__ std::int64_t at(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return b * batch + t * token + h * head;
  }
  __device__ float get(std::int64_t i) const { return fetch(data, dtype, i); }
  __device__ void put(std::int64_t i, float v) const {
    if (accumulate) v += get(i);
    cuda::put(data, dtype, i, v);
  }
  /// Every row of a head begins at a multiple of 16 bytes.
  bool whole_pieces() const {
    const auto bytes = dtype_bytes(dtype);
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && batch * bytes % 16 == 0 && token * bytes % 16 == 0 &&
           head * bytes % 16 == 0;
  }
};

inline Heads heads_of(const View& x, std::int64_t width) {
  if (!x) return {};
  return {const_cast<void*>(x.data()), x.dtype(), x.strides()[0], x.strides()[1],
          x.rank() == 4 ? x.strides()[2] : width};
}
inline Heads heads_of(const Grad& x, std::int64_t width) {
  auto h = heads_of(static_cast<const View&>(x), width);
  h.accumulate = x && x.accumulate();
  return h;
}

/// Keys or values in pages: (pages, heads, 64, D), elements or codes with scales, of which sequence b has those of row b
/// of a table.
struct PagedHeads : Heads {
  const std::int32_t* table = nullptr;
  int row = 0;  // entries of a row of the table

  PagedHeads() = default;
  PagedHeads(const View& pool, const View& pages)
      : Heads{const_cast<void*>(pool.data()), pool.dtype(), pool.strides()[0], head_dim_of(pool.spec()),
              pool.strides()[1]},
        table(pages.ptr<std::int32_t>()),
        row(static_cast<int>(pages[1])) {}
  __device__ std::int64_t at(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return page_at(b, t, h) + t % kPageTokens * token;
  }
  /// The scale of a row of codes.
  __device__ float scale(std::int64_t b, std::int64_t t, std::int64_t h) const {
    const char* const codes = static_cast<const char*>(data) + page_at(b, t, h);
    return reinterpret_cast<const float*>(codes + kPageTokens * token)[t % kPageTokens];
  }

 private:
  /// Where the head begins in the page of row t.
  __device__ std::int64_t page_at(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return table[b * row + t / kPageTokens] * batch + h * head;
  }
};

/// Keys or values of packed sequences: token t of sequence b is row starts[b] + t.
struct PackedHeads : Heads {
  const std::int32_t* starts = nullptr;

  PackedHeads() = default;
  PackedHeads(const Heads& all, const View& rows) : Heads(all), starts(rows.ptr<std::int32_t>()) {}
  __device__ std::int64_t at(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return (starts[b] + t) * token + h * head;
  }
};

/// Element d of row t of head h of sequence b.
__device__ float value_of(const auto& x, std::int64_t b, std::int64_t t, std::int64_t h, int d) {
  return x.get(x.at(b, t, h) + d);
}
__device__ inline float value_of(const PagedHeads& x, std::int64_t b, std::int64_t t, std::int64_t h, int d) {
  const auto i = x.at(b, t, h) + d;
  if (x.dtype == DType::i8) return widen(static_cast<const std::int8_t*>(x.data)[i]) * x.scale(b, t, h);
  if (x.dtype == DType::f8_e4m3) return widen(static_cast<const f8_e4m3*>(x.data)[i]) * x.scale(b, t, h);
  return x.get(i);
}

}  // namespace hpcdl::cuda
