#include "hpcdl/io/checkpoint_snapshot.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "hpcdl/core/copy_elements.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/pinned.h"
#include "hpcdl/core/units.h"
#include "hpcdl/pool.h"

namespace hpcdl::io {
namespace {

const std::string kModel = "model ", kOptimizer = "optimizer ";

/// Dense copies, which threads make together: one thread alone does not use all of the memory's bandwidth.
class Copies {
 public:
  void add(const Tensor& to, const View& from) {
    if (to.data() == from.data()) return;  // it stays
    if (!from.is_contiguous()) return copy_elements(to, from);
    constexpr std::int64_t kPiece = std::int64_t{4} << 20;
    for (std::int64_t at = 0; at < to.bytes(); at += kPiece)
      pieces_.push_back(
          {to.ptr<std::byte>() + at, from.ptr<const std::byte>() + at, std::min(kPiece, to.bytes() - at)});
  }
  void run() const {
    constexpr int kMostThreads = 8;
    Pool pool(std::min(usable_cpus(), kMostThreads));
    parallel_for(pool, std::ssize(pieces_), 1, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
        std::memcpy(pieces_[i].to, pieces_[i].from, static_cast<std::size_t>(pieces_[i].bytes));
    });
  }

 private:
  struct Piece {
    std::byte* to;
    const std::byte* from;
    std::int64_t bytes;
  };
  std::vector<Piece> pieces_;
};

bool writes_slice(const WholeTensor& t, int rank) {
  for (const auto& s : t.slices)
    if (s.from == rank) return true;
  return false;
}

}  // namespace

CheckpointSnapshot::~CheckpointSnapshot() {
  if (preparing_.joinable()) preparing_.join();
}

void CheckpointSnapshot::prepare(const CheckpointContent& content, const Stays& stays, Ranks& ranks) {
  if (preparing_.joinable()) preparing_.join();
  plan_ = plan_save(content, ranks);
  agree(ranks, [&] { make_memory(content, stays, ranks.rank()); });
  preparing_ = std::thread([this] {
    for (const auto& [name, memory] : memory_) populate(memory.buffer.data(), memory.buffer.bytes());
  });
}

OwnedTensor& CheckpointSnapshot::memory_for(const std::string& name, const Spec& spec) {
  auto& memory = memory_[name];
  if (memory.tensor.spec() != spec) {
    memory = {};
    try {
      memory = OwnedTensor(spec);
    } catch (const std::bad_alloc&) {
      fail("io",
           "expected {} for the copy of {} that an asynchronous checkpoint writes, found too little memory: set "
           "checkpoint.asynchronous = false",
           format_bytes(static_cast<double>(spec.bytes())), name);
    }
  }
  return memory;
}

/// Without the contents, which take() copies at its end.
void CheckpointSnapshot::keep(std::vector<NamedTensor>& list, const std::string& prefix, const NamedTensor& held,
                              const Stays& stays) {
  const bool copied = !stays || !stays(held);
  list.push_back(
      {held.name, copied ? memory_for(prefix + held.name, held.tensor.spec()).tensor : held.tensor, held.part});
}

/// Before the exchange, in which no rank may fail alone.
void CheckpointSnapshot::make_memory(const CheckpointContent& content, const Stays& stays, int rank) {
  for (const auto& t : plan_.model) {
    if (t.writer != rank) continue;
    const auto& held = named(content.model, t.name);
    if (!held.part.all() || !stays || !stays(held)) memory_for(kModel + t.name, t.spec);
  }
  for (const auto& t : plan_.optimizer) {
    if (!writes_slice(t, rank)) continue;
    const auto& held = named(content.optimizer, t.name);
    if (!stays || !stays(held)) memory_for(kOptimizer + t.name, held.tensor.spec());
  }
}

void CheckpointSnapshot::take(const CheckpointContent& content, const Stays& stays, Ranks& ranks,
                              const std::function<void()>& arrive) {
  if (preparing_.joinable()) preparing_.join();
  const int rank = ranks.rank();
  content_ = {};
  content_.config_toml = content.config_toml;
  content_.max_file_bytes = content.max_file_bytes;
  content_.facts = content.facts, content_.accept = content.accept;
  plan_ = plan_save(content, ranks);
  agree(ranks, [&] {
    make_memory(content, stays, rank);
    if (arrive && std::ranges::any_of(content.model, [](const auto& t) { return !t.part.all(); })) arrive();
  });
  for (auto& t : plan_.model) {
    const auto assembled =
        bring_together(t, content, ranks, [&] { return memory_for(kModel + t.name, t.spec).tensor; });
    if (assembled.spec()) content_.model.push_back({t.name, assembled, {}});
    else if (t.writer == rank) keep(content_.model, kModel, named(content.model, t.name), stays);
    t.slices.clear();
  }
  for (const auto& t : plan_.optimizer)
    if (writes_slice(t, rank)) keep(content_.optimizer, kOptimizer, named(content.optimizer, t.name), stays);
  Copies copies;
  for (const auto& t : content_.model)
    if (const auto& held = named(content.model, t.name); held.part.all()) copies.add(t.tensor, held.tensor);
  for (const auto& t : content_.optimizer) copies.add(t.tensor, named(content.optimizer, t.name).tensor);
  copies.run();
}

}  // namespace hpcdl::io
