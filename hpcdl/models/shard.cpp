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

/// Every rank has the whole of the first matrix, which learns from the outputs of this rank.
void split_outputs(nn::Adapter& adapter, const nn::Sharing& s, const std::vector<std::int64_t>& sections = {}) {
  split_evenly(adapter.b, 0, s, sections);
  adapter.a.partial_gradient = true;
}

void columns(nn::Linear& l, const nn::Sharing& s, const std::vector<std::int64_t>& sections = {}) {
  set_place(l, Place::columns, s);
  split_evenly(l.weight, output_dim(l), s, sections);
  split_evenly(l.bias, 0, s, sections);
  if (l.adapter) split_outputs(*l.adapter, s, sections);
}

void rows(nn::Linear& l, const nn::Sharing& s) {
  set_place(l, Place::rows, s);
  if (s.scheme == nn::Sharing::naive) {
    split_evenly(l.weight, output_dim(l), s);
    split_evenly(l.bias, 0, s);
    if (l.adapter) split_outputs(*l.adapter, s);
    return;
  }
  split_evenly(l.weight, 1 - output_dim(l), s);
  if (!l.adapter) return;
  split_evenly(l.adapter->a, 1, s);
  l.adapter->b.partial_gradient = true;  // it learns from the inputs of this rank
}

void split_rows(nn::Embedding& table, int ranks, int rank) {
  if (!table.weight.spec) return;
  const auto shares = vocabulary_shares(table.weight.spec.shape[0], ranks);
  split(table.weight, 0, {{shares.begin(rank), shares.begin(rank + 1)}});
}

void vocabulary(nn::Embedding& table, const nn::Sharing& s) {
  if (!table.weight.spec) return;
  set_place(table, Place::vocabulary, s);
  split_rows(table, s.size(), s.rank);
}

/// For a norm between layers that ranks share.
void entering(auto& norm, const nn::Sharing& s) {
  set_place(norm, Place::entering, s);
  const bool partial = s.scheme == nn::Sharing::Scheme::sequence;
  nn::for_each_param(norm, [&](const std::string&, nn::Param& p) { p.partial_gradient = partial; });
}

/// The outputs of a rank that are queries, and that are keys; those that are values are in the order of the keys.
struct HeadOutputs {
  std::int64_t all_queries = 0, all_keys = 0;
  Interval queries, keys;
};

/// Where there are fewer heads of keys and values than ranks, several ranks have the same one.
HeadOutputs outputs_of(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, const nn::Sharing& s) {
  const auto mine = heads / s.size(), mine_kv = kv_heads_of_rank(kv_heads, s.size());
  const auto first = s.rank * mine * kv_heads / heads;
  return {.all_queries = heads * head_dim,
          .all_keys = kv_heads * head_dim,
          .queries = {s.rank * mine * head_dim, (s.rank + 1) * mine * head_dim},
          .keys = {first * head_dim, (first + mine_kv) * head_dim}};
}

/// Of a layer whose outputs are heads.
void head_columns(nn::Linear& l, const nn::Sharing& s, const std::vector<Interval>& outputs) {
  set_place(l, Place::columns, s);
  split(l.weight, output_dim(l), outputs);
  if (l.bias.spec) split(l.bias, 0, outputs);
  if (!l.adapter) return;
  split(l.adapter->b, 0, outputs);
  l.adapter->a.partial_gradient = true;
}

template <class M> void place(BlockPart part, M& m, const HeadOutputs& h, const nn::Sharing& s) {
  using enum BlockPart;
  if constexpr (std::is_same_v<M, nn::Linear>) {
    const auto after = [&](std::int64_t begin) { return Interval{begin + h.keys.begin, begin + h.keys.end}; };
    if (part == o || part == down) rows(m, s);
    else if (part == q) head_columns(m, s, {h.queries});
    else if (part == k || part == v) head_columns(m, s, {h.keys});
    else if (part == qkv) head_columns(m, s, {h.queries, after(h.all_queries), after(h.all_queries + h.all_keys)});
    else if (part == gate_up) columns(m, s, std::vector<std::int64_t>(2, m.out() / 2));
    else if (part == router) m.weight.sharing = &s, m.weight.partial_gradient = true;  // every rank routes every token
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

/// The numbers up to `most` for which f(n) is true: "1, 2, 4".
template <class F> std::string numbers_that(std::int64_t most, F&& f) {
  std::string list;
  for (std::int64_t n = 1; n <= most; ++n)
    if (f(n)) list += fmt::format("{}{}", list.empty() ? "" : ", ", n);
  return list;
}

/// f(n): whether so many ranks can share the heads.
template <class F>
void check_ranks(std::string_view what, std::int64_t number, std::int64_t most, std::int64_t ranks, F&& f) {
  if (f(ranks)) return;
  fail_usage("shard", "{} {} are not divisible by tp {}, and a head cannot be split; tp may be {}", number, what, ranks,
             numbers_that(most, f));
}

}  // namespace

void check_heads(std::int64_t heads, std::int64_t kv_heads, std::int64_t ranks, Sharers sharers) {
  check_ranks("heads", heads, heads, ranks, [&](std::int64_t n) { return heads % n == 0; });
  check_ranks("heads of keys and values", kv_heads, heads, ranks, [&](std::int64_t n) {
    return heads % n == 0 && (kv_heads % n == 0 || (sharers == Sharers::inference && n % kv_heads == 0));
  });
}

std::int64_t kv_heads_of_rank(std::int64_t kv_heads, std::int64_t ranks) {
  return std::max<std::int64_t>(1, kv_heads / ranks);
}

void Decoder::divide_experts(const nn::ExpertShare& ranks) {
  const auto experts = experts_.empty() ? 0 : std::ssize(experts_.front());
  if (experts == 0)
    fail_usage("shard", "ranks divide the experts of mixtures, and this model has none: set parallel.ep to 1");
  if (experts % ranks.size() != 0)
    fail_usage("shard", "parallel.ep = {} does not divide the {} experts of a layer: ep may be {}", ranks.size(),
               experts, numbers_that(experts, [&](std::int64_t n) { return experts % n == 0; }));
  expert_ranks_ = &ranks;
  const auto mine = ranks.mine(experts);
  for (auto& layer : experts_)
    for (std::int64_t e = 0; e < experts; ++e) {
      auto& expert = layer[static_cast<std::size_t>(e)];
      for (auto* linear : {&expert.gate, &expert.up, &expert.down}) {
        nn::Param& p = linear->weight;
        p.experts = &ranks, p.expert_rank = static_cast<int>(e / mine.count());
        if (e < mine.begin || e >= mine.end) split(p, 0, {});
      }
    }
}

void Decoder::divide_vocabulary(const nn::VocabularyShare& ranks) {
  vocabulary_ = &ranks;
  for (auto* table : {&tokens_, &head_}) split_rows(*table, ranks.size(), ranks.rank);
}

void Decoder::share(const nn::Sharing& s, Sharers sharers, bool whole_embedding) {
  check_heads(heads_, kv_heads_, s.size(), sharers);
  if (!spec_.experts.empty() && s.scheme != nn::Sharing::conjugate)
    fail_usage("shard", "mixtures of experts are shared by the scheme conjugate only, found {}",
               nn::scheme_name(s.scheme));
  if (!whole_embedding) vocabulary(tokens_, s);
  const auto outputs = outputs_of(heads_, kv_heads_, head_dim_, s);
  for (auto& b : blocks_)
    for (auto& entry : b) std::visit([&](auto& m) { place(entry.first, m, outputs, s); }, entry.second);
  for (auto& layer : experts_)
    for (auto e = of_rank(layer).begin; e < of_rank(layer).end; ++e) {
      auto& expert = layer[static_cast<std::size_t>(e)];
      columns(expert.gate, s), columns(expert.up, s), rows(expert.down, s);
    }
  std::visit([&](auto& norm) { entering(norm, s); }, last_norm_);
  vocabulary(head_, s);
  heads_ /= s.size(), kv_heads_ = kv_heads_of_rank(kv_heads_, s.size());
}

}  // namespace hpcdl::models
