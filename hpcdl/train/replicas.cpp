#include "hpcdl/train/replicas.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/copy_elements.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/io/group_ranks.h"
#include "hpcdl/parallel/agreement.h"

namespace hpcdl::train {
namespace {

struct HeldTensor {
  std::string part;  // its name and, if it is only a part, which part
  bool whole = true;
  View data = {};         // unless `sum` is set
  std::uint32_t sum = 0;  // the checksum
};

/// Checksum of the elements in their order, for any strides.
std::uint32_t checksum_of(const View& x) {
  const OwnedTensor dense = x.is_contiguous() ? OwnedTensor() : OwnedTensor(x.spec());
  if (!x.is_contiguous()) copy_elements(dense.tensor, x);
  const auto* begin = (x.is_contiguous() ? x : dense.tensor).ptr<std::byte>();
  return io::crc32c({begin, static_cast<std::size_t>(x.bytes())});
}

/// Without the checksums of what stays.
std::vector<HeldTensor> held(const io::CheckpointContent& content, const io::Stays& stays = nullptr) {
  std::vector<HeldTensor> list;
  for (const auto* tensors : {&content.model, &content.optimizer})
    for (const auto& t : *tensors) {
      if (t.tensor.size() == 0) continue;
      auto text = (tensors == &content.model ? "weight " : "optimizer state ") + t.name;
      for (const Box& box : t.part.boxes) text += ", " + to_string(box, t.part.whole);
      if (stays && stays(t)) list.push_back({text, t.part.all(), t.tensor});
      else list.push_back({text, t.part.all(), {}, checksum_of(t.tensor)});
    }
  return list;
}

std::string text_of(const std::vector<HeldTensor>& tensors) {
  std::string text;
  for (const auto& t : tensors) text += fmt::format("{:08x} {}\n", t.data.spec() ? checksum_of(t.data) : t.sum, t.part);
  return text;
}

std::uint32_t digest(const std::vector<HeldTensor>& tensors, bool whole_ones_alone) {
  std::uint32_t sum = 0;
  for (const auto& t : tensors)
    if (t.whole || !whole_ones_alone) sum = io::crc32c(fmt::format("{} {:08x}\n", t.part, t.sum), sum);
  return sum;
}

/// Whether ranks with the same layers and the same position in their tensor-parallel groups hold the same parts, and all
/// ranks with the same layers the same whole tensors: the usual case, known from a few bytes.
bool all_alike(const std::vector<std::string>& digests) {
  std::map<std::string, std::string> parts;
  for (const auto& d : digests) {
    std::istringstream in(d);
    std::string layers, place, all, whole;
    in >> layers >> place >> all >> whole;
    if (parts.try_emplace("place " + layers + " " + place, all).first->second != all) return false;
    if (parts.try_emplace("whole " + layers, whole).first->second != whole) return false;
  }
  return true;
}

/// "weight a is one thing on rank 0 and another on ranks 1 and 2"; empty if all holders of each part have the same.
/// texts: text_of() the ranks.
std::string first_difference(std::span<const std::string> texts) {
  std::vector<std::string> order;
  std::map<std::string, std::map<std::string, std::vector<int>>> holders;  // ranks by part and checksum
  int rank = 0;
  for (const auto& said : texts) {
    std::istringstream in(said);
    for (std::string sum, part; in >> sum && std::getline(in.ignore(), part);) {
      if (!holders.contains(part)) order.push_back(part);
      holders[part][sum].push_back(rank);
    }
    ++rank;
  }
  for (const auto& part : order) {
    const auto& by_sum = holders[part];
    if (by_sum.size() < 2) continue;
    std::string who;
    for (const auto& [sum, which] : by_sum)
      who += fmt::format("{}with checksum {} on {}", who.empty() ? "" : " and ", sum, parallel::name_ranks(which));
    return fmt::format("{} is {}", part, who);
  }
  return "";
}

void refuse(const std::string& difference, std::string_view outcome) {
  if (!difference.empty())
    fail("train",
         "the ranks no longer hold the same model: {}; {}. A processor, its memory or a link is faulty: run memory and "
         "link tests on these hosts",
         difference, outcome);
}

}  // namespace

void expect_equal_replicas(const parallel::Mesh& mesh, const io::CheckpointContent& content, std::string_view outcome) {
  if (mesh.world().size() == 1) return;
  io::GroupRanks ranks(mesh.world());
  const auto mine = held(content);
  const auto digests =
      ranks.gather(fmt::format("{} {} {:08x} {:08x}", mesh.index(parallel::MeshAxis::pp),
                               mesh.index(parallel::MeshAxis::tp), digest(mine, false), digest(mine, true)));
  if (all_alike(digests)) return;
  // Of ranks that divide the state, many hold parts of their own.
  refuse(first_difference(ranks.gather(text_of(mine))), outcome);
}

void check_replicas_later(const parallel::Mesh& mesh, io::CheckpointContent& content, const io::Stays& stays,
                          std::string outcome) {
  if (mesh.world().size() == 1) return;
  content.facts = [mine = held(content, stays)] { return text_of(mine); };
  content.accept = [outcome = std::move(outcome)](std::span<const std::string> texts) {
    refuse(first_difference(texts), outcome);
  };
}

}  // namespace hpcdl::train
