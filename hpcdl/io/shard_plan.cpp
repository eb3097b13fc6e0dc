#include "hpcdl/io/shard_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "hpcdl/core/describe.h"
#include "hpcdl/io/number_within.h"

namespace hpcdl::io {
namespace {

/// Throws unless the slices cover the whole tensor once.
void check_cover(const WholeTensor& t) {
  require(!t.slices.empty(), "io", "tensor {}: its elements are held by no rank", shown(t.name));
  if (t.slices.size() == 1 && t.slices[0].shard.all()) return;
  const int dim = t.slices[0].shard.dim;
  std::vector<Range> ranges;
  for (const auto& s : t.slices) {
    require(s.shard.dim == dim && dim >= 0, "io",
            "tensor {}: rank {} splits it along dim {}, rank {} along dim {} (-1: not at all)", shown(t.name),
            t.slices[0].holders[0], dim, s.holders[0], s.shard.dim);
    ranges.insert(ranges.end(), s.shard.pieces.begin(), s.shard.pieces.end());
  }
  std::sort(ranges.begin(), ranges.end());
  std::int64_t end = 0;
  for (const Range& r : ranges) {
    require(r.begin == end || r.length == 0, "io", "tensor {}: elements [{}, {}) of dim {} are held {}", shown(t.name),
            std::min(r.begin, end), std::max(r.begin, end), dim,
            r.begin > end ? "by no rank" : "twice, by ranks that do not hold the same part");
    end += r.length;
  }
  require(end == t.spec.shape[dim], "io", "tensor {}: elements [{}, {}) of dim {} are held by no rank", shown(t.name),
          end, t.spec.shape[dim], dim);
}

int least(const std::vector<std::int64_t>& load, const std::vector<int>& among) {
  return *std::min_element(among.begin(), among.end(), [&](int a, int b) {
    return load[static_cast<std::size_t>(a)] < load[static_cast<std::size_t>(b)];
  });
}

/// One description for one part; none for a part without elements.
std::optional<ShardSpec> plain(const ShardSpec& shard) {
  if (shard.all() || shard.whole == 0) return ShardSpec{};
  ShardSpec out{shard.dim, shard.whole, {}};
  for (const Range& r : shard.pieces) {
    if (r.length == 0) continue;
    if (!out.pieces.empty() && out.pieces.back().begin + out.pieces.back().length == r.begin)
      out.pieces.back().length += r.length;
    else out.pieces.push_back(r);
  }
  if (out.pieces.empty()) return std::nullopt;
  return out.pieces == std::vector<Range>{{0, shard.whole}} ? ShardSpec{} : out;
}

bool holds(const Slice& s, int rank) { return std::find(s.holders.begin(), s.holders.end(), rank) != s.holders.end(); }

}  // namespace

Json to_json(const ShardSpec& shard) {
  if (shard.all()) return Json::object();
  Json pieces = Json::array();
  for (const Range& r : shard.pieces) pieces.push_back({r.begin, r.length});
  return {{"dim", shard.dim}, {"whole", shard.whole}, {"pieces", pieces}};
}

ShardSpec shard_from(const Json& json, const std::string& where) {
  const JsonObject o(json, where);
  if (!o.find("dim")) return {};
  const Json* pieces = o.find("pieces");
  require(pieces && pieces->is_array(), "io", "{}: key \"pieces\": expected an array, found {}", where,
          pieces ? json_kind(*pieces) : "none");
  const auto dim = need_within(o, "dim", 0, Shape::kMaxRank - 1);
  ShardSpec shard{static_cast<int>(dim), need_within(o, "whole", 0, kMaxCount), {}};
  for (const auto& p : *pieces) {
    require(p.is_array() && p.size() == 2 && p[0].is_number_integer() && p[1].is_number_integer(), "io",
            "{}: expected pieces [begin, length], found {}", where, shown(p.dump()));
    const auto in = [&](const Json& n, std::int64_t high) {  // an unsigned number may be beyond the type
      return n.is_number_unsigned() && n.get<std::uint64_t>() <= static_cast<std::uint64_t>(high);
    };
    require(in(p[0], shard.whole) && in(p[1], shard.whole - p[0].get<std::int64_t>()), "io",
            "{}: key \"pieces\": expected [begin, length] within the {} elements of key \"whole\", found {}", where,
            shard.whole, shown(p.dump()));
    shard.pieces.push_back({p[0].get<std::int64_t>(), p[1].get<std::int64_t>()});
  }
  return shard;
}

Json to_json(const std::vector<HeldTensor>& held) {
  Json out = Json::array();
  for (const auto& t : held)
    out.push_back({t.name, dtype_name(t.local.dtype),
                   std::vector<std::int64_t>(t.local.shape.begin(), t.local.shape.end()), to_json(t.shard)});
  return out;
}

std::vector<HeldTensor> held_from(const Json& json) {
  std::vector<HeldTensor> out;
  for (const auto& t : json) {
    HeldTensor held{t.at(0).get<std::string>(), {}, {}};
    held.local.dtype = dtype_from_name(t.at(1).get<std::string>());
    for (const auto& n : t.at(2)) held.local.shape.push_back(n.get<std::int64_t>());
    held.shard = shard_from(t.at(3), held.name);
    out.push_back(std::move(held));
  }
  return out;
}

std::vector<WholeTensor> whole_tensors(const std::vector<std::vector<HeldTensor>>& by_rank) {
  std::vector<WholeTensor> out;
  std::unordered_map<std::string, std::size_t> index;
  for (std::size_t r = 0; r < by_rank.size(); ++r)
    for (const auto& held : by_rank[r]) {
      const Spec whole = whole_spec(held.local, held.shard, held.name);
      const auto [it, fresh] = index.emplace(held.name, out.size());
      if (fresh) out.push_back({held.name, whole, {}});
      WholeTensor& t = out[it->second];
      require(t.spec == whole, "io", "tensor {}: rank {} holds a part of {}, a rank before it of {}", shown(held.name),
              r, to_string(whole), to_string(t.spec));
      const auto shard = plain(held.shard);
      if (!shard) continue;
      const auto same =
          std::find_if(t.slices.begin(), t.slices.end(), [&](const Slice& s) { return s.shard == *shard; });
      require(same == t.slices.end() || same->holders.back() != static_cast<int>(r), "io", "tensor {} is given twice",
              shown(held.name));
      if (same == t.slices.end()) t.slices.push_back({*shard, {static_cast<int>(r)}});
      else same->holders.push_back(static_cast<int>(r));
    }
  for (const auto& t : out) check_cover(t);
  return out;
}

void spread_tensors(std::vector<WholeTensor>& tensors, int ranks) {
  std::vector<std::int64_t> written(static_cast<std::size_t>(ranks)), sent(static_cast<std::size_t>(ranks));
  for (auto& t : tensors) {
    std::vector<int> holders;
    for (const auto& s : t.slices) holders.insert(holders.end(), s.holders.begin(), s.holders.end());
    std::sort(holders.begin(), holders.end());
    t.writer = least(written, holders);
    written[static_cast<std::size_t>(t.writer)] += t.spec.bytes();
    for (auto& s : t.slices) {
      s.from = holds(s, t.writer) ? t.writer : least(sent, s.holders);
      if (s.from != t.writer) sent[static_cast<std::size_t>(s.from)] += local_spec(t.spec, s.shard).bytes();
    }
  }
}

void spread_slices(std::vector<WholeTensor>& tensors, int ranks) {
  std::vector<std::int64_t> written(static_cast<std::size_t>(ranks));
  for (auto& t : tensors)
    for (auto& s : t.slices) {
      s.from = least(written, s.holders);
      written[static_cast<std::size_t>(s.from)] += local_spec(t.spec, s.shard).bytes();
    }
}

std::vector<ModelFile> model_files(const std::vector<WholeTensor>& tensors, int ranks, std::int64_t max_bytes) {
  std::vector<ModelFile> files;
  for (int r = 0; r < ranks; ++r) {
    std::int64_t bytes = 0;
    bool open = false;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].writer != r) continue;
      if (!open || bytes + tensors[i].spec.bytes() > max_bytes) {
        files.push_back({r, "", {}});
        bytes = 0;
        open = true;
      }
      files.back().tensors.push_back(i);
      bytes += tensors[i].spec.bytes();
    }
  }
  if (files.empty()) files.push_back({});
  for (std::size_t i = 0; i < files.size(); ++i)
    files[i].name =
        files.size() == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
  return files;
}

}  // namespace hpcdl::io
