#pragma once
// Runs the actions of one rank of a schedule: the programs of its stages, on memory for the micro-batches that are in
// flight, and the transfers between them and the stages of other ranks.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/graph.h"
#include "hpcdl/group.h"
#include "hpcdl/instance.h"
#include "hpcdl/pipe/schedule.h"
#include "hpcdl/pipe/stage_parts.h"

namespace hpcdl::pipe {

/// A tensor that the caller of a pass fills or reads, by its number.
struct PassTensor {
  std::size_t number = 0;
  Tensor memory;
};

class Runner {
 public:
  /// Runs a program of a micro-batch: fills `inputs` before, and reads `outputs` after it. Those of other ranks are not
  /// among them.
  using Run = std::function<void(Instance& exe, std::int32_t micro, std::span<const PassTensor> inputs,
                                 std::span<const PassTensor> outputs)>;

  /// `schedule`: of lower(), not on the host. `parts`: of all its stages. `group`: a rank for each rank of the schedule,
  /// of one if there are no others; `state`: what programs read besides frames. `arena`: where the programs compute, one
  /// after the other; it may be used by other programs between two actions. `vocabulary`: of a schedule whose ranks divide
  /// one, which is for CPUs; else null. Copies what it needs of `parts`.
  Runner(const Schedule& schedule, std::span<const StageParts> parts, const VocabularyParts* vocabulary,
         comm::Group group, const Bindings& state, const std::shared_ptr<Buffer>& arena, const Stream& s);
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  ~Runner();

  /// Runs the actions that follow, up to the first of a micro-batch that is not among the first `micros`. When all of
  /// them have been run, the next call begins again. Collective over the group. On a GPU this only queues work.
  void advance(Stream& s, std::int32_t micros, const Run& run);

  /// The programs that one pass through the schedule runs, in this order.
  std::vector<Instance*> programs() const;
  /// Bytes of frames and of arriving tensors.
  std::int64_t frame_bytes() const { return memory_->bytes(); }

 private:
  using Memory = std::map<std::string, Tensor, std::less<>>;  // tensors of a frame, or of a place for arrivals
  struct Copy {
    Tensor to, from;
  };
  struct Message {
    Tensor memory;
    int peer;  // rank
  };
  struct Step {
    Action action;
    std::vector<std::size_t> awaits = {};  // transfers, by the number of their step
    std::vector<Copy> before = {}, after = {};
    std::vector<Copy> sums = {};  // to += from, after `before`
    std::vector<Instance*> programs = {};
    std::vector<PassTensor> inputs = {}, outputs = {};
    std::vector<Message> sent = {}, received = {};  // of a transfer
    std::optional<Copy> gathered = {};              // the same of all ranks
    std::string label = {};                         // the same at both ends
  };
  struct Transfer {
    std::vector<comm::Work> works;
    Event ready, done;
  };
  class Builder;

  void transfer(Stream& s, std::size_t step);
  void await(Stream& s, std::size_t step);
  void compute(Stream& s, const Step& step, const Run& run);

  comm::Group group_;
  std::shared_ptr<Buffer> memory_;
  std::vector<std::unique_ptr<Instance>> instances_;
  std::vector<Step> steps_;
  std::vector<Transfer> transfers_;  // by step
  Stream beside_;                    // GPU: of transfers
  std::size_t next_ = 0;
};

}  // namespace hpcdl::pipe
