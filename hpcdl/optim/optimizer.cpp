#include "hpcdl/optim/optimizer.h"

#include <algorithm>
#include <string_view>

#include "hpcdl/core/error.h"
#include "hpcdl/state/page_locked.h"

namespace hpcdl {
namespace {

std::vector<std::string_view> moment_names(const AdamW::Args&) { return {"m", "v"}; }

std::vector<std::string_view> moment_names(const AdamW8::Args&) { return {"m", "v"}; }

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

/// A page lies in the memory next to the thread that writes it first. Pieces take turns, so that the threads that update a
/// group find it in the memory of all processors, and not in that of one.
void populate_on_threads(Pool& pool, const Buffer& memory) {
  constexpr std::int64_t kPiece = std::int64_t{2} << 20;
  pool.run_on_each_thread([&](int thread) {
    for (auto at = thread * kPiece; at < memory.bytes(); at += pool.threads() * kPiece)
      populate(memory.data() + at, std::min(kPiece, memory.bytes() - at));
  });
}

}  // namespace

Optimizer::Optimizer(StateTable& table, const OptimizerArgs& args, const OptimizerPlace& place, Pool& pool)
    : table_(table), args_(args) {
  for (const auto& p : table_.updated())
    require(p.gradient != nullptr, "train", "parameter {} has no gradient: open the model for training", p.param->name);
  require(place.folder || std::ranges::none_of(table.updated(), [](const auto& p) { return p.on_disk >= 0; }),
          "optimizer", "values on a disk need their moments there, too: set offload.optimizer = \"disk\"");
  const bool moves = place.on_host || place.folder;
  const bool coded = std::holds_alternative<AdamW8::Args>(args);
  require(
      !moves || !std::holds_alternative<Sgd::Args>(args), "optimizer",
      "only AdamW updates values while its moments lie elsewhere, and the optimizer is SGD: keep them with the model");
  require(!coded || (!moves && !table.device().is_cuda()), "optimizer",
          "moments of 8 bits lie with a model in the memory of a CPU, not on {}: keep moments in f32",
          place.folder ? "a disk" : "a GPU or beside it");
  const auto beside = [](const StateEntry& p) {
    return p.on_host && p.gradient->on_host && (!p.copy || p.copy->on_host);
  };
  require(!place.folder || !table.device().is_cuda() || std::ranges::all_of(table.updated(), beside), "optimizer",
          "the CPU updates values whose moments lie on a disk: keep all values on the host, too");
  moments_ = table_.add_moments(std::visit([](const auto& a) { return moment_names(a); }, args),
                                {place.on_host, place.folder, coded});
  if (place.on_host) make_host_update(place, pool);
  if (place.folder)
    disk_.emplace(moments_->file, table.value_file(), place.group > 0 ? place.group : DiskUpdate::kGroup);
}

void Optimizer::make_host_update(const OptimizerPlace& place, Pool& pool) {
  const auto& memory = moments_->memory;
  const auto device = table_.device();
  if (device.is_cuda() && memory.bytes() > 0) {
    populate_on_threads(pool, memory);
    pinned_ = page_locked(memory, device, "the state of the optimizer");
  }
  DType copies = DType::none;
  for (const auto& p : table_.updated())
    if (p.copy) copies = p.copy->memory.dtype();
  host_.emplace(device, copies, place.interleave.value_or(0), place.group > 0 ? place.group : HostUpdate::kGroup,
                table_.described() ? 0 : pool.threads());
  if (!place.interleave && !table_.described()) host_->measure(moved_tensors(), pool);
}

std::vector<MovedTensor> Optimizer::moved_tensors() const {
  std::vector<MovedTensor> list;
  const auto* moment = moments_->entries.data();
  for (const auto& p : table_.updated()) {
    if (!idle(p)) list.push_back({&p, moment, moment + 1});
    moment += 2;
  }
  return list;
}

std::vector<Var> Optimizer::gradients(Graph& g) const {
  std::vector<Var> list;
  for (const auto& p : table_.updated()) list.push_back(variable(g, p.gradient));
  return list;
}

void Optimizer::record(Graph& g) const {
  if (host_) return host_->record(g, moved_tensors(), std::get<AdamW::Args>(args_));
  if (disk_) return disk_->record(g, moved_tensors(), std::get<AdamW::Args>(args_));
  if (const auto* sgd = std::get_if<Sgd::Args>(&args_)) return record_sgd_of(g, *sgd);
  const auto* coded = std::get_if<AdamW8::Args>(&args_);
  record_adamw_of(g, coded ? *coded : std::get<AdamW::Args>(args_));
}

void Optimizer::record_adamw_of(Graph& g, const AdamW::Args& args) const {
  std::vector<AdamWTensor<Var>> tensors;
  std::vector<AdamW8Tensor<Var>> coded;
  const auto* moment = moments_->entries.data();
  const auto next = [&] { return variable(g, moment++); };
  for (const auto& p : table_.updated()) {
    if (moment->memory.dtype() == DType::f32) {
      auto t = tensor_of<AdamWTensor<Var>>(g, p);
      t.m = next(), t.v = next();
      if (!idle(p)) tensors.push_back(std::move(t));
    } else {
      auto t = tensor_of<AdamW8Tensor<Var>>(g, p);
      t.m = next(), t.m_scale = next(), t.v = next(), t.v_scale = next();
      if (!idle(p)) coded.push_back(std::move(t));
    }
  }
  if (!coded.empty()) record_adamw8(g, std::span<const AdamW8Tensor<Var>>(coded), args);
  if (!tensors.empty() || coded.empty()) record_adamw(g, tensors, args);
}

void Optimizer::record_sgd_of(Graph& g, const Sgd::Args& args) const {
  std::vector<SgdTensor<Var>> tensors;
  const auto* moment = moments_->entries.empty() ? nullptr : moments_->entries.data();
  for (const auto& p : table_.updated()) {
    auto t = tensor_of<SgdTensor<Var>>(g, p);
    if (moment) t.m = variable(g, moment++);
    if (!idle(p)) tensors.push_back(std::move(t));
  }
  record_sgd(g, tensors, args);
}

}  // namespace hpcdl
