#include <string>

#include "hpcdl/core/error.h"
#include "hpcdl/io/nearest.h"
#include "hpcdl/ops/adamw/adamw.spec.h"
#include "hpcdl/ops/add/add.spec.h"
#include "hpcdl/ops/attention/attention.spec.h"
#include "hpcdl/ops/bias_gelu/bias_gelu.spec.h"
#include "hpcdl/ops/cross_entropy/cross_entropy.spec.h"
#include "hpcdl/ops/embedding/embedding.spec.h"
#include "hpcdl/ops/gelu/gelu.spec.h"
#include "hpcdl/ops/grad_norm/grad_norm.spec.h"
#include "hpcdl/ops/int4_linear/int4_linear.spec.h"
#include "hpcdl/ops/layer_norm/layer_norm.spec.h"
#include "hpcdl/ops/linear/linear.spec.h"
#include "hpcdl/ops/lm_head_loss/lm_head_loss.spec.h"
#include "hpcdl/ops/loss_scale/loss_scale.spec.h"
#include "hpcdl/ops/matmul/matmul.spec.h"
#include "hpcdl/ops/mlp/mlp.spec.h"
#include "hpcdl/ops/relu/relu.spec.h"
#include "hpcdl/ops/rms_norm/rms_norm.spec.h"
#include "hpcdl/ops/rope/rope.spec.h"
#include "hpcdl/ops/softmax/softmax.spec.h"
#include "hpcdl/ops/swiglu/swiglu.spec.h"
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
