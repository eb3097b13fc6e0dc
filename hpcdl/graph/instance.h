#pragma once
// A planned program bound to memory, to ranks and to a device: running it only walks the records.

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "hpcdl/core/buffer.h"
#include "hpcdl/core/ticket.h"
#include "hpcdl/graph/lanes.h"
#include "hpcdl/graph/program_cache.h"

namespace hpcdl {

class Instance {
 public:
  /// Allocates on `device`, which is that of the memory in `bindings` and of its stream. Everything that records
  /// of the program name must be bound. `arena` may be shared by instances that never run at the same time; it is
  /// used if it is large enough and replaced by a larger one otherwise. Error for a program whose numerics the device
  /// does not have.
  Instance(std::shared_ptr<const Planned> planned, Bindings bindings, std::shared_ptr<Buffer> arena = nullptr,
           Device device = {});
  explicit Instance(const Pass& pass, std::shared_ptr<Buffer> arena = nullptr, Device device = {});
  explicit Instance(Recording recorded, std::shared_ptr<Buffer> arena = nullptr, Device device = {});
  Instance(Instance&&) noexcept;
  Instance& operator=(Instance&&) noexcept;
  ~Instance();

  /// Runs all records in order. Records on other lanes are done, too, when this returns; on a GPU, before later work of
  /// the stream.
  void run(Stream& s) const {
    const WithNumerics numerics(s, program().numerics);
    if (s.device().is_cuda()) return run_queued(s);
    if (!dependencies_.one_lane) return run(s, 0, static_cast<int>(steps_.size()), {});
    for (const auto& step : steps_) step.run(s, step.operands, step.args);
  }
  /// GPU: captures the records once as a graph that run() launches from then on. On a CPU this does nothing.
  void capture(Stream& s);
  bool captured() const { return static_cast<bool>(capture_); }
  /// Runs records [begin, end) and calls `after(record)` after each: for profiling and NaN searches. On a CPU it calls
  /// `waited(record, when it ran)` after it has waited for a record that was left to other threads. On a GPU all of
  /// them run on `s`.
  void run(Stream& s, int begin, int end, const std::function<void(int)>& after,
           const std::function<void(int, Ticket::Span)>& waited = {}) const;

  /// The memory of a variable: inputs before a run, kept variables after it.
  Tensor tensor(const Var& v) const;
  /// The memory of an input or output of the pass, counted from 0.
  Tensor input(std::size_t i) const { return tensor(planned_->inputs.at(i)); }
  Tensor output(std::size_t i) const { return tensor(planned_->outputs.at(i)); }
  /// The resolved operands of one record, in the order of the op.
  std::span<const Grad> operands(int record) const;

  const std::shared_ptr<const Planned>& planned() const { return planned_; }
  const Program& program() const { return planned_->program; }
  const Bindings& bindings() const { return bindings_; }
  const Plan& plan() const { return planned_->plan; }
  const std::shared_ptr<Buffer>& arena() const { return arena_; }

 private:
  struct Step {
    RunFn run;
    const Grad* operands;
    const void* args;
    StartFn start;  // CPU: instead of `run`; null: `run`
  };
  Tensor resolve(const Operand& o) const;
  void run_queued(Stream& s) const;
  void walk(Stream& s) const;

  void bind_args();

  std::shared_ptr<const Planned> planned_;
  Bindings bindings_;
  std::vector<std::byte> args_;  // those of the program, with their Bounds set; empty if it has none
  std::shared_ptr<Buffer> arena_;
  std::vector<Grad> resolved_;
  std::vector<Step> steps_;
  LaneDependencies dependencies_;
  mutable std::vector<Ticket> tickets_;  // CPU: by record, of the current run
  // GPU: the streams of the lanes but `compute`, made when they are first needed, and the same with the step parameters
  // of the stream that they serve.
  mutable std::vector<Stream> own_, lanes_;
  mutable const void* owner_ = nullptr;
  mutable std::vector<Event> events_;  // by record
  Capture capture_;
};

}  // namespace hpcdl
