#include <string>

#include "hpcdl/core/error.h"
#include "hpcdl/io/nearest.h"
#include "tools/specs.h"
#include "tools/verify/contract.h"

namespace hpcdl::lab::verify {

std::string_view pattern_name(Pattern p) {
  constexpr std::string_view names[] = {"normal",           "positive",     "huge",     "tiny",
                                        "denormal",         "large offset", "constant", "zero",
                                        "mixed magnitudes", "one NaN",      "one +inf", "one -inf"};
  return names[static_cast<int>(p)];
}

const std::vector<Contract>& contracts() {
  static const auto all = [] {
    std::vector<Contract> list;
    using namespace contract;
    for (const auto of_op : {relu_contracts,
                             add_contracts,
                             gelu_contracts,
                             bias_gelu_contracts,
                             swiglu_contracts,
                             softmax_contracts,
                             cross_entropy_contracts,
                             layer_norm_contracts,
                             rms_norm_contracts,
                             matmul_contracts,
                             matmul_add_relu_contracts,
                             linear_contracts,
                             int4_linear_contracts,
                             fp8_linear_contracts,
                             attention_contracts,
                             rope_contracts,
                             embedding_contracts,
                             grad_norm_contracts,
                             adamw_contracts,
                             mlp_contracts,
                             lm_head_loss_contracts,
                             loss_scale_contracts})
      for (auto& c : of_op()) list.push_back(std::move(c));
    return list;
  }();
  return all;
}

const Contract& find_contract(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& c : contracts()) {
    if (c.name == name) return c;
    names.emplace_back(c.name);
  }
  fail_usage("verify", "unknown contract \"{}\"{}; hpcdl verify --contracts lists all", name,
             io::did_you_mean(name, names));
}

}  // namespace hpcdl::lab::verify
