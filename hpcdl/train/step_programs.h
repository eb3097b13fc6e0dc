#pragma once
// The programs of one optimizer step, recorded from a model that may have no memory: no data, no memory and no
// peers are needed. TrainStep (train_step.h) runs them.

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/models/trainable.h"
#include "hpcdl/offload/activation_moves.h"
#include "hpcdl/offload/gradient_moves.h"
#include "hpcdl/offload/parameter_moves.h"
#include "hpcdl/optim/grad_scaler.h"
#include "hpcdl/optim/optimizer.h"
#include "hpcdl/parallel/context.h"
#include "hpcdl/parallel/data_parallel.h"
#include "hpcdl/pipe/stage_parts.h"
#include "hpcdl/train/dropped_tokens.h"
#include "hpcdl/train/gradient_tree.h"
#include "hpcdl/train/stages.h"

namespace hpcdl::train {

/// Where weights lie: with the model, in host memory beside a GPU with their gradients, or, of a CPU and with frozen
/// tensors, on a disk. Moments lie there, too (OptimizerPlace).
struct ParameterPlace {
  bool on_host = false;
  std::optional<std::filesystem::path> folder = {};
  int resident = 0;  // of the model, so many blocks stay in memory
};

/// Where activations wait for backward: in memory, in host memory beside a GPU, or, of a CPU, on a disk.
struct ActivationPlace {
  bool on_host = false;
  std::optional<std::filesystem::path> folder = {};
  double share = 1;                  // offload::ActivationOptions::share
  std::int64_t smallest = 64 << 10;  // bytes of one that moves
};

struct StepOptions {
  std::int64_t batch = 8,
               length = 256;  // samples of a micro-batch, and the length of each if the model does not know it
  bool accumulate = false;    // more than one micro-batch per step
  nn::ForwardOptions forward = {};
  OptimizerArgs optimizer = AdamW::Args{};
  OptimizerPlace optimizer_place = {};
  ParameterPlace parameters = {};
  ActivationPlace activations = {};
  float clip = 1;          // 0: no clipping
  std::uint64_t seed = 1;  // of dropout
  /// 16-bit products read rounded copies of the weights, which the optimizer writes, instead of rounding weights while
  /// reading them: 2 bytes more for each weight, half the reads, the same bits. Unset: on a GPU.
  std::optional<bool> copies = {};
  /// GPU: see Graph::Options. On an H200 4 % faster with a batch of 4 x 1024 tokens, 1 % slower with 64 x 1024, whose
  /// products fill the chip.
  bool weights_beside = false;
  /// For models that name no types: the policy under which they are recorded.
  std::optional<AutocastPolicy> autocast = {};
  /// The scale of the mean of the losses of a micro-batch; `terms` is set to their number.
  std::optional<GradScaler::Options> scaler = {};
  /// Ranks that share the batch: each calls the same methods with its part (data/split_data.h).
  comm::Group data = {};
  /// Those of them that share the tokens of the same rows, neighbours among them; and how.
  comm::Group context = {};
  nn::ContextShare::Mode context_mode = nn::ContextShare::gather;
  /// If those ranks divide the experts of mixtures: the groups that divide them, and the ranks that have the same experts.
  comm::Group experts = {}, same_experts = {};
  /// With these: room for this many times the tokens that a rank sends to another if all experts are chosen equally often;
  /// 0: room for all tokens. A step that needs more is run again with more.
  double capacity = 0;
  parallel::ReduceOptions reduce = {};
  int zero = 0;  // what these ranks divide among themselves: parallel::DataParallelOptions::zero
  /// zero is divided among the ranks of each host; take_ranks() sets `span`.
  bool span_of_host = false;
  int span = 0;          // parallel::DataParallelOptions::span
  int gather_ahead = 1;  // parallel::DataParallelOptions::gather_ahead
  WireCode wire_weights = WireCode::none, wire_gradients = WireCode::none;  // the same of these
  Numerics numerics = {};    // of a GPU: those of a CPU are always the default
  bool share_batch = false;  // those ranks share statistics of the batch (ForwardOptions::shared_batch)
  /// If the bits of a step must not depend on the number of those ranks (gradient_tree.h): micro-batches of a step on each
  /// rank; 0: they may depend on it.
  std::int64_t invariant = 0;
  StageOptions stages = {};  // ranks that have different layers: each calls the same methods with the same batches
};

/// The parts of the stages of a pipeline, and what their programs read besides the tensors of a micro-batch.
struct StagePasses {
  std::vector<pipe::StageParts> parts;                   // of all stages
  std::optional<pipe::VocabularyParts> vocabulary = {};  // of this rank, if the ranks divide one
  Bindings bindings;
};

class StepPrograms {
 public:
  /// The model needs gradients and must outlive this. It is moved to the device of `s` if it is not there; with `zero`,
  /// it must not be on a GPU before.
  StepPrograms(models::Trainable& model, const StepOptions& options, Stream& s);
  /// With other ranks, gradients are summed in memory of this object: afterwards the model has none, until another is
  /// made for it.
  ~StepPrograms();

  /// Recorded and planned when first asked for, with inputs() as inputs; outputs as in models::PassOutputs.
  using PassPtr = std::shared_ptr<const Pass>;
  /// reducing: of the last micro-batch; gathering: of the first of several, which reads what other ranks have updated,
  /// as the one that is both does. If values are sharded(), all kinds gather what they read.
  enum class Kind : unsigned char { alone, gathering, reducing, inference };
  PassPtr pass(Write write, Kind kind) const;
  PassPtr update() const;
  /// Of a GPU whose moments lie on a disk: the second half of the update, which the CPU runs with the parameters that the
  /// first one leaves. Null if there is none.
  PassPtr host_update() const;
  /// The programs of the first micro-batch, of further ones, and of the last one if it differs.
  PassPtr first() const {
    const bool reduces = ranks_ && !apart() && !tree_;
    return pass(Write::overwrite, reduces ? Kind::reducing : divided() ? Kind::gathering : Kind::alone);
  }
  PassPtr more() const { return pass(tree_ ? Write::overwrite : Write::accumulate, Kind::alone); }
  PassPtr last() const { return pass(Write::accumulate, Kind::reducing); }
  PassPtr evaluation() const { return pass(Write::overwrite, Kind::inference); }
  /// Reads what other ranks have updated, for anything but the first micro-batch of a step. Only if gathers_once().
  PassPtr gather() const;
  /// The ranks that have different layers; null with one. Then passes are cut into stages: only these, update() and
  /// reduce() can be run.
  const Stages* stages() const { return stages_.get(); }
  StagePasses training_stages() const;
  StagePasses evaluation_stages() const;
  /// With stages: clears the gradients to which the passes of a step only add. Null if there are none.
  PassPtr clear() const;
  /// With stages or a tree(): sums gradients over the ranks that share the batch. Null with one.
  PassPtr reduce() const;
  /// The order in which gradients of micro-batches are added; null: as they come. Then passes of all micro-batches
  /// overwrite gradients, and no pass sums them over ranks.
  const GradientTree* tree() const { return tree_ ? &*tree_ : nullptr; }
  /// With a tree: what follows after a micro-batch (GradientTree::record).
  PassPtr add(int sums) const;
  bool has_more() const { return options_.accumulate; }
  /// Whether the last micro-batch has its own program.
  bool apart() const { return ranks_ && options_.accumulate && !tree_; }
  /// Whether ranks update different values.
  bool divided() const { return ranks_ && ranks_->divided(); }
  /// Whether no rank keeps values whole, so that all passes, also evaluations, are collective.
  bool sharded() const { return ranks_ && ranks_->sharded(); }
  /// Whether the ranks that share the batch run every pass together, also evaluations.
  bool passes_together() const { return sharded() || options_.experts.size() > 1; }
  /// Whether what other ranks have updated stays whole in memory once it has been read.
  bool gathers_once() const { return divided() && !sharded(); }
  /// Collective. Throws Disagreement where ranks would wait for each other for ever: the ranks that share the batch
  /// exchange the same tensors in the same order over all axes, and those that share the model along theirs.
  void expect_same_exchanges() const;
  /// From now on passes use the statistics of this rank's batch only, so they can run without the other ranks.
  void leave_shared_batch() { options_.forward.shared_batch.reset(); }

  /// Null if passes have room for all tokens. update() changes nothing after passes that have dropped some.
  const DroppedTokens* dropped() const { return dropped_ ? &*dropped_ : nullptr; }
  /// After a pass has dropped something: passes that are asked for from now on have more room.
  void make_room() { options_.forward.expert_capacity *= 2; }

  models::Trainable& model() const { return model_; }
  const StepOptions& options() const { return options_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  /// Activations of a pass that wait for its backward part elsewhere.
  offload::MovedActivations moved_activations() const {
    return activations_ ? activations_->moved() : offload::MovedActivations();
  }
  /// The files of state and activations on disks.
  std::vector<const io::ScratchFile*> files() const;
  const GradScaler* scaler() const { return scaler_ ? &*scaler_ : nullptr; }
  GradScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }
  /// The ranks that share the batch; null with one rank.
  parallel::DataParallel* ranks() const { return ranks_.get(); }
  std::vector<models::InputSpec> inputs() const {
    return model_.inputs(options_.batch, options_.length, options_.forward);
  }
  std::vector<models::InputSpec> evaluation_inputs() const {
    return model_.inputs(options_.batch, options_.length, evaluation_options());
  }

 private:
  nn::ForwardOptions evaluation_options() const;
  nn::ForwardOptions forward_options(Kind kind) const;
  struct Recorded {
    std::vector<Var> inputs, outputs;
  };
  Graph::Options graph_options(Write write, Kind kind) const;
  pipe::WholePass whole_pass(Write write, Kind kind, Bindings& bindings) const;
  pipe::EditPart gathering_parts(Bindings& bindings) const;
  parallel::DividedGradients own_gradients(Graph& g) const;
  Recorded record(Graph& g, Kind kind, Write write = Write::overwrite) const;
  Recording exchanged(Recording pass, Write write, Kind kind) const;
  void record_norm(Graph& g, const GradNorm::Args& norm) const;
  void record_fp8_history(Graph& g) const;
  bool updates_on_host() const { return device_.is_cuda() && options_.optimizer_place.folder; }
  void record_update(Graph& g) const;
  void divide_experts();
  void fix_order_of_sums();
  void join_stages(DType copies);
  void join_ranks(DType copies);
  void keep_on_host(DType copies);
  void move_activations();
  void move_from_host();
  void move_to_disk();
  Recording moved(Recording pass, Kind kind) const;

  models::Trainable& model_;
  StepOptions options_;
  Device device_;
  std::optional<Optimizer> optimizer_;
  std::unique_ptr<parallel::GroupAxis> shared_batch_;
  std::unique_ptr<parallel::ContextParallel> context_;
  std::unique_ptr<Stages> stages_;
  std::unique_ptr<parallel::DataParallel> ranks_;
  std::optional<GradScaler> scaler_;
  std::optional<DroppedTokens> dropped_;
  std::optional<GradientTree> tree_;
  std::unique_ptr<offload::ParameterMoves> parameters_;
  std::unique_ptr<offload::GradientMoves> gradients_;
  std::unique_ptr<offload::ActivationMoves> activations_;
  mutable ProgramCache passes_;
};

}  // namespace hpcdl::train
