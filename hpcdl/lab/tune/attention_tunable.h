#pragma once

#include "hpcdl/lab/tune/gpu.h"
#include "hpcdl/ops/attention/device_attention.h"

namespace hpcdl::lab::tune {

/// A call without its memory.
struct AttentionShape {
  std::int64_t batch, queries, keys, heads, kv_heads, width;
  bool causal, aligned;  // aligned: all operands at multiples of 16 bytes
  DType dtype;
  float scale;
  bool backward = false;
  bool atomic = false;  // gradients may be summed in any order
  std::string_view op() const { return backward ? "attention_backward" : "attention"; }
};
AttentionShape shape_of(const Stream& s, const cuda::Attend& c);
AttentionShape shape_of(const Stream& s, const cuda::AttendBackward& c);
std::array<std::int64_t, 10> fields_of(const AttentionShape& s);
Wish wish_of(const AttentionShape& s);

}  // namespace hpcdl::lab::tune
