#include "hpcdl/models/shard.h"

#include <algorithm>
#include <span>

#include "hpcdl/core/error.h"
#include "hpcdl/ops/vocabulary/vocabulary.h"

namespace hpcdl::models {
namespace {

using nn::Place;

/// The place of the parameters of modules whose names end so. `dim` is that of the weight which is split, in `sections`
/// equal ranges one by one, as q, k and v of a packed layer. The bias is split with the outputs: of columns, and in the
/// scheme `naive` of rows.
struct Placement {
  std::string_view module;
  Place place;
  int dim = 0, sections = 1;
};

constexpr Placement kGpt[] = {
    {"wte", Place::vocabulary},  {"lm_head", Place::vocabulary}, {"c_attn", Place::columns, 1, 3},
    {"c_fc", Place::columns, 1}, {"c_proj", Place::rows},        {"ln_1", Place::entering},
    {"ln_2", Place::entering},   {"ln_f", Place::entering},
};

constexpr Placement kLlama[] = {
    {"embed_tokens", Place::vocabulary}, {"lm_head", Place::vocabulary},  {"q_proj", Place::columns},
    {"k_proj", Place::columns},          {"v_proj", Place::columns},      {"gate_proj", Place::columns},
    {"up_proj", Place::columns},         {"o_proj", Place::rows, 1},      {"down_proj", Place::rows, 1},
    {"layernorm", Place::entering},      {"model.norm", Place::entering},
};

/// This rank's part of each of `sections` equal ranges of n.
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

void split(nn::Param& p, int dim, const std::vector<Interval>& ranges) {
  require(!p.value && p.part.all(), "shard",
          "{} has memory already or is already split: shard a model before it is allocated", p.name);
  p.part = Part::along(p.spec.shape, dim, ranges);
  p.spec.shape = p.part.local;
}

void place(nn::Param& p, const Placement& as, const nn::Sharing& s) {
  p.sharing = &s, p.place = as.place;
  if (!p.spec) return;
  const auto evenly = [&](int dim) {
    split(p, dim, even_ranges(p.name, p.spec.shape[dim], as.sections, s.rank, s.size()));
  };
  const bool matrix = p.spec.shape.rank() == 2;
  switch (as.place) {
    case Place::columns: return evenly(matrix ? as.dim : 0);
    case Place::rows:
      if (s.scheme == nn::Sharing::naive) return evenly(matrix ? 1 - as.dim : 0);
      if (matrix) evenly(as.dim);
      return;
    case Place::vocabulary: {
      const auto shares = vocabulary_shares(p.spec.shape[0], s.size());
      return split(p, 0, {{shares.begin(s.rank), shares.begin(s.rank + 1)}});
    }
    case Place::entering: p.partial_gradient = s.scheme == nn::Sharing::sequence; return;
    case Place::whole: return;
  }
}

template <class Model> void place_all(Model& model, std::span<const Placement> table, const nn::Sharing& s) {
  nn::for_each_param(model, [&](const std::string& name, nn::Param& p) {
    const auto module = std::string_view(name).substr(0, name.rfind('.'));
    const auto as = std::ranges::find_if(table, [&](const Placement& a) { return module.ends_with(a.module); });
    if (as != table.end()) place(p, *as, s);
  });
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

void shard(Gpt& model, const nn::Sharing& s) {
  for (auto& b : model.h) {
    check_heads(b.attn.heads, 0, s.size());
    b.attn.heads /= s.size();
  }
  place_all(model, kGpt, s);
}

void shard(Llama& model, const nn::Sharing& s) {
  for (auto& b : model.layers) {
    auto& a = b.self_attn;
    check_heads(a.heads, a.kv_heads, s.size());
    a.heads /= s.size(), a.kv_heads /= s.size();
  }
  place_all(model, kLlama, s);
}

}  // namespace hpcdl::models
