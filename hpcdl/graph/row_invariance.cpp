#include "hpcdl/graph/row_invariance.h"

#include <algorithm>

namespace hpcdl {

bool rows_alone_on_gpu(std::string_view op) {
  // Of inference: products of floats, attention to pages, and what has one row or one element at a time.
  static constexpr std::string_view kOps[] = {
      "adapter_rows", "add",         "cast",     "embedding", "gelu",     "kv_write",    "layer_norm",      "linear",
      "linear_act",   "logit_rules", "logprobs", "mlp",       "norm_qkv", "norm_swiglu", "paged_attention", "relu",
      "rms_norm",     "rope",        "sample",   "scale",     "swiglu",   "vocabulary"};
  return std::ranges::find(kOps, op) != std::end(kOps);
}

}  // namespace hpcdl
