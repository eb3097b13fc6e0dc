#include "hpcdl/ops/way_names.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "hpcdl/core/error.h"

#if HPCDL_CUDA
#include "hpcdl/ops/attention/device_attention.h"
#include "hpcdl/ops/conv2d/device_conv.h"
#include "hpcdl/ops/fp8_linear/fp8_ways.h"
#include "hpcdl/ops/int4_linear/int4_ways.h"
#include "hpcdl/ops/matmul/device_gemm.h"
#endif

namespace hpcdl {

std::vector<OpWays> all_ways() {
#if HPCDL_CUDA
  const auto list = [](const auto& names) { return std::vector<std::string>(names.begin(), names.end()); };
  return {{"attention", list(cuda::attention_ways())},
          {"conv2d", list(cuda::conv_ways())},
          {"fp8_linear", list(cuda::fp8_way_names())},
          {"gemm", list(cuda::gemm_ways())},
          {"int4_linear", list(cuda::int4_way_names())}};
#else
  return {{"attention", {}}, {"conv2d", {}}, {"fp8_linear", {}}, {"gemm", {}}, {"int4_linear", {}}};
#endif
}

void check_preferred_ways(const std::map<std::string, std::string>& preferred, std::string_view where) {
  const auto all = all_ways();
  for (const auto& [op, name] : preferred) {
    const auto found = std::ranges::find(all, op, &OpWays::op);
    if (found == all.end()) {
      std::vector<std::string_view> ops;
      for (const auto& o : all) ops.push_back(o.op);
      fail_usage("ways", "{}: there is only one way to compute \"{}\": the ops with several are {}", where, op,
                 fmt::join(ops, ", "));
    }
    if (!found->names.empty() && std::find(found->names.begin(), found->names.end(), name) == found->names.end())
      fail_usage("ways", "{}: {} has no way \"{}\": its ways are {}", where, op, name, fmt::join(found->names, "; "));
  }
}

}  // namespace hpcdl
