#include "hpcdl/optim/disk_update.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/program/check.h"
#include "hpcdl/program/emit.h"

namespace hpcdl {
namespace {

constexpr std::int64_t kBytes = sizeof(float);
constexpr std::int64_t kPage = io::ScratchFile::kAlign / kBytes;  // in elements

/// The parts of each group of `most` elements of the file of one moment.
std::vector<UpdateGroup> groups_on_disk(std::span<const MovedTensor> tensors, std::int64_t most) {
  std::vector<UpdateGroup> groups;
  for (const auto& t : tensors) {
    const auto first = t.m->on_disk / kBytes, end = first + t.value->memory.size();
    for (auto at = first; at < end;) {
      const auto group = at / most, next = std::min(end, (group + 1) * most);
      groups.resize(std::max(groups.size(), static_cast<std::size_t>(group) + 1));
      groups[static_cast<std::size_t>(group)].push_back({&t, at - first, next - at, at - group * most});
      at = next;
    }
  }
  return groups;
}

}  // namespace

DiskUpdate::DiskUpdate(std::shared_ptr<io::ScratchFile> moments, std::shared_ptr<io::ScratchFile> values,
                       std::int64_t group)
    : moments_("moments on disk", std::move(moments)), values_("weights on disk", std::move(values)), group_(group) {
  require(group > 0 && group % kPage == 0, "optimizer", "expected groups of a multiple of {} elements, got {}", kPage,
          group);
}

/// The records of one update.
class DiskUpdate::Recorder {
 public:
  Recorder(const DiskUpdate& of, Graph& g, const AdamW::Args& args, std::int64_t distance)
      : of_(of), g_(g), args_(args), distance_(distance) {}

  void run(std::span<const MovedTensor> tensors) {
    const auto groups = groups_on_disk(tensors, of_.group_);
    std::vector<State> list;
    const auto read_next = [&] {
      if (list.size() < groups.size()) list.push_back(read(groups[list.size()], std::ssize(list)));
    };
    read_next(), read_next();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      update(groups[i], list[i]);
      read_next();  // into memory that was written while this group was updated
      write(list[i]);
    }
  }

 private:
  /// Of a group, in memory.
  struct State {
    Var m, v;
    Var value;          // absent if all values are there in any case
    std::int64_t byte;  // of the files of values and of m
  };

  State read(const UpdateGroup& group, std::int64_t number) {
    const auto byte = number * of_.group_ * kBytes;
    const Spec spec{{std::min(of_.group_ * kBytes, distance_ - byte) / kBytes}, DType::f32};
    State s{g_.temporary("disk update.m", spec), g_.temporary("disk update.v", spec), {}, byte};
    of_.moments_.read(g_, s.m.operand(), byte, Phase::update);
    of_.moments_.read(g_, s.v.operand(), distance_ + byte, Phase::update);
    if (std::ranges::none_of(group, [](const auto& p) { return p.tensor->value->on_disk >= 0; })) return s;
    s.value = g_.temporary("disk update.value", spec);
    of_.values_.read(g_, s.value.operand(), byte, Phase::update);
    return s;
  }

  void write(const State& s) {
    of_.moments_.write(g_, s.m.operand(), s.byte, Phase::update);
    of_.moments_.write(g_, s.v.operand(), distance_ + s.byte, Phase::update);
    if (s.value) of_.values_.write(g_, s.value.operand(), s.byte, Phase::update);
  }

  void update(const UpdateGroup& group, const State& s) {
    std::vector<Operand> operands;
    const auto piece_of = [&](const StateEntry& e, const UpdatePiece& p, Access access) {
      return window(g_.constant(e.name, e.memory), p.begin, p.count, access);
    };
    for (const auto& p : group) {
      const auto& e = *p.tensor->value;
      const auto here = [&](const Var& v) { return window(v, p.place, p.count, Access::update); };
      operands.insert(operands.end(), {e.on_disk >= 0 ? here(s.value) : piece_of(e, p, Access::update),
                                       piece_of(*e.gradient, p, Access::read), here(s.m), here(s.v),
                                       e.copy ? piece_of(*e.copy, p, Access::write) : Operand()});
    }
    detail::AdamWRecord head{args_, std::ssize(group)};
    clear_padding(head);
    const auto args = args_of(group, head);
    emit_update<AdamW>(g_, operands, args.data(), args.size(), {.operations = operations_of(group)});
  }

  const DiskUpdate& of_;
  Graph& g_;
  const AdamW::Args& args_;
  std::int64_t distance_;  // bytes of the file from m to v
};

void DiskUpdate::record(Graph& g, std::span<const MovedTensor> tensors, const AdamW::Args& args) const {
  if (tensors.empty()) return;
  Recorder(*this, g, args, tensors[0].v->on_disk - tensors[0].m->on_disk).run(tensors);
}

}  // namespace hpcdl
