#pragma once
// The cases of bench, roofline and profile: every op at chosen shapes, forward and forward with backward, f32 and bf16.
// One list, so that all of them measure the same work.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/instance.h"

namespace hpcdl::lab {

struct Case {
  std::string op;     // folder of ops/, with the variant after a plus: "linear+bias_relu"
  std::string shape;  // "1024x3072x768"; what the numbers mean: CaseFamily::dims
  DType dtype = DType::f32;
  bool backward = false;               // forward and backward; otherwise only forward, as recorded for inference
  std::function<void(Graph&)> record;  // on a Graph with Options::inference = !backward
  std::int64_t index_below = 0;        // integer inputs are drawn from [0, index_below)
  /// The elements of integer inputs, by their names; empty: random ones below index_below.
  std::function<std::int64_t(std::string_view, std::int64_t)> integer = {};
  bool positive = false;  // float inputs are magnitudes (second moments must not be negative)
  bool cpu_only = false;
};

/// One op, or variant of one, as a function of its shape.
struct CaseFamily {
  std::string op;
  std::string dims;                   // what the numbers of a shape are: "MxNxK"
  bool gradient = true;               // has a backward
  std::vector<Shape> shapes;          // larger than any cache, and shapes of GPT-2
  std::vector<Shape> forward_shapes;  // only their forward is timed
  /// Records the forward and returns the output that has a gradient (absent if there is none).
  std::function<Var(Graph&, const Shape&, DType)> forward;
  int index_dim = -1;  // dim of the shape that bounds integer inputs
  /// Element i of an integer input, by its name; empty: random, in [0, that dim).
  std::function<std::int64_t(std::string_view, std::int64_t, const Shape&)> integer = {};
  bool positive = false;
  bool cpu_only = false;       // the op does not run on a GPU
  bool training_only = false;  // keeps what backward needs, so it has no separate forward
  /// Changes a drawn shape to one that the op supports; absent: it supports all.
  std::function<Shape(Shape)> nearest_supported;
};

const std::vector<CaseFamily>& case_families();

/// A family at one shape, which has as many numbers as its dims.
Case case_at(const CaseFamily& f, const Shape& shape, DType dtype, bool backward);

/// All families at their chosen shapes.
const std::vector<Case>& cases();

/// Cases whose op is one of `names`: "linear" means "linear" and all its variants. No names: all. Throws UsageError
/// with the nearest match for a name that no case has.
std::vector<Case> find_cases(const std::vector<std::string>& names);
/// The same ops at a shape of the caller's, "512x1000". Throws UsageError if the shape does not fit a named op.
std::vector<Case> cases_at(const std::vector<std::string>& names, const std::string& shape);

/// Random shapes from a seed: those of real models, their neighbours, and arbitrary ones, to find shapes at which a
/// kernel is slow.
struct SweepOptions {
  int shapes = 0;             // of each op
  std::uint64_t seed = 1;     // the same shapes for the same seed, independent of other ops
  bool large = false;         // of a GPU
  bool forward = false;       // leave out forward and backward together
  DType dtype = DType::none;  // none: f32 or bf16, drawn as well
};

/// Cases of the named ops (none: all) whose dims can be drawn. Throws UsageError if an op is named
/// whose dims cannot.
std::vector<Case> swept_cases(const std::vector<std::string>& names, const SweepOptions& o);

/// "softmax" of "softmax+causal".
std::string base_op(const Case& c);
/// "softmax 4096x1024 f32 fwd+bwd".
std::string case_label(const Case& c);
/// The usual name: "f32".
std::string dtype_word(DType d);

/// A case with its memory, ready to run repeatedly.
class CaseRun {
 public:
  /// Records, plans, allocates, and fills the inputs with random values (N(0, 1); the same for every run). `arena` may
  /// be shared with a CaseRun that has had its last run. `on`: the stream of the GPU it will run on; null: a CPU.
  explicit CaseRun(const Case& c, std::shared_ptr<Buffer> arena = nullptr, const Stream* on = nullptr);
  /// GPU: run() launches all records as one graph from now on.
  void capture(Stream& s) {
    Stream own = s;
    own.set_params(&params_);
    executable_->capture(own);
  }

  /// Runs all records once, on the threads of `s`; with the step parameters of the case.
  void run(Stream& s) const {
    Stream own = s;
    own.set_params(&params_);
    executable_->run(own);
  }
  const Program& program() const { return executable_->program(); }
  const Instance& executable() const { return *executable_; }
  const std::shared_ptr<Buffer>& arena() const { return executable_->arena(); }
  StepParams& params() const { return params_; }
  /// The cost of all records together.
  Cost cost() const { return program().cost(); }

 private:
  void fill_inputs(const Case& c, const Stream* on);

  mutable StepParams params_;  // destination of grad_norm
  std::unique_ptr<Instance> executable_;
};

/// A case that is ready to be timed on `s`; on a GPU as one captured graph, like programs.
CaseRun ready(const Case& c, Stream& s, std::shared_ptr<Buffer> arena = nullptr);

}  // namespace hpcdl::lab
