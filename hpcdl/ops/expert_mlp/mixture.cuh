#pragma once
// What the kernels of expert_mlp share. A choice is one expert of one token: choice c is the c % count-th of token
// c / count. Each choice has a row of hidden values and a row of results.

#include <cstdint>

#include "hpcdl/core/device_macros.h"
#include "hpcdl/ops/expert_mlp/expert_mlp.h"

namespace hpcdl::cuda {

/// A product of rows, chosen by experts, with matrices of theirs: with one matrix, of hidden values (down); with two, of
/// x, and then act(first) * second.
struct MixtureProduct {
  const void* first[ExpertMlp::kMostExperts];
  const void* second[ExpertMlp::kMostExperts];
  const void* from;  // rows of x, or of hidden values
  void* to;          // a row per choice, contiguous
  const std::int32_t *experts, *places;
  std::int64_t from_stride, first_stride, second_stride;
  int choices, count;      // in total, of a token
  int mlps, place_stride;  // experts; of a row of `places`: a number, then the choices
  int n, k;                // columns of `to`, of `from`
  bool gelu;

  /// The row of `from` that a choice multiplies.
  template <bool kGated> HPCDL_HOST_DEVICE int row_of(int choice) const { return kGated ? choice / count : choice; }
};

}  // namespace hpcdl::cuda
