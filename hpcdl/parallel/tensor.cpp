#include "hpcdl/parallel/tensor.h"

#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/dropout/dropout.h"
#include "hpcdl/ops/mlp/mlp.h"
#include "hpcdl/parallel/vocabulary.h"

namespace hpcdl::parallel {
namespace {

void split(nn::Param& p, int dim, std::vector<nn::Range> ranges) {
  require(!p.value.spec() && !p.part, "shard",
          "{} has memory already or is already split: shard a model before it is allocated", p.name);
  p.part = {p.spec.shape, dim, std::move(ranges)};
  p.spec.shape = p.part.shape();
}

int out_dim(const nn::Linear& l) { return l.layout == nn::Layout::out_in ? 0 : 1; }

}  // namespace

std::string_view scheme_name(TensorParallel::Scheme s) {
  constexpr std::string_view names[] = {"conjugate", "sequence", "naive"};
  return names[static_cast<int>(s)];
}

std::vector<nn::Range> even_ranges(std::string_view what, std::int64_t n, int sections, int rank, int ranks) {
  if (n % (std::int64_t{sections} * ranks) != 0)
    fail_usage("shard", "{}: {} cannot be divided into {}{} parts: choose another tp", what, n,
               sections > 1 ? fmt::format("{} x ", sections) : "", ranks);
  const auto section = n / sections, part = section / ranks;
  std::vector<nn::Range> list;
  for (std::int64_t s = 0; s < sections; ++s)
    list.push_back({s * section + rank * part, s * section + (rank + 1) * part});
  return list;
}

TensorParallel::TensorParallel(comm::Group group, Scheme scheme, comm::Algorithm algorithm)
    : axis_(std::move(group), algorithm), scheme_(scheme) {}

void TensorParallel::split_columns(nn::Linear& l, int sections) const {
  const auto ranges = even_ranges(l.weight.name, l.out(), sections, rank(), size());
  split(l.weight, out_dim(l), ranges);
  if (l.bias.spec) split(l.bias, 0, ranges);
}

void TensorParallel::split_rows(nn::Linear& l) const {
  if (scheme_ == naive) split_columns(l);
  else split(l.weight, 1 - out_dim(l), even_ranges(l.weight.name, l.in(), 1, rank(), size()));
  l.split = this;
}

void TensorParallel::split_vocabulary(nn::Embedding& table) const {
  const auto shares = vocabulary_shares(table.weight.spec[0], size());
  split(table.weight, 0, {{shares.begin(rank()), shares.begin(rank() + 1)}});
  table.split = this;
}

void TensorParallel::in_front(nn::LayerNorm& n) const {
  n.split = this;
  n.weight.partial_gradient = n.bias.partial_gradient = scheme_ == sequence;
}
void TensorParallel::in_front(nn::RmsNorm& n) const {
  n.split = this;
  n.weight.partial_gradient = scheme_ == sequence;
}

// ---------------------------------------------------------------- recording

Var TensorParallel::linear(const nn::Linear& l, const Var& x, Activation activation, const Var& residual) const {
  require(activation == Activation::none, "shard", "{}: a layer with an activation cannot be split along its inputs",
          l.weight.name);
  Graph& g = x.graph();
  const auto scope = module_scope(g, l.weight);
  if (scheme_ == naive) return collected(l, x, residual);
  const bool scatter = scheme_ == sequence;
  const Var y =
      hpcdl::linear(x, l.weight.rounded(g, x.dtype()), l.bias(g),
                    {.conv1d = l.layout == nn::Layout::in_out, .addend = rank() > 0}, scatter ? Var() : residual);
  if (!scatter) return leave(y, axis(l.weight));
  const Var mine = scatter_rows(y, axis(l.weight));
  return residual ? add(mine, residual) : mine;
}

Var TensorParallel::collected(const nn::Linear& l, const Var& x, const Var& residual) const {
  Graph& g = x.graph();
  const Var all = gather_columns(x, axis(l.weight));
  const Var part =
      hpcdl::linear(all, l.weight.rounded(g, x.dtype()), l.bias(g), {.conv1d = l.layout == nn::Layout::in_out});
  const Var y = gather_columns(part, axis(l.weight), rank());
  return residual ? add(y, residual) : y;
}

Var TensorParallel::mlp(const nn::Linear& first, const nn::Linear& second, const Var& x, Activation activation,
                        const Var& residual) const {
  if (scheme_ != conjugate) return linear(second, first(x, activation), Activation::none, residual);
  Graph& g = x.graph();
  const Var y = hpcdl::mlp(
      x, first.weight.rounded(g, x.dtype()), first.bias(g), second.weight.rounded(g, x.dtype()), second.bias(g),
      residual, {.activation = activation, .conv1d = first.layout == nn::Layout::in_out, .addend = rank() > 0});
  return leave(y, axis(second.weight));
}

Var TensorParallel::norm(const nn::LayerNorm& n, const Var& x) const {
  Graph& g = x.graph();
  const auto scope = module_scope(g, n.weight);
  return spread(layer_norm(x, n.weight(g), n.bias(g), {.eps = n.eps}), n.weight);
}
Var TensorParallel::norm(const nn::RmsNorm& n, const Var& x) const {
  Graph& g = x.graph();
  const auto scope = module_scope(g, n.weight);
  return spread(rms_norm(x, n.weight(g), {.eps = n.eps}), n.weight);
}
Var TensorParallel::spread(const Var& y, const nn::Param& of) const {
  return scheme_ == sequence ? gather_rows(y, axis(of)) : enter(y, axis(of));
}

Var TensorParallel::embed(const nn::Embedding& table, const Var& ids, DType compute, const Var& positions) const {
  const Var y = vocabulary_embedding(table.weight(ids.graph()), ids, positions,
                                     {compute, table.weight.part.ranges[0].begin, rank() == 0});
  return scheme_ == sequence ? scatter_rows(y, axis(table.weight)) : leave(y, axis(table.weight));
}

/// What all ranks have is dropped alike on all; a part of the tokens as the whole would be.
Var TensorParallel::dropout(const Var& x, float p, std::int64_t part) const {
  return hpcdl::dropout(x, p, scheme_ == sequence ? part * size() + rank() : part);
}

Var TensorParallel::loss(const nn::Weight& head, const Var& h, const Var& labels, const nn::ForwardOptions& o) const {
  const bool keep = h[0] * head.spec[0] * dtype_bytes(h.dtype()) <= o.keep_logits_bytes;
  return vocabulary_loss(h, head.rounded(h.graph(), h.dtype()), labels,
                         {keep, head.part.ranges[0].begin, head.part.whole[0]}, axis("loss"));
}

Var TensorParallel::logits(const nn::Weight& head, const Var& mine) const {
  return gather_columns(mine, axis("logits"), vocabulary_shares(head.part.whole[0], size()));
}

}  // namespace hpcdl::parallel
