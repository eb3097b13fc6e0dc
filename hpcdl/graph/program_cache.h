#pragma once
// Passes of a model that are recorded and planned once, for all users: training, evaluation, generation.

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hpcdl/graph/bindings.h"
#include "hpcdl/graph/graph.h"
#include "hpcdl/graph/plan.h"
#include "hpcdl/graph/var.h"

namespace hpcdl {

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

}  // namespace hpcdl
