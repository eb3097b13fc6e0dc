#include "hpcdl/train/optimizer.h"

#include "hpcdl/core/error.h"
#include "hpcdl/io/upload.h"

namespace hpcdl::train {

namespace {

std::int64_t padded(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

Tensor bytes_of(const Buffer& b) { return Tensor(b.data(), {{b.bytes()}, DType::u8}, b.device()); }

std::vector<std::string_view> state_names(const AdamW::Args&) { return {"m", "v"}; }

std::vector<std::string_view> state_names(const Sgd::Args& a) {
  return a.momentum != 0 ? std::vector<std::string_view>{"momentum"} : std::vector<std::string_view>{};
}

/// One parameter as variables of a program.
struct Entry {
  const models::NamedParameter& parameter;
  Var gradient;
  std::vector<Var> state;
};

void record(Graph& g, const std::vector<Entry>& entries, const AdamW::Args& args) {
  std::vector<AdamWTensor<Var>> tensors;
  for (const auto& e : entries) {
    const auto& p = e.parameter;
    tensors.push_back({.value = g.constant(p.name, p.value),
                       .gradient = e.gradient,
                       .m = e.state[0],
                       .v = e.state[1],
                       .copy = p.copy.spec() ? g.constant(p.name + ".copy", p.copy) : Var(),
                       .decay = p.decay});
  }
  record_adamw(g, tensors, args);
}

void record(Graph& g, const std::vector<Entry>& entries, const Sgd::Args& args) {
  std::vector<SgdTensor<Var>> tensors;
  for (const auto& e : entries) {
    const auto& p = e.parameter;
    tensors.push_back({.value = g.constant(p.name, p.value),
                       .gradient = e.gradient,
                       .m = e.state.empty() ? Var() : e.state[0],
                       .copy = p.copy.spec() ? g.constant(p.name + ".copy", p.copy) : Var(),
                       .decay = p.decay});
  }
  record_sgd(g, tensors, args);
}

}  // namespace

Optimizer::Optimizer(models::Trainable& model, const OptimizerArgs& args)
    : model_(model), args_(args), names_(std::visit([](const auto& a) { return state_names(a); }, args)) {
  std::int64_t total = 0;
  for (const auto& p : model_.parameters()) {
    require(static_cast<bool>(p.gradient.spec()), "train", "parameter {} has no gradient: open the model for training",
            p.name);
    total += std::ssize(names_) * padded(p.value.size() * std::int64_t{sizeof(float)});
  }
  if (!model_.described()) memory_ = Buffer(total, model_.device());
  if (!model_.described() && model_.device().is_cuda()) host_ = Buffer(total);
  auto* at = memory_.data();
  for (const auto& p : model_.parameters())
    for (std::size_t i = 0; i < names_.size(); ++i) {
      tensors_.emplace_back(at, Spec{p.value.shape(), DType::f32}, model_.device());
      if (at) at += padded(tensors_.back().bytes());
    }
}

void Optimizer::record(Graph& g, std::span<const Var> gradients) const {
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    auto& e = entries.emplace_back(Entry{model_.parameters()[i], gradients[i], {}});
    for (std::size_t k = 0; k < names_.size(); ++k)
      e.state.push_back(g.constant(e.parameter.name + "." + std::string(names_[k]), tensors_[i * names_.size() + k]));
  }
  std::visit([&](const auto& args) { train::record(g, entries, args); }, args_);
}

std::vector<io::NamedTensor> Optimizer::state() const {
  std::vector<io::NamedTensor> list;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& p = model_.parameters()[i / names_.size()];
    const auto& t = tensors_[i];  // the same place in the host's block
    const Tensor host =
        host_.bytes() ? Tensor(host_.data() + (static_cast<std::byte*>(t.data()) - memory_.data()), t.spec()) : t;
    list.push_back({p.name + "." + std::string(names_[i % names_.size()]), host, p.part});
  }
  return list;
}

void Optimizer::fetch(const Stream& s) const {
  if (host_.bytes()) copy(s, bytes_of(host_), bytes_of(memory_));
}

void Optimizer::store(const Stream& s) const {
  if (!host_.bytes()) return;
  io::Upload upload;
  upload.add(bytes_of(memory_), bytes_of(host_));
  upload.run(s);
}

}  // namespace hpcdl::train
