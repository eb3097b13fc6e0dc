#include "hpcdl/parallel/tensor.h"

#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/dropout/dropout.h"
#include "hpcdl/parallel/layers.h"
#include "hpcdl/parallel/vocabulary.h"

namespace hpcdl::parallel {
namespace {

void split(nn::Param& p, int dim, const std::vector<Interval>& ranges) {
  require(!p.value && p.part.all(), "shard",
          "{} has memory already or is already split: shard a model before it is allocated", p.name);
  p.part = Part::along(p.spec.shape, dim, ranges);
  p.spec.shape = p.part.local;
}

int out_dim(const nn::Linear& l) { return l.layout == nn::Layout::out_in ? 0 : 1; }

}  // namespace

std::string_view scheme_name(TensorParallel::Scheme s) {
  constexpr std::string_view names[] = {"conjugate", "sequence", "naive"};
  return names[static_cast<int>(s)];
}

std::vector<Interval> even_ranges(std::string_view what, std::int64_t n, int sections, int rank, int ranks) {
  if (n % (std::int64_t{sections} * ranks) != 0)
    fail_usage("shard", "{}: {} cannot be divided into {}{} parts: choose another tp", what, n,
               sections > 1 ? fmt::format("{} x ", sections) : "", ranks);
  const auto section = n / sections, part = section / ranks;
  std::vector<Interval> list;
  for (std::int64_t s = 0; s < sections; ++s)
    list.push_back({s * section + rank * part, s * section + (rank + 1) * part});
  return list;
}

TensorParallel::TensorParallel(comm::Group group, Scheme scheme, comm::Algorithm algorithm)
    : group_(std::move(group)), scheme_(scheme), algorithm_(algorithm) {}

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
  const auto share = vocabulary_share(table.weight.spec[0], rank(), size());
  split(table.weight, 0, {{share.begin, share.end}});
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
  const Var y = record<RowLinear>({{.conv1d = l.layout == nn::Layout::in_out}, peers(l.weight), !scatter}, x,
                                  l.weight.rounded(g, x.dtype()), l.bias(g), scatter ? Var() : residual);
  if (!scatter) return y;
  const Var mine = scatter_rows(y, peers(l.weight));
  return residual ? add(mine, residual) : mine;
}

Var TensorParallel::collected(const nn::Linear& l, const Var& x, const Var& residual) const {
  Graph& g = x.graph();
  const Var all = gather_columns(x, peers(l.weight), true);
  const Var part =
      hpcdl::linear(all, l.weight.rounded(g, x.dtype()), l.bias(g), {.conv1d = l.layout == nn::Layout::in_out});
  const Var y = gather_columns(part, peers(l.weight), false);
  return residual ? add(y, residual) : y;
}

Var TensorParallel::mlp(const nn::Linear& first, const nn::Linear& second, const Var& x, Activation activation,
                        const Var& residual) const {
  if (scheme_ != conjugate) return linear(second, first(x, activation), Activation::none, residual);
  Graph& g = x.graph();
  return record<RowMlp>(
      {{.activation = activation, .conv1d = first.layout == nn::Layout::in_out}, peers(second.weight)}, x,
      first.weight.rounded(g, x.dtype()), first.bias(g), second.weight.rounded(g, x.dtype()), second.bias(g), residual);
}

Var TensorParallel::norm(const nn::LayerNorm& n, const Var& x) const {
  Graph& g = x.graph();
  const auto scope = module_scope(g, n.weight);
  if (scheme_ != sequence)
    return record<EnteringLayerNorm>({{.eps = n.eps}, peers(n.weight)}, x, n.weight(g), n.bias(g));
  return gather_rows(layer_norm(x, n.weight(g), n.bias(g), {.eps = n.eps}), peers(n.weight));
}
Var TensorParallel::norm(const nn::RmsNorm& n, const Var& x) const {
  Graph& g = x.graph();
  const auto scope = module_scope(g, n.weight);
  if (scheme_ != sequence) return record<EnteringRmsNorm>({{.eps = n.eps}, peers(n.weight)}, x, n.weight(g));
  return gather_rows(rms_norm(x, n.weight(g), {.eps = n.eps}), peers(n.weight));
}

Var TensorParallel::embed(const nn::Embedding& table, const Var& ids, DType compute, const Var& positions) const {
  const bool scatter = scheme_ == sequence;
  const Var y = vocabulary_embedding(table.weight(ids.graph()), ids, positions,
                                     {compute, peers(table.weight), table.weight.part.boxes[0].begin[0], !scatter});
  return scatter ? scatter_rows(y, peers(table.weight)) : y;
}

/// What all ranks have is dropped alike on all; a part of the tokens as the whole would be.
Var TensorParallel::dropout(const Var& x, float p, std::int64_t part) const {
  return hpcdl::dropout(x, p, scheme_ == sequence ? part * size() + rank() : part);
}

Var TensorParallel::loss(const nn::Weight& head, const Var& h, const Var& labels, const nn::ForwardOptions& o) const {
  const bool keep = h[0] * head.spec[0] * dtype_bytes(h.dtype()) <= o.keep_logits_bytes;
  return vocabulary_loss(h, head.rounded(h.graph(), h.dtype()), labels,
                         {keep, peers().of("loss"), head.part.boxes[0].begin[0], head.part.whole[0]})[0];
}

Var TensorParallel::logits(const nn::Weight& head, const Var& mine) const {
  return gather_vocabulary(mine, peers().of("logits"), head.part.whole[0]);
}

}  // namespace hpcdl::parallel
