#include "hpcdl/io/shard_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "hpcdl/core/describe.h"
#include "hpcdl/io/number_within.h"

namespace hpcdl::io {
namespace {

/// Throws unless the slices cover the whole tensor once.
void check_cover(const WholeTensor& t) {
  std::vector<Box> boxes;
  for (const auto& s : t.slices) boxes.insert(boxes.end(), s.boxes.begin(), s.boxes.end());
  if (const auto flaw = find_flaw(t.spec.shape, boxes))
    fail("io", "tensor {}: {} are held by {}", shown(t.name), elements(*flaw, t.spec.shape),
         flaw->times == 0 ? "no rank" : "several ranks that do not hold the same part");
}

int least(const std::vector<std::int64_t>& load, const std::vector<int>& among) {
  return *std::min_element(among.begin(), among.end(), [&](int a, int b) {
    return load[static_cast<std::size_t>(a)] < load[static_cast<std::size_t>(b)];
  });
}

/// Whether a number in a file is an integer from 0 to `high`. An unsigned number may exceed the type.
bool is_count(const Json& n, std::int64_t high) {
  return n.is_number_unsigned() && n.get<std::uint64_t>() <= static_cast<std::uint64_t>(high);
}

void expect_array(const Json* json, const JsonObject& o, const char* key) {
  require(json && json->is_array(), "io", "{}: key \"{}\": expected an array, found {}", o.where(), key,
          json ? json_kind(*json) : "none");
}

Shape shape_from(const Json& json, const JsonObject& o, const char* key) {
  expect_array(&json, o, key);
  const bool counts = std::all_of(json.begin(), json.end(), [](const Json& n) { return is_count(n, kMaxCount); });
  require(counts && json.size() <= Shape::kMaxRank, "io",
          "{}: key \"{}\": expected at most {} whole numbers from 0 to {}, found {}", o.where(), key, Shape::kMaxRank,
          kMaxCount, shown(json.dump()));
  Shape shape;
  for (const auto& n : json) shape.push_back(n.get<std::int64_t>());
  return shape;
}

/// Consecutive pieces of one dim, as in format 2.
Part pieces_from(const JsonObject& o, const Shape& local) {
  const auto dim = static_cast<int>(need_within(o, "dim", 0, Shape::kMaxRank - 1));
  Shape whole = local;
  require(dim < local.rank(), "io", "{}: key \"dim\": expected a dim of the tensor {}, found {}", o.where(),
          to_string(local), dim);
  whole[dim] = need_within(o, "whole", 0, kMaxCount);
  const Json* pieces = o.find("pieces");
  expect_array(pieces, o, "pieces");
  std::vector<Interval> intervals;
  for (const auto& p : *pieces) {
    const bool inside = p.is_array() && p.size() == 2 && is_count(p[0], whole[dim]) &&
                        is_count(p[1], whole[dim] - p[0].get<std::int64_t>());
    require(inside, "io",
            "{}: key \"pieces\": expected [begin, length] within the {} elements of key \"whole\", found {}", o.where(),
            whole[dim], shown(p.dump()));
    const auto begin = p[0].get<std::int64_t>();
    intervals.push_back({begin, begin + p[1].get<std::int64_t>()});
  }
  return Part::along(whole, dim, intervals);
}

bool holds(const Slice& s, int rank) { return std::find(s.holders.begin(), s.holders.end(), rank) != s.holders.end(); }

}  // namespace

std::string elements(const Flaw& flaw, const Shape& whole) {
  const auto part = to_string(flaw.region, whole);
  return part.empty() ? "all elements" : "elements " + part;
}

Json to_json(const Part& part) {
  if (part.all()) return Json::object();
  const auto list = [](const Shape& s) { return std::vector<std::int64_t>(s.begin(), s.end()); };
  Json boxes = Json::array();
  for (const Box& b : part.boxes) boxes.push_back({list(b.begin), list(b.extent), b.at});
  return {{"whole", list(part.whole)}, {"strides", list(part.strides)}, {"boxes", boxes}};
}

Part part_from(const Json& json, const Shape& local, const std::string& where) {
  const JsonObject o(json, where);
  if (o.find("dim")) return pieces_from(o, local);
  const Json* boxes = o.find("boxes");
  if (!boxes && !o.find("whole")) return {};
  const auto known = [](const Json* j) { return j ? *j : Json(); };
  Part part{
      shape_from(known(o.find("whole")), o, "whole"), local, shape_from(known(o.find("strides")), o, "strides"), {}};
  expect_array(boxes, o, "boxes");
  for (const auto& b : *boxes) {
    require(b.is_array() && b.size() == 3 && is_count(b[2], kMaxCount), "io",
            "{}: key \"boxes\": expected boxes [begin, extent, at], found {}", where, shown(b.dump()));
    part.boxes.push_back({shape_from(b[0], o, "boxes"), shape_from(b[1], o, "boxes"), b[2].get<std::int64_t>()});
  }
  return part;
}

Json to_json(const std::vector<HeldTensor>& held) {
  Json out = Json::array();
  for (const auto& t : held)
    out.push_back({t.name, dtype_name(t.local.dtype),
                   std::vector<std::int64_t>(t.local.shape.begin(), t.local.shape.end()), to_json(t.part)});
  return out;
}

std::vector<HeldTensor> held_from(const Json& json) {
  std::vector<HeldTensor> out;
  for (const auto& t : json) {
    HeldTensor held{t.at(0).get<std::string>(), {}, {}};
    held.local.dtype = dtype_from_name(t.at(1).get<std::string>());
    for (const auto& n : t.at(2)) held.local.shape.push_back(n.get<std::int64_t>());
    held.part = part_from(t.at(3), held.local.shape, held.name);
    out.push_back(std::move(held));
  }
  return out;
}

std::vector<WholeTensor> whole_tensors(const std::vector<std::vector<HeldTensor>>& by_rank) {
  std::vector<WholeTensor> out;
  std::unordered_map<std::string, std::size_t> index;
  for (std::size_t r = 0; r < by_rank.size(); ++r)
    for (const auto& held : by_rank[r]) {
      const Spec whole = whole_spec(held.local, held.part, shown(held.name));
      const auto [it, fresh] = index.emplace(held.name, out.size());
      if (fresh) out.push_back({held.name, whole, {}});
      WholeTensor& t = out[it->second];
      require(t.spec == whole, "io",
              "tensor {}: rank {} holds a part of a tensor {}, but a lower rank holds a part of {}", shown(held.name),
              r, to_string(whole), to_string(t.spec));
      const auto boxes = boxes_of(whole.shape, held.part);
      if (boxes.empty() && whole.shape.size() > 0) continue;
      const auto same = std::find_if(t.slices.begin(), t.slices.end(), [&](const Slice& s) {
        return std::ranges::equal(
            s.boxes, boxes, [](const Box& a, const Box& b) { return a.begin == b.begin && a.extent == b.extent; });
      });
      require(same == t.slices.end() || same->holders.back() != static_cast<int>(r), "io", "tensor {} is given twice",
              shown(held.name));
      if (same == t.slices.end()) t.slices.push_back({boxes, held.part, held.local, {static_cast<int>(r)}});
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
      if (s.from != t.writer) sent[static_cast<std::size_t>(s.from)] += s.local.bytes();
    }
  }
}

void spread_slices(std::vector<WholeTensor>& tensors, int ranks) {
  std::vector<std::int64_t> written(static_cast<std::size_t>(ranks));
  for (auto& t : tensors)
    for (auto& s : t.slices) {
      s.from = least(written, s.holders);
      written[static_cast<std::size_t>(s.from)] += s.local.bytes();
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
