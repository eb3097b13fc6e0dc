#pragma once
// A language model of any family: its parameters, their memory, and its programs.

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/graph/graph.h"
#include "hpcdl/io/model_config.h"
#include "hpcdl/io/shard_spec.h"
#include "hpcdl/nn/context.h"
#include "hpcdl/parallel/tensor.h"

namespace hpcdl::models {

struct NamedParameter {
  std::string name;  // as in Hugging Face files
  Tensor value;
  Tensor gradient;   // null unless the model was made for training
  bool decay;        // weight decay applies
  Tensor host;       // the value in host memory, which files are read into and written from; on a CPU the value itself
  Tensor copy = {};  // the value rounded to 16 bits, for products: keep_copies()
  io::ShardSpec shard = {};       // the part of the parameter that `value` is: tensor parallelism
  bool partial_gradient = false;  // the gradients of all ranks along tp are addends of the parameter's
};

/// How the layers of a model are shared by several ranks; null: one rank computes all.
using Sharing = std::shared_ptr<const parallel::TensorParallel>;

class LanguageModel {
 public:
  /// New weights: normal(0, 0.02), projections onto the residual stream scaled by 1/sqrt(2 layers), norms 1, biases 0.
  /// A pure function of (config, seed): a rank that shares the layers has its part of the same weights, and no memory for others.
  static LanguageModel create(const io::ModelConfig& config, std::uint64_t seed, bool gradients, Sharing sharing = {});
  /// A Hugging Face folder. Weights are views into the mapped files: nothing is copied or read ahead of its use.
  static LanguageModel open(const std::filesystem::path& folder);
  /// A Hugging Face folder, copied into own f32 memory with gradients. Refuses quantised folders.
  static LanguageModel open_for_training(const std::filesystem::path& folder, Sharing sharing = {});

  LanguageModel(LanguageModel&&) noexcept;
  LanguageModel& operator=(LanguageModel&&) noexcept;
  ~LanguageModel();

  const io::ModelConfig& config() const;
  std::span<NamedParameter> parameters();
  /// Over all ranks that share the layers.
  std::int64_t parameter_count() const;
  /// Null where one rank computes all layers.
  const parallel::TensorParallel* sharing() const;
  /// The whole of a parameter, in host memory. Collective over the ranks that share the layers.
  OwnedTensor gather(const NamedParameter& p) const;
  std::int64_t mapped_bytes() const;
  /// Starts reading the mapped files ahead in the background, at disk speed. No effect on models in own memory.
  void prefetch();

  /// tokens, targets: (B, T) i32, target -1 ignored. Returns the SUM of the losses of valid targets, one f32.
  Var loss(Graph& g, const Var& tokens, const Var& targets, const nn::ForwardOptions& o = {}) const;
  /// (B, T, V) f32.
  Var logits(Graph& g, const Var& tokens, const nn::ForwardOptions& o = {}) const;
  /// The two halves of logits(): all blocks, (B, T, C), and the last norm with the head on any rows (..., C).
  Var body(Graph& g, const Var& tokens, const nn::ForwardOptions& o = {}) const;
  Var head(Graph& g, const Var& hidden) const;

  /// Moves parameters and gradients (uninitialised) to the device of `s`, where programs recorded from now on run. Before
  /// any program has been recorded; mapped weights stay mapped and are copied once.
  void to_device(const Stream& s);
  Device device() const;
  /// Gradients lie where(parameter) from now on: memory of the caller, contiguous, of the parameter's spec and device. What they held is
  /// forgotten. Behind to_device(), before any program that is to run has been recorded.
  void place_gradients(const std::function<Tensor(const NamedParameter&)>& where);
  /// Gives every matrix of own memory that products read a copy of `type` (bf16 or f16) beside it, unset until round_copies(): programs
  /// recorded from now on that compute in that type read it, to the same bits. After to_device().
  void keep_copies(DType type);
  /// Rounds all values into their copies. The optimizer does the same as it writes the values.
  void round_copies(Stream& s) const;
  /// Device to host, and back; nothing to do on a CPU.
  void fetch(const Stream& s) const;
  void store(const Stream& s);

  /// config.json and safetensors of `dtype`, atomically each; loadable by transformers. Writes the host's values: fetch() first. Of a model that
  /// is shared, every rank has to call it, and the first one writes.
  void save(const std::filesystem::path& folder, DType dtype = DType::f32) const;

 private:
  struct Impl;
  explicit LanguageModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hpcdl::models
