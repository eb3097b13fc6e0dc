#pragma once
// AdamW of values whose moments lie in host memory, and maybe values, copies and gradients. Elements are updated in groups, one after the other: most of them by
// the CPU, between copies of their gradients to the host and of what has changed back to the device; every k-th group by
// the device, between copies of its moments. Copies in both directions, the CPU and the device work at the same time, on
// different groups. The bits are those of one record on the device. Source: Ren et al., "ZeRO-Offload: democratizing
// billion-scale model training", ATC 2021; interleaving: see interleave.h.
//
// Gradients are not copied during the backward pass: a group's copy takes a third of the time of its update on the CPU,
// so only that of the first group is waited for, and no room for all gradients is needed on the host.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "hpcdl/core/pinned.h"
#include "hpcdl/graph.h"
#include "hpcdl/ops/adamw/adamw.h"
#include "hpcdl/optim/interleave.h"
#include "hpcdl/optim/update_group.h"

namespace hpcdl {

class HostUpdate {
 public:
  static constexpr std::int64_t kGroup = std::int64_t{8} << 20;

  /// `copies`: the type of copies of values; none: there are none. interleave: k; 0: the CPU updates all groups. group:
  /// most elements of one. threads: that update beside a GPU; 0: without memory, programs can be recorded, but not run.
  HostUpdate(Device device, DType copies, int interleave, std::int64_t group, int threads);
  HostUpdate(const HostUpdate&) = delete;
  HostUpdate& operator=(const HostUpdate&) = delete;
  ~HostUpdate();

  /// Records the update. Moments lie on the host; values, their gradients and their copies on the device, or on the host,
  /// too (StateEntry::on_host). This must outlive the recording. The gradient norm has been recorded before.
  void record(Graph& g, std::span<const MovedTensor> tensors, const AdamW::Args& args) const;

  int interleave() const { return interleave_; }
  /// GPU: from now on interleave() is what the rates of this machine suggest, measured in 0.1 s. Before record(). On a
  /// CPU it stays as it is. The tensors must be those of record(), and their moments 0.
  void measure(std::span<const MovedTensor> tensors, Pool& pool);

 private:
  class Recorder;
  struct Update;
  /// Memory on the host through which a group passes.
  struct Stage {
    Pinned memory;
    Tensor gradient, value, copy;
  };
  struct Call;  // of a record, by the driver
  double seconds_of_update(std::span<const UpdateGroup> groups) const;
  void queue(const Stream& s, const Grad* operands, const void* args) const;

  Device device_;
  int interleave_;
  std::int64_t group_;
  std::vector<Stage> stages_;
  Pinned params_memory_;
  Tensor params_;
  std::unique_ptr<Pool> pool_;                                  // GPU: of the driver's thread
  mutable std::map<const Grad*, std::unique_ptr<Call>> calls_;  // GPU: by the operands of their records
};

}  // namespace hpcdl
