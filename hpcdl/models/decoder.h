#pragma once
// The transformer decoder of every family: token embedding, blocks of attention and MLP on a residual stream, a norm,
// and a head. The differences between families are in its DecoderSpec.

#include <fmt/format.h>

#include <array>
#include <map>
#include <variant>
#include <vector>

#include "hpcdl/box.h"
#include "hpcdl/io/model_config.h"
#include "hpcdl/models/blocks.h"
#include "hpcdl/models/decoder_spec.h"
#include "hpcdl/models/fp8_options.h"
#include "hpcdl/models/layer_source.h"
#include "hpcdl/models/rope_angles.h"
#include "hpcdl/nn/context.h"
#include "hpcdl/nn/embedding.h"
#include "hpcdl/nn/norm.h"
#include "hpcdl/nn/vocabulary_share.h"
#include "hpcdl/ops/expert_mlp/expert_mlp.h"
#include "hpcdl/ops/moe_route/moe_route.h"
#include "hpcdl/ops/swiglu/swiglu.h"

namespace hpcdl::models {

/// Why ranks share the layers of a model. For inference, several of them may have the same head of keys and values.
enum class Sharers : std::uint8_t { training, inference };

/// What the mixtures of a training pass have done so far; absent before the first.
struct RouterLoad {
  bool balanced = true;       // whether a loss needs the next two
  Var probabilities, counts;  // of the experts (ops/expert_balance)
  Var dropped;                // tokens that did not fit (ops/expert_exchange); absent if all always do
};

class Decoder {
 public:
  Decoder(const io::ModelConfig& c, const DecoderSpec& spec);

  /// Embeddings and blocks. tokens: (B, T) i32; returns (B, T, C), before the last norm. A mixture adds to `load`, which may
  /// be null.
  Var body(const Var& tokens, const nn::ForwardOptions& o, RouterLoad* load = nullptr) const;
  Var norm(const Var& x) const;
  const nn::Weight& head() const { return head_.weight.spec ? head_.weight : tokens_.weight; }
  const DecoderSpec& spec() const { return spec_; }
  /// The tables of rotary positions; none if positions are learned.
  std::vector<RopeAngles>& angles() const { return angles_; }

  /// Reduces the parameters of a model that has names and no memory to this rank's part (nn/sharing.h). Throws
  /// UsageError if the ranks do not divide the heads or the MLP. `sharing` must outlive the model. `whole_embedding`:
  /// every rank has all rows of the token embedding.
  void share(const nn::Sharing& sharing, Sharers sharers, bool whole_embedding);
  /// The same for ranks that divide the experts; before share(). Throws UsageError if they do not divide them.
  void divide_experts(const nn::ExpertShare& ranks);
  /// The same for ranks that have different layers and divide the vocabulary. Throws UsageError if it has too few rows.
  void divide_vocabulary(const nn::VocabularyShare& ranks);
  /// Whether the module of this name may have an adapter: experts are multiplied by an op that knows none, and routers
  /// choose.
  bool takes_adapter(std::string_view module) const;
  /// Lets layers multiply in 8-bit floats, or emulate MXFP4. Before the model has memory and gets its place, from which it never moves
  /// again. Throws UsageError if no block is left.
  void multiply_in_few_bits(const Fp8Options& options);
  /// The layers that hpcdl compress can give factors in place of their matrices: those of the blocks, without routers and
  /// experts. f(name, Linear&).
  void for_each_compressible(auto&& f) {
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      for (const auto& part : spec_.block)
        if (auto* layer = std::get_if<nn::Linear>(&blocks_[i].at(part.part)); layer && part.part != BlockPart::router)
          f(fmt::format("{}.{}.{}", named(spec_.layers), i, part.name), *layer);
  }
  /// From now on programs fetch the layers that stream; null: none does.
  void load_from(const LayerSource* weights) { weights_ = weights; }
  /// The layer that the parameter of this name belongs to; -1: none.
  int layer_of(std::string_view name) const;
  /// The expert of its layer that a parameter belongs to; -1: none.
  int expert_of(std::string_view name) const;

  void visit(auto&& f) {
    f(named(spec_.tokens), tokens_);
    if (!spec_.rotary()) f(named(spec_.positions), positions_);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      for (const auto& part : spec_.block)
        std::visit([&](auto& m) { f(fmt::format("{}.{}.{}", named(spec_.layers), i, part.name), m); },
                   blocks_[i].at(part.part));
      for (std::size_t e = 0; e < experts_[i].size(); ++e) {
        const auto of_expert = [&](std::string_view name) {
          return fmt::format("{}.{}.{}.{}.{}", named(spec_.layers), i, spec_.experts, e, name);
        };
        f(of_expert(spec_.expert_gate), experts_[i][e].gate);
        f(of_expert(spec_.expert_up), experts_[i][e].up);
        f(of_expert(spec_.expert_down), experts_[i][e].down);
      }
    }
    std::visit([&](auto& m) { f(named(spec_.last_norm), m); }, last_norm_);
    if (head_.weight.spec) f(spec_.head, head_);
    if (fp8_history_.amax.spec) f("fp8", fp8_history_);
  }

 private:
  using Module = std::variant<nn::RmsNorm, nn::LayerNorm, nn::Linear>;
  using Block = std::map<BlockPart, Module>;
  struct Expert {
    nn::Linear gate, up, down;
  };

  std::string named(std::string_view name) const { return fmt::format("{}{}", spec_.prefix, name); }
  void compress(const std::map<std::string, nn::Structure>& layers);
  Module make_norm(const io::ModelConfig& c) const;
  Module make(BlockPart part, const io::ModelConfig& c) const;
  /// The tables of rope() for full and sliding layers, if there are any; with ForwardOptions::positions a row for every
  /// token.
  std::array<Var, 2> tables(const Var& tokens, const nn::ForwardOptions& o) const;
  Var attention(const Block& b, const Var& residual, const Var& angles, int layer, const nn::ForwardOptions& o) const;
  Var mlp(const Block& b, int layer, const Var& residual, const nn::ForwardOptions& o, RouterLoad* load) const;
  Var mixture(const Block& b, int layer, const Var& residual, const nn::ForwardOptions& o, RouterLoad* load) const;
  Interval of_rank(const std::vector<Expert>& experts) const;
  const Expert& first_of_rank(const std::vector<Expert>& experts) const;
  std::vector<ExpertMatrices<Var>> matrices_of(const std::vector<Expert>& experts, const Var& x) const;
  Var mixture_across(const std::array<Var, 2>& choice, const Var& x, const Var& residual,
                     const std::vector<Expert>& experts, const nn::ForwardOptions& o, RouterLoad* load) const;

  DecoderSpec spec_;
  std::int64_t heads_, kv_heads_, head_dim_;  // number of heads of this rank
  Activation activation_;
  Swiglu::Gate gate_ = Swiglu::Gate::silu;
  Heads full_ = {}, sliding_ = {};  // of layers without and with a window
  std::vector<bool> slides_;        // which layers are of the second kind
  std::int64_t context_;
  nn::Embedding tokens_, positions_;  // (V, C), (context, C)
  std::vector<Block> blocks_;
  std::vector<std::vector<Expert>> experts_;  // of each layer
  MoeRoute::Args choice_ = {};
  const nn::VocabularyShare* vocabulary_ = nullptr;  // null: this rank has all rows of its tables
  const nn::ExpertShare* expert_ranks_ = nullptr;    // that divide the experts of each layer; null: one has all
  Module last_norm_;
  nn::Embedding head_;          // (V, C); absent if tied to tokens_
  nn::Fp8History fp8_history_;  // absent unless scales are delayed
  // Of all layers, or of those with full attention; then of sliding layers, or of texts beyond the original context.
  mutable std::vector<RopeAngles> angles_;
  const LayerSource* weights_ = nullptr;
};

/// Throws UsageError if the ranks do not divide the heads. kv_heads 0: as many as heads.
void check_heads(std::int64_t heads, std::int64_t kv_heads, std::int64_t ranks, Sharers sharers);
/// The heads of keys and values that a rank has, for numbers that check_heads() accepts.
std::int64_t kv_heads_of_rank(std::int64_t kv_heads, std::int64_t ranks);

}  // namespace hpcdl::models
