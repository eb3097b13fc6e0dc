#include "hpcdl/optim/optimizer.h"

#include <algorithm>
#include <string_view>

#include "hpcdl/core/error.h"
#include "hpcdl/state/page_locked.h"

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
  require(
      !moves || std::holds_alternative<AdamW::Args>(args), "optimizer",
      "only AdamW updates values while its moments lie elsewhere, and the optimizer is SGD: keep them with the model");
  const auto beside = [](const StateEntry& p) {
    return p.on_host && p.gradient->on_host && (!p.copy || p.copy->on_host);
  };
  require(!place.folder || !table.device().is_cuda() || std::ranges::all_of(table.updated(), beside), "optimizer",
          "the CPU updates values whose moments lie on a disk: keep all values on the host, too");
  moments_ = table_.add_moments(std::visit([](const auto& a) { return moment_names(a); }, args),
                                {place.on_host, place.folder});
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
