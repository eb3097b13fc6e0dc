#pragma once
// The transformer decoder of every family: token embedding, blocks of attention and MLP on a residual stream, a norm,
// and a head. The differences between families are in its DecoderSpec.

#include <fmt/format.h>

#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "hpcdl/io/model_config.h"
#include "hpcdl/models/decoder_spec.h"
#include "hpcdl/models/rope_angles.h"
#include "hpcdl/nn/context.h"
#include "hpcdl/nn/embedding.h"
#include "hpcdl/nn/norm.h"

namespace hpcdl::models {

class Decoder {
 public:
  Decoder(const io::ModelConfig& c, const DecoderSpec& spec);

  /// Embeddings and blocks. tokens: (B, T) i32; returns (B, T, C), before the last norm.
  Var body(const Var& tokens, const nn::ForwardOptions& o) const;
  Var norm(const Var& x) const;
  const nn::Weight& head() const { return head_.weight.spec ? head_.weight : tokens_.weight; }
  const DecoderSpec& spec() const { return spec_; }
  /// The table of rotary positions; null if positions are learned.
  RopeAngles* angles() const { return angles_ ? &*angles_ : nullptr; }

  /// Reduces the parameters of a model that has names and no memory to this rank's part (nn/sharing.h). Throws
  /// UsageError if the ranks do not divide the heads or the MLP. `sharing` must outlive the model.
  void share(const nn::Sharing& sharing);

  void visit(auto&& f) {
    f(named(spec_.tokens), tokens_);
    if (!spec_.rotary()) f(named(spec_.positions), positions_);
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      for (const auto& part : spec_.block)
        std::visit([&](auto& m) { f(fmt::format("{}.{}.{}", named(spec_.layers), i, part.name), m); },
                   blocks_[i].at(part.part));
    std::visit([&](auto& m) { f(named(spec_.last_norm), m); }, last_norm_);
    if (head_.weight.spec) f(spec_.head, head_);
  }

 private:
  using Module = std::variant<nn::RmsNorm, nn::LayerNorm, nn::Linear>;
  using Block = std::map<BlockPart, Module>;

  std::string named(std::string_view name) const { return fmt::format("{}{}", spec_.prefix, name); }
  Module make_norm(const io::ModelConfig& c) const;
  Module make(BlockPart part, const io::ModelConfig& c) const;
  Var attention(const Block& b, const Var& residual, const Var& angles, int layer, const nn::ForwardOptions& o) const;
  Var mlp(const Block& b, const Var& residual, const nn::ForwardOptions& o) const;

  DecoderSpec spec_;
  std::int64_t heads_, kv_heads_, head_dim_;  // number of heads of this rank
  Activation activation_;
  nn::Embedding tokens_, positions_;  // (V, C), (context, C)
  std::vector<Block> blocks_;
  Module last_norm_;
  nn::Embedding head_;  // (V, C); absent if tied to tokens_
  mutable std::optional<RopeAngles> angles_;
};

/// Throws UsageError if ranks would have to share a head. kv_heads 0: as many as heads.
void check_heads(std::int64_t heads, std::int64_t kv_heads, std::int64_t ranks);

}  // namespace hpcdl::models
