#pragma once
// A language model of any family: its parameters, their memory, and its programs.

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/io/load_options.h"
#include "hpcdl/io/model_config.h"
#include "hpcdl/models/adapter_options.h"
#include "hpcdl/models/base_options.h"
#include "hpcdl/models/compute_type.h"
#include "hpcdl/models/fp8_options.h"
#include "hpcdl/models/trainable.h"
#include "hpcdl/nn/vocabulary_share.h"

namespace hpcdl::models {

struct RouterLoad;

/// How several ranks share the layers of a model; null: one rank computes everything.
using Sharing = std::shared_ptr<const nn::Sharing>;
/// How several ranks divide the experts of a mixture; null: each has all.
using ExpertRanks = std::shared_ptr<const nn::ExpertShare>;
/// How ranks of a pipeline divide the vocabulary; null: they do not.
using VocabularyRanks = std::shared_ptr<const nn::VocabularyShare>;

class LanguageModel final : public Trainable {
 public:
  /// New weights: normal(0, 0.02), projections onto the residual stream scaled by 1/sqrt(2 layers), norms 1, biases 0.
  /// Zeros in the config are replaced (family.h). A pure function of (config, seed): a rank that shares the layers has
  /// its part of the same weights, and no memory for others. `fp8`: layers that multiply in 8-bit floats. Without a seed the model is only described: its tensors
  /// have names and specs, but no memory.
  static LanguageModel create(const io::ModelConfig& config, std::optional<std::uint64_t> seed, bool gradients,
                              Sharing sharing = {}, const Fp8Options& fp8 = {}, ExpertRanks experts = {},
                              Values values = Values::now, VocabularyRanks vocabulary = {});
  /// For measuring: weights drawn as create() draws them, stored in the config's dtype, and its matrices quantised if
  /// it says so. Cannot be trained. A rank that shares the layers draws its part of the same weights.
  static LanguageModel random(Pool& pool, const io::ModelConfig& config, std::uint64_t seed, Sharing sharing = {});
  /// A Hugging Face folder. Weights are views into the mapped files: nothing is copied or read before it is used, except
  /// for weights whose type is not `compute`, which are converted into memory of the model. Quantised matrices stay as
  /// they are; those of other programs only if kernels multiply their form, if one rank has all layers and `compute` names
  /// no type, and are decoded otherwise. A rank that shares the layers reads no more than its part: views, and copies of what is not one piece of a
  /// file. `load` may ask for something else than mapped files, unless ranks share the model: then the weights are in
  /// memory of the model, as far as they fit; layers that do not fit are there while a program that uses them runs, one
  /// program at a time.
  /// All ways give the same bits.
  static LanguageModel open(const std::filesystem::path& folder, Sharing sharing = {}, const io::LoadOptions& load = {},
                            const ComputeType& compute = {});
  /// A Hugging Face folder, copied into f32 memory of the model with gradients. Refuses quantised folders. With
  /// Values::later, the files are checked now and read later.
  static LanguageModel open_for_training(const std::filesystem::path& folder, Sharing sharing = {},
                                         const Fp8Options& fp8 = {}, ExpertRanks experts = {},
                                         Values values = Values::now, VocabularyRanks vocabulary = {});

  /// A Hugging Face folder that stays as it is, with what `adapter` trains beside it, in f32 memory with gradients: fresh
  /// adapters, a pure function of the seed, and the modules and biases that it names. Frozen weights are views into the
  /// mapped files; matrices of another type than `compute` are converted if that has 16 bits. With `base`, the frozen
  /// matrices of the blocks are quantised, one at a time, into memory of the model; those whose inputs are no whole blocks
  /// stay as they are. Without a seed the model is only described. Throws UsageError if the options do not fit the model.
  static LanguageModel open_for_adapting(const std::filesystem::path& folder, const AdapterOptions& adapter,
                                         std::optional<std::uint64_t> seed, const ComputeType& compute = {},
                                         Sharing sharing = {}, const BaseOptions& base = {});

  LanguageModel(LanguageModel&&) noexcept;
  LanguageModel& operator=(LanguageModel&&) noexcept;
  ~LanguageModel() override;

  const io::ModelConfig& config() const;
  const nn::Sharing* sharing() const override;
  /// The type that open() was asked for; none: it was not asked for one.
  DType compute_type() const;
  /// Of weights that open() converted.
  std::int64_t converted_bytes() const;
  /// The type of all matrices that products read; none if their types differ or they are quantised.
  DType matrix_type() const;
  /// Of the quantised matrices, which may have several: the first one; null if there are none.
  const nn::Codec* codec() const;
  /// The whole of a parameter, in host memory. Collective over the ranks that share the layers, or divide the experts
  /// or the vocabulary.
  OwnedTensor gather(const StateEntry& p) const;
  std::int64_t mapped_bytes() const;
  /// The names of the adapters of which every text of a batch has its own or none (LoadOptions::choices).
  const std::vector<std::string>& adapters() const;
  /// How the weights come from its files, in one line.
  const std::string& loading() const;
  /// Starts to read the mapped files in the background, at disk speed. No effect on models in their own memory, on those
  /// that ranks share, and on files that are larger than the memory that is free: they would push out what is about to be
  /// used.
  void prefetch();

  /// tokens, targets: (B, T) i32, target -1 ignored. Returns the SUM of the losses of valid targets, one f32. For a mixture
  /// of experts, a training pass adds for each of them the loss that balances the experts (ops/expert_balance), over the
  /// tokens of this pass, of all ranks of `shared_batch`.
  Var loss(Graph& g, const Var& tokens, const Var& targets, const nn::ForwardOptions& o = {}) const;
  /// (B, T, V) f32; complete on every rank that shares the layers.
  Var logits(Graph& g, const Var& tokens, const nn::ForwardOptions& o = {}) const;
  /// The two halves of logits(): all blocks, (B, T, C); and the last norm with the head on any rows (..., C).
  Var body(Graph& g, const Var& tokens, const nn::ForwardOptions& o = {}) const;
  Var head(Graph& g, const Var& hidden) const;

  /// tokens and targets, (B, T) i32 each; with ForwardOptions::context those of this rank, and their positions; with
  /// ForwardOptions::documents also positions.
  std::vector<InputSpec> inputs(std::int64_t batch, std::int64_t length, const nn::ForwardOptions& o) const override;
  PassOutputs pass(Graph& g, std::span<const Var> inputs, const nn::ForwardOptions& o) const override;
  std::int64_t bytes() const override;
  void to_device(const Stream& s) override;
  /// The result can be loaded by transformers; of a model that was opened for adapting it is the adapter, in f32, which
  /// can be loaded by peft.
  void save(const std::filesystem::path& folder, DType dtype = DType::f32) const override;

 private:
  struct Impl;
  explicit LanguageModel(std::unique_ptr<Impl> impl);
  Var blocks(Graph& g, const Var& tokens, const nn::ForwardOptions& o, RouterLoad* load) const;
  PassOutputs pass_of(Graph& g, const Var& tokens, const Var& targets, const nn::ForwardOptions& o) const;
  Var with_balance(Graph& g, const Var& y, RouterLoad load, const Var& targets, const nn::ForwardOptions& o) const;
  Var token_loss(Graph& g, const Var& hidden, const Var& targets, const nn::ForwardOptions& o) const;
  void save_adapter(const std::filesystem::path& folder) const;
  void load_weights(const io::LoadOptions& options);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hpcdl::models
