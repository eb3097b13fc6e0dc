// The place of each module of a decoder if ranks share the layers: it follows from the module's function.

#include <type_traits>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/models/decoder.h"
#include "hpcdl/ops/vocabulary/vocabulary.h"

namespace hpcdl::models {
namespace {

using nn::Place;

void split(nn::Param& p, int dim, const std::vector<Interval>& ranges) {
  require(!p.value && p.part.all(), "shard",
          "{} has memory already or is already split: shard a model before it is allocated", p.name);
  p.part = Part::along(p.spec.shape, dim, ranges);
  p.spec.shape = p.part.local;
}

/// Reduces p to this rank's part of each of the sections, which one matrix holds one after the other; none: the whole
/// is one section.
void split_evenly(nn::Param& p, int dim, const nn::Sharing& s, std::vector<std::int64_t> sections = {}) {
  if (!p.spec) return;
  if (sections.empty()) sections = {p.spec.shape[dim]};
  std::vector<Interval> list;
  std::int64_t begin = 0;
  for (const auto n : sections) {
    if (n % s.size() != 0)
      fail_usage("shard", "{}: {} cannot be divided into {} parts: choose another tp", p.name, n, s.size());
    const auto part = n / s.size();
    list.push_back({begin + s.rank * part, begin + (s.rank + 1) * part});
    begin += n;
  }
  split(p, dim, list);
}

template <class Module> void set_place(Module& m, Place place, const nn::Sharing& s) {
  nn::for_each_param(m, [&](const std::string&, nn::Param& p) { p.sharing = &s, p.place = place; });
}

int output_dim(const nn::Linear& l) { return l.layout == nn::Layout::out_in ? 0 : 1; }

void columns(nn::Linear& l, const nn::Sharing& s, const std::vector<std::int64_t>& sections = {}) {
  set_place(l, Place::columns, s);
  split_evenly(l.weight, output_dim(l), s, sections);
  split_evenly(l.bias, 0, s, sections);
}

void rows(nn::Linear& l, const nn::Sharing& s) {
  set_place(l, Place::rows, s);
  if (s.scheme != nn::Sharing::naive) return split_evenly(l.weight, 1 - output_dim(l), s);
  split_evenly(l.weight, output_dim(l), s);
  split_evenly(l.bias, 0, s);
}

void vocabulary(nn::Embedding& table, const nn::Sharing& s) {
  if (!table.weight.spec) return;
  set_place(table, Place::vocabulary, s);
  const auto shares = vocabulary_shares(table.weight.spec.shape[0], s.size());
  split(table.weight, 0, {{shares.begin(s.rank), shares.begin(s.rank + 1)}});
}

/// For a norm between layers that ranks share.
void entering(auto& norm, const nn::Sharing& s) {
  set_place(norm, Place::entering, s);
  const bool partial = s.scheme == nn::Sharing::Scheme::sequence;
  nn::for_each_param(norm, [&](const std::string&, nn::Param& p) { p.partial_gradient = partial; });
}

/// Q and K: the outputs of all ranks that are queries, and that are keys or values.
template <class M> void place(BlockPart part, M& m, std::int64_t Q, std::int64_t K, const nn::Sharing& s) {
  using enum BlockPart;
  if constexpr (std::is_same_v<M, nn::Linear>) {
    if (part == o || part == down) rows(m, s);
    else if (part == qkv) columns(m, s, {Q, K, K});
    else if (part == gate_up) columns(m, s, std::vector<std::int64_t>(2, m.out() / 2));
    else columns(m, s);
  } else if (part == q_norm || part == k_norm) {  // every rank normalises its own heads with the whole weight
    m.weight.sharing = &s;
    m.weight.partial_gradient = true;
  } else if (part == attention_post_norm || part == mlp_post_norm) {  // of what all ranks have
    if constexpr (std::is_same_v<M, nn::RmsNorm>) {
      m.weight.sharing = &s;
      m.weight.partial_gradient = s.scheme == nn::Sharing::Scheme::sequence;
    }
  } else {
    entering(m, s);
  }
}

void check_whole(std::string_view what, std::int64_t heads, std::int64_t ranks) {
  if (heads % ranks == 0) return;
  std::string fits;
  for (std::int64_t n = 1; n <= heads; ++n)
    if (heads % n == 0) fits += fmt::format("{}{}", fits.empty() ? "" : ", ", n);
  fail_usage("shard", "{} {} are not divisible by tp {}, and a head cannot be split; tp may be {}", heads, what, ranks,
             fits);
}

}  // namespace

void check_heads(std::int64_t heads, std::int64_t kv_heads, std::int64_t ranks) {
  check_whole("heads", heads, ranks);
  check_whole("heads of keys and values", kv_heads, ranks);
}

void Decoder::share(const nn::Sharing& s) {
  if (!spec_.experts.empty())
    fail_usage("shard", "mixtures of experts cannot be divided among tp {} ranks; set tp = 1", s.size());
  check_heads(heads_, kv_heads_, s.size());
  vocabulary(tokens_, s);
  const std::int64_t Q = heads_ * head_dim_, K = kv_heads_ * head_dim_;
  for (auto& b : blocks_)
    for (auto& entry : b) std::visit([&](auto& m) { place(entry.first, m, Q, K, s); }, entry.second);
  std::visit([&](auto& norm) { entering(norm, s); }, last_norm_);
  vocabulary(head_, s);
  heads_ /= s.size(), kv_heads_ /= s.size();
}

}  // namespace hpcdl::models
