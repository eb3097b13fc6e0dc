#pragma once
// What one rank writes of a checkpoint, in memory that does not change while the run goes on.

#include <functional>
#include <map>
#include <string>
#include <thread>

#include "hpcdl/io/checkpoint_part.h"

namespace hpcdl::io {

/// Its memory is made by the first take() and used again by the next ones.
class CheckpointSnapshot {
 public:
  CheckpointSnapshot() = default;
  ~CheckpointSnapshot();
  CheckpointSnapshot(const CheckpointSnapshot&) = delete;
  CheckpointSnapshot& operator=(const CheckpointSnapshot&) = delete;

  /// Collective: makes the memory for take() of tensors with these specs, and lets a thread write to it.
  void prepare(const CheckpointContent& content, const Stays& stays, Ranks& ranks);
  /// Collective: divides the tensors among the ranks, brings parts to the rank that writes them whole, and copies what
  /// does not stay. On an Error, which all ranks throw, nothing is taken. `arrive`: see Checkpoints::begin(); it is
  /// called here if parts are brought together.
  void take(const CheckpointContent& content, const Stays& stays, Ranks& ranks,
            const std::function<void()>& arrive = nullptr);

  /// Only what this rank writes; every tensor of the model is whole.
  const CheckpointContent& content() const { return content_; }
  const SavePlan& plan() const { return plan_; }

 private:
  OwnedTensor& memory_for(const std::string& name, const Spec& spec);
  void keep(std::vector<NamedTensor>& list, const std::string& prefix, const NamedTensor& held, const Stays& stays);
  void make_memory(const CheckpointContent& content, const Stays& stays, int rank);

  CheckpointContent content_;
  SavePlan plan_;
  std::map<std::string, OwnedTensor> memory_;
  std::thread preparing_;
};

}  // namespace hpcdl::io
