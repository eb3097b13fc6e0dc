#pragma once
// Tensor parallelism: one layer computed by several ranks, each with a part of its weights.
//
//   column layers (q, k, v, gate, up, fc)   a rank has some of the outputs: whole heads, or neurons of the MLP
//   row layers (o, down, proj)              a rank has the same ones of the inputs; its product is an addend of the output
//   embedding and head                      a rank has some rows of the vocabulary (vocabulary.h)
//
// What it costs is on the wire: ops/exchange for each op, wire_bytes() for a program. A model knows nothing of it
// (nn/split.h): models/shard.h says for each family which layer is which.

#include <memory>

#include "hpcdl/nn/context.h"
#include "hpcdl/nn/embedding.h"
#include "hpcdl/nn/linear.h"
#include "hpcdl/nn/norm.h"
#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/parallel/axis.h"

namespace hpcdl::parallel {

class TensorParallel final : public nn::Split {
 public:
  enum class Scheme : std::uint8_t {
    conjugate,  // all-reduce behind row layers, all-reduce of gradients in front of column layers; activations between
                // are on all ranks
    sequence,   // the same halves apart: between the layers each rank has a part of the tokens, so that norms and
                // dropout are done once
    naive,      // the reference: o and down have a part of the outputs too, and everything is collected around them
  };
  using enum Scheme;

  explicit TensorParallel(comm::Group group, Scheme scheme = conjugate,
                          comm::Algorithm algorithm = comm::Algorithm::automatic);
  TensorParallel(const TensorParallel&) = delete;
  TensorParallel& operator=(const TensorParallel&) = delete;

  const comm::Group& group() const { return axis_.group(); }
  int rank() const { return group().rank(); }
  int size() const { return group().size(); }
  Scheme scheme() const { return scheme_; }
  /// For records: lives as long as this.
  Axis axis(std::string_view tensor = {}) const { return axis_.axis(tensor); }
  /// For those of the module that owns p, by whose name their exchanges are known.
  Axis axis(const nn::Param& p) const { return axis(std::string_view(p.name).substr(0, p.name.rfind('.'))); }

  /// Leaves each rank its part of a module that has no memory yet. `sections`: equal ranges of the outputs that are
  /// split one by one, as q, k and v of a packed layer. UsageError where sizes do not divide.
  void split_columns(nn::Linear& l, int sections = 1) const;
  void split_rows(nn::Linear& l) const;
  void split_vocabulary(nn::Embedding& table) const;
  /// A norm whose output goes into column layers or the head.
  void in_front(nn::LayerNorm& n) const;
  void in_front(nn::RmsNorm& n) const;

  /// Sum of the losses of normalised rows h (rows, C) under a head whose rows are spread.
  Var loss(const nn::Weight& head, const Var& h, const Var& labels, const nn::ForwardOptions& o) const;

  /// Of all words, on every rank, from those of the head's rows that the rank has.
  Var logits(const nn::Weight& head, const Var& mine) const;

  Var linear(const nn::Linear& l, const Var& x, Activation activation, const Var& residual) const override;
  Var mlp(const nn::Linear& first, const nn::Linear& second, const Var& x, Activation activation,
          const Var& residual) const override;
  Var norm(const nn::LayerNorm& n, const Var& x) const override;
  Var norm(const nn::RmsNorm& n, const Var& x) const override;
  Var embed(const nn::Embedding& table, const Var& ids, DType compute, const Var& positions) const override;
  Var dropout(const Var& x, float p, std::int64_t part) const override;

 private:
  Var spread(const Var& y, const nn::Param& of) const;
  Var collected(const nn::Linear& l, const Var& x, const Var& residual) const;

  GroupAxis axis_;
  Scheme scheme_;
};

std::string_view scheme_name(TensorParallel::Scheme s);

/// Where one of `ranks` finds its part of every of `sections` equal ranges of n. UsageError, naming `what`, where they
/// do not divide.
std::vector<nn::Range> even_ranges(std::string_view what, std::int64_t n, int sections, int rank, int ranks);

}  // namespace hpcdl::parallel
