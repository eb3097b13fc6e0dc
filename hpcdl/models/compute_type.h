#pragma once
// The type in which a model computes, as people choose it.

#include <utility>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/dtype.h"
#include "hpcdl/io/config_visitor.h"
#include "hpcdl/pool.h"
#include "hpcdl/tensor.h"

namespace hpcdl::models {

enum class ComputeChoice { automatic, f32, bf16, f16 };

/// none: that of the files, as far as the device computes in it.
constexpr DType dtype_of(ComputeChoice c) {
  switch (c) {
    case ComputeChoice::f32: return DType::f32;
    case ComputeChoice::bf16: return DType::bf16;
    case ComputeChoice::f16: return DType::f16;
    case ComputeChoice::automatic: break;
  }
  return DType::none;
}

/// The type of weights, activations, keys and values, instead of that of the files; `pool` converts the weights.
struct ComputeType {
  DType dtype = DType::none;  // f32, bf16 or f16; none: weights stay as they are
  Pool* pool = nullptr;
};

/// `t` itself, or a copy of the type that is asked for, in a buffer that is added to `own`.
Tensor converted(const Tensor& t, const ComputeType& to, std::vector<Buffer>& own);

}  // namespace hpcdl::models

template <> struct hpcdl::io::EnumNames<hpcdl::models::ComputeChoice> {
  using Choice = models::ComputeChoice;
  static constexpr std::pair<Choice, std::string_view> values[] = {
      {Choice::automatic, "auto"}, {Choice::f32, "f32"}, {Choice::bf16, "bf16"}, {Choice::f16, "f16"}};
};
