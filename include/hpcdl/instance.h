#pragma once
// A planned program bound to memory, to ranks and to a device: running it only walks the records.

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/graph.h"
#include "hpcdl/program.h"
#include "hpcdl/ticket.h"

namespace hpcdl {

// The memory planner: a fixed position in one arena for every slot, known before anything runs.

struct Lifetime {
  int first = -1, last = -1;  // records, inclusive; -1: never touched
};

struct Plan {
  static constexpr std::int64_t kAlign = 64;

  std::vector<std::int64_t> offset;  // per slot, bytes from the arena's start; -1: not in the arena
  std::vector<Lifetime> lifetime;    // per slot
  std::int64_t arena_bytes = 0;      // = peak: the arena is not larger than what some record needs
  std::int64_t live_bytes = 0;       // sum of live slots at the worst record: no plan can be smaller
  int worst_record = -1;
};

/// Bytes a slot takes in the arena.
std::int64_t arena_size(const Slot& slot);

/// Two orders of placement are tried (by time with best fit, by size with first fit) and the smaller arena is kept.
Plan plan(const Program& program);

// For programs whose records are on several lanes: which record has to wait for which.

/// Dependencies that lanes do not already ensure. Memory decides, not slots: the planner reuses bytes as soon as the
/// last record that touches them has passed in program order, and a record on another lane may still be working then.
struct LaneDependencies {
  /// Per record: records that must be done, at most one of each lane. They imply the earlier ones.
  std::vector<std::vector<int>> waits;
  std::vector<char> signals;  // per record: another record, or the end of the run, waits for it
  /// Per lane but `compute`: its last record, for which the end of the run waits; -1: none.
  std::array<int, kLanes> last{-1, -1, -1, -1};
  bool one_lane = true;  // all records are on `compute`
};

/// lanes: of each record. operands: resolved, all records' in order. `streams`: lanes are streams of a GPU, whose
/// records run one after the other. Otherwise a record of a lane but `compute` begins when its turn comes, and also waits
/// for those of its own lane that touch the same memory. On a GPU, records that exchange with other ranks wait for each
/// other on all lanes, because collectives of two groups that run at the same time can deadlock (NCCL's manual, "Using
/// multiple NCCL communicators concurrently").
LaneDependencies lane_dependencies(const Program& program, std::span<const Lane> lanes, std::span<const Grad> operands,
                                   bool streams);

// Passes of a model that are recorded and planned once, for all users: training, evaluation, generation.

/// A program with the plan of its memory, shared by any number of instances.
struct Planned {
  Program program;
  Plan plan;
  std::vector<Var> inputs, outputs;  // tensors that a caller fills before a run, and reads after it
};

/// Makes the plan.
std::shared_ptr<const Planned> planned(Program program, std::vector<Var> inputs = {}, std::vector<Var> outputs = {});

struct Pass {
  std::shared_ptr<const Planned> planned;
  Bindings bindings;  // what the recorder was given; an instance may bind more

  /// Ends the recording of g and plans its program. `outputs` can be read after a run.
  static Pass of(Graph& g, std::vector<Var> inputs = {}, std::vector<Var> outputs = {});
};

/// Any number of threads may request passes at the same time.
class ProgramCache {
 public:
  /// The pass with this `key`, which must contain what it computes, its shapes and its options. `record`
  /// makes it at the first request.
  std::shared_ptr<const Pass> pass(const std::string& key, const std::function<Pass()>& record);
  /// Forgets all passes, because the memory to which they are bound moves. Instances keep theirs.
  void clear();

 private:
  static constexpr std::size_t kMost = 64;  // a caller whose shapes never repeat must not fill the memory

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Pass>, std::less<>> passes_;
};

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
  /// GPU: chooses the ways of all records that do not update weights, as run() does with the same stream, without
  /// running them. The way notes of the stream hear of them. Records that exchange with other ranks are left out. On a
  /// CPU this does nothing.
  void prepare(Stream& s) const;
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
