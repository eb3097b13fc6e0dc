#include "hpcdl/optim/optimizer.h"

#include <string_view>

#include "hpcdl/core/error.h"

namespace hpcdl {
namespace {

std::vector<std::string_view> moment_names(const AdamW::Args&) { return {"m", "v"}; }

std::vector<std::string_view> moment_names(const Sgd::Args& a) {
  return a.momentum != 0 ? std::vector<std::string_view>{"momentum"} : std::vector<std::string_view>{};
}

Var variable(Graph& g, const StateEntry* e) { return e ? g.constant(e->name, e->memory) : Var(); }

/// A parameter for record_adamw() or record_sgd(), without its moments.
template <class T> T tensor_of(Graph& g, const StateEntry& p) {
  T t;
  t.value = variable(g, &p), t.gradient = variable(g, p.gradient), t.copy = variable(g, p.copy);
  t.decay = p.param->decay;
  return t;
}

/// Whether other ranks update all of it.
bool idle(const StateEntry& p) { return !p.part.all() && p.memory.size() == 0; }

}  // namespace

Optimizer::Optimizer(StateTable& table, const OptimizerArgs& args) : table_(table), args_(args) {
  for (const auto& p : table_.updated())
    require(p.gradient != nullptr, "train", "parameter {} has no gradient: open the model for training", p.param->name);
  moments_ = table_.add_moments(std::visit([](const auto& a) { return moment_names(a); }, args));
}

std::vector<Var> Optimizer::gradients(Graph& g) const {
  std::vector<Var> list;
  for (const auto& p : table_.updated()) list.push_back(variable(g, p.gradient));
  return list;
}

void Optimizer::record(Graph& g) const {
  std::vector<Var> moments;
  for (const auto& m : moments_->entries) moments.push_back(variable(g, &m));
  auto moment = moments.begin();
  if (const auto* adamw = std::get_if<AdamW::Args>(&args_)) {
    std::vector<AdamWTensor<Var>> tensors;
    for (const auto& p : table_.updated()) {
      auto t = tensor_of<AdamWTensor<Var>>(g, p);
      t.m = *moment++, t.v = *moment++;
      if (!idle(p)) tensors.push_back(std::move(t));
    }
    record_adamw(g, tensors, *adamw);
  } else {
    const auto& sgd = std::get<Sgd::Args>(args_);
    std::vector<SgdTensor<Var>> tensors;
    for (const auto& p : table_.updated()) {
      auto t = tensor_of<SgdTensor<Var>>(g, p);
      if (!moments.empty()) t.m = *moment++;
      if (!idle(p)) tensors.push_back(std::move(t));
    }
    record_sgd(g, tensors, sgd);
  }
}

}  // namespace hpcdl
